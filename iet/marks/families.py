"""The families of marks: a perturbation φ, and the distribution of its scores with and without a mark."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class BernoulliSum:
    """The law of a score that is a weighted sum of independent bits g_d: low + step·Σ_d weights[d]·g_d.

    Attributes:
        weights: positive integers.
        chance: probability that a bit is 1 in unmarked text, between 0 and 1.
        low: the score if every bit is 0.
        step: factor of the weighted sum.
    """

    weights: tuple[int, ...]
    chance: float
    low: float
    step: float


@dataclasses.dataclass(frozen=True)
class Family:
    """A perturbation φ, with the distribution of its scores with and without a mark.

    If many tokens are likely, scores of tokens drawn from softmax(logits + κ·φ) follow the null law tilted by
    exp(λ·x) with λ = κ; predictable text has a smaller λ. So the log-likelihood ratio of one
    score x is λ·x - log_mgf(λ), and `mean(λ)`, the derivative of `log_mgf`, is the expected score.

    Attributes:
        name: key in `FAMILIES`.
        code: its number in the native modules.
        variance: variance of an unmarked score.
        log_mgf: λ -> log E[exp(λ·x)] of an unmarked score; for a number, or elementwise for an array.
        mean: λ -> expected score at strength λ, elementwise too. `mean(0)` is the mean of an unmarked score.
        strength_limit: `log_mgf` is finite for λ below it.
        n_gram, kappa: defaults of a `Scheme`.
        chooses: whether the mark chooses the token (keyed Gumbel-max sampling) instead of changing logits.
            Then κ, k_p and placement have no meaning: they must be this `kappa`, 1 and "final".
        bits: the law of the scores if they are sums of bits (`sum_family`); None for all of `FAMILIES`.
    """

    name: str
    code: int
    variance: float
    log_mgf: Callable[[Any], Any]
    mean: Callable[[Any], Any]
    strength_limit: float = math.inf
    n_gram: int = 2
    kappa: float = 0.8
    chooses: bool = False
    bits: BernoulliSum | None = None


def _log_i0(x: Any) -> Any:
    size = np.abs(x)
    large = size - 0.5 * np.log(2 * np.pi * np.maximum(size, 500.0))
    return np.where(size < 500, np.log(np.i0(np.minimum(size, 500.0))), large)[()]


def _i1_over_i0(x: Any) -> Any:
    # I1(x)/I0(x) by Perron's continued fraction, evaluated backwards: exact to rounding for |x| <= 500.
    ratio = 0.0
    for order in range(int(np.max(np.abs(x), initial=0.0)) + 40, 0, -1):
        ratio = x / (2.0 * order + x * ratio)
    return ratio


def _exponential_log_mgf(x: Any) -> Any:
    return -np.log1p(-x)


def _exponential_mean(x: Any) -> Any:
    return 1 / (1 - x)


FAMILIES: Mapping[str, Family] = {
    # φ(r) = cos(2π·k_p·r/V): the paper's choice. Its null law is the arcsine law on [-1, 1].
    "fourier": Family("fourier", 0, 0.5, _log_i0, _i1_over_i0),
    # Keyed Gumbel-max sampling: the token is argmax(logits - log(-log u)), its score -log(1 - u), and the
    # null law Exp(1). The tilt is an approximation: for a token of probability p, u^(1/p) is uniform.
    # The code is 2 because it seeds the simulation of committed tables (iet/audit/activity_null.json).
    "gumbel": Family(
        "gumbel",
        2,
        1.0,
        _exponential_log_mgf,
        _exponential_mean,
        strength_limit=1.0,
        n_gram=4,
        kappa=1.0,
        chooses=True,
    ),
}


@functools.cache
def sum_family(name: str, bits: BernoulliSum) -> Family:
    """Return a family of scores that are sums of bits, as in the watermarks of some serving engines.

    log_mgf(λ) = λ·low + Σ_d log(1 - q + q·exp(λ·step·weights[d])),    q = bits.chance
    """
    counted = collections.Counter(bits.weights)
    values = [(bits.step * weight, count) for weight, count in sorted(counted.items())]
    odds = math.log(bits.chance / (1 - bits.chance))

    def log_mgf(x: Any) -> Any:
        base = math.log1p(-bits.chance)
        return x * bits.low + sum(n * (base + np.logaddexp(0.0, odds + x * value)) for value, n in values)

    def mean(x: Any) -> Any:
        # 1 / (1 + exp(-z)) without overflow
        tilted = ((np.tanh((odds + x * value) / 2) + 1) / 2 * (n * value) for value, n in values)
        return bits.low + sum(tilted)

    variance = bits.chance * (1 - bits.chance) * sum(n * value**2 for value, n in values)
    return Family(name, -1, variance, log_mgf, mean, bits=bits)


FEWEST_VALUES = 64
"""Minimum number of values of φ for text to be audited; see `few_values`."""


def few_values(vocab_size: int, frequencies: Any, family: Family) -> Any:
    """Return for each k_p whether φ takes too few values for scores to follow the family's null law.

    Then p-values would be wrong.

    φ takes q = V / gcd(V, k_p) values. Family "fourier" follows the arcsine law from a few dozen on; if
    gcd(V, k_p) is 1, the distribution of scores over keys is right from 4 on.

    Args:
        vocab_size: V.
        frequencies: k_p [K].
        family: "gumbel" has no frequency, so the result is False.

    Returns:
        bool [K]: 1 < gcd(V, k_p) and q < `FEWEST_VALUES`, or q < 4.
    """
    shared = np.gcd(vocab_size, np.asarray(frequencies, np.int64))
    values = vocab_size // shared
    few = ((shared > 1) & (values < FEWEST_VALUES)) | (values < 4)
    return few & (not family.chooses)
