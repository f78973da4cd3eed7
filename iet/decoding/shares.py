"""How much of a span is its agent's: the expected share of its tokens, with an interval."""

from __future__ import annotations

import numpy as np

from iet.errors import InputError, ShapeError, check_number
from iet.native.arrays import Float32s, Float64s, Int64s
from iet.native.loops import loop

SHARE_SURE = 0.9
"""How often the interval of a share holds the share, at least, if the posteriors are right."""

_BINS = 64  # of a share's law, at most; of a shorter span one a token
_SURE = 0.99  # posterior from which a token's agent is known, so that both sides of it are independent
_CERTAIN = 1e-3  # tokens that are another's with a lower probability lower the low end by their mean alone


def share_intervals(
    posterior: Float32s, starts: Int64s, ends: Int64s, agents: Int64s, sure: float = SHARE_SURE
) -> tuple[Float64s, Float64s]:
    """Return between which shares of the tokens of each span are its agent's: quantiles (1 ∓ `sure`) / 2.

    Of a span of up to 64 tokens the ends are shares that can be, k / (end - start); of a longer one they are
    rounded outwards, to 64ths of it.

    The share is N / (end - start), N = Σ_t 1[agent holds t]; its mean is that of γ_t(agent). Posteriors of
    single tokens do not say how they hang together. Where the agent surely holds a token, what stands before
    it and behind it are independent, as in any Markov chain. So a span is cut at the likeliest token of each
    run with γ >= 0.99; between two cuts the most that can hang together is assumed: one uniform U for all,
    and the agent holds the tokens with γ_t >= U. For one boundary, whose place is all that is uncertain,
    that is exact; elsewhere the variance is the largest that these posteriors allow.

    Args:
        posterior: γ [T, A] float32.
        starts, ends: int64 [S], spans `[start, end)` in any order.
        agents: int64 [S], the column of each span's agent.
        sure: 0 to 1.

    Returns:
        (low, high) [S] float64, 0 to 1; 0 and 0 for an empty span.

    Raises:
        ShapeError: `posterior` is no matrix, or the others are not of one length.
        InputError: a span or a column lies outside.

    Cost: O(tokens of the spans), and O(64²) for each of their parts. Deterministic.
    """
    if posterior.ndim != 2 or not len(starts) == len(ends) == len(agents):
        got = [list(posterior.shape), len(starts), len(ends), len(agents)]
        raise ShapeError("posterior, starts, ends, agents", got=got, expected="[T, A], [S], [S], [S]")
    check_number("sure", sure, 0, 1, integer=False)
    tokens, columns = posterior.shape
    bad = (starts < 0) | (ends < starts) | (ends > tokens) | (agents < 0) | (agents >= columns)
    if bad.any():
        at = int(bad.argmax())
        raise InputError(
            f"spans: got {(int(starts[at]), int(ends[at]), int(agents[at]))}, expected (start, end, agent) up"
            f" to token {tokens} and agent {columns - 1}"
        )
    low, high = np.zeros(len(starts)), np.zeros(len(starts))
    missing, laws = np.empty(tokens), np.empty((3, _BINS + 1))
    _share_intervals_loop(posterior, starts, ends, agents, (1 - sure) / 2, missing, laws, low, high)
    return low, high


@loop
def _share_intervals_loop(
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
            # highest 1 - γ. What falls between two steps is split, so that means are exact.
            for k in range(bins + 1):
                part[k] = more[k] = 0.0
            last = 0
            for j in range(size + 1):
                chance = (missing[size - j] if j else 1.0) - (missing[size - j - 1] if j < size else 0.0)
                place = j * bins / count
                step = min(int(place), bins - 1)
                part[step] += chance * (step + 1 - place)
                part[step + 1] += chance * (place - step)
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
            # Where a step is more than a token, what lies up to a step lower may have been counted here.
            least = k - 1 if k > 0 and bins < count else k
            while k < bins and below + law[k] < 1.0 - tail:
                below += law[k]
                k += 1
            lows[s] = max(0.0, 1.0 - k / bins - certain / count)
            highs[s] = 1.0 - least / bins
