"""One text under several registries: some agents marked by a serving engine, the others by iet."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import iet
from iet.errors import InputError
from tests.support.teams import WORD_TOKENIZER, WORDS, team
from tests.support.texts import spell, write

REGISTRY = team(["planner", "critic"])
ENGINE = iet.EngineKeys("vllm-gumbel", {"searcher": 42, "coder": [7, 8]}, tokenizer=WORD_TOKENIZER)


def marked(ids: list[int], tokens: int, column: int) -> list[int]:
    """Append tokens under the key of a column, each the best of forty candidates."""
    draw = np.random.default_rng(column)
    keys = ENGINE.subset(np.array([column]))
    for _ in range(tokens):
        context = draw.integers(1, WORDS, 40)
        scores = [iet.score_tokens([*ids[-4:], int(id)], keys)[-1, 0] for id in context]
        ids = [*ids, int(context[np.argmax(scores)])]
    return ids


IDS = write(REGISTRY, [("planner", 150)])
IDS = marked(IDS, 120, 0)
IDS = [*IDS, *write(REGISTRY, [("critic", 150)], seed=1)]
IDS = marked(IDS, 120, 2)
TURNS = ["planner", "searcher", "critic", "coder"]


def agents(report: iet.Report) -> list[str]:
    return [segment.agent for segment in report.segments if segment.agent is not None]


def test_agents_of_both_registries_are_distinguished() -> None:
    auditor = iet.Auditor([REGISTRY, ENGINE])
    report = auditor.audit(spell(IDS))
    assert auditor.agents == ("planner", "critic", "searcher", "coder")
    assert set(report.found) == set(TURNS)
    assert agents(report) == TURNS
    bounds = [segment.char_start for segment in report.segments]
    true = np.cumsum([0, *(len(spell(part)) + 1 for part in np.split(np.array(IDS), [151, 271, 422]))])[:4]
    assert np.abs(np.array(bounds) - true).max() <= len("w100 ") * 8
    assert report.registry_digest not in (REGISTRY.digest, ENGINE.digest)
    assert agents(iet.Auditor([ENGINE, REGISTRY]).audit(spell(IDS))) == TURNS


def test_each_registry_alone_reads_its_own_agents() -> None:
    assert set(iet.Auditor(REGISTRY).audit(spell(IDS)).found) == {"planner", "critic"}
    assert set(iet.Auditor(ENGINE).audit(spell(IDS)).found) == {"searcher", "coder"}
    restricted = iet.Auditor([REGISTRY, ENGINE], known_agents=["planner", "critic"])
    assert restricted.agents == REGISTRY.names()


def test_ids_are_read_as_the_text_that_they_spell() -> None:
    auditor = iet.Auditor([REGISTRY, ENGINE])
    by_text, by_ids = auditor.audit(spell(IDS)), auditor.audit(token_ids=IDS)
    assert agents(by_ids) == TURNS
    assert by_ids.log_p == by_text.log_p
    starts = [len(spell(IDS[: segment.start])) + 1 for segment in by_ids.segments[1:]]
    assert starts == [segment.char_start for segment in by_text.segments[1:]]
    assert len(by_ids.token_agents) == len(IDS)
    skipped = auditor.audit(token_ids=IDS, skip=[(0, 151)])
    assert agents(skipped) == TURNS[1:]
    assert (skipped.segments[0].left_out, skipped.segments[0].end) == (True, 151)


def test_tables_equal_reports() -> None:
    auditor, texts = iet.Auditor([REGISTRY, ENGINE]), [spell(IDS), "", spell(IDS[200:])]
    rows = auditor.audit_batch(pa.RecordBatch.from_pydict({"text": texts})).to_pylist()
    for row, report in zip(rows, map(auditor.audit, texts), strict=True):
        assert (row["log_p"], row["found"], row["tokens"]) == (
            report.log_p,
            list(report.found),
            report.tokens,
        )
        assert row["coverage"] == pytest.approx(report.coverage)
        assert [segment["agent"] for segment in row["segments"]] == [s.agent for s in report.segments]


def test_rejects_conflicting_arguments() -> None:
    with pytest.raises(InputError, match="the agent 'planner' is in two of them"):
        iet.Auditor([REGISTRY, team(["planner"])])
    with pytest.raises(InputError, match="registry: got none"):
        iet.Auditor([])
    with pytest.raises(InputError, match=r"registry: got str, expected iet\.Registry"):
        iet.Auditor([REGISTRY, "team.json"])  # type: ignore[list-item]
    with pytest.raises(InputError, match="only the decoder 'posterior' reads together"):
        iet.Auditor([REGISTRY, ENGINE], "cusum")
    with pytest.raises(InputError, match="profile: got 'x' and 2 registries"):
        iet.Auditor([REGISTRY, ENGINE], profile="x")
    with pytest.raises(InputError, match="decoys: got 500, expected 0"):
        iet.Auditor([REGISTRY, ENGINE], decoys=500)
    blind = iet.EngineKeys("vllm-gumbel", {"a": 1})
    with pytest.raises(InputError, match="of which profile"):
        iet.Auditor([REGISTRY, blind]).audit(token_ids=IDS)
