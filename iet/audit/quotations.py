"""Passages that stand in a text more than once: of a copy, no more is known than of the first place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iet.audit.align import TokenAlignment
from iet.native.arrays import Float32s, Int64s
from iet.native.pairs import far_sources, number_pairs

SHORTEST, GRAM = 16, 4
"""Tokens of the shortest passage that is looked for, and of the n-grams in which it is.

By the tokens alone, so that it is found in every family. Chosen on tuning texts, see
docs/internals/evidence.md.
"""


def first_places(symbols: Int64s, shortest: int = SHORTEST) -> Int64s | None:
    """Return where each token of a passage that comes back stood first, int64 [T]; None: nothing comes back.

    Args:
        symbols: the tokens, int64 [T].
        shortest: tokens of the shortest passage, at least `GRAM`, at most 64. It came back if it first stood
            at least as many tokens before, and is no loop (`far_sources`).

    Cost: O(T) where nothing comes back, else O(T·shortest) expected. Deterministic.
    """
    grams = number_pairs(symbols, np.arange(len(symbols)) >= GRAM - 1, GRAM)
    places = far_sources(grams, shortest, shortest - GRAM + 1)
    if places is None:
        return None
    # What is found is where n-grams end. The first of a passage begins before.
    copied = places != np.arange(len(places))
    for start in np.flatnonzero(copied & ~np.append(False, copied[:-1])).tolist():
        for t in range(start - 1, start - GRAM, -1):
            if t < 0 or copied[t] or places[start] < start - t:
                break
            places[t] = places[places[start] - (start - t)]  # which may be a copy itself
    return places


def cap_quoted_posteriors(posteriors: Sequence[Float32s], alignment: TokenAlignment) -> tuple[Float32s, ...]:
    """Return γ [T, P] of each text, of a copy the lower of its own and that of the passage's first place.

    A quotation has the marks of the one who is quoted, or none. Where it is short, the words around it decide
    whose it is taken for, which is who quotes. Where a passage stood first, other words stand around it.
    """
    found = list[Float32s]()
    for d, posterior in enumerate(posteriors):
        places = first_places(*_symbols(alignment, d))
        found.append(posterior if places is None else np.minimum(posterior, posterior[places]))
    return tuple(found)


def _symbols(alignment: TokenAlignment, text: int) -> tuple[Int64s, int]:
    """Return what tells the tokens of a text apart, and the shortest passage."""
    readings = alignment.readings
    if len(readings) == 1:
        (reading,) = readings
        ids = reading.ids if reading.places is None else reading.ids[reading.places]
        return ids[reading.inside(text)], SHORTEST
    starting = np.full((alignment.length, len(readings)), -1, np.int64)
    for column, (reading, cells) in enumerate(zip(readings, alignment.cells, strict=True)):
        starting[cells, column] = reading.ids if reading.places is None else reading.ids[reading.places]
    tokens = sum(len(reading) for reading in readings) / len(readings)
    _, symbols = np.unique(starting, axis=0, return_inverse=True)
    longer = alignment.length / tokens if tokens else 1.0
    return symbols.ravel().astype(np.int64), min(64, max(GRAM, round(SHORTEST * longer)))
