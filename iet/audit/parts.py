"""The parts of a text that an audit reads, and known boundaries in them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from iet.errors import InputError, ShapeError, shown
from iet.native.arrays import Bools, Int64s


@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a text that an audit leaves out, and the known boundaries in the rest.

    Attributes:
        length: length of the text in characters, or in tokens if only ids are audited.
        left_out: int64 [L, 2], ascending spans in the same unit; something is read between two of them.
        boundaries: int64 [S - 1], ascending, inside the text; None: the decoder finds them.
    """

    length: int
    left_out: Int64s
    boundaries: Int64s | None

    @classmethod
    def of(
        cls, length: int, spans: ArrayLike | None, skip: ArrayLike | None, boundaries: ArrayLike | None
    ) -> Parts:
        """Return the parts for spans in any order, overlapping or not, in the unit of `length`.

        Args:
            length: length of the text.
            spans: [N, 2], the only parts to read; None: the whole text.
            skip: [M, 2], parts not to read, also within `spans`; None: none.
            boundaries: [S - 1], positions at which a new segment starts; None: the decoder finds them.

        Raises:
            ShapeError: spans are not pairs of integers, or boundaries not integers.
            InputError: one lies outside the text, or ends before it starts, or has more than 64 bits.
        """
        skipped = _spans("skip", skip, length)
        if spans is not None:
            only = _union(_spans("spans", spans, length))
            around = np.concatenate([[0], only.ravel(), [length]]).reshape(-1, 2)
            skipped = np.concatenate([skipped, around])
        cuts = None
        if boundaries is not None:
            cuts = _integers("boundaries", boundaries, 1)
            outside = (cuts < 0) | (cuts > length)
            if outside.any():
                raise InputError(
                    f"boundaries: got {cuts[outside][0]}, expected 0 to {length}, the length of the text"
                )
            cuts = np.unique(cuts[(cuts > 0) & (cuts < length)])
        return cls(length, _union(skipped), cuts)

    def read(self, extents: Int64s) -> Bools:
        """Return bool [T]: which tokens, `[start, end)` [T, 2] and ascending, are read as a whole."""
        starts, ends = extents.T
        last = np.searchsorted(self.left_out[:, 0], np.maximum(ends, starts + 1)) - 1
        is_read: Bools = (last < 0) | (np.append(self.left_out[:, 1], 0)[last] <= starts)
        return is_read

    def whole(self, extents: Int64s) -> Bools:
        """Return bool [T]: which tokens, `[start, end)` [T, 2], no boundary cuts."""
        if self.boundaries is None:
            return np.ones(len(extents), np.bool_)
        inside = np.searchsorted(self.boundaries, extents[:, 1]) - 1
        cut: Bools = (inside >= 0) & (np.append(self.boundaries, 0)[inside] > extents[:, 0])
        return ~cut

    def without_gaps(self, starts: Int64s) -> Parts:
        """Return the parts with every gap left out that holds no token.

        Args:
            starts: [R], positions at which the tokens that are read start, ascending.
        """
        if not len(self.left_out):
            return self
        at = np.searchsorted(starts, self.left_out[:, 0])
        lows, highs = self.left_out.T.copy()
        lows[at == 0] = 0
        highs[at == len(starts)] = self.length
        group = np.flatnonzero(np.append(True, np.diff(at) > 0))
        joined = np.stack([lows[group], np.maximum.reduceat(highs, group)], axis=1)
        return dataclasses.replace(self, left_out=joined)

    @property
    def audited(self) -> Int64s:
        """int64 [N, 2]: the complement of `left_out`, cut at the boundaries."""
        edges = np.concatenate([[0], self.left_out.ravel(), [self.length]]).reshape(-1, 2)
        edges = edges[edges[:, 0] < edges[:, 1]]
        if self.boundaries is None or not len(edges):
            return edges
        part = np.searchsorted(edges[:, 0], self.boundaries, "right") - 1
        inside = (part >= 0) & (self.boundaries > edges[part, 0]) & (self.boundaries < edges[part, 1])
        cuts = self.boundaries[inside]
        return np.stack(
            [np.sort(np.append(edges[:, 0], cuts)), np.sort(np.append(edges[:, 1], cuts))], axis=1
        )


def _spans(name: str, values: ArrayLike | None, length: int) -> Int64s:
    if values is None:
        return np.zeros((0, 2), np.int64)
    table = _integers(name, values, 2)
    bad = (table[:, 0] < 0) | (table[:, 1] > length) | (table[:, 1] < table[:, 0])
    if bad.any():
        raise InputError(
            f"{name}: got {tuple(table[bad][0].tolist())}, expected (start, end) with"
            f" 0 <= start <= end <= {length}, the length of the text"
        )
    return table[table[:, 0] < table[:, 1]]


def _integers(name: str, values: Any, width: int) -> Int64s:
    expected = "integers [B]" if width == 1 else "(start, end) pairs of integers"
    try:
        table = np.asarray(values)
    except ValueError:  # rows of different lengths
        raise ShapeError(name, got="rows of different lengths", expected=expected) from None
    if table.size == 0:
        return np.zeros((0, 2) if width == 2 else 0, np.int64)
    if table.dtype.kind in "Of" or table.dtype == np.uint64:  # integers beyond 64 bits give these dtypes
        for value in np.asarray(values, object).flat:
            if isinstance(value, (int, np.integer)) and not -(2**63) <= value < 2**63:
                raise InputError(f"{name}: got {shown(int(value))}, expected {expected} of 64 bits")
    if table.ndim != width or table.shape[1:] not in ((), (2,)) or table.dtype.kind not in "iu":
        raise ShapeError(name, got=f"{table.dtype} {list(table.shape)}", expected=expected)
    return table.astype(np.int64)


def _union(spans: Int64s) -> Int64s:
    """Return the union of spans [N, 2] as ascending spans that neither overlap nor touch."""
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    spans = spans[spans[:, 0] < spans[:, 1]]
    if not len(spans):
        return spans
    reach = np.maximum.accumulate(spans[:, 1])
    firsts = np.flatnonzero(np.append(True, spans[1:, 0] > reach[:-1]))
    return np.stack([spans[firsts, 0], np.maximum.reduceat(spans[:, 1], firsts)], axis=1)
