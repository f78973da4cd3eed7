"""Loops of the decoder "cusum", compiled by Numba; `iet.decoding.cusum` imports them on its first call."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from iet.decoding.jit import njit
from iet.decoding.segmentation import UNATTRIBUTED, Scores
from iet.native.arrays import Bools, Float64s, Int32s, Int64s


@njit
def smooth_loop(z: Float64s, width: int, mean: Float64s) -> None:
    """Fill `mean` with the centred moving average of z."""
    total = np.empty(len(z) + 1)
    total[0] = 0.0
    for i in range(len(z)):
        total[i + 1] = total[i] + z[i]
    for i in range(len(z)):
        low, high = max(i - width // 2, 0), min(i + width // 2 + 1, len(z))
        mean[i] = (total[high] - total[low]) / (high - low)


@njit
def cusum_loop(z: Float64s, tau: float, min_points: int, stack: Int64s, change_points: Int64s) -> int:
    """Fill `change_points` [W] and return their number; `stack` [W + 1, 2] is scratch space."""
    # The left half is split first while the right half waits below it, so change points come out in order.
    count, depth = 0, 1
    stack[0, 0], stack[0, 1] = 0, len(z)
    while True:
        low, high = stack[depth - 1, 0], stack[depth - 1, 1]
        mean = 0.0
        for t in range(low, high):
            mean += z[t]
        mean /= max(high - low, 1)
        best, split, c = tau, -1, 0.0
        for t in range(low, high - min_points):
            c += z[t] - mean
            if abs(c) > best and t + 1 - low >= min_points:
                best, split = abs(c), t + 1
        if split >= 0:
            stack[depth - 1, 0] = split
            stack[depth, 0], stack[depth, 1] = low, split
            depth += 1
            continue
        depth -= 1
        if depth == 0:
            return count
        change_points[count] = high
        count += 1


@njit
def refine_loop(f: Scores, count: int, radius: int, sums: Float64s, change_points: Int64s) -> None:
    """Move the first `count` change points in place; `sums` [A] is scratch space."""
    begin, left_sum = 0, 0
    for s in range(count + 1):
        end = change_points[s] if s < count else len(f)
        for a in range(len(sums)):
            sums[a] = 0.0
        for i in range(begin, end):
            for a in range(len(sums)):
                sums[a] += f[i, a]
        right_sum = 0
        for a in range(1, len(sums)):
            if sums[a] > sums[right_sum]:
                right_sum = a
        if s > 0 and left_sum != right_sum:  # the boundary at `begin`
            low = change_points[s - 2] + 1 if s > 1 else 1
            low, high = max(low, begin - radius), min(end - 1, begin + radius)
            gain = best = 0.0  # Σ f(i, L) - f(i, R) over low <= i < position
            chosen = low
            for position in range(low + 1, high + 1):
                gain += f[position - 1, left_sum] - f[position - 1, right_sum]
                nearer = abs(position - begin) < abs(chosen - begin)
                if gain > best or (gain == best and nearer):
                    best, chosen = gain, position
            change_points[s - 1] = chosen
        begin, left_sum = end, right_sum


@njit
def labels_loop(
    x: Scores,
    scored: Bools,
    starts: Int64s,
    ends: Int64s,
    f: Float64s,
    margins: Float64s,
    window_edges: Int64s,
    parameters: Any,
    labels: Int32s,
) -> None:
    """Fill the labels of the tokens `[start, end)` of each of D texts.

    The windows of text d are the rows `[window_edges[d], window_edges[d + 1])` of `f` and `margins`.
    `parameters` are `CusumParameters`.
    """
    sums = np.empty(x.shape[1])
    for d in range(len(starts)):
        first, last = window_edges[d], window_edges[d + 1]
        smoothed, change_points = np.empty(last - first), np.empty(last - first, np.int64)
        smooth_loop(margins[first:last], parameters.smooth_windows, smoothed)
        stack = np.empty((last - first + 1, 2), np.int64)
        count = cusum_loop(smoothed, parameters.tau, parameters.min_points, stack, change_points)
        if count > 0:
            refine_loop(f[first:last], count, parameters.radius, sums, change_points)
        begin = starts[d]
        for s in range(count + 1):
            end = ends[d]
            if s < count:
                end = starts[d] + change_points[s] * parameters.step + parameters.shift
            for a in range(len(sums)):
                sums[a] = 0.0
            counted, label = 0, 0
            for t in range(begin, end):
                counted += scored[t]
                for a in range(len(sums)):
                    sums[a] += x[t, a]
            for a in range(1, len(sums)):
                if sums[a] > sums[label]:
                    label = a
            surplus = sums[label] - parameters.mean * counted
            if parameters.threshold > -np.inf and surplus <= parameters.threshold * math.sqrt(counted):
                label = UNATTRIBUTED
            for t in range(begin, end):
                labels[t] = label
            begin = end
