"""SipHash-2-4 in NumPy: of many short messages at once, such as the n-grams of a text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
    hashes, words = np.zeros(len(token_ids), np.uint64), token_ids.view(np.uint64)
    key0, key1 = np.frombuffer(key, "<u8")
    length = np.uint64((8 * (n_gram + 1) % 256) << 56)
    for low in range(n_gram - 1, len(words), _BLOCK):
        high = min(low + _BLOCK, len(words))
        ids = (words[low - back : high - back] for back in range(n_gram - 1, -1, -1))
        hashes[low:high] = sip_hash(key0, key1, (np.uint64(first), *ids, length))
    return hashes


def sip_hash(key0: Any, key1: Any, words: Iterable[Any]) -> UInt64s:
    """Return SipHash-2-4 of messages of little-endian words; the last word holds the length in its top byte.

    Args:
        key0, key1: uint64 [...], the two halves of the key.
        words: uint64 [...] each, which broadcast with the keys.
    """
    state = [
        key0 ^ np.uint64(0x736F6D6570736575),
        key1 ^ np.uint64(0x646F72616E646F6D),
        key0 ^ np.uint64(0x6C7967656E657261),
        key1 ^ np.uint64(0x7465646279746573),
    ]
    with np.errstate(over="ignore"):
        for word in words:
            state[3] = state[3] ^ word
            state = _round(*_round(*state))
            state[0] = state[0] ^ word
        state[2] = state[2] ^ np.uint64(0xFF)
        for _ in range(4):
            state = _round(*state)
    return np.asarray(state[0] ^ state[1] ^ state[2] ^ state[3])


def _round(v0: Any, v1: Any, v2: Any, v3: Any) -> list[Any]:
    v0 = v0 + v1
    v1 = _rotated(v1, 13) ^ v0
    v0 = _rotated(v0, 32)
    v2 = v2 + v3
    v3 = _rotated(v3, 16) ^ v2
    v0 = v0 + v3
    v3 = _rotated(v3, 21) ^ v0
    v2 = v2 + v1
    v1 = _rotated(v1, 17) ^ v2
    return [v0, v1, _rotated(v2, 32), v3]


def _rotated(words: Any, bits: int) -> Any:
    return words << np.uint64(bits) | words >> np.uint64(64 - bits)
