"""Evidence without published pairs: no framing, exact p-values, and honest text is still attributed."""

from __future__ import annotations

import functools
import pathlib
import pickle
import re
from typing import Any

import numpy as np
import pytest

import iet
from iet.errors import InputError, RegistryError
from iet.marks.published import PublishedIndex
from iet.marks.registry import Registry
from iet.report.terminal import marked_text
from tests.support.reports import assert_fits_the_schema
from tests.support.teams import WORD_TOKENIZER, WORDS, secret, team, word_tokenizer
from tests.support.texts import DECODERS, reader, spell, write, write_flat

FAMILIES: dict[str, dict[str, Any]] = {
    "fourier": {"kappa": 2.0, "n_gram": 2},
    "gumbel": {"family": "gumbel", "n_gram": 3},
}
SOME = range(1, 60)  # few words, so that texts share contexts


def drawn(seed: int, tokens: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, WORDS, tokens).tolist()


def published(path: pathlib.Path, registry: Registry, texts: list[list[int]]) -> PublishedIndex:
    index = PublishedIndex(path / "out.idx", registry, create=True)
    index.add("planner", token_ids=texts)
    return index


def recombined(texts: list[list[int]], n_gram: int, tokens: int, seed: int) -> list[int]:
    """Compose new text from published pairs, and use each pair at most once if possible."""
    draw, following = np.random.default_rng(seed), dict[tuple[int, ...], list[int]]()
    for text in texts:
        for t in range(n_gram - 1, len(text)):
            following.setdefault(tuple(text[t - n_gram + 1 : t]), []).append(text[t])
    contexts = list(following)
    ids = list(contexts[0])
    while len(ids) < tokens:
        candidates = following.get(tuple(ids[1 - n_gram :]))
        ids += (
            [candidates.pop(int(draw.integers(len(candidates))))]
            if candidates
            else contexts[draw.integers(len(contexts))]
        )
    return ids


@functools.cache  # the keys of a team are the same at every call
def written(family: str) -> list[list[int]]:
    """Texts of the planner, the material of a forgery."""
    registry = team(tokenizer=WORD_TOKENIZER, **FAMILIES[family])
    return [write(registry, [("planner", 250)], seed, ids=SOME) for seed in range(40)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("decoder", DECODERS)
def test_forgery_is_attributed_only_without_the_index(
    family: str, decoder: str, tmp_path: pathlib.Path
) -> None:
    registry = team(tokenizer=WORD_TOKENIZER, **FAMILIES[family])
    texts = written(family)
    n_gram = registry.profile.scheme.n_gram
    forged = recombined(texts, n_gram, 300, 0)
    index = published(tmp_path, registry, texts)
    framed = iet.Auditor(registry, decoder).audit(token_ids=forged)
    report = iet.Auditor(registry, decoder, published=index).audit(token_ids=forged)
    assert framed.found == ("planner",)
    assert "planner" in {segment.agent for segment in framed.segments}
    assert report.found == ()
    assert {segment.agent for segment in report.segments} <= {None}
    assert report.published is not None
    assert report.published + report.scored == framed.scored
    assert report.published > 0.7 * framed.scored
    # New text of the agent is found with the index, too.
    later = write(registry, [("planner", 300)], 99)
    assert iet.Auditor(registry, decoder, published=index).audit(token_ids=later).found == ("planner",)


@pytest.mark.parametrize("family", FAMILIES)
def test_p_values_are_valid_for_unrelated_text_and_forgeries(family: str, tmp_path: pathlib.Path) -> None:
    unrelated, forged = list[float](), list[float]()
    unmarked = write(team(), [(None, 400)], 5, ids=SOME)
    # All planners write together, four texts each: one registry has the keys that a hundred will have.
    planners = [f"planner {number}" for number in range(100)]
    writing = team(planners, numbered=0, tokenizer=WORD_TOKENIZER, **FAMILIES[family])
    written = write_flat(writing, np.repeat(planners, 4).tolist(), 200, [*range(4)] * 100, SOME)
    for number in range(100):
        registry = team(numbered=number, tokenizer=WORD_TOKENIZER, **FAMILIES[family])
        texts = written[4 * number : 4 * number + 4]
        (tmp_path / str(number)).mkdir()
        auditor = iet.Auditor(registry, "cusum", published=published(tmp_path / str(number), registry, texts))
        for p_values, ids in (
            (unrelated, unmarked),
            (forged, recombined(texts, registry.profile.scheme.n_gram, 300, number)),
        ):
            p_values.append(auditor.audit(token_ids=ids).log_p)
    for log_p in (unrelated, forged):
        low = np.sum(np.array(log_p) <= np.log(0.05))
        assert low <= 13  # of 100 at 0.05: more once in a thousand times


def test_a_published_pair_is_recognised_after_any_number_of_repeats(tmp_path: pathlib.Path) -> None:
    registry = team(tokenizer=WORD_TOKENIZER, **FAMILIES["gumbel"])  # seeds hold that number
    index = published(tmp_path, registry, [[5, 6, 7]])
    seen = index.seen([5, 6, 9, 5, 6, 7], registry.scoring_keys())
    assert seen.tolist() == [False] * 5 + [True]


def test_published_text_counts_at_its_first_occurrence_only(tmp_path: pathlib.Path) -> None:
    registry = team()
    text = spell(write(registry, [("planner", 250)], 1))
    index = PublishedIndex(tmp_path / "out.idx", registry, create=True)
    index.add("planner", text, tokenizer=WORD_TOKENIZER)
    auditor = reader(registry, published=index)
    assert auditor.audit(text + "\n").found == ("planner",)
    assert auditor.audit(text).published == 0
    quoted = auditor.audit(spell(drawn(3, 100)) + " " + text)
    assert quoted.found == ()
    assert quoted.published == 250
    conversation = text + " " + spell(write(registry, [("critic", 250)], 2))
    assert auditor.audit(conversation).found == ("critic",)
    complete = reader(registry, published=index.excluding([text])).audit(conversation)
    assert {*complete.found} == {"planner", "critic"}


def test_single_and_batch_audits_agree(tmp_path: pathlib.Path) -> None:
    registry = team()
    texts = [write(registry, [("planner", 200), ("critic", 200)], seed, ids=SOME) for seed in range(6)]
    auditor = reader(registry, published=published(tmp_path, registry, texts[:3]))
    spelled = [spell(ids) for ids in texts[2:]]
    for text, report in zip(spelled, auditor.audit_many(spelled), strict=True):
        alone = auditor.audit(text)
        assert report.to_dict() == alone.to_dict()
    batch = pytest.importorskip("pyarrow").record_batch({"text": spelled})
    reports = auditor.audit_batch(batch)
    assert reports["published"].to_pylist() == [auditor.audit(text).published for text in spelled]
    assert reports["log_p"].to_pylist() == [auditor.audit(text).log_p for text in spelled]


def test_parts_and_pieces_ignore_published_pairs(tmp_path: pathlib.Path) -> None:
    registry = team()
    text = write(registry, [("planner", 300)], 1)
    auditor = reader(registry, published=published(tmp_path, registry, [text]))
    ids = [*drawn(1, 50), *text, *write(registry, [("critic", 300)], 2)]
    for report in (
        auditor.audit(token_ids=ids, skip=[(0, 50)]),
        auditor.audit(token_ids=ids, boundaries=[51, 351]),
    ):
        assert report.found == ("critic",)
        assert report.published == pytest.approx(300, abs=2)
        assert "planner" not in {segment.agent for segment in report.segments}


def test_candidates_ignore_published_pairs(tmp_path: pathlib.Path) -> None:
    registry = team([f"agent {i}" for i in range(80)])
    text = write(registry, [("agent 70", 300)], 1)
    index = PublishedIndex(tmp_path / "out.idx", registry, create=True)
    index.add("agent 70", token_ids=[text])
    ids = [7, *text, *write(registry, [("agent 3", 300)], 2)]
    assert {*iet.Auditor(registry).audit(token_ids=ids).found} == {"agent 3", "agent 70"}
    report = iet.Auditor(registry, published=index).audit(token_ids=ids)
    assert report.found == ("agent 3",)
    assert {segment.agent for segment in report.segments} <= {"agent 3", None}


def test_several_profiles_are_read_each_with_its_own(tmp_path: pathlib.Path) -> None:
    registry = team(["planner"])
    word_profile = registry.add_profile(tokenizer=WORD_TOKENIZER, scheme=iet.Scheme(kappa=2.0, n_gram=3))
    registry.add("critic", profile=word_profile, secret=secret("critic"))
    ids = write(registry_of(registry, "planner"), [("planner", 300)], 1)
    index = PublishedIndex(tmp_path / "out.idx", registry, create=True)
    index.add("planner", token_ids=[ids])
    later = [9, *ids]
    assert iet.Auditor(registry).audit(token_ids=later).found == ("planner",)
    report = iet.Auditor(registry, published=index).audit(token_ids=later)
    assert report.found == ()
    assert report.published == 300


def registry_of(registry: Registry, name: str) -> Registry:
    """The same key in a registry of one profile."""
    alone = team(())
    alone.add(name, secret=registry.keys(name)[0].secret)
    return alone


def test_a_report_states_the_published_share(tmp_path: pathlib.Path) -> None:
    registry = team()
    text = write(registry, [("planner", 250)], 1)
    auditor = reader(registry, published=published(tmp_path, registry, [text]))
    report = auditor.audit(spell([5, *text, *drawn(2, 100)]))
    assert_fits_the_schema(report)
    assert report.to_dict()["published"] == 250
    assert "250 published before" in str(report)
    assert "No registered agent was found in this text; 71% of it was published before" in str(report)
    assert "250 of 351 tokens that carry a score (71%)" in report.to_html()
    assert "so they are no evidence" in report.to_html()
    assert report.segments[0].quoted
    assert (report.segments[0].published or 0) > 0.9
    plain = reader(registry).audit(spell(text))
    assert plain.published is None
    assert plain.segments[0].published is None
    assert "published before" not in str(plain)
    assert "who has read its text" in plain.to_html()
    assert "text of it that is not in the index" in report.to_html()


def test_an_agents_repeated_published_words_are_quoted_in_every_format(tmp_path: pathlib.Path) -> None:
    registry = team()
    old, new = (write(registry, [("planner", 300)], seed) for seed in (1, 2))
    auditor = reader(registry, published=published(tmp_path, registry, [old]))
    report = auditor.audit(spell([*new, *old]))
    assert_fits_the_schema(report)
    assert [segment.called for segment in report.segments] == ["planner", "quoted"]
    complete = auditor.audit(spell([5, *old]))
    assert [segment.called for segment in complete.segments] == ["quoted"]
    assert "] w" in marked_text(complete)
    assert marked_text(complete).startswith("[quoted] ")
    assert "perhaps planner" not in str(complete)
    assert re.search(r"^1 .* quoted ", str(complete), re.MULTILINE)
    assert "No agent is named, because this is quoted: 100% of its words were published" in complete.to_html()
    assert 'title="quoted"' in complete._repr_html_()
    assert complete.to_dict()["segments"][0]["published"] > 0.99
    event = complete.evaluation_events()[0]
    assert event["gen_ai.evaluation.score.label"] == "quoted"
    assert "are quoted: 100%" in event["gen_ai.evaluation.explanation"]
    assert '"iet:quoted": true' in complete.to_prov()
    parts = auditor.audit(token_ids=[*old, *drawn(3, 100)], skip=[(0, 50)])
    assert [segment.called for segment in parts.segments][:2] == ["left out", "quoted"]


def test_paths_pickles_and_configuration(tmp_path: pathlib.Path) -> None:
    word_tokenizer().save(str(tmp_path / "tokenizer.json"))
    registry = team(path=tmp_path / "team.json", tokenizer=str(tmp_path / "tokenizer.json"), kappa=2.0)
    text = write(registry, [("planner", 250)], 1)
    index = published(tmp_path, registry, [text])
    auditor = iet.Auditor(registry, published=tmp_path / "out.idx")
    assert auditor.configuration["published"] == index.digest
    restored = pickle.loads(pickle.dumps(auditor))
    for tested in (auditor, restored, iet.Auditor([registry], published=index)):
        assert tested.audit(token_ids=[3, *text]).found == ()
    index.add("planner", token_ids=[drawn(4, 30)])
    assert auditor.configuration["published"] != index.digest


def test_rejects_an_index_of_another_registry(tmp_path: pathlib.Path) -> None:
    registry = team()
    published(tmp_path, registry, [drawn(1, 20)])
    for index_argument, error, message in (
        (tmp_path, InputError, "no index of published text"),
        (3, InputError, "published: got int, expected iet.PublishedIndex"),
    ):
        with pytest.raises(error, match=message):
            iet.Auditor(registry, published=index_argument)  # type: ignore[arg-type]
    with pytest.raises(RegistryError, match="expected a registry that holds it"):
        iet.Auditor(team(numbered=5), published=tmp_path / "out.idx")
    second_team = team(n_gram=3)
    index = PublishedIndex(tmp_path / "other.idx", second_team, create=True)
    with pytest.raises(InputError, match="published: got an index of the profiles"):
        iet.Auditor(registry, published=index)
