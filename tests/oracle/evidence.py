"""Tails of sums of scores, and sums and likelihood ratios over blocks of tokens."""

from __future__ import annotations

import math

import numba
import numpy as np

from iet.decoding.activity import BLOCK
from iet.decoding.segmentation import Scores
from iet.native.arrays import Bools, Float32s, Float64s, Int32s, Int64s
from tests.oracle import twin


@twin
def binomial_tails(successes: Int64s, trials: Int64s, chance: float, log_p: Float64s) -> None:
    for i in range(len(trials)):
        count, k, q = trials[i], successes[i], chance
        if k <= 0:
            continue
        if k > count:
            log_p[i] = -np.inf
            continue
        use_complement = (
            k <= count * q
        )  # 1 - P(Bin(n, 1 - q) >= n + 1 - k), so that the terms below always fall
        if use_complement:
            k, q = count + 1 - k, 1.0 - q
        first = math.lgamma(count + 1.0) - math.lgamma(k + 1.0) - math.lgamma(count - k + 1.0)
        first += k * math.log(q) + (count - k) * math.log(1.0 - q)
        term = terms = 1.0  # in units of the first term
        odds = q / (1.0 - q)
        for j in range(k, count):
            term *= (count - j) / (j + 1) * odds
            terms += term
            if term < 1e-17:
                break
        value = first + math.log(terms)
        log_p[i] = min(0.0, math.log1p(-math.exp(min(value, -1e-16))) if use_complement else value)


@twin
def gamma_tails(totals: Float64s, counts: Int64s, log_p: Float64s) -> None:
    # P(Σ x >= s) is the probability of fewer than n arrivals up to time s: Σ_{k < n} e^-s s^k / k!.
    for i in range(len(totals)):
        count, total = counts[i], totals[i]
        if count == 0 or total <= 0:
            continue
        use_complement = total < count  # 1 - Σ_{k >= n}, so that the terms below always fall
        k = count if use_complement else count - 1
        first = k * math.log(total) - total - math.lgamma(k + 1.0)
        term = terms = 1.0  # in units of the first term
        while term > 1e-17:
            if use_complement:
                k += 1
                term *= total / k
            elif k > 0:
                term *= k / total
                k -= 1
            else:
                break
            terms += term
        value = first + math.log(terms)
        log_p[i] = min(0.0, math.log1p(-math.exp(min(value, -1e-16))) if use_complement else value)


@numba.njit
def _adjusted_root(exponent: float, v: float, at_mean: float) -> float:
    r = math.copysign(math.sqrt(2 * max(0.0, exponent)), v)
    return r + at_mean if abs(r) < 1e-3 else r + math.log(v / r) / r


@numba.njit
def _sums_of_roots() -> Float64s:
    n, total, sums = float(BLOCK), 0.05, np.zeros(3200)
    for i in range(len(sums)):
        root = -10 + i / 64
        for _ in range(50):
            v, exponent = (total - n) / math.sqrt(n), total - n - n * math.log(total / n)
            slope = 1 / math.sqrt(n)
            if abs(v) >= 1e-3:
                slope = (1 - n / total) / math.copysign(math.sqrt(2 * exponent), v)
            change = (root - _adjusted_root(exponent, v, 1 / (3 * math.sqrt(n)))) / slope
            total = max(total / 2, total + change)
            if abs(change) <= 1e-10 * total:
                break
        sums[i] = total
    return sums


@numba.njit
def _unweighted(total: float, weights: Float64s, numbers: Float64s, table: Float64s) -> float:
    mean = square = cube = tokens = 0.0
    for c, n in zip(weights, numbers):  # noqa: B905
        tokens, mean, square, cube = tokens + n, mean + n * c, square + n * c * c, cube + n * c * c * c
    top, at_mean = weights[-1], cube / (3 * square * math.sqrt(square))
    total = max(total, 1e-9 * mean)
    y = total / (tokens * top) if total < mean else total / mean
    for _ in range(60):
        value = slope = 0.0
        for c, n in zip(weights, numbers):  # noqa: B905
            ratio = top / (c + (top - c) * y)
            value += n * c * ratio
            slope += n * (c * c / top) * ratio * ratio
        change = (total - value * y) / slope
        y += change
        if abs(change) <= 1e-6 * y:
            break
    log_mgf = variance = 0.0
    for c, n in zip(weights, numbers):  # noqa: B905
        ratio = y * top / (c + (top - c) * y)
        log_mgf += n * math.log(ratio)
        variance += n * (c * ratio) * (c * ratio)
    strength = (1 - 1 / y) / top
    root = _adjusted_root(strength * total - log_mgf, strength * math.sqrt(variance), at_mean)
    at = min(max((root + 10) * 64, 0.0), len(table) - 1.0)
    low = min(int(at), len(table) - 2)
    return table[low] + (at - low) * (table[low + 1] - table[low])


@twin
def unweighted_sums(counts: Int32s, sums: Float64s) -> None:
    table = _sums_of_roots()
    for b in range(len(sums)):
        levels = np.flatnonzero(counts[b])
        if not len(levels):
            continue
        weights, numbers, mean = (levels + 1.0) / 16, counts[b][levels].astype(np.float64), 0.0
        for c, n in zip(weights, numbers):  # noqa: B905
            mean += n * c
        for a in range(sums.shape[1]):
            if len(levels) == 1 and numbers[0] == BLOCK:
                sums[b, a] /= weights[-1]
                continue
            place = math.pow(sums[b, a] / mean, 1.0 / 3) * 32 if sums.shape[1] > 64 else 96.0
            low = int(place)
            if low + 1 >= 96:
                sums[b, a] = _unweighted(sums[b, a], weights, numbers, table)
                continue
            left = math.pow(_unweighted(mean * math.pow(low / 32, 3.0), weights, numbers, table), 1.0 / 3)
            right = math.pow(
                _unweighted(mean * math.pow((low + 1) / 32, 3.0), weights, numbers, table), 1.0 / 3
            )
            root = left + (place - low) * (right - left)
            sums[b, a] = root * root * root


@twin
def distinct_sums(
    scores: Scores,
    pairs: Int64s,
    lows: Int64s,
    highs: Int64s,
    columns: Int64s,
    seen: Int32s,
    totals: Float64s,
    counts: Int64s,
) -> None:
    for i in range(len(lows)):
        for t in range(lows[i], highs[i]):
            pair = pairs[t]
            if pair >= 0 and seen[pair] != i:
                seen[pair] = i
                totals[i] += scores[t, columns[i]]
                counts[i] += 1


@twin
def counted_sums(
    x: Scores, counted: Bools, starts: Int64s, ends: Int64s, edges: Int64s, sums: Float32s
) -> None:
    for d in range(len(starts)):
        at, use_complement = edges[d], BLOCK
        for t in range(starts[d], ends[d]):
            if counted[t]:
                if use_complement == 0:
                    at, use_complement = at + 1, BLOCK
                for a in range(x.shape[1]):
                    sums[at, a] += x[t, a]
                use_complement -= 1


@twin
def two_states(
    ratios: Float64s, columns: int, edges: Int64s, enters: Float64s, stay: float, log_ratios: Float64s
) -> None:
    # All columns side by side, so that one does not wait for its own last block.
    outside, inside = np.empty(columns), np.empty(columns)
    leave = 1.0 - stay
    for d in range(len(edges) - 1):
        first, last = edges[d], edges[d + 1] - 1
        for i in range(len(enters)):
            enter = enters[i]
            start = leave / (enter + leave)
            for b in range(first, last + 1):
                for a in range(columns):
                    if b == first:
                        outside[a], inside[a] = start, (1.0 - start) * ratios[b, a]
                    else:
                        previous = outside[a]
                        outside[a] = previous * (1.0 - enter) + inside[a] * leave
                        inside[a] = (previous * enter + inside[a] * stay) * ratios[b, a]
                if (b - first) % 8 == 7 or b == last:  # e^40 a block at most: eight of them stay in range
                    for a in range(columns):
                        total = outside[a] + inside[a]
                        log_ratios[d, i, a] += math.log(total)
                        outside[a] /= total
                        inside[a] /= total
