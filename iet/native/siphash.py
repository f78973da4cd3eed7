"""SipHash-2-4 of the n-grams of a text, in NumPy: many short messages under one key."""

from __future__ import annotations

import numpy as np

from iet.native.arrays import Int64s, UInt64s

_BLOCK = 1 << 13  # n-grams at a time, so that the state stays in a cache


def hash_n_grams(token_ids: Int64s, n_gram: int, key: bytes, first: int) -> UInt64s:
    """Return SipHash-2-4 (Aumasson and Bernstein, 2012) of `first` and the n ids that end at each position.

    The message is of n + 1 little-endian words of 64 bits.

    Args:
        token_ids: [T].
        n_gram: n, at least 1.
        key: 16 bytes.
        first: a word before the ids, 0 to 2^64 - 1.

    Returns:
        uint64 [T], 0 for the first n - 1. Deterministic. O(T·n) time; 8·T bytes and 1 MB.
    """
    found, words = np.zeros(len(token_ids), np.uint64), token_ids.view(np.uint64)
    k0, k1 = np.frombuffer(key, "<u8").tolist()
    start = (
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    )
    length = np.uint64((8 * (n_gram + 1) % 256) << 56)
    for low in range(n_gram - 1, len(words), _BLOCK):
        high = min(low + _BLOCK, len(words))
        state = [np.full(high - low, word, np.uint64) for word in start]
        _absorb(state, np.uint64(first))
        for back in range(n_gram - 1, -1, -1):
            _absorb(state, words[low - back : high - back])
        _absorb(state, length)
        state[2] ^= np.uint64(0xFF)
        for _ in range(4):
            _round(state)
        found[low:high] = state[0] ^ state[1] ^ state[2] ^ state[3]
    return found


def _absorb(state: list[UInt64s], word: UInt64s | np.uint64) -> None:
    state[3] ^= word
    _round(state)
    _round(state)
    state[0] ^= word


def _round(state: list[UInt64s]) -> None:
    v0, v1, v2, v3 = state
    v0 += v1
    v1 = _rotated(v1, 13) ^ v0
    v0 = _rotated(v0, 32)
    v2 += v3
    v3 = _rotated(v3, 16) ^ v2
    v0 += v3
    v3 = _rotated(v3, 21) ^ v0
    v2 += v1
    v1 = _rotated(v1, 17) ^ v2
    state[:] = v0, v1, _rotated(v2, 32), v3


def _rotated(words: UInt64s, bits: int) -> UInt64s:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))
