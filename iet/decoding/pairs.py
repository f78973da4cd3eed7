"""Number the (context, token) pairs of a text: equal pairs, equal numbers."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import numpy.typing as npt

from iet.decoding.jit import njit

# Multipliers of a hash that is universal over their draw (multiply-shift), so that no text can be made to
# collide. No result depends on them: n-grams with one hash are still compared, and numbers follow the text.
_FACTORS = np.frombuffer(secrets.token_bytes(8 * 16), np.uint64) | np.uint64(1)


def number_pairs(
    token_ids: npt.NDArray[np.int64], scored: npt.NDArray[np.bool_], n_gram: int
) -> npt.NDArray[np.int64]:
    """Return int64 [T]: 0, 1, 2, ... in the order of first occurrence, -1 where not scored.

    Args:
        token_ids: [T].
        scored: [T], false for the first n - 1.
        n_gram: n, 2 to 16: the pair at t is `token_ids[t - n + 1 : t + 1]`.

    Cost: O(T·n) expected time, 28·T bytes at most. Deterministic.
    """
    bits = max(4, (2 * len(token_ids)).bit_length())  # at most half of the slots are taken
    slots, numbers = np.full(1 << bits, -1, np.int32), np.full(len(token_ids), -1)
    with np.errstate(over="ignore"):  # for NUMBA_DISABLE_JIT=1: products are modulo 2^64
        _number_pairs_njit(token_ids, scored, _FACTORS[:n_gram], np.uint64(64 - bits), slots, numbers)
    return numbers


@njit
def _number_pairs_njit(
    ids: npt.NDArray[np.int64],
    scored: npt.NDArray[np.bool_],
    factors: npt.NDArray[np.uint64],
    shift: np.uint64,
    slots: npt.NDArray[np.int32],
    numbers: npt.NDArray[np.int64],
) -> None:
    count, n_gram = 0, len(factors)
    for t in range(len(ids)):
        if not scored[t]:
            continue
        mixed = np.uint64(0)
        for back in range(n_gram):
            mixed += np.uint64(ids[t - back]) * factors[back]
        place: Any = np.int64(mixed >> shift)
        while True:  # slots hold where an n-gram first stood; the next slot is tried where they differ
            first = slots[place]
            if first < 0:
                slots[place] = t
                numbers[t] = count
                count += 1
                break
            back = 0
            while back < n_gram and ids[t - back] == ids[first - back]:
                back += 1
            if back == n_gram:
                numbers[t] = numbers[first]
                break
            place = place + 1 if place + 1 < len(slots) else 0
