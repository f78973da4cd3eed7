"""Counts of contexts: writers who did not see each other's turns are read as well as those who did."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

import iet
from iet import kernels
from iet.audit import claims as claims_module
from iet.audit import counting
from iet.audit.attribution import decode_texts
from iet.marks.registry import Registry
from iet.native.texts import Texts
from tests.support.teams import WORD_TOKENIZER, team

V, IDS, WORDS = 64, 10, 2  # of the vocabulary, those that texts hold, of a context
NAMES = ["planner", "critic", "writer"]
TURNS = [0, 1, 2, 1, 0, 2, 1, 2]


def registry_of(tokenizer: Any = None) -> Registry:
    source = {"vocab_size": V} if tokenizer is None else {"tokenizer": tokenizer}
    return team(NAMES, family="gumbel", n_gram=WORDS + 1, **source)


def written(registry: Registry, sees: str, tokens: int = 150, seed: int = 1) -> tuple[Any, Any]:
    """Return ids that agents draw in turns from equal ones, and the agents.

    `sees`: what a writer's sequence holds before the turn: "log", "apart" (two ids), "own" or "previous".
    """
    size = registry.profile.vocab_size
    rng, turns, table = np.random.default_rng(seed), list[list[int]](), registry.marking_keys()
    for agent in TURNS:
        before = {
            "log": turns,
            "apart": [],
            "own": [turn for turn, by in zip(turns, TURNS, strict=False) if by == agent],
            "previous": turns[-1:],
        }[sees]
        sequence = [*rng.integers(1, IDS + 1, WORDS).tolist(), *(id for turn in before for id in turn)]
        counts = collections.Counter(tuple(sequence[t - WORDS : t]) for t in range(WORDS, len(sequence)))
        start = len(sequence)
        for _ in range(tokens):
            context = tuple(sequence[-WORDS:])
            logits = np.full((1, size), -np.inf, np.float32)
            logits[0, 1 : IDS + 1] = rng.normal(0, 0.5, IDS)
            kernels.embed_(logits, [context], [agent], table, counts=[counts[context]])
            counts[context] += 1
            sequence.append(int(logits.argmax()))
        turns.append(sequence[start:])
    return np.concatenate(turns), np.repeat(TURNS, tokens)


@pytest.mark.parametrize(("sees", "least"), [("log", 0.9), ("apart", 0.9), ("own", 0.85), ("previous", 0.85)])
def test_segments_are_found_whatever_writers_saw(sees: str, least: float) -> None:
    registry = registry_of()
    ids, agents = written(registry, sees)
    forced = iet.Auditor(registry, allow_unattributed=False).audit(token_ids=ids)
    assert (forced.token_agents == agents).mean() > least


def test_counts_in_the_whole_text_alone_lose_writers_who_saw_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = registry_of()
    ids, agents = written(registry, "apart")
    inferred = iet.Auditor(registry).audit(token_ids=ids)
    monkeypatch.setattr(counting.Counts, "of", lambda batch, keys: None)
    whole = iet.Auditor(registry).audit(token_ids=ids)
    assert whole.evidence["planner"] > inferred.evidence["planner"] + 20
    assert (whole.token_agents == agents).mean() < (inferred.token_agents == agents).mean() - 0.2


def test_texts_that_were_written_with_the_whole_log_are_read_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = registry_of()
    ids, _ = written(registry, "log")
    inferred = iet.Auditor(registry).audit(token_ids=ids).token_agents
    monkeypatch.setattr(counting.Counts, "of", lambda batch, keys: None)
    assert np.array_equal(iet.Auditor(registry).audit(token_ids=ids).token_agents, inferred)


def test_one_text_is_read_as_in_a_batch() -> None:
    registry = registry_of()
    texts = [written(registry, sees, seed=i)[0] for i, sees in enumerate(["apart", "log", "own"])]
    texts.insert(1, np.arange(40) % V)  # no context is repeated
    plan = iet.Auditor(registry).plan
    encodings = [plan.encoding_of_ids(ids) for ids in texts]
    together = decode_texts(plan, encodings, None, None)
    for d, encoding in enumerate(encodings):
        alone = decode_texts(plan, [encoding], None, None)
        inside = together.alignment.batches[0].inside(d)
        assert np.array_equal(together.decoded.labels[inside], alone.decoded.labels)
        assert np.array_equal(together.matrices[0].log_p[d], alone.matrices[0].log_p[0])


def test_the_counts_of_each_hypothesis() -> None:
    rng = np.random.default_rng(3)
    contexts, segments = rng.integers(0, 5, 200), np.sort(rng.integers(1, 13, 200))
    owners, counted = rng.integers(0, 3, 13)[segments], rng.random(200) < 0.8
    order = np.argsort(contexts, kind="stable")
    contexts, segments, owners, positions = contexts[order], segments[order], owners[order], order
    new_context = counting._changes(contexts)
    new_segment = new_context | counting._changes(segments)
    turn = counting._earlier(new_segment, counted)
    previous = counting._previous(new_context, new_segment, segments, counted)
    own = counting._own(new_context, turn, owners == 1, counted)
    for t in range(200):
        same = counted & (contexts == contexts[t])
        before = same & (positions < positions[t])
        here = before & (segments == segments[t])
        assert turn[t] == here.sum()
        assert previous[t] == (same & (segments == segments[t] - 1)).sum()
        assert own[t] == (before & (owners == 1) | here).sum()


def test_given_parts_and_paragraphs_are_hypotheses() -> None:
    registry = registry_of()
    ids, agents = written(registry, "apart")
    tokens = len(ids) // len(TURNS)
    boundaries = np.arange(tokens, len(ids), tokens)
    known = iet.Auditor(registry).audit(token_ids=ids, boundaries=boundaries)
    unknown = iet.Auditor(registry).audit(token_ids=ids)
    assert known.evidence["critic"] < unknown.evidence["critic"]
    assert (known.token_agents == agents).all()


@pytest.mark.parametrize("source", ["loops", "few words"])
def test_p_values_of_unused_keys_are_valid(source: str) -> None:
    rng = np.random.default_rng(5)
    ids = np.tile(rng.integers(0, V, 90), 12) if source == "loops" else rng.integers(0, IDS, 1000)
    lowest = []
    for number in range(150):
        registry = Registry.create(None, vocab_size=V, scheme=iet.Scheme(family="gumbel", n_gram=3))
        for name in map(str, range(40)):
            registry.add(name, secret=rng.bytes(32))
        plan = iet.Auditor(registry).plan
        matrix = decode_texts(plan, [plan.encoding_of_ids(ids)], None, None).matrices[0]
        assert len(matrix.hypotheses) == 1, number
        lowest.append(matrix.log_p[0])
    p = np.exp(np.concatenate(lowest))
    for level in (0.1, 0.01, 0.001):
        expected = level * p.size
        assert (p <= level).sum() <= expected + 4 * np.sqrt(expected) + 1


def test_seeds_that_occurred_before_are_no_new_evidence() -> None:
    registry = registry_of()
    passage = written(registry, "apart")[0][:150]
    ids = np.tile(passage, 6)  # counts of windows restart at each
    keys = registry.scoring_keys()
    plan = iet.Auditor(registry).plan
    batch = decode_texts(plan, [plan.encoding_of_ids(ids)], None, None).alignment.batches[0]
    (windows,) = counting.Counts.of(batch, keys).hypotheses()  # type: ignore[union-attr]
    scores = keys.scores(Texts.single(ids), 1, windows.times)
    counted = batch.scored & ~windows.repeated
    seeds = {(*ids[t - WORDS : t + 1].tolist(), int(windows.times[t])) for t in np.flatnonzero(batch.scored)}
    assert counted.sum() == len(seeds)
    assert len(np.unique(scores[counted], axis=0)) == len(seeds)


@pytest.mark.parametrize("sees", ["log", "apart"])
def test_claims_are_checked_whatever_writers_saw(sees: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = registry_of(WORD_TOKENIZER)
    ids, _ = written(registry, sees, tokens=100)
    tokens = len(ids) // len(TURNS)
    pieces = [" ".join(f"w{i}" for i in ids[t : t + tokens]) for t in range(0, len(ids), tokens)]
    claims = [NAMES[agent] for agent in TURNS]
    report = iet.Auditor(registry).check(pieces, claims)
    assert [piece.verdict for piece in report.pieces].count("confirmed") >= len(TURNS) - 1
    monkeypatch.setattr(claims_module, "counts_in_all", lambda reading, keys, fresh: (None,) * len(pieces))
    alone = iet.Auditor(registry).check(pieces, claims)
    log_p = [sum(piece.log_p for piece in checked.pieces) for checked in (report, alone)]
    assert log_p[0] < log_p[1] - 50 if sees == "log" else log_p[0] <= log_p[1] + len(pieces) * np.log(2)
