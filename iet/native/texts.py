"""Ids of one text, or of many texts in one array with padding before each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from iet.native.arrays import Bools, Int64s


@dataclasses.dataclass(frozen=True, eq=False)
class Texts:
    """One text, or concatenated texts with padding of -1 before each, as long as a context.

    So no context spans two texts, and one call scores all texts.

    Attributes:
        ids: int64 [N].
        starts, ends: int64 [D], the ids `[start, end)` of each text.
    """

    ids: Int64s
    starts: Int64s
    ends: Int64s

    @classmethod
    def of(cls, texts: Sequence[Int64s], n_gram: int) -> Texts:
        """Join the ids [T_d] of D texts."""
        gap = np.full(max(1, n_gram - 1), -1)
        lengths = np.array([len(text) for text in texts], np.int64)
        ends = np.cumsum(lengths + len(gap))
        return cls(np.concatenate([part for text in texts for part in (gap, text)]), ends - lengths, ends)

    @classmethod
    def single(cls, token_ids: Int64s) -> Texts:
        """Return one text, without padding."""
        return cls(token_ids, np.zeros(1, np.int64), np.full(1, len(token_ids)))

    @property
    def between(self) -> Bools:
        """bool [N]: the padding."""
        between = np.ones(len(self.ids), np.bool_)
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            between[start:end] = False
        return between
