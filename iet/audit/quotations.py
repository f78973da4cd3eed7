"""Passages that occur more than once: a copy's posterior is capped by that of its first occurrence."""

from __future__ import annotations

import numpy as np

from iet.audit.align import TokenAlignment
from iet.native.arrays import Float32s, Int64s
from iet.native.pairs import GRAM, SHORTEST, first_occurrences


def cap_quoted_posteriors(posterior: Float32s, alignment: TokenAlignment) -> Float32s:
    """Return γ [N, P] of all texts; a copy has the lower of its own γ and that of the first occurrence.

    A quotation carries the mark of the quoted agent, or none. If it is short, the surrounding words decide
    the posterior, and they belong to the agent that quotes. The first occurrence has other surroundings.
    """
    capped = posterior
    for d, (start, end) in enumerate(zip(*(bounds.tolist() for bounds in alignment.bounds), strict=True)):
        sources = first_occurrences(*_symbols(alignment, d))
        if sources is not None:
            capped = capped.copy() if capped is posterior else capped
            capped[start:end] = np.minimum(posterior[start:end], posterior[start + sources])
    return capped


def _symbols(alignment: TokenAlignment, text: int) -> tuple[Int64s, int]:
    """Return the tokens of a text as symbols, int64 [T], and the length of the shortest passage."""
    batches = alignment.batches
    if len(batches) == 1:
        (batch,) = batches
        ids = batch.ids if batch.read_indices is None else batch.ids[batch.read_indices]
        return ids[batch.inside(text)], SHORTEST
    starting = np.full((alignment.length, len(batches)), -1, np.int64)
    for column, (batch, cells) in enumerate(zip(batches, alignment.cells, strict=True)):
        starting[cells, column] = batch.ids if batch.read_indices is None else batch.ids[batch.read_indices]
    tokens = sum(len(batch) for batch in batches) / len(batches)
    _, symbols = np.unique(starting, axis=0, return_inverse=True)
    longer = alignment.length / tokens if tokens else 1.0
    return symbols.ravel().astype(np.int64), min(64, max(GRAM, round(SHORTEST * longer)))
