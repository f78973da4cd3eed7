"""Interpolated modified Kneser-Ney n-gram model over integer symbols, the baseline of the demo model.

Chen and Goodman, "An empirical study of smoothing techniques for language modeling" (1998). An n-gram is
packed into one ``uint64``, as many bits a symbol as the vocabulary takes, the oldest symbol in the highest
bits, so that a table is a sorted array and a look-up is a binary search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

USUAL_ORDER = 5

Symbols = NDArray[np.integer]
Keys = NDArray[np.uint64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Table:
    """The n-grams of one length: discounted counts, and per history what its n-grams leave over."""

    grams: Keys
    discounted: Floats
    histories: Keys
    totals: Floats
    backoff: Floats


class KneserNey:
    """Probabilities of the next symbol given the ``order - 1`` before it.

    Symbols are ``0 .. vocabulary - 1``. ``boundary`` is the symbol that pads the start of a sequence; it
    is never predicted, and the probabilities of all other symbols sum to one after every history.
    """

    def __init__(
        self, sequences: Sequence[Symbols], *, vocabulary: int, boundary: int, order: int = USUAL_ORDER
    ) -> None:
        if not 0 <= boundary < vocabulary:
            raise ValueError(f"boundary: got {boundary}, expected 0 to {vocabulary - 1}")
        if not 1 <= order <= largest_order(vocabulary):
            raise ValueError(f"order: got {order}, expected 1 to {largest_order(vocabulary)}")
        self._bits = _bits(vocabulary)
        self.order = order
        self.vocabulary = vocabulary
        self.boundary = boundary
        packed = [self._pack(sequence) for sequence in sequences]
        grams, counts = np.unique(np.concatenate(packed), return_counts=True)
        tables = []
        for length in range(order, 0, -1):
            tables.append(_table(grams, counts, self._bits))
            grams, counts = np.unique(grams & self._mask(length - 1), return_counts=True)
        self._tables = tables[::-1]

    def log2_probabilities(self, sequence: Symbols) -> Floats:
        """Base-2 logarithm of the probability of each symbol of a sequence given those before it."""
        return np.log2(self._probabilities(self._pack(sequence)))

    def distribution(self, history: Sequence[int]) -> Floats:
        """Probability of every symbol after a history; that of the boundary symbol is zero."""
        padded = ([self.boundary] * self.order + list(history))[len(history) + 1 :]
        symbols = np.arange(self.vocabulary, dtype=np.uint64)
        keys = symbols.copy()
        for back, symbol in enumerate(reversed(padded), start=1):
            keys |= np.uint64(symbol << (self._bits * back))
        probabilities = self._probabilities(keys)
        probabilities[self.boundary] = 0.0
        return probabilities

    def _pack(self, sequence: Symbols) -> Keys:
        padding = np.full(self.order - 1, self.boundary, dtype=np.uint64)
        padded = np.concatenate([padding, sequence.astype(np.uint64)])
        keys = np.zeros(len(sequence), dtype=np.uint64)
        for offset in range(self.order):
            keys = (keys << np.uint64(self._bits)) | padded[offset : offset + len(sequence)]
        return keys

    def _probabilities(self, keys: Keys) -> Floats:
        probabilities = np.full(len(keys), 1.0 / (self.vocabulary - 1))
        for length, table in enumerate(self._tables, start=1):
            grams = keys & self._mask(length)
            history, known = _find(table.histories, grams >> np.uint64(self._bits))
            gram, seen = _find(table.grams, grams)
            mass = np.where(seen, table.discounted[gram], 0.0) / table.totals[history]
            interpolated = mass + table.backoff[history] * probabilities
            probabilities = np.where(known, interpolated, probabilities)
        return probabilities

    def _mask(self, length: int) -> np.uint64:
        return np.uint64((1 << (self._bits * length)) - 1)


def largest_order(vocabulary: int) -> int:
    """Return of how many symbols an n-gram can be."""
    return 64 // _bits(vocabulary)


def _bits(vocabulary: int) -> int:
    return max(1, (vocabulary - 1).bit_length())


def _table(grams: Keys, counts: NDArray[np.int64], bits: int) -> _Table:
    discounts = _discounts(counts)
    discount = discounts[np.minimum(counts, 3)]
    histories, starts = np.unique(grams >> np.uint64(bits), return_index=True)
    totals = np.add.reduceat(counts, starts).astype(np.float64)
    backoff = np.add.reduceat(discount, starts) / totals
    return _Table(grams, counts - discount, histories, totals, backoff)


def _discounts(counts: NDArray[np.int64]) -> Floats:
    """What to take from n-grams that occur 0, 1, 2 and at least 3 times."""
    one, two, three, four = (max(1, int((counts == number).sum())) for number in range(1, 5))
    base = one / (one + 2 * two)
    found = [1 - 2 * base * two / one, 2 - 3 * base * three / two, 3 - 4 * base * four / three]
    return np.array([0.0, *(min(max(value, 0.01), top) for value, top in zip(found, (1, 2, 3), strict=True))])


def _find(table: Keys, keys: Keys) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    index = np.minimum(np.searchsorted(table, keys), len(table) - 1)
    return index, table[index] == keys
