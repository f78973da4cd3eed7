"""Sums over spans of a text, and offsets of tokens."""

from __future__ import annotations

import numpy as np

from iet.decoding.segmentation import Scores
from iet.native.arrays import Float32s, Float64s, Int64s, UInt8s
from tests.oracle import twin

_BINS = 64  # maximum number of steps of the law of a share
_SURE = (
    0.99  # posterior above which a token's agent is certain, so that both sides of the token are independent
)
_CERTAIN = 1e-3  # tokens below this error probability lower the low end by their mean alone


@twin
def match_spelling(
    ids: Int64s, starts: Int64s, lengths: Int64s, spelling: UInt8s, raw: UInt8s, ends: Int64s
) -> bool:
    at = 0
    for t in range(len(ids)):
        start, length = starts[ids[t]], lengths[ids[t]]
        if length == 0 or length > len(raw) - at:
            return False
        for i in range(length):
            if spelling[start + i] != raw[at + i]:
                return False
        at += length
        ends[t] = at
    return at == len(raw)


@twin
def windows(x: Scores, width: int, step: int, total: Float64s, f: Float64s) -> None:
    """Fill f as `windows` does; `total` [A] is zeros."""
    agents = x.shape[1]
    first = right = 0  # total = Σ x[first:right]
    for i in range(len(f)):
        start = i * step
        if start >= right:
            first = right = start
            for a in range(agents):
                total[a] = 0.0
        while right < start + width:
            for a in range(agents):
                total[a] += x[right, a]
            right += 1
        while first < start:
            for a in range(agents):
                total[a] -= x[first, a]
            first += 1
        for a in range(agents):
            f[i, a] = total[a] / width


@twin
def column_summary(
    values: Float32s, boundaries: Int64s, columns: Int64s, totals: Float64s, highest: Float32s
) -> None:
    for s in range(len(columns)):
        for t in range(boundaries[s], boundaries[s + 1]):
            value = values[t, columns[s]]
            totals[s] += value  # in float64, token by token
            if value > highest[s]:
                highest[s] = value


@twin
def margin(f: Scores, z: Float64s) -> None:
    """Fill z as `margin` does."""
    for i in range(f.shape[0]):
        first, second = f[i, 0], -np.inf
        for a in range(1, f.shape[1]):
            if f[i, a] > first:
                first, second = f[i, a], first
            elif f[i, a] > second:
                second = f[i, a]
        z[i] = first - second if f.shape[1] > 1 else first


@twin
def share_intervals(
    posterior: Float32s,
    starts: Int64s,
    ends: Int64s,
    agents: Int64s,
    tail: float,
    missing: Float64s,
    laws: Float64s,
    lows: Float64s,
    highs: Float64s,
) -> None:
    # Plain loops all the way: slices, sort() and a second function took six seconds to compile.
    law, more, part = laws[0], laws[1], laws[2]
    for s in range(len(starts)):
        begin, end, agent, count = starts[s], ends[s], agents[s], ends[s] - starts[s]
        # `law` is that of the share that is another's, in steps of 1 / bins.
        bins = min(count, _BINS)
        for k in range(bins + 1):
            law[k] = 0.0
        law[0] = 1.0
        certain, size, peak, surely = 0.0, 0, begin, False
        for t in range(begin, end + 1):
            if t < end and posterior[t, agent] >= _SURE:
                if not surely or posterior[t, agent] > posterior[peak, agent]:
                    peak = t
                surely = True
                continue
            if t < end and not surely:
                continue
            until = peak if t < end else end  # a run of sure tokens ends here, or the span does
            size, surely = 0, False
            for i in range(begin, until):
                q = 1.0 - posterior[i, agent]
                if q < _CERTAIN:
                    certain += max(q, 0.0)
                else:
                    missing[size] = q
                    size += 1
            begin = until
            if size == 0:
                continue
            # Sort what is missing, by a heap: the first half makes it, the second takes the highest off.
            for turn in range(size // 2 + size - 1):
                taking = turn >= size // 2
                root = 0 if taking else size // 2 - 1 - turn
                heap = size - 1 - (turn - size // 2) if taking else size
                moved = missing[root]
                if taking:
                    moved, missing[heap] = missing[heap], missing[0]
                child = 2 * root + 1
                while child < heap:
                    if child + 1 < heap and missing[child + 1] > missing[child]:
                        child += 1
                    if missing[child] <= moved:
                        break
                    missing[root] = missing[child]
                    root, child = child, 2 * child + 1
                missing[root] = moved
            # Convolve `law` with that of M = number of these tokens with 1 - γ_t > U: P(M >= j) is the j-th
            # highest 1 - γ. Mass between two steps is split, so that means are exact.
            for k in range(bins + 1):
                part[k] = more[k] = 0.0
            last = 0
            for j in range(size + 1):
                chance = (missing[size - j] if j else 1.0) - (missing[size - j - 1] if j < size else 0.0)
                position = j * bins / count
                step = min(int(position), bins - 1)
                part[step] += chance * (step + 1 - position)
                part[step + 1] += chance * (position - step)
                last = step + 1
            for k in range(bins + 1):
                if law[k] > 0.0:
                    for j in range(last + 1):
                        more[min(k + j, bins)] += law[k] * part[j]
            for k in range(bins + 1):
                law[k] = more[k]
        if count:
            below, k = 0.0, 0
            while k < bins and below + law[k] < tail:
                below += law[k]
                k += 1
            # If a step is more than a token, mass up to a step lower may be counted here.
            lowest = k - 1 if k > 0 and bins < count else k
            while k < bins and below + law[k] < 1.0 - tail:
                below += law[k]
                k += 1
            lows[s] = max(0.0, 1.0 - k / bins - certain / count)
            highs[s] = 1.0 - lowest / bins


@twin
def leads(
    f: Float64s,
    sides: Int64s,
    width: int,
    step: int,
    neighbourhood: int,
    ending: bool,
    means: Float64s,
    result: Float64s,
) -> None:
    # Window w has its centre at w·step + width/2, in half tokens below, and start < centre < end.
    for i in range(len(sides)):
        start, end, agent = sides[i, 0], sides[i, 1], sides[i, 2]
        low = max(0, (2 * start - width) // (2 * step) + 1)
        high = min(len(f), (2 * end - width - 1) // (2 * step) + 1)
        if low >= high:  # the one whose centre is nearest to the middle
            middle = start + end - width
            low = min(max(0, middle // (2 * step)), len(f) - 1)
            if low + 1 < len(f) and middle > step * (2 * low + 1):
                low += 1
            high = low + 1
        if ending:
            low = max(low, high - neighbourhood)
        else:
            high = min(high, low + neighbourhood)
        for a in range(f.shape[1]):
            means[a] = 0.0
            for w in range(low, high):
                means[a] += f[w, a]
        best = -np.inf if f.shape[1] > 1 else 0.0
        for a in range(f.shape[1]):
            if a != agent and means[a] > best:
                best = means[a]
        result[i] = (means[agent] - best) / (high - low)
