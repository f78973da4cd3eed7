"""Several readings of one text, in the tokens of different profiles, on one axis of characters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.audit.encode import TokenBatch
from iet.audit.parts import Parts
from iet.native.arrays import Float32s, Int64s


@dataclasses.dataclass(frozen=True, eq=False)
class TokenAlignment:
    """What a decoder goes along: the tokens of one reading, or the cells in which several meet.

    A cell begins at each character at which a token of any reading starts. The evidence of a token stands in
    the cell that it starts in.

    Attributes:
        readings: of one text.
        cells: per reading int64 [R], the index that each of its tokens has on the axis, ascending.
        length: how many indices there are.
    """

    readings: tuple[TokenBatch, ...]
    cells: tuple[Int64s, ...]
    length: int
    _starts: Int64s | None = None

    @classmethod
    def of(cls, readings: Sequence[TokenBatch]) -> TokenAlignment:
        """Align readings of one text, which have characters, or the same ids."""
        if len(readings) == 1:
            tokens = len(readings[0])
            return cls(tuple(readings), (np.arange(tokens),), tokens)
        starts = np.unique(np.concatenate([reading.origins for reading in readings]))
        cells = tuple(np.searchsorted(starts, reading.origins) for reading in readings)
        return cls(tuple(readings), cells, len(starts), starts)

    @property
    def origins(self) -> Int64s:
        """int64 [length]: where they start, in characters, or in tokens where only ids are read."""
        return self.readings[0].origins if self._starts is None else self._starts

    def origins_of(self, indices: Int64s, text: int = 0) -> Int64s:
        """Return `origins[indices]` of a text without computing all of them."""
        return self.readings[0].origins_of(indices, text) if self._starts is None else self._starts[indices]

    @property
    def bounds(self) -> tuple[Int64s, Int64s]:
        """int64 [D] and [D]: the indices `[start, end)` of each text."""
        if self._starts is None:
            return self.readings[0].starts, self.readings[0].ends
        return np.array([0]), np.array([self.length])

    @property
    def length_of_text(self) -> int:
        """T: number of tokens of the whole text in the first reading."""
        return len(self.readings[0].ids)

    def place(self, indices: Int64s, end: int) -> Int64s:
        """Return the places of indices from 0 to `length`.

        Among all T tokens, or with several readings in characters (tokens, of ids), `end` of the whole text.
        """
        if self._starts is None:
            return self.readings[0].of_all(indices)
        return np.append(self._starts, end)[indices]

    def tokens(self, starts: Int64s, ends: Int64s) -> Int64s | None:
        """Return spans [S] of indices as spans among all T tokens [S, 2].

        None where several readings have tokens of their own.
        """
        if not self.has_tokens:
            return None
        if self._starts is not None:
            before = np.where(ends > starts, self._starts[ends - 1] + 1, self._starts[starts])
            return np.stack([self._starts[starts], before], axis=1)
        firsts = self.readings[0].of_all(starts)
        lasts = self.readings[0].of_all(np.maximum(ends - 1, 0)) + 1
        return np.stack([firsts, np.where(ends > starts, lasts, firsts)], axis=1)

    @property
    def has_tokens(self) -> bool:
        """Whether its indices are tokens: of the one reading, or of ids that all readings share."""
        return self._starts is None or not self.readings[0].spelled

    def among_all(self, values: NDArray[Any], missing: Any) -> NDArray[Any]:
        """Return values [length, ...] at their places among all T tokens, `missing` at the others."""
        if self._starts is None:
            return self.readings[0].among_all(values, missing)
        everywhere = np.full((self.length_of_text, *values.shape[1:]), missing, values.dtype)
        everywhere[self._starts] = values
        return everywhere

    def tokens_between(self, parts: Parts) -> Int64s:
        """Return the tokens [L, 2] of the first reading that are left out, for each part that is."""
        reading = self.readings[0]
        at = np.searchsorted(reading.origins, parts.left_out[:, 0])
        befores = reading.of_all(np.maximum(at - 1, 0)) + 1
        return np.stack([np.where(at > 0, befores, 0), reading.of_all(at)], axis=1)

    def gather(self, values: Sequence[Float32s]) -> Float32s:
        """Add the values [R, A] of every reading's tokens up where they stand: [length, ΣA]."""
        columns = np.cumsum([0, *(part.shape[1] for part in values)])
        gathered = np.zeros((self.length, int(columns[-1])), np.float32)
        for part, at, low, high in zip(values, self.cells, columns[:-1], columns[1:], strict=True):
            np.add.at(gathered[:, low:high], at, part)  # several tokens may spell one character
        return gathered

    def spread(self, values: Sequence[Float32s]) -> Float32s:
        """Give every cell the values [R, A] of the token that it lies in, of each reading: [length, ΣA]."""
        if len(values) == 1:
            return values[0]
        wide = []
        for part, at in zip(values, self.cells, strict=True):
            token = np.searchsorted(at, np.arange(self.length), "right") - 1
            before = np.zeros((1, part.shape[1]), np.float32)  # the first token: index -1
            wide.append(np.append(part, before, axis=0)[token])
        return np.concatenate(wide, axis=1)
