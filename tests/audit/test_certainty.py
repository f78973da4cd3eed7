"""Error probabilities of spans, and the tokens of a span that are named."""

from __future__ import annotations

import math

import numpy as np
import pytest

from iet.audit.certainty import certainty, chance_factors, cut_by_token, scale_odds, temper_posteriors
from iet.audit.decode import Spans
from iet.decoding import forward_backward
from tests.support.scores import chain_text

FIRST = np.zeros(1, np.int64)
"""The first token of a single text."""


def spans(*rows: tuple[int, int, int, int]) -> Spans:
    return Spans(*np.array(rows, np.int64).reshape(-1, 4).T)


def test_error_odds_grow_with_the_null_share() -> None:
    factors = chance_factors(spans((0, 0, 30, 1), (0, 30, 120, -1), (1, 0, 9, 0), (2, 0, 8, -1)), 4)
    np.testing.assert_allclose(factors, [2, 1, 3, 1])
    np.testing.assert_allclose(scale_odds(np.array([0.0, 0.01, 0.5, 1.0]), 3.0), [0, 0.03 / 1.02, 0.75, 1])
    errors = np.linspace(0, 1, 7)
    np.testing.assert_allclose(scale_odds(errors, 1.0), errors)


def test_weak_evidence_tempers_posteriors() -> None:
    posterior = np.array([[0.9, 0.1, 0.0], [1.0, 0.0, 0.0], [0.25, 0.5, 0.25]], np.float32)
    evidence = np.array([[-8.0, -1e9, np.nan], [-4.0, 0.0, -1.0]])
    tempered = temper_posteriors(np.tile(posterior, (2, 1)), np.repeat([0, 1], 3), evidence)
    np.testing.assert_allclose(tempered[0], [0.9 / (0.9 + 1.5 * 0.1), 0.1, 0], rtol=1e-5)
    np.testing.assert_allclose(tempered[1], [1, 0, 0])
    np.testing.assert_allclose(tempered[2], [0.25 / (0.25 + 1.5 * 0.75), 0.5, 0.25 / 1.75], rtol=1e-5)
    np.testing.assert_allclose(tempered[5], [0.25 / 1.75, 0.5 / 1.5, 0.25 / 1.75], rtol=1e-5)
    assert temper_posteriors(posterior[:0], np.zeros(0, np.int64), evidence).shape == (0, 3)


def test_means_errors_and_shares_of_a_guess() -> None:
    posterior = np.array([[0.9, 0.1], [0.99, 0.0], [0.2, 0.8], [0.0, 0.5]], np.float32)
    two = spans((0, 0, 2, 0), (0, 2, 4, -1))
    result = certainty(posterior, FIRST, np.array([3, 7]), np.array([2.0]), two, np.array([3, 7]))
    np.testing.assert_allclose(result["posterior"], [0.945, 0.65], rtol=1e-6)
    np.testing.assert_allclose(result["error"], [0.02 / 1.01, 0.4 / 1.2], rtol=1e-5)
    assert (result["share_low"] <= result["posterior"]).all()
    assert (result["posterior"] <= result["share_high"]).all()
    # An agent that was no candidate of the decoder.
    second = certainty(posterior, FIRST, np.array([3, 7]), np.array([2.0]), two, np.array([5, 9]))
    assert [column.tolist() for column in second.values()] == [[0, 0], [1, 1], [0, 0], [0, 0]]


def test_spans_are_cut_into_named_and_unnamed_pieces() -> None:
    probabilities = np.array([0.5, 0.995, 0.999, 0.97, 0.992, 0.995, 0.6, 0.3], np.float32)
    posterior = np.stack([probabilities, np.zeros(8, np.float32)], axis=1)
    uncut = spans((0, 0, 6, 4), (0, 6, 8, -1), (1, 0, 8, 4), (1, 8, 8, 5))
    evidence = np.full((2, 6), 0.0)
    evidence[0, 4] = math.log(0.01)
    args = np.tile(posterior, (2, 1)), np.array([0, 8]), np.array([4, 5])
    cut = cut_by_token(*args, np.array([1.0, 1.0]), uncut, evidence, 0.01)
    assert list(zip(*(column.tolist() for column in cut), strict=True)) == [
        (0, 0, 1, 4),
        (0, 1, 3, 4),
        (0, 3, 4, 4),
        (0, 4, 6, 4),
        (0, 6, 8, -1),
        (1, 0, 8, 4),  # is not found in its text
        (1, 8, 8, 5),
    ]
    stricter = cut_by_token(*args, np.array([1.5, 1.0]), uncut, evidence, 0.01)
    assert stricter.starts.tolist()[:4] == [0, 1, 3, 5]
    none = cut_by_token(*args, np.array([100.0, 1.0]), uncut, evidence, 0.01)
    assert [column.tolist() for column in none] == [column.tolist() for column in uncut]
    empty = posterior[:0], FIRST[:0], np.array([4]), np.ones(0)
    assert len(cut_by_token(*empty, spans(), np.zeros((0, 6)), 0.01).starts) == 0


@pytest.mark.parametrize("level", [0.05, 0.01])
def test_of_two_adjacent_pieces_one_is_named(level: float) -> None:
    rng = np.random.default_rng(8)
    _, ratios = chain_text(rng, 4000, 3, 80, 0.4, 0.6)
    gamma, null_posterior, _ = forward_backward(ratios, 80, 0.4)
    labels = np.where(null_posterior > gamma.max(axis=1), -1, gamma.argmax(axis=1))
    starts = np.append(0, np.flatnonzero(np.diff(labels)) + 1)
    ends = np.append(starts[1:], len(labels))
    uncut = Spans(np.zeros(len(starts), np.int64), starts, ends, labels[starts])
    factors = chance_factors(uncut, 1)
    evidence = np.array([[-50.0, -50.0, 0.0]])  # the third agent is not found
    cut = cut_by_token(gamma, FIRST, np.arange(3), factors, uncut, evidence, level)
    assert cut.starts[0] == 0
    np.testing.assert_array_equal(cut.starts[1:], cut.ends[:-1])
    assert cut.ends[-1] == 4000
    np.testing.assert_array_equal(np.repeat(cut.agents, cut.ends - cut.starts), labels)
    sure = certainty(gamma, FIRST, np.arange(3), factors, cut, np.maximum(cut.agents, 0))["error"] <= level
    sure &= (cut.agents == 0) | (cut.agents == 1)
    beside = (cut.agents[1:] == cut.agents[:-1]) & (cut.agents[1:] >= 0)
    assert beside.sum() > 20
    assert (sure[1:] != sure[:-1])[beside].all()
    named = np.repeat(sure, cut.ends - cut.starts)
    posterior = gamma[np.arange(4000), np.maximum(labels, 0)].astype(np.float64)
    two = (labels == 0) | (labels == 1)
    np.testing.assert_array_equal(
        named, two & (scale_odds(1 - np.minimum(posterior, 1), factors[0]) <= level)
    )
