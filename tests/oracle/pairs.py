"""Numbers of n-grams, and what follows from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from iet.native.arrays import Bools, Float32s, Int32s, Int64s, UInt64s
from tests.oracle import twin


@twin
def number_texts(
    ids: Int64s,
    scored: Bools,
    factors: UInt64s,
    back: int,
    starts: Int64s,
    ends: Int64s,
    slots: Int32s,
    numbers: Int64s,
    repeated: Bools,
) -> None:
    for d in range(len(starts)):
        start, end = starts[d], ends[d]
        if end - start <= back:
            continue
        bits = 4
        while (1 << bits) <= 2 * (end - start):
            bits += 1
        table = slots[: 1 << bits]
        table[:] = -1
        inside = slice(start + back, end)
        number_pairs(
            ids[start : end - back], scored[inside], factors, np.uint64(64 - bits), table, numbers[inside]
        )
        mark_repeats(numbers[start:end], repeated[start:end])


@twin
def times_before(numbers: Int64s, starts: Int64s, ends: Int64s, counts: Int32s, times: Int32s) -> None:
    for d in range(len(starts)):
        for t in range(starts[d], ends[d]):
            if numbers[t] >= 0:
                times[t] = counts[numbers[t]]
                counts[numbers[t]] += 1
        for t in range(starts[d], ends[d]):
            if numbers[t] >= 0:
                counts[numbers[t]] = 0


@twin
def merge_numbers(
    numbers: Int64s,
    other_numbers: Int64s,
    starts: Int64s,
    ends: Int64s,
    firsts: Int64s,
    merged: Int64s,
    repeated: Bools,
) -> None:
    for d in range(len(starts)):
        firsts[:, : ends[d] - starts[d]] = -1
        count = 0
        for t in range(starts[d], ends[d]):
            if numbers[t] < 0:
                continue
            first = t  # the earliest token with one of the two numbers
            for kind, number in ((0, numbers[t]), (1, other_numbers[t])):
                if firsts[kind, number] < 0:
                    firsts[kind, number] = t
                first = min(first, firsts[kind, number])
            repeated[t] = first < t
            if first == t:
                merged[t] = count
                count += 1
            else:
                merged[t] = merged[first]


@twin
def mark_repeats(pairs: Int64s, repeated: Bools) -> None:
    """Fill `repeated` as `repeats` does, of one of many texts."""
    count = 0
    for t in range(len(pairs)):
        repeated[t] = 0 <= pairs[t] < count
        count = max(count, pairs[t] + 1)


@twin
def longest_repeat(pairs: Int64s) -> int:
    count, run, longest = 0, 0, 0
    for t in range(len(pairs)):
        run = run + 1 if 0 <= pairs[t] < count else 0
        count, longest = max(count, pairs[t] + 1), max(longest, run)
    return longest


@twin
def far_sources(runs: Int64s, window: int, shortest: int, firsts: Int64s, sources: Int64s) -> bool:
    # A run is named by its last token. `done` is the end of the copies so far.
    done, any_written = 0, False
    for t in range(len(runs)):
        if runs[t] < 0:
            continue
        first = firsts[runs[t]]
        if first < 0:
            firsts[runs[t]] = t
        elif t - first >= window:
            any_written = True
            for j in range(max(done, t - shortest + 1), t + 1):
                sources[j] = sources[j - t + first]
            done = t + 1
    return any_written


@twin
def fresh_weights(pairs: Int64s, window: int, last: Int64s, weights: Float32s) -> None:
    for t in range(len(pairs)):
        if pairs[t] >= 0:
            weights[t] = t - last[pairs[t]] > window
            last[pairs[t]] = t


@twin
def shared_weights(pairs: Int64s, window: int, shares: Float32s, counts: Int32s, weights: Float32s) -> None:
    # The pairs less than `window` away on either side, counted while t moves on.
    for t in range(min(window, len(pairs))):
        counts[pairs[t]] += 1
    for t in range(len(pairs)):
        if t + window - 1 < len(pairs) and t > 0:
            counts[pairs[t + window - 1]] += 1
        if t - window >= 0:
            counts[pairs[t - window]] -= 1
        if pairs[t] >= 0:
            weights[t] = shares[counts[pairs[t]] - 1]


@twin
def number_pairs(
    ids: Int64s, scored: Bools, factors: UInt64s, shift: np.uint64, slots: Int32s, numbers: Int64s
) -> None:
    count, n_gram = 0, len(factors)
    for t in range(len(ids)):
        if not scored[t]:
            continue
        mixed = np.uint64(0)
        for back in range(n_gram):
            mixed += np.uint64(ids[t - back]) * factors[back]
        slot: Any = np.int64(mixed >> shift)
        while True:  # slots hold first positions of n-grams; on a collision the next slot is tried
            first = slots[slot]
            if first < 0:
                slots[slot] = t
                numbers[t] = count
                count += 1
                break
            back = 0
            while back < n_gram and ids[t - back] == ids[first - back]:
                back += 1
            if back == n_gram:
                numbers[t] = numbers[first]
                break
            slot = slot + 1 if slot + 1 < len(slots) else 0
