"""Tails of sums of scores, and sums and likelihood ratios over blocks of tokens."""

from __future__ import annotations

import math

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
