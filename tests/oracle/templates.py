"""Fragments of documents and their counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from iet.native.arrays import Int64s, UInt64s
from tests.oracle import twin


@twin
def hash_fragments(symbols: UInt64s, shortest: int, mask: np.uint64, ends: Int64s, hashes: UInt64s) -> int:
    # `near` is of the last nine symbols, as far as it is looked at, `fragment_hash` of the fragment so far.
    factor, second_factor = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
    near = np.uint64(0)
    fragment_hash = np.uint64(1)
    count = start = 0
    for t in range(len(symbols)):
        mixed = (symbols[t] + np.uint64(1)) * factor
        mixed ^= mixed >> np.uint64(32)
        mixed *= second_factor
        near = (near << np.uint64(4)) + (mixed >> np.uint64(8))
        fragment_hash = (fragment_hash ^ mixed) * factor
        fragment_hash ^= fragment_hash >> np.uint64(29)
        last = t + 1 == len(symbols)
        if last or (t + 1 - start >= shortest and (near >> np.uint64(32)) & mask == np.uint64(0)):
            ends[count] = t + 1
            hashes[count] = max(fragment_hash, np.uint64(1))  # 0 is an empty slot
            count, start = count + 1, t + 1
            fragment_hash = np.uint64(1)
    return count


@twin
def count_fragments(
    table: UInt64s, document: int, hashes: UInt64s, counts: np.ndarray[Any, Any], firsts: Int64s
) -> None:
    slots = len(hashes)
    for i in range(len(table)):
        slot: Any = np.int64(table[i] & np.uint64(slots - 1))
        for _ in range(64):  # slots that are tried
            if hashes[slot] == np.uint64(0):
                hashes[slot], firsts[slot] = table[i], document
            if hashes[slot] == table[i]:
                counts[slot] += 1
                break
            slot = slot + 1 if slot + 1 < slots else 0
