"""Tails of the null law: how likely n scores without a mark add up to as much."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import numpy as np

from iet.errors import InputError
from iet.marks.families import FAMILIES, BernoulliSum, Family
from iet.native.arrays import Float64s, Int64s
from iet.native.load import loops

_MAX_STRENGTH = 256.0


def log_tail(total: float, count: int, family: Family) -> float:
    """Return log P(Σ x >= s) for `count` independent unmarked scores.

    Args:
        total: s.
        count: n, scores of distinct (context, token) pairs: a repeat is no new evidence.
        family: whose null law the scores have: a key of `LOG_TAILS`.

    Returns:
        log_p <= 0, natural logarithm; 0 for n = 0.

    Raises:
        InputError: the family has no tail yet.

    >>> round(log_tail(70.0, 200, FAMILIES["fourier"]), 2)
    -28.16
    """
    return float(log_tails(np.array([total], np.float64), np.array([count]), family)[0])


def log_tails(totals: Float64s, counts: Int64s, family: Family) -> Float64s:
    """Return `log_tail` [S] of many sums: `totals` s [S] of `counts` n [S] scores of one `family`."""
    if family.bits is not None:
        equal_weights = len(set(family.bits.weights)) == 1
        return _drawn(totals, counts, family.bits) if equal_weights else _weighted(totals, counts, family)
    if family.name not in LOG_TAILS:
        raise InputError(f"family: got {family.name!r}, expected one of {sorted(LOG_TAILS)}")
    return LOG_TAILS[family.name](totals, counts)


def _saddlepoint(family: Family) -> Callable[[Float64s, Int64s], Float64s]:
    """Return the tails by Robinson's saddlepoint formula, for a symmetric law with a density on [-1, 1].

        log P ≈ -n·(λ·x̄ - K(λ)) + u²/2 + log Φ(-u),    K'(λ) = x̄ = s/n,    u = λ·√(n·K''(λ))

    Relative error of P below 4 % from n = 20 on, and 1 % from n = 64 (tests/audit/test_evidence.py). Below
    n = 20 P would be too small by up to a third: there Chernoff's bound -n·(λ·x̄ - K(λ)) is returned, which
    never is. Below x̄ = 0 it is 1 - P(-s), and 1 for n < 20.
    """

    def tails(totals: Float64s, counts: Int64s) -> Float64s:
        mean = _cumulants(family)[2]
        x = np.minimum(np.abs(totals) / np.maximum(counts, 1), 1 - 1e-9)
        at = np.minimum(np.searchsorted(mean, x, "right") - 1, len(mean) - 2)
        log_p = np.zeros(len(totals))
        selected = (counts >= 20) | ((counts > 0) & (totals > 0))
        log_p[selected] = _saddlepoint_tails(
            totals[selected], counts[selected], x[selected], at[selected], family
        )
        return log_p

    return tails


@functools.cache
def _cumulants(family: Family) -> tuple[Float64s, Float64s, Float64s, Float64s]:
    """Return λ on a grid, and K = log_mgf, K' and K'' there."""
    strengths = np.expm1(np.linspace(0.0, math.log1p(_MAX_STRENGTH), 512))
    step = 3e-5 * (1 + strengths)
    variance = (family.mean(strengths + step) - family.mean(strengths - step)) / (2 * step)
    return strengths, family.log_mgf(strengths), family.mean(strengths), variance


def _saddlepoint_tails(totals: Float64s, counts: Int64s, x: Float64s, at: Int64s, family: Family) -> Float64s:
    """Return the tails of sums whose means |x̄| follow the points `at` of the grid."""
    strengths, log_mgf, mean, variance = _cumulants(family)
    # Between two points of the grid K is the quintic with their K, K' and K'': good to 1e-13.
    h = strengths[at + 1] - strengths[at]
    rise = log_mgf[at + 1] - log_mgf[at]
    d0, d1 = h * mean[at], h * mean[at + 1]
    s0, s1 = h * h * variance[at], h * h * variance[at + 1]
    c3 = 10 * rise - 6 * d0 - 4 * d1 - 1.5 * s0 + 0.5 * s1
    c4 = -15 * rise + 8 * d0 + 7 * d1 + 1.5 * s0 - s1
    c5 = 6 * rise - 3 * d0 - 3 * d1 - 0.5 * s0 + 0.5 * s1
    t = np.minimum((x - mean[at]) / (mean[at + 1] - mean[at]), 1.0)
    for _ in range(3):  # Newton: λ with K'(λ) = x̄
        slope = d0 + t * (s0 + t * (3 * c3 + t * (4 * c4 + t * 5 * c5)))
        bend = s0 + t * (6 * c3 + t * (12 * c4 + t * 20 * c5))
        t = np.minimum(t - (slope - h * x) / bend, 1.0)
    bend = s0 + t * (6 * c3 + t * (12 * c4 + t * 20 * c5))
    strength = strengths[at] + h * t
    k = log_mgf[at] + t * (d0 + t * (s0 / 2 + t * (c3 + t * (c4 + t * c5))))
    values = counts * (k - strength * x)
    u = strength * np.sqrt(counts * np.maximum(bend / (h * h), 1e-12))
    for i in range(len(values)):
        value = float(values[i])
        if counts[i] >= 20:
            value += _robinson(float(u[i]))
        values[i] = math.log1p(-math.exp(value)) if totals[i] < 0 else value
    return np.minimum(0.0, values)


def _robinson(u: float) -> float:
    """Return u²/2 + log Φ(-u), by an asymptotic series where both would overflow."""
    if u < 20:
        return u * u / 2 + math.log(math.erfc(u / math.sqrt(2.0)) / 2)
    square = u * u
    return -math.log(u) - math.log(2 * math.pi) / 2 + math.log1p(-1 / square + 3 / (square * square))


def _drawn(totals: Float64s, counts: Int64s, draws: BernoulliSum) -> Float64s:
    """Return the tails of sums of scores of D draws of equal weight: P(Bin(n·D, q) >= (s - n·low) / step)."""
    step = draws.step * draws.weights[0]
    # A score is a float32: what is off by less than 1/4 of a success is rounding.
    successes = np.ceil((totals - counts * draws.low) / step - 0.25).astype(np.int64)
    return _binomial_tails(successes, counts * len(draws.weights), draws.chance)


def _weighted(totals: Float64s, counts: Int64s, family: Family) -> Float64s:
    """Return the tails of sums of scores of draws of several weights, by the formula of `_saddlepoint`.

    λ is found by bisection. Chernoff's bound below 20 scores; 1 if the sum is below its mean.
    """
    assert family.bits is not None
    draws = family.bits
    means = totals / np.maximum(counts, 1)
    highest = draws.low + draws.step * sum(draws.weights)
    inside = np.minimum(means, highest - 1e-6 * draws.step)
    low, high = np.zeros(len(totals)), np.full(len(totals), 40.0 / draws.step)
    for _ in range(60):
        middle = (low + high) / 2
        below = family.mean(middle) < inside
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    log_p = counts * (family.log_mgf(low) - low * inside)
    width = 1e-4 * (1 + low)
    variance = (family.mean(low + width) - family.mean(low - width)) / (2 * width)
    u = low * np.sqrt(counts * np.maximum(variance, 1e-300))
    exact = (counts >= 20) & (u > 1e-3)
    log_p[exact] += [
        tail + x * x / 2 for x, tail in zip(u[exact], map(_log_normal_tail, u[exact]), strict=True)
    ]
    return np.where((counts > 0) & (means > family.mean(0.0)), np.minimum(log_p, 0.0), 0.0)


def _log_normal_tail(u: float) -> float:
    """Return log Φ(-u) of u >= 0."""
    if u < 20:
        return math.log(math.erfc(u / math.sqrt(2.0)) / 2)
    return -u * u / 2 - math.log(u) - math.log(2 * math.pi) / 2 + math.log1p(-1 / u**2 + 3 / u**4)


def _binomial_tails(successes: Int64s, trials: Int64s, chance: float) -> Float64s:
    """Return log P(Bin(n, q) >= k), to rounding. O(√n) each."""
    log_p = np.zeros(len(trials))
    loops.binomial_tails(successes, trials, chance, log_p)
    return log_p


def _gamma(totals: Float64s, counts: Int64s) -> Float64s:
    """Return the tails of sums of n exponential scores, to rounding: those of a gamma law of shape n."""
    log_p = np.zeros(len(totals))
    loops.gamma_tails(totals, counts, log_p)
    return log_p


LOG_TAILS: Mapping[str, Callable[[Float64s, Int64s], Float64s]] = {
    "fourier": _saddlepoint(FAMILIES["fourier"]),  # arcsine law
    "gumbel": _gamma,  # exponential law
}
"""Family -> log P(Σ x >= s) as a function of arrays (s, n)."""
