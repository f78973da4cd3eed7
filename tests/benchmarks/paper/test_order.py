"""Readers that get the speakers of the turns in order, and the paper's decoder as printed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.paper.baselines.reading import match_segments, ordered_segments
from benchmarks.paper.reading import alignment, printed
from iet.audit.metrics import token_accuracy
from iet.decoding import decode
from iet.decoding.cusum import cusum
from iet.errors import InputError
from iet.marks.families import FAMILIES


def drawn(
    strength: float, speakers: list[int], lengths: list[int], seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of family fourier [T, A], and the agent of every token."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(speakers, lengths)
    scores = np.cos(rng.vonmises(0, 0, (len(truth), max(speakers) + 1)))
    scores[np.arange(len(truth)), truth] = np.cos(rng.vonmises(0, strength, len(truth)))
    return scores.astype(np.float32), truth


def by_enumeration(log_ratio: np.ndarray, speakers: list[int]) -> np.ndarray:
    """The posterior of each turn at each token [T, S], every division into turns by itself."""
    tokens, turns = len(log_ratio), len(speakers)
    weights = np.zeros((tokens, turns))
    for cuts in itertools.combinations(range(1, tokens), turns - 1):
        at = np.searchsorted(cuts, np.arange(tokens), side="right")
        agents = np.array(speakers)[at]
        weights[np.arange(tokens), at] += np.exp(log_ratio[np.arange(tokens), agents].sum())
    return weights / weights.sum(axis=1, keepdims=True)


def test_the_alignment_is_the_sum_over_all_divisions() -> None:
    rng, speakers = np.random.default_rng(3), [0, 1, 0, 2]
    ratio = rng.normal(size=(9, 3))
    order = np.array(speakers)
    log, found = alignment._marginals_njit(ratio[:, order], np.empty((2, 9, 4)))
    expected = by_enumeration(ratio, speakers)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    agents = np.stack([expected[:, order == a].sum(axis=1) for a in range(3)], axis=1)
    np.testing.assert_array_equal(alignment.align([ratio], speakers), agents.argmax(axis=1))
    total = sum(
        np.exp(ratio[np.arange(9), order[np.searchsorted(cuts, np.arange(9), side="right")]].sum())
        for cuts in itertools.combinations(range(1, 9), 3)
    )
    assert log == pytest.approx(np.log(total))


def test_strengths_are_averaged_by_the_likelihood_of_the_text() -> None:
    rng, speakers = np.random.default_rng(4), [1, 0, 1]
    good, bad = rng.normal(size=(8, 2)), np.full((8, 2), -50.0)
    np.testing.assert_array_equal(alignment.align([good, bad], speakers), alignment.align([good], speakers))


def test_without_evidence_turns_are_of_one_length() -> None:
    found = alignment.align([np.zeros((40, 4))], [0, 1, 2, 3])
    np.testing.assert_array_equal(found, np.repeat([0, 1, 2, 3], 10))


def test_the_order_helps_with_weak_marks() -> None:
    speakers, lengths = [0, 1, 2, 3] * 3, [90, 200, 60, 120, 150, 80, 180, 70, 100, 160, 110, 130]
    family = FAMILIES["fourier"]
    in_order, free = [], []
    for seed in range(4):
        scores, truth = drawn(0.25, speakers, lengths, seed)
        ratios = [s * scores.astype(float) - float(family.log_mgf(s)) for s in alignment.STRENGTHS]
        in_order.append(token_accuracy(truth, alignment.align(ratios, speakers)))
        free.append(token_accuracy(truth, decode(scores, family="fourier").token_agents))
    assert np.mean(in_order) > np.mean(free) + 0.05
    scores, truth = drawn(2.0, speakers, lengths, 9)
    ratios = [s * scores.astype(float) - float(family.log_mgf(s)) for s in alignment.STRENGTHS]
    assert token_accuracy(truth, alignment.align(ratios, speakers)) > 0.98


@pytest.mark.parametrize("speakers", [[], [0] * 6, [0, 2], [-1, 0]])
def test_impossible_speakers_are_refused(speakers: list[int]) -> None:
    with pytest.raises(InputError, match=r"speakers: got .* expected 1 to 5 turns of agents 0 to 1"):
        alignment.align([np.zeros((5, 2))], speakers)


def test_segments_in_order_take_the_speakers_of_the_turns_in_order() -> None:
    turns, agents = np.repeat([0, 1, 2], 4), np.repeat([2, 0, 2], 4)
    right = np.repeat([0, 1, 2], 4)
    np.testing.assert_array_equal(ordered_segments(right, turns, agents), agents)
    # A bound too early moves all later names; the matching, with the truth's help, mends that.
    early = np.array([0, *[1] * 7, *[2] * 4])
    assert ordered_segments(early, turns, agents)[:2].tolist() == [2, 0]
    missed = np.repeat([0, 1], [8, 4])
    assert ordered_segments(missed, turns, agents).tolist() == [2] * 8 + [0] * 4
    assert token_accuracy(agents, match_segments(missed, turns, agents)) > 0.6


def test_forward_splits_follow_the_printed_equations() -> None:
    z = np.random.default_rng(5).normal(size=200) + np.repeat([0.0, 1.5, -1.0, 2.0], 50)
    found, expected, start = printed.forward(z, 3.0, 10), [], 0
    while True:  # with the sums as they are printed
        rest = z[start:]
        best, at = 3.0, None
        for t in range(len(rest)):
            c = abs(sum(rest[i] - rest.mean() for i in range(t + 1)))
            if t + 1 >= 10 and len(rest) - t - 1 >= 10 and c > best + 1e-12:
                best, at = c, t
        if at is None:
            break
        start += at + 1
        expected.append(start)
    assert found.tolist() == expected
    assert len(expected) > 0
    assert (np.diff(found) >= 10).all()
    # The forward search does not look for splits before the last one, as `cusum` does.
    assert len(found) < len(cusum(z, 3.0, 10))


def test_forward_search_finds_nothing_in_what_is_too_short_or_flat() -> None:
    for z in (np.zeros(0), np.ones(5), np.zeros(100)):
        assert len(printed.forward(z, 0.1, 10)) == 0


def test_the_printed_decoder_names_long_turns_of_a_strong_mark() -> None:
    scores, truth = drawn(1.5, [0, 1, 2], [800, 800, 800], 7)
    found = printed.labels(scores)
    assert found.shape == truth.shape
    assert set(found.tolist()) <= {0, 1, 2}
    assert token_accuracy(truth, found) > 0.6
    segments = np.split(truth, np.flatnonzero(np.diff(found)) + 1)
    names = found[np.cumsum([0, *map(len, segments[:-1])])]
    assert [np.bincount(segment).argmax() for segment in segments] == names.tolist()
    assert len(printed.labels(scores[:20])) == 20
