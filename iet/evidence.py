"""How surprising a segment's scores would be without a mark."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from iet.scheme import Family


def log_tail_bound(total: float, count: int, family: Family) -> float:
    """Bound the log-probability that `count` unmarked scores sum to at least `total`.

        log P(Σ x >= s) <= min_{λ>=0} n·log_mgf(λ) - λ·s      (Chernoff)

    Not in the paper, which has no null. A bound, not an estimate: true p-values are smaller, by a factor of
    about √n.

    Args:
        total: s.
        count: n, scores of distinct (context, token) pairs: repeats are no new evidence.
        family: whose null law the scores have.

    Returns:
        log_p <= 0, natural logarithm. 0 where the mean is not above 0. O(1).
    """
    if count == 0 or total <= 0:
        return 0.0
    mean = min(total / count, 1 - 1e-9)
    low, high = 0.0, 1.0
    while family.mean(high) < mean and high < 256:
        high *= 2
    for _ in range(50):  # λ with mean(λ) = s/n, where the bound is smallest
        middle = (low + high) / 2
        low, high = (middle, high) if family.mean(middle) < mean else (low, middle)
    return min(0.0, count * (family.log_mgf(low) - low * mean))


def segment_log_p(
    scores: NDArray[np.float32], pairs: NDArray[np.int64], family: Family, tokens: int, keys: int
) -> float:
    """Return the log p-value of one segment under one key, corrected for having been chosen.

    The segment is one of T·(T+1)/2 and the key one of K, so the bound for a fixed segment and key is
    multiplied by both (Bonferroni). The chance that unmarked text yields any segment below a level is then
    at most that level.

    Args:
        scores: x_j of the segment's tokens under the key, float32.
        pairs: number of the (context, token) pair of each, -1 where not scored. A pair counts once.
        family: of the profile.
        tokens: T, of the whole text.
        keys: K, of the registry.
    """
    where = np.flatnonzero(pairs >= 0)
    distinct = where[np.unique(pairs[where], return_index=True)[1]]
    bound = log_tail_bound(float(scores[distinct].sum(dtype=np.float64)), len(distinct), family)
    return min(0.0, bound + math.log(tokens * (tokens + 1) / 2) + math.log(keys))
