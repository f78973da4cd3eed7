"""The families of marks: a perturbation φ, and the distribution of its scores with and without a mark."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


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

    An entry of `FAMILIES` holds everything that Python needs to know of a family, but for its tails
    (`iet.audit.tails.LOG_TAILS`); docs/internals/extending.md lists the steps that add one.

    If many tokens are likely, scores of tokens drawn from softmax(logits + κ·φ) follow the null law tilted by
    exp(λ·x) with λ = κ; predictable text has a smaller λ. So the log-likelihood ratio of one
    score x is λ·x - log_mgf(λ), and `mean(λ)`, the derivative of `log_mgf`, is the expected score.

    Attributes:
        name: key in `FAMILIES`.
        code: its number in the native modules (`enum class Family` in csrc/keyed.h). It also seeds
            simulations, so it never changes, and no number is used twice.
        variance: variance of an unmarked score.
        log_mgf: λ -> log E[exp(λ·x)] of an unmarked score; for a number, or elementwise for an array.
        mean: λ -> expected score at strength λ, elementwise too. `mean(0)` is the mean of an unmarked score.
        draw: (generator, shape, λ) -> random scores of the null law tilted by exp(λ·x), float64; λ = 0:
            scores of unmarked text. For simulations.
        strengths: the grid of λ over which `iet.decoding.log_activity` averages. Cover the strengths that
            text of 0.2 to 2 nats a token has.
        summary: what a user takes the mark for, a clause for the command line; empty if it is not offered.
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
    draw: Callable[[np.random.Generator, Any, float], NDArray[np.float64]]
    strengths: tuple[float, ...]
    summary: str = ""
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


def _draw_arcsine(rng: np.random.Generator, shape: Any, strength: float) -> NDArray[np.float64]:
    # A tilted arcsine law is the cosine of a von Mises angle.
    angles = rng.vonmises(0.0, strength, shape) if strength else rng.uniform(0.0, 2 * np.pi, shape)
    return np.asarray(np.cos(angles, out=angles))


def _exponential_log_mgf(x: Any) -> Any:
    return -np.log1p(-x)


def _exponential_mean(x: Any) -> Any:
    return 1 / (1 - x)


def _draw_exponential(rng: np.random.Generator, shape: Any, strength: float) -> NDArray[np.float64]:
    return np.asarray(rng.exponential(1 / (1 - strength), shape))


FAMILIES: Mapping[str, Family] = {
    # φ(r) = cos(2π·k_p·r/V): the paper's choice. Its null law is the arcsine law on [-1, 1].
    "fourier": Family(
        "fourier",
        0,
        0.5,
        _log_i0,
        _i1_over_i0,
        _draw_arcsine,
        strengths=(0.25, 0.5, 0.9),
        summary="the paper's mark, also for greedy decoding, with a κ of your choice; where the next word is"
        " certain a finding takes thousands of tokens (--family gumbel: a hundred)",
    ),
    # Keyed Gumbel-max sampling: the token is argmax(logits - log(-log u)), its score -log(1 - u), and the
    # null law Exp(1). The tilt is an approximation: for a token of probability p, u^(1/p) is uniform.
    # Code 1 belonged to a family of a draft. The next free one is 3.
    "gumbel": Family(
        "gumbel",
        2,
        1.0,
        _exponential_log_mgf,
        _exponential_mean,
        _draw_exponential,
        strengths=(0.2, 0.45, 0.7),
        summary="chooses the token and leaves its distribution as it is; it needs sampling",
        strength_limit=1.0,
        n_gram=4,
        kappa=1.0,
        chooses=True,
    ),
}


@functools.cache
def sum_family(name: str, bits: BernoulliSum, strengths: tuple[float, ...] = (0.25, 0.5, 0.9)) -> Family:
    """Return a family of scores that are sums of bits, as in the watermarks of some serving engines.

    log_mgf(λ) = λ·low + Σ_d log(1 - q + q·exp(λ·step·weights[d])),    q = bits.chance

    Args:
        name: of the family, for messages.
        bits: the law of a score.
        strengths: see `Family`. The default fits scores of variance 1/2 to 1.
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

    def draw(rng: np.random.Generator, shape: Any, strength: float) -> NDArray[np.float64]:
        total = np.full(shape, bits.low)
        for value, count in values:
            total += value * rng.binomial(count, 1 / (1 + math.exp(-odds - strength * value)), shape)
        return total

    variance = bits.chance * (1 - bits.chance) * sum(n * value**2 for value, n in values)
    return Family(name, -1, variance, log_mgf, mean, draw, strengths, bits=bits)


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
