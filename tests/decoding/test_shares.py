"""Shares of a span's agent: intervals against known laws, and against draws of the chain."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from iet.decoding import forward_backward, share_intervals
from iet.errors import InputError, ShapeError
from tests.support.scores import chain_text


def share_interval(token_posterior: Any, **more: Any) -> tuple[float, float]:
    """Return the interval of a single span of a single agent."""
    posterior = np.asarray(token_posterior, np.float32)[:, None]
    low, high = share_intervals(posterior, *np.array([[0], [len(posterior)], [0]]), **more)
    return float(low[0]), float(high[0])


def test_one_uncertain_boundary() -> None:
    # The agent surely holds 60 tokens; its last one is the 60th to 99th, all alike.
    posterior = np.append(np.ones(60), 1 - np.arange(1, 41) / 41)
    low, high = share_interval(posterior)
    assert (low, high) == pytest.approx((0.62, 0.98), abs=1.5 / 64)
    assert share_interval(posterior, sure=0.0) == pytest.approx((0.8, 0.8), abs=1.5 / 64)


def test_two_boundaries_with_a_certain_token_between_are_independent() -> None:
    half = np.arange(1, 51) / 51
    low, high = share_interval(np.concatenate([half, [1.0], half[::-1]]))
    # The sum of two uniform laws on [0, 50] of 101: a triangle, with 5 % below 50·√0.1.
    part = 50 * math.sqrt(0.1) / 101
    assert (low, high) == pytest.approx((part, 1 - part), abs=2 / 64)
    # Without the certain token the correlation is unknown, and the largest one is assumed.
    wide = share_interval(np.concatenate([half, half[::-1]]))
    assert wide[0] < low
    assert wide[1] >= high - 1 / 64


def test_certain_tokens_and_single_chances() -> None:
    assert share_interval(np.ones(7)) == (1.0, 1.0)
    assert share_interval(np.zeros(7)) == (0.0, 0.0)
    assert share_interval(np.full(50, 0.8)) == (0.0, 1.0)  # all of it or nothing
    assert share_interval(np.full(50, 0.96)) == (1.0, 1.0)
    low, high = share_interval(
        np.full(50, 1 - 5e-4)
    )  # so little lowers the low end, by its mean; the agent may have all of it
    assert (low, high) == (pytest.approx(1 - 5e-4), 1.0)


def test_ends_of_a_short_span_are_possible_shares() -> None:
    # One more than 8 of 10 tokens is held with 0.9, two with 0.5: 8, 9 or 10 with 0.1, 0.4, 0.5.
    posterior = np.append(np.ones(8), [0.9, 0.5])
    assert share_interval(posterior) == (0.8, 1.0)
    assert share_interval(posterior, sure=0.79) == (0.9, 1.0)  # 0.105 on either side
    assert share_interval(posterior, sure=0.0) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("null_prior", "length", "strength"),
    [(0.0, 100, 0.3), (0.3, 60, 0.5), (0.3, 200, 0.3), (0.8, 60, 0.5), (0.3, 10, 3.0), (0.0, 10, 1.0)],
)
def test_intervals_cover_the_share_under_the_true_chain(
    null_prior: float, length: float, strength: float
) -> None:
    rng = np.random.default_rng(3)
    posterior = inside = 0
    named, wrong, spread = np.zeros(2), np.zeros(2), []
    expected = []
    for _ in range(50):
        truth, ratios = chain_text(rng, 1500, 4, length, null_prior, strength)
        gamma, null_posterior, _ = forward_backward(ratios, length, null_prior)
        labels = np.where(null_posterior > gamma.max(axis=1), -1, gamma.argmax(axis=1))
        starts = np.append(0, np.flatnonzero(np.diff(labels)) + 1)
        ends, agents = np.append(starts[1:], len(labels)), labels[starts]
        attributed = agents >= 0
        starts, ends, agents = starts[attributed], ends[attributed], agents[attributed]
        low, high = share_intervals(gamma, starts, ends, agents)
        shares = np.array(
            [(truth[a:b] == agent).mean() for a, b, agent in zip(starts, ends, agents, strict=True)]
        )
        inside += int(((low - 1e-6 <= shares) & (shares <= high + 1e-6)).sum())
        posterior += len(shares)
        spread += (high - low).tolist()
        means = [gamma[a:b, agent].mean() for a, b, agent in zip(starts, ends, agents, strict=True)]
        expected += (shares - means).tolist()
        for i, level in enumerate((0.05, 0.01)):
            sure = gamma.max(axis=1) >= 1 - level
            named[i] += sure.sum()
            wrong[i] += (gamma.argmax(axis=1) != truth)[sure].sum()
    assert inside / posterior >= 0.9 - 3 * math.sqrt(0.09 / posterior)
    assert abs(np.mean(expected)) < 4 * np.std(expected) / math.sqrt(posterior)
    assert np.mean(spread) < 1
    # Tokens that are sure at a level are wrong at most that often: they hang together in some 20.
    for i, level in enumerate((0.05, 0.01)):
        assert wrong[i] / max(1, named[i]) <= level + 3 * math.sqrt(level * 20 / max(1, named[i]))


def test_spans_of_any_order_and_none_at_all() -> None:
    rng = np.random.default_rng(0)
    posterior = rng.dirichlet(np.ones(3), 90).astype(np.float32)
    spans = np.array([[30, 80, 1], [0, 30, 0], [40, 40, 2], [80, 90, 2]])
    low, high = share_intervals(posterior, *spans.T)
    reversed_ = share_intervals(posterior, *spans[::-1].T)
    np.testing.assert_array_equal(low, reversed_[0][::-1])
    np.testing.assert_array_equal(high, reversed_[1][::-1])
    assert (low[2], high[2]) == (0, 0)
    assert ((low >= 0) & (low <= high) & (high <= 1)).all()
    assert [len(array) for array in share_intervals(posterior, *np.zeros((3, 0), np.int64))] == [0, 0]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"posterior": np.ones(9, np.float32)}, ShapeError, "posterior, starts, ends, agents: got"),
        ({"agents": np.array([0, 0])}, ShapeError, "posterior, starts, ends, agents: got"),
        ({"starts": np.array([-1])}, InputError, r"spans: got \(-1, 9, 0\)"),
        ({"ends": np.array([10])}, InputError, "up to token 9 and agent 0"),
        ({"starts": np.array([5]), "ends": np.array([4])}, InputError, r"spans: got \(5, 4, 0\)"),
        ({"agents": np.array([1])}, InputError, r"spans: got \(0, 9, 1\)"),
        ({"agents": np.array([-1])}, InputError, r"spans: got \(0, 9, -1\)"),
        ({"sure": 1.5}, InputError, "sure: got 1.5"),
        ({"sure": float("nan")}, InputError, "sure: got nan"),
    ],
)
def test_rejects_invalid_arguments(change: dict[str, Any], error: type[Exception], message: str) -> None:
    good = {
        "posterior": np.ones((9, 1), np.float32),
        "starts": np.array([0]),
        "ends": np.array([9]),
        "agents": np.array([0]),
    }
    with pytest.raises(error, match=message):
        share_intervals(**{**good, **change})
