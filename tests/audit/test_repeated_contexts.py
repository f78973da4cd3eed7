"""Repeated contexts in texts of family gumbel: every position is marked and read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import iet
from iet import kernels
from iet.audit.prediction import likely_scores
from iet.audit.records import audit_columns
from iet.marks.registry import Registry
from iet.native import reference
from iet.native.texts import Texts
from tests.support.teams import team

V, IDS, WORDS = 64, 5, 2  # of the vocabulary, those that texts hold, of a context
NAMES = ["planner", "critic", "writer"]


def registry_of() -> Registry:
    return team(NAMES, vocab_size=V, family="gumbel", n_gram=WORDS + 1)


def written(registry: Registry, speakers: list[str | None], tokens: int, seed: int) -> Any:
    """Ids that agents (None: unmarked) draw in turn from five equal ones, each after all earlier ids."""
    rng, ids, scheme = np.random.default_rng(seed), [0, 1], registry.profile.scheme
    for agent in np.repeat(np.array(speakers, dtype=object), tokens):
        logits = np.full((1, V), -np.inf, np.float32)
        logits[0, :IDS] = 0
        count = int(reference.times_before([*ids, 0], scheme.n_gram)[-1])
        if agent is None:
            ids.append(int(rng.integers(IDS)))
            continue
        kernels.embed_(logits, [ids[-WORDS:]], [registry.slot(agent)], registry, counts=[count])
        ids.append(int(logits.argmax()))
    return np.array(ids)


def test_every_occurrence_is_scored_and_counts_once() -> None:
    registry = registry_of()
    ids = written(registry, ["critic"], 300, 1)
    scored, repeated = iet.positions(ids, registry)
    assert scored.sum() == 300
    assert not repeated.any()
    own_scores, *other_scores = iet.score_tokens(ids, registry)[scored][:, [1, 0, 2]].T
    assert own_scores.mean() == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5, abs=0.25)  # 5 equal tokens
    assert max(scores.mean() for scores in other_scores) < 1.25


def test_turns_are_distinguished_if_all_contexts_are_repeats() -> None:
    registry = registry_of()
    ids = written(registry, ["planner", None, "critic", "planner", "writer"], 120, 2)
    report = iet.Auditor(registry).audit(token_ids=ids)
    agents = np.full(len(ids), -1)
    for segment in report.segments:
        if segment.agent is not None:
            agents[segment.start : segment.end] = NAMES.index(segment.agent)
    assert (agents[2:] == np.repeat([0, -1, 1, 0, 2], 120)).mean() > 0.9
    assert report.repeated == 0


def test_copies_of_a_passage_are_no_evidence() -> None:
    registry = registry_of()
    passage = written(registry, ["critic"], 60, 3)[2:]
    report = iet.Auditor(registry).audit(token_ids=np.tile(passage, 12))
    scores = iet.score_tokens(np.tile(passage, 12), registry)[:, 1]
    assert scores[WORDS : len(passage)].mean() > 1.8
    assert abs(scores[len(passage) :].mean() - 1) < 4 / np.sqrt(11 * len(passage))
    assert sum(s.end - s.start for s in report.segments if s.agent is not None) <= 2 * len(passage)
    rng, false_positives = np.random.default_rng(4), 0
    for _ in range(60):  # the null: no agent wrote a passage that the text repeats
        ids = np.tile(rng.integers(0, V, 30), 20)
        false_positives += bool(iet.Auditor(registry, level=0.1).audit(token_ids=ids).found)
    assert false_positives <= 14  # 6 expected


def test_texts_of_a_batch_are_counted_separately() -> None:
    registry = registry_of()
    keys = registry.scoring_keys()
    texts = [written(registry, ["critic", "planner"], tokens, tokens) for tokens in (3, 40, 90)]
    texts = [texts[1], texts[1][:0], *texts, texts[2][:2]]
    joined = Texts.of(texts, WORDS + 1)
    scores, (numbers, repeated) = keys.scores(joined, 0), keys.pairs(joined)
    assert not repeated.any()
    for ids, start, end in zip(texts, joined.starts, joined.ends, strict=True):
        assert np.array_equal(scores[start:end], kernels.score_tokens(ids, registry))
        assert np.array_equal(numbers[start:end], kernels.pair_numbers(ids, registry))
    assert not scores[joined.between].any()
    assert (numbers[joined.between] == -1).all()


@pytest.mark.parametrize("decoder", ["posterior", "cusum"])
def test_single_and_batch_audits_agree_with_known_boundaries(decoder: str) -> None:
    registry = registry_of()
    auditor = iet.Auditor(registry, decoder=decoder)
    texts = [written(registry, ["critic", "planner"], tokens, tokens) for tokens in (40, 120)]
    together = audit_columns(auditor.plan, None, texts)
    alone = [auditor.audit(token_ids=ids) for ids in texts]
    assert together.log_p.tolist() == [report.log_p for report in alone]
    assert together.documents["repeated"].tolist() == [0, 0]
    segments = [segment for report in alone for segment in report.segments]
    for name in ("start", "end", "log_p"):
        assert together.segments[name].tolist() == [getattr(segment, name) for segment in segments]
    pieces = auditor.audit(token_ids=texts[1], boundaries=[122])
    assert [segment.best_guess for segment in pieces.segments] == ["critic", "planner"]
    sums = kernels.score_spans(texts[1], [0, 122, 242], registry)
    every = kernels.score_tokens(texts[1], registry).astype(np.float64)
    np.testing.assert_allclose(sums, [every[:122].sum(axis=0), every[122:].sum(axis=0)], atol=1e-4)


def test_candidate_tokens_score_as_in_the_text() -> None:
    registry = registry_of()
    keys = registry.scoring_keys()
    ids = written(registry, ["critic"], 80, 7)
    here, alternatives = slice(10, 60), (ids[10:60] + 1) % IDS
    expected = np.zeros((50, 2, len(keys)), np.float32)
    expected[:, 0] = keys.scores(Texts.single(ids), 1)[here]
    for row, alternative in enumerate(alternatives):
        text = ids[: 11 + row].copy()
        text[-1] = alternative
        expected[row, 1] = keys.scores(Texts.single(text), 1)[-1]
    tokens = np.column_stack([ids[here], alternatives])
    for rows, scores in likely_scores(ids, keys, None, here, tokens):
        assert np.array_equal(scores, expected[rows])
