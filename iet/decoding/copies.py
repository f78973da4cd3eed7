"""Passages that come back: the text is read without the copies, and each copy as a text of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from iet.decoding.fit import Fitted
from iet.decoding.segmentation import Scored, Segmentation
from iet.native.arrays import Bools, Float32s, Float64s, Int32s, Int64s

PADDING = 64
"""Tokens without evidence that stand for a copy where it is left out: a hand-over is likelier there."""

SHORTEST_COPY = 16
"""Tokens; a shorter copy of another passage is read with what follows it."""


class Decode(Protocol):
    """A decoder as `decode_copies` calls it."""

    def __call__(self, text: Scored, options: Any) -> tuple[Segmentation, Fitted]:
        """Label the tokens of a text, and say what was fitted."""


def decode_copies(
    text: Scored, sources: Int64s, options: Any, decode: Decode
) -> tuple[Int32s, Float32s, Float64s | None]:
    """Decode a text whose copies are no new evidence: neither of who wrote the passage, nor of anything else.

    A copy has the scores of its source again. So the text is fitted and decoded without copies. Then each
    copy is decoded by itself, with strengths, agents' shares and mean length as found before, from the scores
    of its source: whose passage it is does not depend on how often it stands there, nor on who stands around
    it. Copies that are alike are read once.

    Args:
        text: what is read, T tokens.
        sources: `far_sources` [T].
        options: `PosteriorOptions`.
        decode: decodes a text with posteriors.

    Returns:
        Labels int32 [T], posterior float32 [T, A], strengths [A] or None.

    Cost: that of decoding at most T tokens, in two parts or more. Deterministic.
    """
    copied = sources != np.arange(len(sources))
    starts = np.flatnonzero(copied & ~np.append(False, copied[:-1]))
    kept = ~copied
    for start in starts.tolist():
        kept[start : start + PADDING] = True
    stay = np.flatnonzero(kept)
    found, fitted = decode(_of(text, stay, counted=~copied[stay]), options)
    assert found.posterior is not None
    labels = np.empty(len(sources), np.int32)
    posterior = np.empty((len(sources), found.posterior.shape[1]), np.float32)
    labels[stay], posterior[stay] = found.token_agents, found.posterior
    fixed = dataclasses.replace(
        options,
        strengths=found.strengths,
        nobody=max(fitted.nobody, options.nobody),  # the rest does not tell whether anybody wrote the copies
        mean_segment=fitted.mean_segment,
        iterations=0,
    )
    text = dataclasses.replace(text, shares=fitted.shares / (1 - fitted.nobody))
    read = dict[bytes, Segmentation]()
    for start, end in _copies(sources, copied):
        places = sources[start:end]
        key = places.tobytes()
        if key not in read:
            read[key] = decode(_of(text, places), fixed)[0]
        labels[start:end], posterior[start:end] = read[key].token_agents, read[key].posterior
    return labels, posterior, found.strengths


def _of(text: Scored, places: Int64s, counted: Any = True) -> Scored:
    """Return the tokens at some places, without evidence where they are not counted."""

    def taken(values: Any) -> Any:
        return None if values is None else values[places]

    assert text.pairs is not None
    return dataclasses.replace(
        text,
        values=text.values[places],
        scored=text.scored[places] & counted,
        repeated=text.repeated[places],
        pairs=np.where(counted, text.pairs[places], -1),
        weights=taken(text.weights),
        break_odds=taken(text.break_odds),
    )


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
