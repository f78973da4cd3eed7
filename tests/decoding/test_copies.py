"""Repeated passages are no new evidence, and keep their own label."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from iet.decoding import decode
from tests.support.scores import synthetic

PASSAGE = 300


def turns_and_passage(seed: int, strength: float = 0.8, agents: int = 4):
    """Scores and truth of turns, and the scores of an unmarked passage."""
    rng = np.random.default_rng(seed)
    scores, truth = synthetic(rng, 6, agents, strength, length=(150, 200))
    return scores, truth, np.cos(2 * np.pi * rng.random((PASSAGE, agents))).astype(np.float32)


def assembled(parts):
    """Scores, truth and pairs of parts (number, scores, truth): equal numbers are one passage."""
    bases, size = {}, 0
    for number, scores, _ in parts:
        if number not in bases:
            bases[number] = size
            size += len(scores)
    pairs = np.concatenate([bases[number] + np.arange(len(scores)) for number, scores, _ in parts])
    return np.concatenate([s for _, s, _ in parts]), np.concatenate([t for _, _, t in parts]), pairs


def behind(seed: int, copies: int):
    scores, truth, passage = turns_and_passage(seed)
    return assembled([(0, scores, truth), *[(1, passage, np.full(PASSAGE, -1))] * copies])


@pytest.mark.parametrize("allow", [True, False])
@pytest.mark.parametrize("family", ["fourier", None])
def test_more_copies_are_no_more_evidence(allow, family):
    few, many = (
        decode(
            scores,
            pairs=pairs,
            allow_unattributed=allow,
            **({} if family else {"log_ratios": np.float32(0.6) * scores - np.float32(0.1)}),
        )
        for scores, _, pairs in (behind(3, 2), behind(3, 9))
    )
    assert few.posterior is not None
    assert many.posterior is not None
    cut = len(few.token_agents)
    np.testing.assert_array_equal(few.posterior, many.posterior[:cut])
    np.testing.assert_array_equal(few.token_agents, many.token_agents[:cut])
    if family:
        np.testing.assert_array_equal(few.strengths, many.strengths)
    copies = many.posterior[cut - PASSAGE :].reshape(8, PASSAGE, -1)
    np.testing.assert_array_equal(copies, np.broadcast_to(copies[0], copies.shape))


def test_neighbours_do_not_absorb_unmarked_text():
    # Each passage lies between turns of two different agents.
    right, wrong, counted = list[float](), 0, 0
    for seed in range(20):
        scores, truth, passage = turns_and_passage(seed)
        edges = [0, *(np.flatnonzero(np.diff(truth)) + 1).tolist(), len(truth)]
        parts = []
        for i, (low, high) in enumerate(itertools.pairwise(edges)):
            parts += [(i, scores[low:high], truth[low:high]), (-1, passage, np.full(PASSAGE, -1))]
        text, real, pairs = assembled(parts)
        is_marked = real >= 0
        decoded = decode(text, pairs=pairs, allow_unattributed=True)
        every = decode(text, pairs=pairs, allow_unattributed=True, repeats="count")
        right.append(float((decoded.token_agents[is_marked] == real[is_marked]).mean()))
        wrong += int((decoded.token_agents[~is_marked] >= 0).sum())
        counted += int((every.token_agents[~is_marked] >= 0).sum())
    assert np.mean(right) > 0.96  # one text in a hundred is below 0.9
    assert wrong < 0.6 * counted


def test_a_quoted_turn_keeps_its_agent():
    scores, truth, _ = turns_and_passage(5, strength=1.5)
    first, second = int(truth[0]), int(np.argmax(truth != truth[0]))
    quoted = scores[:second]
    middle = (1, scores[second:], truth[second:])
    quotation = (0, quoted, np.full(second, first))
    text, real, pairs = assembled(
        [quotation, middle, quotation, (2, scores[::-1][:200], truth[::-1][:200]), quotation]
    )
    decoded = decode(text, pairs=pairs, allow_unattributed=True)
    assert (decoded.token_agents == real).mean() > 0.95
    assert (decoded.token_agents[-second:] == first).all()


def test_text_between_copies_is_attributed_with_them():
    # A template with blanks of three tokens, too short for a turn.
    scores, truth, passage = turns_and_passage(8)
    blanks = [(2 + i, scores[i * 3 : i * 3 + 3], np.full(3, -1)) for i in range(6)]
    parts = [(0, scores, truth), (1, passage, np.full(PASSAGE, -1))]
    for blank in blanks:
        parts += [blank, parts[1]]
    text, _, pairs = assembled(parts)
    decoded = decode(text, pairs=pairs, allow_unattributed=True)
    assert (decoded.token_agents[-5 * (PASSAGE + 3) :] == -1).all()


def test_texts_without_copies_equal_texts_of_distinct_pairs():
    scores, _, _ = turns_and_passage(9)
    pairs = np.arange(len(scores))
    shared = decode(scores, pairs=pairs, allow_unattributed=True)
    every = decode(scores, pairs=pairs, allow_unattributed=True, repeats="count")
    np.testing.assert_array_equal(shared.posterior, every.posterior)


def test_chance_evidence_of_a_passage_is_not_multiplied():
    # Of 30 passages the one that an agent's key favours most, ten times after the agents' text.
    named = {"share": 0, "count": 0}
    for seed in range(12):
        rng = np.random.default_rng(seed)
        scores, truth = synthetic(rng, 6, 4, 0.4, length=(300, 400))
        drawn = np.cos(2 * np.pi * rng.random((30, PASSAGE, 4))).astype(np.float32)
        passage = drawn[drawn.sum(axis=1).max(axis=1).argmax()]
        copies = [(1, passage, np.full(PASSAGE, -1))] * 10
        text, real, pairs = assembled([(0, scores, truth), *copies])
        for repeats in named:
            decoded = decode(text, pairs=pairs, allow_unattributed=True, repeats=repeats)
            sure = decoded.posterior.max(axis=1) > 0.99
            named[repeats] += int((sure & (real < 0)).sum())
    assert 3 * named["share"] < named["count"]
