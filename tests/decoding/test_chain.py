"""The chain of the posterior against textbook recursions and enumeration, and at its extremes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iet.decoding import chain as chain_module
from iet.decoding import forward_backward
from iet.errors import InputError, ShapeError
from tests.support.scores import score_matrices


def chain(shares, mean_segment, null_prior, stages, null_segment=None):
    """Initial law and transition matrix over (agent or, last, null_prior) x stage, written out."""
    pi = np.append(np.array(shares) / np.sum(shares) * (1 - null_prior), null_prior)
    states, advances = len(pi), np.full(len(pi), min(1.0, stages / mean_segment))
    initial = pi
    if null_segment is not None:
        advances[-1] = min(1.0, stages / null_segment)
        initial = pi * (1 - pi) / advances
        initial = initial / initial.sum()
    p = np.zeros((states, stages, states, stages))
    for i, m in itertools.product(range(states), range(stages)):
        advance = advances[i]
        p[i, m, i, m] = 1 - advance
        if m + 1 < stages:
            p[i, m, i, m + 1] = advance
            continue
        for j in range(states):
            if i == states - 1 and null_segment is None:  # the null state may follow itself
                p[i, m, j, 0] += advance * pi[j]
            elif j != i and pi[i] < 1:
                p[i, m, j, 0] = advance * pi[j] / (1 - pi[i])
    return np.repeat(initial / stages, stages), p.reshape(states * stages, states * stages)


def naive_forward_backward(ratios, mean_segment, null_prior, shares, stages, null_segment=None):
    """O(T·A²), in logs, with the textbook backward recursion."""
    with np.errstate(divide="ignore"):
        log_pi, log_p = map(np.log, chain(shares, mean_segment, null_prior, stages, null_segment))
    e = np.repeat(np.column_stack([ratios.astype(float), np.zeros(len(ratios))]), stages, axis=1)
    alpha, beta = np.empty_like(e), np.zeros_like(e)
    for t in range(len(e)):
        forward = np.logaddexp.reduce(alpha[t - 1][:, None] + log_p, axis=0) if t else log_pi
        alpha[t] = forward + e[t]
    for t in reversed(range(len(e) - 1)):
        beta[t] = np.logaddexp.reduce(log_p + (e[t + 1] + beta[t + 1])[None], axis=1)
    if not len(e):
        return np.zeros((0, len(shares) + 1)), 0.0
    gamma = alpha + beta
    total = np.logaddexp.reduce(gamma, axis=1, keepdims=True)
    occupancy = np.exp(gamma - total).reshape(len(e), -1, stages).sum(axis=2)
    return occupancy, float(total[0, 0])


def enumerated_posterior(ratios, mean_segment, null_prior, shares, stages, null_segment=None):
    """Sum over every sequence of states."""
    pi, p = chain(shares, mean_segment, null_prior, stages, null_segment)
    e = np.exp(np.repeat(np.column_stack([ratios, np.zeros(len(ratios))]), stages, axis=1))
    gamma = np.zeros_like(e)
    for path in itertools.product(range(e.shape[1]), repeat=len(e)):
        weight = pi[path[0]] * np.prod([p[i, j] for i, j in itertools.pairwise(path)])
        weight *= np.prod([e[t, i] for t, i in enumerate(path)])
        gamma[np.arange(len(e)), list(path)] += weight
    occupancy = gamma.reshape(len(e), -1, stages).sum(axis=2)
    return occupancy / occupancy.sum(axis=1, keepdims=True), np.log(gamma[0].sum())


@settings(max_examples=60, deadline=None)
@given(
    score_matrices(60),
    st.floats(4, 50),
    st.sampled_from([0.0, 0.2, 0.5]),
    st.integers(1, 4),
    st.none() | st.floats(1, 90),
    st.integers(0, 2**32 - 1),
)
def test_forward_backward_equals_the_quadratic_one(scores, mean_segment, null_prior, stages, gap, seed):
    shares = np.random.default_rng(seed).uniform(0.1, 1, scores.shape[1])
    if len(shares) == 1 and null_prior == 0:
        null_prior = 0.2
    ratios = 3 * scores
    law = mean_segment, null_prior, shares, stages
    gamma, null_posterior, log_ratio = forward_backward(ratios, *law, null_segment=gap)
    expected, expected_ratio = naive_forward_backward(ratios, *law, gap)
    np.testing.assert_allclose(np.column_stack([gamma, null_posterior]), expected, atol=2e-4)
    assert log_ratio == pytest.approx(expected_ratio, abs=1e-4)


@pytest.mark.parametrize(
    ("null_prior", "stages", "gap"), [(0.0, 1, None), (0.3, 1, None), (0.3, 2, None), (0.6, 2, 2.5)]
)
def test_forward_backward_equals_enumeration(null_prior, stages, gap):
    ratios = np.random.default_rng(5).uniform(-2, 2, (5, 2))
    law = (4.0, null_prior, [1.0, 3.0], stages)
    expected, log_ratio = enumerated_posterior(ratios, *law, gap)
    naive, naive_ratio = naive_forward_backward(ratios, *law, gap)
    np.testing.assert_allclose(expected, naive)
    gamma, null_posterior, actual_ratio = forward_backward(ratios, *law, null_segment=gap)
    np.testing.assert_allclose(np.column_stack([gamma, null_posterior]), expected, atol=1e-5)
    assert actual_ratio == pytest.approx(log_ratio, abs=1e-5)
    assert naive_ratio == pytest.approx(log_ratio)


def test_parts_of_a_text_give_the_same_result(monkeypatch):
    ratios = np.random.default_rng(0).normal(0, 1, (2000, 3))
    complete = forward_backward(ratios, 50.0, 0.2)
    monkeypatch.setattr(chain_module, "_STORED", 1)  # parts of 256 tokens
    parts = forward_backward(ratios, 50.0, 0.2)
    for a, b in zip(complete, parts, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("part", [1, 1 << 24])
def test_concatenated_texts_equal_single_texts(monkeypatch, part):
    monkeypatch.setattr(chain_module, "_STORED", part)  # 1: parts of 256 tokens
    rng, prior = np.random.default_rng(5), chain_module.prior_of(np.array([0.5, 0.3, 0.2]), 0.3)
    texts = [rng.normal(0, 1.5, (length, 3)).astype(np.float32) for length in (300, 1, 40, 700)]
    starts = np.cumsum([0, *map(len, texts)])[:-1].tolist()
    every = chain_module.exponentials(np.concatenate(texts))
    joint = chain_module.posteriors(every, 40.0, prior, 3, starts)
    for d, (start, text) in enumerate(zip(starts, texts, strict=True)):
        inside = slice(start, start + len(text))
        alone = chain_module.posteriors(chain_module.exponentials(text), 40.0, prior, 3)
        np.testing.assert_array_equal(joint[0][inside], alone[0])
        np.testing.assert_array_equal(joint[1][inside], alone[1])
        assert joint[2][d] == alone[2][0]


def test_one_agent_without_null_has_posterior_one():
    gamma, null_posterior, log_ratio = forward_backward(np.full((10, 1), -3.0), 5.0)
    assert (gamma == 1).all()
    assert (null_posterior == 0).all()
    assert np.isfinite(log_ratio)


def test_forward_backward_survives_ratios_of_any_size():
    ratios = np.array([[1e30, -1e30], [-1e30, 1e30]], np.float32).repeat(20, axis=0)
    gamma, null_posterior, _ = forward_backward(ratios, 1e9, 0.5)
    assert np.isfinite(gamma).all()
    assert np.isfinite(null_posterior).all()


@pytest.mark.parametrize(
    ("mean_segment", "null_segment"), [(5.0, None), (1.0, None), (0.5, 30.0), (20.0, 4.0), (4.0, 30.0)]
)
def test_segments_with_a_mean_below_the_stages_use_the_stages(mean_segment, null_segment):
    ratios = np.random.default_rng(6).normal(0, 1, (7, 2))
    gap = None if null_segment is None else max(null_segment, 2)
    expected, expected_ratio = naive_forward_backward(ratios, max(mean_segment, 2), 0.2, [1, 1], 2, gap)
    gamma, null_posterior, log_ratio = forward_backward(
        ratios, mean_segment, 0.2, None, 2, null_segment=null_segment
    )
    np.testing.assert_allclose(np.column_stack([gamma, null_posterior]), expected, atol=1e-5)
    assert log_ratio == pytest.approx(expected_ratio, abs=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"mean_segment": 0.0},
        {"mean_segment": math.inf},
        {"shares": [1, 1e-12]},
        {"shares": [1, 5e-324], "null_prior": 0.5},
        {"null_prior": 1e-12},
        {"null_prior": 0.95, "null_segment": 0.0},
        {"null_prior": 0.95, "null_segment": 1e9},
        {"null_prior": 1e-12, "null_segment": 5.0, "mean_segment": 1e9},
    ],
    ids=repr,
)
def test_chain_stays_finite_at_the_extremes(options: dict[str, Any]) -> None:
    ratios = np.full((2000, 2), -80.0)
    ratios[:1000, 0] = ratios[1000:, 1] = 80.0
    posterior, null_posterior, log_ratio = forward_backward(ratios, **options)
    assert math.isfinite(log_ratio)
    np.testing.assert_allclose(posterior.sum(axis=1) + null_posterior, 1, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"log_ratios": np.zeros(4)}, ShapeError, r"log_ratios: got \[4\]"),
        ({"shares": [1.0]}, ShapeError, r"shares: got \[1\], expected \[2\]"),
        ({"shares": [1.0, 0.0]}, InputError, "shares: got .*above 0"),
        ({"null_prior": 1.0}, InputError, "null_prior: got 1.0"),
        ({"stages": 0}, InputError, "stages: got 0"),
        ({"log_ratios": np.full((5, 2), np.nan)}, InputError, "log_ratios: got NaN"),
        ({"mean_segment": math.nan}, InputError, "mean_segment: got nan"),
        ({"null_segment": -1.0}, InputError, "null_segment: got -1.0"),
        ({"shares": [math.inf, 1]}, InputError, "shares: got inf, expected finite numbers above 0"),
    ],
)
def test_rejects_invalid_parameters(arguments, error, words):
    with pytest.raises(error, match=words):
        forward_backward(**{"log_ratios": np.zeros((4, 2)), **arguments})


@settings(max_examples=40, deadline=None)
@given(score_matrices(), st.integers(0, 2**32 - 1), st.booleans())
def test_batched_likelihoods_equal_single_chains(ratios, seed, anybody):
    rng = np.random.default_rng(seed)
    ratios = ratios * np.float32(rng.choice([1, 40]))
    lengths = rng.uniform(1, 200, 5)
    null_prior = rng.uniform(0.01, 0.9, 5) if anybody else np.zeros(5)
    shares = rng.dirichlet(np.ones(ratios.shape[1]))
    priors = np.array([chain_module.prior_of(shares, share) for share in null_prior])
    exponentials = chain_module.exponentials(np.stack([ratios, -ratios]))
    gaps = np.where(rng.random(5) < 0.5, np.nan, rng.uniform(1, 200, 5))
    likelihoods = chain_module.batched_log_likelihood(exponentials, lengths, priors, gaps)
    for sign, row in zip((1, -1), likelihoods, strict=True):
        for length, share, gap, value in zip(lengths, null_prior, gaps, row, strict=True):
            null_segment = None if np.isnan(gap) else gap
            expected = forward_backward(sign * ratios, length, share, shares, 3, null_segment)[2]
            assert value == pytest.approx(expected, rel=1e-5, abs=1e-4)
