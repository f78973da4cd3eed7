"""Number the (context, token) pairs of a text: equal pairs, equal numbers."""

from __future__ import annotations

import functools
import secrets

import numpy as np

from iet.native import reference
from iet.native.arrays import Bools, Float32s, Int32s, Int64s
from iet.native.load import cpu, loops

# Multipliers of a hash that is universal over their draw (multiply-shift), so that no text can be made to
# collide. No result depends on them: n-grams with one hash are still compared, and numbers follow the text.
_FACTORS = np.frombuffer(secrets.token_bytes(8 * 64), np.uint64) | np.uint64(1)

SHORTEST, GRAM = 16, 4
"""Number of tokens of the shortest passage that counts as a copy, and of the n-grams that find it.

Copies are found by their tokens alone, in every family. Chosen on tuning texts, see
docs/internals/evidence.md.
"""


def number_pairs(token_ids: Int64s, scored: Bools, n_gram: int, contexts: bool = False) -> Int64s:
    """Return int64 [T]: 0, 1, 2, ... in the order of first occurrence, -1 where not scored.

    Args:
        token_ids: [T].
        scored: [T], false for the first n - 1.
        n_gram: n, 1 to 64 (65 with `contexts`): the pair at t is `token_ids[t - n + 1 : t + 1]`.
        contexts: number `token_ids[t - n + 1 : t]` instead: equal contexts, equal numbers.

    Cost: O(T·n) expected time, 28·T bytes at most. Deterministic.
    """
    if contexts:  # a context is the n-gram, one token shorter, that ends before t
        return np.append(-1, number_pairs(token_ids[:-1], scored[1:], n_gram - 1))[: len(token_ids)]
    if cpu is None:
        return reference.number_pairs(token_ids, scored, n_gram)
    bits = max(4, (2 * len(token_ids)).bit_length())  # at most half of the slots are taken
    slots, numbers = np.full(1 << bits, -1, np.int32), np.full(len(token_ids), -1)
    loops.number_pairs(token_ids, scored, _FACTORS[:n_gram], 64 - bits, slots, numbers)
    return numbers


def number_pairs_of(
    token_ids: Int64s, scored: Bools, starts: Int64s, ends: Int64s, n_gram: int, contexts: bool = False
) -> tuple[Int64s, Bools]:
    """Return `number_pairs` and `repeats` [T] of the tokens `[start, end)` of each of D texts."""
    if len(starts) == 1 and starts[0] == 0:
        numbers = number_pairs(token_ids, scored, n_gram, contexts)
        return numbers, repeats(numbers)
    numbers, repeated = np.full(len(token_ids), -1), np.zeros(len(token_ids), np.bool_)
    longest = int((ends - starts).max(initial=0))
    slots = np.empty(1 << max(4, (2 * longest).bit_length()), np.int32)
    back = int(contexts)
    factors = _FACTORS[: n_gram - back]
    loops.number_texts(token_ids, scored, factors, back, starts, ends, slots, numbers, repeated)
    return numbers, repeated


def times_before(
    token_ids: Int64s, n_gram: int, starts: Int64s | None = None, ends: Int64s | None = None
) -> Int32s:
    """Return the number of earlier occurrences of each token's context (n-1 ids) in its text, int32 [T].

    Args:
        token_ids: [T], of one text, or of texts that are joined.
        n_gram: n, 2 to 65.
        starts, ends: [D], the tokens `[start, end)` of each text; None: all are of one.

    0 for the first n-1 tokens of a text and between texts. O(T·n) expected time. Deterministic.
    """
    starts = np.zeros(1, np.int64) if starts is None else starts
    ends = np.full(1, len(token_ids)) if ends is None else ends
    times = np.zeros(len(token_ids), np.int32)
    if cpu is None:
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            times[start:end] = reference.times_before(token_ids[start:end], n_gram)
        return times
    has_context = np.zeros(len(token_ids), np.bool_)
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        has_context[start + n_gram - 1 : end] = True
    numbers, _ = number_pairs_of(token_ids, has_context, starts, ends, n_gram, contexts=True)
    counts = np.zeros(int(numbers.max(initial=0)) + 1, np.int32)
    loops.times_before(numbers, starts, ends, counts, times)
    return times


def merged_numbers_of(
    numbers: Int64s, other_numbers: Int64s, starts: Int64s, ends: Int64s
) -> tuple[Int64s, Bools]:
    """Return what `number_pairs_of` does, for tokens that are equal if either of their numbers are.

    `numbers` and `others` [T] count from 0 in the order of first occurrence in each text, or both are -1.
    """
    merged, repeated = np.full(len(numbers), -1), np.zeros(len(numbers), np.bool_)
    firsts = np.empty((2, int((ends - starts).max(initial=0))), np.int64)
    loops.merge_numbers(numbers, other_numbers, starts, ends, firsts, merged, repeated)
    return merged, repeated


def repeats(pairs: Int64s) -> Bools:
    """Return which of the `pair_numbers` [T] occurred earlier in the text; false if not scored. O(T)."""
    return (pairs >= 0) & (pairs < _numbers_before(pairs))


def checked_repeats(pairs: Int64s) -> Bools | None:
    """Return `repeats`, or None if these are no `pair_numbers`: 0, 1, 2, ... as they first occur, and -1."""
    previous = _numbers_before(pairs)
    fine = (pairs >= -1).all() and (pairs <= previous).all()
    return (pairs >= 0) & (pairs < previous) if fine else None


def _numbers_before(pairs: Int64s) -> Int64s:
    """Return how many numbers there were before each token, [T], if they follow first occurrences."""
    highest = np.maximum.accumulate(np.append(-1, pairs[:-1])[: len(pairs)])
    return np.asarray(highest + 1)


def shared_weights(pairs: Int64s, window: int = 256) -> Float32s:
    """Return the weight of each occurrence of a pair, float32 [T]: m^-3/4 if it occurs m times nearby.

    Args:
        pairs: numbers as `number_pairs` returns them, [T]; -1 counts 0.
        window: tokens; an occurrence is nearby if it is less than that away, so each is nearby to itself.
    """
    weights = np.zeros(len(pairs), np.float32)
    if len(pairs):
        counts = np.zeros(pairs.max() + 2, np.int32)  # the last entry is that of -1
        loops.shared_weights(pairs, window, _shares_of(window), counts, weights)
    return weights


@functools.cache
def _shares_of(window: int) -> Float32s:
    return (np.arange(1, window * 2, dtype=np.float64) ** -0.75).astype(np.float32)


def fresh_weights(pairs: Int64s, window: int = 256) -> Float32s:
    """Return float32 [T]: 1 if a pair did not occur within the last `window` tokens, else 0; 0 for -1."""
    weights = np.zeros(len(pairs), np.float32)
    if len(pairs):
        loops.fresh_weights(pairs, window, np.full(pairs.max() + 2, -window - 1), weights)
    return weights


def novelty_weights(
    token_ids: Int64s, starts: Int64s | None = None, ends: Int64s | None = None, window: int = 256
) -> Float32s:
    """Return the weight of each token as evidence of a key, by how predictable the text before makes it.

    Args:
        token_ids: [T], of one text, or of texts that are joined.
        starts, ends: [D], the tokens `[start, end)` of each text; None: all are of one.
        window: tokens.

    1 for a token that did not occur within the last `window` tokens, 0.75 if it did, 0.4 if it did after the
    same id, 0.2 if it did after the same two ids. A predictable token is weak evidence: on text of the
    shipped model at temperature 0.5 the mean score of family "gumbel" under the right key is 2.6, 1.7, 1.3
    and 1.2 in these four cases (1 under a wrong key). float32 [T]. Cost: O(T). Deterministic.
    """
    starts = np.zeros(1, np.int64) if starts is None else starts
    ends = np.full(1, len(token_ids)) if ends is None else ends
    positions = np.arange(len(token_ids)) - np.repeat(starts, np.diff(ends, prepend=0))
    weights = np.ones(len(token_ids), np.float32)
    for n_gram, weight in ((1, 0.75), (2, 0.4), (3, 0.2)):
        numbers, _ = number_pairs_of(token_ids, positions >= n_gram - 1, starts, ends, n_gram)
        # Different texts get different numbers: a text's first token exceeds all numbers of texts before it.
        numbers = np.where(numbers >= 0, numbers + np.arange(len(token_ids)) - positions, -1)
        weights[(numbers >= 0) & (fresh_weights(numbers, window) == 0)] = weight
    return weights


def far_sources(pairs: Int64s, window: int = 256, shortest: int = 64) -> Int64s | None:
    """Return the position of the first occurrence of each repeated token, int64 [T]; None: no repeats.

    A token is a copy if it is one of `shortest` or more consecutive tokens whose pairs occurred in the same
    order before, first at least `window` tokens earlier. Half of them must have pairs that did not occur
    within the last `shortest` tokens: a loop of the generator is not a passage. Other tokens are their own
    source, and a source is never a copy.

    Args:
        pairs: numbers as `number_pairs` returns them, [T]; -1 ends a passage.
        window: tokens, at least `shortest`.
        shortest: tokens, 1 to 64.

    Cost: O(T) without such a run of repeats, else O(T·shortest) expected. Deterministic.
    """
    if loops.longest_repeat(pairs) < shortest:
        return None
    is_full = _among_last(pairs >= 0, shortest) == shortest
    fresh = _among_last(fresh_weights(pairs, shortest) > 0, shortest)
    runs = number_pairs(pairs, is_full & (2 * fresh >= shortest), shortest)
    sources = np.arange(len(pairs))
    firsts = np.full(runs.max() + 1, -1)
    return sources if loops.far_sources(runs, window, shortest, firsts, sources) else None


def first_occurrences(symbols: Int64s, shortest: int = SHORTEST) -> Int64s | None:
    """Return the index of each token's first occurrence, int64 [T]; None: no passage is repeated.

    Args:
        symbols: the tokens, int64 [T].
        shortest: number of tokens of the shortest passage, `GRAM` to 64. A copy starts at least as many
            tokens after the first occurrence, and is no loop (`far_sources`).

    A token outside of copies has its own index. Deterministic. O(T) without a copy, else O(T·shortest)
    expected.
    """
    grams = number_pairs(symbols, np.arange(len(symbols)) >= GRAM - 1, GRAM)
    sources = far_sources(grams, shortest, shortest - GRAM + 1)
    if sources is None:
        return None
    # `far_sources` finds the last tokens of n-grams. Extend each copy to the start of its first n-gram.
    copied = sources != np.arange(len(sources))
    for start in np.flatnonzero(copied & ~np.append(False, copied[:-1])).tolist():
        for t in range(start - 1, start - GRAM, -1):
            if t < 0 or copied[t] or sources[start] < start - t:
                break
            sources[t] = sources[sources[start] - (start - t)]  # this may be a copy itself
    return sources


def _among_last(mask: Bools, length: int) -> Int64s:
    """Return of how many of the last `length` tokens the mask [T] is true, [T]."""
    counts = np.cumsum(mask, dtype=np.int64)
    counts[length:] -= counts[:-length].copy()
    return counts
