"""The step "align": the tokens of one profile, or those of several profiles on one axis of characters."""

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
    """The axis that a decoder reads: the tokens of one batch, or cells that hold the tokens of several.

    A cell begins at each character at which a token of any batch starts. It holds the evidence of the tokens
    that start in it.

    Attributes:
        batches: one for each profile; several batches have one text.
        cells: for each batch int64 [R], the index of each of its tokens on the axis, ascending.
        length: number of indices.
    """

    batches: tuple[TokenBatch, ...]
    cells: tuple[Int64s, ...]
    length: int
    _starts: Int64s | None = None

    @classmethod
    def of(cls, batches: Sequence[TokenBatch]) -> TokenAlignment:
        """Align batches. Several must be of one text, with characters or with the same ids."""
        if len(batches) == 1:
            tokens = len(batches[0])
            return cls(tuple(batches), (np.arange(tokens),), tokens)
        starts = np.unique(np.concatenate([batch.origins for batch in batches]))
        cells = tuple(np.searchsorted(starts, batch.origins) for batch in batches)
        return cls(tuple(batches), cells, len(starts), starts)

    @property
    def origins(self) -> Int64s:
        """int64 [length]: first character of each index, or its first token if only ids are read."""
        return self.batches[0].origins if self._starts is None else self._starts

    def origins_of(self, indices: Int64s, text: int = 0) -> Int64s:
        """Return `origins[indices]` of a text without computing all of them."""
        return self.batches[0].origins_of(indices, text) if self._starts is None else self._starts[indices]

    @property
    def bounds(self) -> tuple[Int64s, Int64s]:
        """int64 [D] and [D]: the indices `[start, end)` of each text."""
        if self._starts is None:
            return self.batches[0].starts, self.batches[0].ends
        return np.array([0]), np.array([self.length])

    @property
    def texts(self) -> Int64s:
        """int64 [length]: the text of each index."""
        return self.batches[0].numbers if self._starts is None else np.zeros(self.length, np.int64)

    @property
    def length_of_text(self) -> int:
        """T: number of tokens of the whole text in the first batch."""
        return len(self.batches[0].ids)

    def place(self, indices: Int64s, end: int) -> Int64s:
        """Return the positions of indices from 0 to `length`, where `length` has the position `end`.

        A position is an index among all T tokens; with several batches it is a character (of ids: a token).
        """
        if self._starts is None:
            return self.batches[0].of_all(indices)
        return np.append(self._starts, end)[indices]

    def tokens(self, starts: Int64s, ends: Int64s) -> Int64s | None:
        """Return spans [S] of indices as spans of tokens [S, 2] of the whole text.

        None if several batches have different tokens.
        """
        if not self.has_tokens:
            return None
        if self._starts is not None:
            previous = np.where(ends > starts, self._starts[ends - 1] + 1, self._starts[starts])
            return np.stack([self._starts[starts], previous], axis=1)
        firsts = self.batches[0].of_all(starts)
        lasts = self.batches[0].of_all(np.maximum(ends - 1, 0)) + 1
        return np.stack([firsts, np.where(ends > starts, lasts, firsts)], axis=1)

    @property
    def has_tokens(self) -> bool:
        """Whether its indices are tokens: those of the only batch, or ids that all batches share."""
        return self._starts is None or not self.batches[0].spelled

    def among_all(self, values: NDArray[Any], missing: Any) -> NDArray[Any]:
        """Return values [length, ...] spread over all T tokens, with `missing` for the others."""
        if self._starts is None:
            return self.batches[0].among_all(values, missing)
        everywhere = np.full((self.length_of_text, *values.shape[1:]), missing, values.dtype)
        everywhere[self._starts] = values
        return everywhere

    def tokens_between(self, parts: Parts) -> Int64s:
        """Return the tokens [L, 2] of the first batch in each part that is left out."""
        batch = self.batches[0]
        at = np.searchsorted(batch.origins, parts.left_out[:, 0])
        befores = batch.of_all(np.maximum(at - 1, 0)) + 1
        return np.stack([np.where(at > 0, befores, 0), batch.of_all(at)], axis=1)

    def gather(self, values: Sequence[Float32s]) -> Float32s:
        """Return [length, ΣA]: the sums of the values [R, A] of each cell's tokens, batch by batch."""
        columns = np.cumsum([0, *(part.shape[1] for part in values)])
        gathered = np.zeros((self.length, int(columns[-1])), np.float32)
        for part, at, low, high in zip(values, self.cells, columns[:-1], columns[1:], strict=True):
            np.add.at(gathered[:, low:high], at, part)  # several tokens may spell one character
        return gathered

    def spread(self, values: Sequence[Float32s]) -> Float32s:
        """Return [length, ΣA]: the values [R, A] of the token that each cell lies in, batch by batch."""
        if len(values) == 1:
            return values[0]
        wide = []
        for part, at in zip(values, self.cells, strict=True):
            token = np.searchsorted(at, np.arange(self.length), "right") - 1
            previous = np.zeros((1, part.shape[1]), np.float32)  # the first token: index -1
            wide.append(np.append(part, previous, axis=0)[token])
        return np.concatenate(wide, axis=1)
