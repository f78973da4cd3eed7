"""Passages that come back: the text is read without the copies, and each copy as a text of its own.

A copy has the scores of its source again, and is no new evidence: neither of who wrote the passage, nor of
anything else. So the text is fitted and decoded without copies. Then each copy is decoded by itself, with
strengths, agents' shares and mean length as found before, from the scores of its source: whose passage it is
does not depend on how often it stands there, nor on who stands around it. Copies that are alike are read
once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from iet.native.arrays import Bools, Int64s

PADDING = 64
"""Tokens without evidence that stand for a copy where it is left out: a hand-over is likelier there."""

SHORTEST_COPY = 16
"""Tokens; a shorter copy of another passage is read with what follows it."""


class Parted(NamedTuple):
    """A text of T tokens without its copies, and the copies.

    Attributes:
        stay: int64 [R], tokens that are read with the rest, padding among them.
        counted: bool [R], those that are no padding.
        passages: each with the places [P] of the scores that it has, and the spans `[start, end)` of T where
            it stands.
    """

    stay: Int64s
    counted: Bools
    passages: tuple[tuple[Int64s, list[tuple[int, int]]], ...]


def parted(sources: Int64s) -> Parted:
    """Tell copies, `far_sources` [T], from the rest of a text. O(T)."""
    copied = sources != np.arange(len(sources))
    kept = ~copied
    for start in np.flatnonzero(copied & ~np.append(False, copied[:-1])).tolist():
        kept[start : start + PADDING] = True
    stay = np.flatnonzero(kept)
    alike = dict[bytes, tuple[Int64s, list[tuple[int, int]]]]()
    for start, end in _copies(sources, copied):
        places = sources[start:end]
        alike.setdefault(places.tobytes(), (places, []))[1].append((start, end))
    return Parted(stay, ~copied[stay], tuple(alike.values()))


def side_by_side(passages: Sequence[Int64s], step: int) -> tuple[Int64s, Bools, list[tuple[int, int]]]:
    """Return the places of all passages, one behind the other, each from a multiple of `step` tokens on.

    With which of them are there, and the span `[start, end)` of each: what fills up has the place 0.
    """
    lengths = np.array([len(places) for places in passages])
    sizes = -(-lengths // step) * step
    starts = np.cumsum(sizes) - sizes
    ends = starts + lengths
    places, there = np.zeros(int(sizes.sum()), np.int64), np.zeros(int(sizes.sum()), np.bool_)
    spans = list(zip(starts.tolist(), ends.tolist(), strict=True))
    for each, (start, end) in zip(passages, spans, strict=True):
        places[start:end], there[start:end] = each, True
    return places, there, spans


def wide(values: Any, places: Int64s, length: int) -> Any:
    """Return [length, ...] with the values at their places, and anything elsewhere."""
    found = np.empty((length, *values.shape[1:]), values.dtype)
    found[places] = values
    return found


def _copies(sources: Int64s, copied: Bools) -> Iterator[tuple[int, int]]:
    """Yield the copies `[start, end)`, those that adjoin cut where the next one begins."""
    jumps = np.flatnonzero(np.diff(sources) != 1) + 1
    edges = np.flatnonzero(np.diff(copied, prepend=False, append=False))
    for start, end in edges.reshape(-1, 2).tolist():
        for jump in jumps[slice(*np.searchsorted(jumps, [start + 1, end]))].tolist():
            if jump - start >= SHORTEST_COPY:
                yield start, jump
                start = jump
        yield start, end
