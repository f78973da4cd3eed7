"""SeedBS-NOT: change points by seeded binary segmentation and narrowest over threshold.

Li, Li, Zhang 2024, "Segmenting Watermarked Texts From Language Models" (arXiv 2410.20670). In each of a fixed
set of intervals, each layer of them √2 shorter than the one before, the change point is where

    k·(n - k)/n^(3/2) · (Kolmogorov-Smirnov distance of what stands before k and from k on)

is largest. It is significant if that is seldom reached after permutation in blocks of ten. Of the significant
ones that of the shortest interval is taken, the intervals that hold it are left out, and so on. Sums over a
rolling window stand in for the paper's p-values of the same windows: only their order is used.

The statistic and its place were compared with the published Python (`ks_2samp` at every place): the same, as
is the set of intervals but for starts, which are one later there (an index from 1, read as one from 0). The
C++ beside it, which the WISER paper's table is made with, compares the shares of single values instead of
distribution functions, and finds the first place of any continuous scores; it was not followed.

The paper stops at change points. A segment between them is marked here if its mean is more than `lift`
standard deviations above the null mean and its sum is significant at 1 %.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
from numpy.typing import NDArray

from iet.decoding.jit import njit
from iet.marks.families import Family

GRID = {
    "window": (1, 20),
    "shortest": (25, 50),
    "level": (0.05, 0.01),
    "lift": (0.1, 0.25, 0.5, 0.75),
}
PERMUTATIONS = 99
_HIGHEST = 0.05  # the largest `level`: permutation stops once p is above it
_BLOCK, _DECAY, _SIGNIFICANT = 10, math.sqrt(2), 2.326

Interval = tuple[int, int]


def detect(
    scores: NDArray[np.float64],
    family: Family,
    *,
    window: int = 20,
    shortest: int = 50,
    level: float = 0.05,
    lift: float = 0.25,
) -> list[Interval]:
    """Return the intervals of one key's scores [T] that are marked."""
    edges = [0, *change_points(scores, window, shortest, level), len(scores)]
    found: list[Interval] = []
    for start, end in itertools.pairwise(edges):
        above = (scores[start:end].mean() - family.mean(0.0)) / family.variance**0.5
        if above > lift and above * math.sqrt(end - start) > _SIGNIFICANT:
            if found and found[-1][1] == start:
                start = found.pop()[0]
            found.append((start, end))
    return found


def change_points(scores: NDArray[np.float64], window: int, shortest: int, level: float) -> list[int]:
    """Return where something else begins, ascending."""
    count, held = len(scores) - window + 1, scores.tobytes()
    found: list[int] = []
    if count < max(shortest, 2 * _BLOCK):
        return found
    for start, end in seeded_intervals(count):
        # The shortest ones first: those that hold a point that is found would be left out anyway.
        if end - start < shortest or any(start < point < end for point in found):
            continue
        place, p = _significance(held, window, start, end)
        if p <= level:
            found.append(start + place)
    return sorted({place + window // 2 for place in found})


@functools.cache
def seeded_intervals(tokens: int) -> list[Interval]:
    """Return the intervals [start, end) of `min(GRID["shortest"])` tokens and more, the shortest first."""
    found = {(0, tokens)}
    for layer in range(1, math.ceil(math.log(tokens, _DECAY))):
        length = tokens * _DECAY**-layer
        if length < min(GRID["shortest"]):
            break
        count = 2 * math.ceil(round(tokens / length, 9)) - 1
        starts = np.linspace(0, tokens - length, count)
        found |= {(math.floor(start), math.ceil(start + length - 1e-9)) for start in starts.tolist()}
    return sorted(found, key=lambda each: (each[1] - each[0], each))


@functools.lru_cache(4096)  # levels and lengths are tried one after another on the same scores
def _significance(scores: bytes, window: int, start: int, end: int) -> tuple[int, float]:
    """Return the change point of an interval, in windows from its start, and the p-value."""
    total = np.append(0.0, np.cumsum(np.frombuffer(scores)))
    sums = np.round(total[window:] - total[:-window], 9)[start:end]  # equal sums are to be equal
    ranks = np.unique(sums, return_inverse=True)[1].astype(np.int64)
    place, p = _significance_njit(ranks, _BLOCK, PERMUTATIONS, _HIGHEST)
    return int(place), float(p)


@njit
def _significance_njit(
    ranks: NDArray[np.int64], block: int, permutations: int, highest: float
) -> tuple[int, float]:
    # Return the change point and its p-value; p stops growing once it is above `highest`.
    count = len(ranks)
    below, ahead = np.empty(count, np.int32), np.empty(count, np.int32)
    place, best = _split_njit(ranks, below, ahead)
    np.random.seed(count)
    mixed, reached = np.empty(count, np.int64), 1
    for _ in range(permutations):
        starts = np.random.permutation(count - block + 1)
        for t in range(count):
            mixed[t] = ranks[starts[t // block] + t % block]
        reached += _split_njit(mixed, below, ahead)[1] >= best
        if reached > highest * (permutations + 1):
            break
    return place, reached / (permutations + 1)


@njit
def _split_njit(
    ranks: NDArray[np.int64], below: NDArray[np.int32], ahead: NDArray[np.int32]
) -> tuple[int, int]:
    # Of n values, k before a place, the statistic is max over r of |n·L(r) - k·C(r)| / n^(3/2): L and C count
    # the values of rank r at most, before the place and in all. Return the place and n^(3/2) times that.
    count = len(ranks)
    below[:] = 0
    for t in range(count):
        below[ranks[t]] += 1
    for r in range(1, count):
        below[r] += below[r - 1]
    ahead[:] = 0
    place, best = 1, np.int32(-1)
    step = np.int32(count)
    for t in range(count - 1):
        rank, highest = ranks[t], np.int32(0)
        for r in range(rank):
            value = np.int32(ahead[r] - below[r])
            ahead[r] = value
            highest = max(highest, np.int32(abs(value)))
        for r in range(rank, count):
            value = np.int32(np.int32(ahead[r] - below[r]) + step)
            ahead[r] = value
            highest = max(highest, np.int32(abs(value)))
        if highest > best:
            place, best = t + 1, highest
    return place, int(best)
