"""Repeated passages: a text is decoded without its copies, and each copy as a text of its own.

A copy has the same scores as its source, so it is no new evidence. The text is fitted and decoded without
copies. Then each copy is decoded separately from the scores of its source, with the fitted strengths, shares
and mean length. So its agent depends neither on the number of copies nor on the text around them. Equal
copies are decoded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from iet.native.arrays import Bools, Int64s

PADDING = 64
"""Tokens without evidence that replace a copy: they make a hand-over likelier there."""

SHORTEST_COPY = 16
"""Tokens; a shorter copy is decoded together with the copy after it."""


class Passage(NamedTuple):
    """A copied passage of P tokens: the positions of its scores, int64 [P], and the spans of its copies."""

    sources: Int64s
    spans: list[tuple[int, int]]


class SplitText(NamedTuple):
    """A text of T tokens without its copies, and the copies.

    Attributes:
        retained: int64 [R], positions of the tokens that are decoded together, with the padding.
        counted: bool [R], false for padding.
        passages: the copies, equal ones together.
    """

    retained: Int64s
    counted: Bools
    passages: tuple[Passage, ...]


def split_copies(sources: Int64s) -> SplitText:
    """Separate the copies in a text from the rest, by its `far_sources` [T]. O(T)."""
    copied = sources != np.arange(len(sources))
    keep = ~copied
    for start in np.flatnonzero(copied & ~np.append(False, copied[:-1])).tolist():
        keep[start : start + PADDING] = True
    retained = np.flatnonzero(keep)
    passages = dict[bytes, Passage]()
    for start, end in _copies(sources, copied):
        positions = sources[start:end]
        passages.setdefault(positions.tobytes(), Passage(positions, [])).spans.append((start, end))
    return SplitText(retained, ~copied[retained], tuple(passages.values()))


def concatenate(passages: Sequence[Int64s], step: int) -> tuple[Int64s, Bools, list[tuple[int, int]]]:
    """Return all passages in one array, each from a multiple of `step` on.

    Returns:
        (positions [N], 0 for padding; bool [N], false for padding; the span `[start, end)` of each passage).
    """
    lengths = np.array([len(passage) for passage in passages])
    sizes = -(-lengths // step) * step
    starts = np.cumsum(sizes) - sizes
    spans = list(zip(starts.tolist(), (starts + lengths).tolist(), strict=True))
    positions, is_passage = np.zeros(int(sizes.sum()), np.int64), np.zeros(int(sizes.sum()), np.bool_)
    for passage, (start, end) in zip(passages, spans, strict=True):
        positions[start:end], is_passage[start:end] = passage, True
    return positions, is_passage, spans


def scatter(values: Any, positions: Int64s, length: int) -> Any:
    """Return an array [length, ...] with the values at their positions; the other rows are not set."""
    result = np.empty((length, *values.shape[1:]), values.dtype)
    result[positions] = values
    return result


def _copies(sources: Int64s, copied: Bools) -> Iterator[tuple[int, int]]:
    """Yield the copies `[start, end)`; adjacent copies of different passages are separate."""
    jumps = np.flatnonzero(np.diff(sources) != 1) + 1
    edges = np.flatnonzero(np.diff(copied, prepend=False, append=False))
    for start, end in edges.reshape(-1, 2).tolist():
        for jump in jumps[slice(*np.searchsorted(jumps, [start + 1, end]))].tolist():
            if jump - start >= SHORTEST_COPY:
                yield start, jump
                start = jump
        yield start, end
