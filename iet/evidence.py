"""How surprising a segment's scores would be without a mark. The paper has no null; this is ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError
from iet.scheme import FAMILIES, Family


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
    if family.name not in LOG_TAILS:
        raise InputError(f"family: got {family.name!r}, expected one of {sorted(LOG_TAILS)}")
    return min(0.0, LOG_TAILS[family.name](total, count)) if count else 0.0


def _saddlepoint(family: Family) -> Callable[[float, int], float]:
    """Return the tail by Robinson's saddlepoint formula, for scores with a density.

        log P ≈ -n·(λ·x̄ - K(λ)) + u²/2 + log Φ(-u),    K'(λ) = x̄ = s/n,    u = λ·√(n·K''(λ))

    Relative error of P below 4 % from n = 20 on, and 1 % from n = 64 (tests/test_evidence.py). Below n = 20
    P would be too small by up to a third: there Chernoff's bound -n·(λ·x̄ - K(λ)) is returned, which never is.
    Below x̄ = 0 it is 1 - P(-s), and 1 for n < 20.
    """

    def tail(total: float, count: int) -> float:
        if total <= 0 and count < 20:
            return 0.0
        if total < 0:
            return math.log1p(-math.exp(tail(-total, count)))
        x = min(total / count, 1 - 1e-9)
        low, high = 0.0, 1.0
        while family.mean(high) < x and high < 256:
            high *= 2
        for _ in range(60):  # λ with K'(λ) = x̄
            middle = (low + high) / 2
            low, high = (middle, high) if family.mean(middle) < x else (low, middle)
        bound = count * (family.log_mgf(low) - low * x)
        if count < 20:
            return bound
        step = 1e-4
        variance = (family.mean(low + step) - family.mean(low - step)) / (2 * step)
        u = low * math.sqrt(count * max(variance, 1e-12))
        return bound + _log_mills(u)

    return tail


def _log_mills(u: float) -> float:
    """Return u²/2 + log Φ(-u), by an asymptotic series where both would overflow."""
    if u < 20:
        return u * u / 2 + math.log(math.erfc(u / math.sqrt(2)) / 2)
    return -math.log(u) - math.log(2 * math.pi) / 2 + math.log1p(-1 / u**2 + 3 / u**4)


def _binomial(total: float, count: int) -> float:
    """Return the tail of a sum of n fair signs, to rounding: P(Bin(n, 1/2) >= (n + s) / 2). O(√n)."""
    successes = math.ceil((count + total) / 2 - 1e-6)
    if 2 * successes <= count:  # 1 - P(Bin >= n + 1 - k), so that the terms below always fall
        return math.log1p(-math.exp(_binomial(count - 2 * successes + 2, count))) if successes > 0 else 0.0
    first = math.lgamma(count + 1) - math.lgamma(successes + 1) - math.lgamma(count - successes + 1)
    term = total_terms = 1.0  # in units of the first term
    for k in range(successes, count):
        term *= (count - k) / (k + 1)
        total_terms += term
        if term < 1e-17:
            break
    return first + math.log(total_terms) - count * math.log(2)


LOG_TAILS: Mapping[str, Callable[[float, int], float]] = {
    "fourier": _saddlepoint(FAMILIES["fourier"]),  # arcsine law
    "square": _binomial,  # two points; for odd V its mean is 1/V, which is left out
}
"""Family -> log P(Σ x >= s) as a function of (s, n)."""


def segment_log_p(
    scores: NDArray[np.float32], pairs: NDArray[np.int64], start: int, end: int, family: Family, keys: int
) -> float:
    """Return the log p-value of one segment under one key, corrected for both having been chosen.

    A union bound over everything that could have been chosen: the chance that unmarked text holds any segment
    with a p-value of at most α, under any of the K keys, is at most α. To keep that union small, not the
    segment itself is tested but its inside on a grid: ends move inwards to multiples of g, the largest power
    of two of at most an eighth of its length. Such an inside is 7 to 15 grid cells long (1 to 15 for g = 1)
    and starts at one of T/g + 1 places; every g from 1 to T/8 gets an equal share of the level.

    Args:
        scores: x_j [T] of the whole text under the key, float32.
        pairs: int64 [T], number of the (context, token) pair, -1 where not scored. A pair counts once.
        start, end: the segment, tokens `[start, end)`.
        family: of the profile.
        keys: K.

    Returns:
        log_p <= 0, natural logarithm. O(T' log T') for T' tokens in the segment.
    """
    grid = 1 << max(0, (max(1, (end - start) // 8)).bit_length() - 1)
    low, high = -(-start // grid) * grid, end // grid * grid
    inside = pairs[low:high]
    where = np.flatnonzero(inside >= 0)
    distinct = low + where[np.unique(inside[where], return_index=True)[1]]
    log_p = log_tail(float(scores[distinct].sum(dtype=np.float64)), len(distinct), family)
    lengths, places = 15 if grid == 1 else 9, len(scores) // grid + 1
    choices = lengths * places * max(1, (len(scores) // 8).bit_length()) * keys
    return min(0.0, log_p + math.log(choices))
