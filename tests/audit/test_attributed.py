"""Attribution of single tokens, `Auditor(attributed="tokens")`, in every format of a report."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
from typing import Any

import numpy as np
import pytest

import iet
from iet.audit.attribution import decode_texts
from iet.audit.certainty import chance_factors, scale_odds, temper_posteriors
from iet.errors import InputError
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.report import Report
from tests.support.reports import assert_fits_the_schema, validator
from tests.support.teams import WORD_TOKENIZER, team
from tests.support.texts import IDS, TEAM, TEXT, agents_of, assert_tiles, reader, spell, write

LEVEL = 0.01
WEAK = team(kappa=0.8)
TURNS = (("planner", 150), ("critic", 120), (None, 250), ("writer", 150), ("planner", 40), ("critic", 200))
WEAK_TEXT = spell(write(WEAK, TURNS, seed=4))


@pytest.fixture(scope="module")
def unnamed() -> Report:
    return reader(WEAK, level=0.05).audit(WEAK_TEXT)


@pytest.fixture(scope="module")
def named() -> Report:
    return reader(WEAK, level=0.05, attributed="tokens").audit(WEAK_TEXT)


def factor(text: str) -> float:
    """Factor on the odds of an error."""
    plan = reader(WEAK, level=0.05).plan
    return float(chance_factors(decode_texts(plan, plan.encode([text]), None, [text]).spans, 1)[0])


def test_tokens_are_named_by_their_own_posterior(unnamed: Report, named: Report) -> None:
    assert_tiles(named, WEAK_TEXT)
    assert named.posterior is not None
    np.testing.assert_array_equal(named.posterior, unnamed.posterior)
    open_, runner_up = unnamed.token_agents, np.full(named.tokens, np.nan)
    inside = open_ >= 0
    evidence = np.array([[named.evidence[agent] for agent in named.agents]])
    posterior = temper_posteriors(named.posterior, np.zeros(named.tokens, np.int64), evidence)
    runner_up[inside] = posterior[inside, open_[inside]]
    sure = inside & (scale_odds(1 - np.minimum(np.nan_to_num(runner_up), 1), factor(WEAK_TEXT)) <= 0.05)
    np.testing.assert_array_equal(named.token_agents, np.where(sure, open_, -1))
    assert 0.2 < named.coverage < unnamed.coverage
    assert named.found == unnamed.found
    for segment in named.segments:
        assert segment.error is not None
        assert (segment.agent is not None) == (segment.error <= 0.05 and segment.best_guess in named.found)


def test_transitions_stay_and_cuts_are_no_boundaries(unnamed: Report, named: Report) -> None:
    assert named.transitions.adjacency.tolist() == unnamed.transitions.adjacency.tolist()
    assert named.transitions.agents == unnamed.transitions.agents
    assert named.transitions.observed == unnamed.transitions.observed
    assert named.seam_share == unnamed.seam_share
    cuts = 0
    for left_segment, after in itertools.pairwise(named.segments):
        cut = left_segment.best_guess == after.best_guess and (left_segment.agent is None) != (
            after.agent is None
        )
        if cut and left_segment.end_interval == (left_segment.end, left_segment.end):
            assert after.start_interval == left_segment.end_interval
            cuts += 1
    assert cuts >= 4


def test_every_format_shows_named_and_unnamed_words(named: Report) -> None:
    assert_fits_the_schema(named)
    data = json.loads(named.to_json())
    assert data["decoder"]["options"] == {"attributed": "tokens"}
    for segment, row in zip(named.segments, data["segments"], strict=True):
        assert (row["agent"], row["share"]) == (segment.agent, segment.share)
        assert row["share_interval"] == list(segment.share_interval or ())
        low, high = segment.share_interval or (1, 0)
        assert 0 <= low <= min(1.0, segment.share or 0) <= high + 1e-6 <= 1 + 1e-6
        assert segment.share == segment.posterior
    count = sum(segment.agent is not None for segment in named.segments)
    prov = json.loads(named.to_prov())
    assert len(prov["wasAttributedTo"]) == count
    assert all(
        {"iet:share", "iet:shareLow", "iet:shareHigh"} <= {*e} for e in list(prov["entity"].values())[1:]
    )
    events = named.evaluation_events()
    assert [event.get("gen_ai.agent.id") for event in events] == agents_of(named)
    assert all(event["iet.share_low"] <= event["iet.share_high"] for event in events)
    plain = str(named)
    assert "only those words are named whose own posterior passes level 0.05" in " ".join(plain.split())
    assert "only those words are named whose own posterior" in named.to_html()
    assert "only those words are named" not in str(reader().audit(TEXT))


def test_named_tokens_of_a_batch_equal_single_audits() -> None:
    auditor = reader(WEAK, attributed="tokens")
    texts = [WEAK_TEXT, "", TEXT, spell(write(WEAK, [(None, 300)], seed=9)), WEAK_TEXT[:2000]]
    expected = [auditor.audit(text) for text in texts]
    assert len(expected[0].segments) > len(reader(WEAK).audit(WEAK_TEXT).segments)
    assert [r.to_dict() for r in auditor.audit_many(texts)] == [r.to_dict() for r in expected]
    pa = pytest.importorskip("pyarrow")
    rows = auditor.audit_batch(pa.RecordBatch.from_pydict({"text": texts})).to_pylist()
    for row, report in zip(rows, expected, strict=True):
        assert [s["agent"] for s in row["segments"]] == agents_of(report)
        assert [(s["share_low"], s["share_high"]) for s in row["segments"]] == [
            s.share_interval for s in report.segments
        ]
        assert row["coverage"] == report.coverage


def test_a_piece_between_known_boundaries_stays_whole_with_quotations() -> None:
    first, second = write(TEAM, [("planner", 150)], 1), write(TEAM, [("critic", 120)], 2)
    ids = [*first, *second[:60], *first[40:80], *second[60:]]
    by_token, by_segment = (
        reader(attributed=unit).audit(token_ids=ids, boundaries=[len(first)])
        for unit in ("tokens", "segment")
    )
    assert [s.agent for s in by_segment.segments] == ["planner", "critic"]
    assert [dataclasses.asdict(s) for s in by_token.segments] == [
        dataclasses.asdict(s) for s in by_segment.segments
    ]
    assert agents_of(reader(attributed="tokens").audit(spell(ids), boundaries=[len(spell(first)) + 1])) == [
        "planner",
        "critic",
    ]


def test_parts_and_known_boundaries_go_with_it() -> None:
    middle = len(WEAK_TEXT) // 2
    skipped = reader(WEAK, attributed="tokens").audit(WEAK_TEXT, skip=[(middle, middle + 90)])
    with_gap = reader(WEAK).audit(WEAK_TEXT, skip=[(middle, middle + 90)])
    assert skipped.left_out == with_gap.left_out > 0
    assert skipped.transitions.observed == with_gap.transitions.observed
    assert ((skipped.token_agents == with_gap.token_agents) | (skipped.token_agents == -1)).all()
    pieces = [middle // 2, middle]
    with_boundaries = reader(WEAK).audit(WEAK_TEXT, boundaries=pieces)
    by_token = reader(WEAK, attributed="tokens").audit(WEAK_TEXT, boundaries=pieces)
    assert [s.agent for s in by_token.segments] == [
        s.agent for s in with_boundaries.segments
    ]  # one posterior a piece
    ids = reader(attributed="tokens").audit(token_ids=IDS)
    assert ids.token_agents.tolist() == reader(attributed="tokens").audit(TEXT).token_agents.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attributed": "words"}, "attributed: got 'words', expected 'segment' or 'tokens'"),
        ({"attributed": None}, "attributed: got None, expected 'segment' or 'tokens'"),
        ({"attributed": ["tokens"]}, r"attributed: got \['tokens'\], expected 'segment' or"),
        (
            {"attributed": "tokens", "decoder": "cusum"},
            "got 'tokens' and decoder 'cusum', expected 'posterior'",
        ),
        ({"attributed": "tokens", "decoder": "window"}, "decoder 'window', expected 'posterior'"),
        (
            {"attributed": "tokens", "allow_unattributed": False},
            "allow_unattributed=False, expected 'segment'",
        ),
    ],
)
def test_rejects_invalid_combinations(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        iet.Auditor(TEAM, **options)


def test_copies_and_configuration_hold_the_option(tmp_path: Any) -> None:
    registry = team()
    registry.save(tmp_path / "team.json")
    auditor = reader(Registry.load(tmp_path / "team.json"), attributed="tokens")
    restored = pickle.loads(pickle.dumps(auditor))
    assert restored.configuration == auditor.configuration
    assert auditor.configuration["options"] == {"attributed": "tokens"}
    assert reader(attributed="segment").configuration == reader().configuration
    assert restored.audit(TEXT).to_dict() == auditor.audit(TEXT).to_dict()


def test_decoders_without_a_posterior_have_no_shares() -> None:
    for decoder in ("cusum", "window"):
        report = reader(decoder=decoder).audit(TEXT)
        assert {(s.share, s.share_interval) for s in report.segments} == {(None, None)}
        assert_fits_the_schema(report)
        assert "share" not in str(report.evaluation_events())


def test_an_older_report_fits_the_schema() -> None:
    data = reader().audit(TEXT).to_dict()
    for segment in data["segments"]:
        del segment["share"], segment["share_interval"]
    assert list(validator().iter_errors(json.loads(json.dumps(data)))) == []


def test_agents_of_several_profiles_are_named_by_token() -> None:
    registry = Registry.loads(WEAK.dumps())
    word_profile = registry.add_profile(tokenizer=WORD_TOKENIZER, scheme=Scheme(kappa=1.0))
    registry.add("lawyer", profile=word_profile, secret=bytes(range(32)))
    tokenizers = dict.fromkeys(registry.profiles, WORD_TOKENIZER)
    unnamed = iet.Auditor(registry, level=0.05, tokenizer=tokenizers).audit(WEAK_TEXT)
    named = iet.Auditor(registry, level=0.05, tokenizer=tokenizers, attributed="tokens").audit(WEAK_TEXT)
    assert 0.2 < named.coverage < unnamed.coverage
    assert named.transitions.adjacency.tolist() == unnamed.transitions.adjacency.tolist()
    assert_fits_the_schema(named)
    runs = {position: run.agent for run in unnamed.char_agents for position in range(run.start, run.end)}
    for run in named.char_agents:
        assert run.agent is None or {runs[position] for position in range(run.start, run.end)} == {run.agent}
