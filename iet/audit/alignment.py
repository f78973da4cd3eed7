"""A text in the tokens of one profile, and several such readings on one axis of characters."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from iet.audit.parts import Parts
from iet.decoding import Segmentation
from iet.kernels import pair_numbers, score_spans, score_tokens
from iet.marks.foreign.keys import ForeignKeys
from iet.marks.keys import KeyTable
from iet.marks.tokenizer import Encoding
from iet.native.pairs import novelty_weights, repeats

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Scores = NDArray[np.float32]
Keys: TypeAlias = KeyTable | ForeignKeys


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    """The tokens of a text that are read, R of T: all but those that a left-out part covers or touches.

    Scores and pairs come from the whole text, so a context holds the ids that really stood before.

    Attributes:
        encoding: of the whole text.
        places: int64 [R], where the tokens that are read stand among all, ascending; None: R = T.
        pairs: int64 [R], numbers of the (context, token) pairs; -1 where not scored, or cut by a boundary.
            A pair that stood in a left-out part only is no repeat.
    """

    encoding: Encoding
    places: Integers | None
    pairs: Integers
    _characters: bool

    @classmethod
    def of(cls, text: str | None, encoding: Encoding, parts: Parts | None, keys: Keys) -> Reading:
        """Read a text, or ids, as far as `parts` says (None: all of it)."""
        ids = encoding.token_ids
        if parts is None:
            return cls(encoding, None, pair_numbers(ids, keys), text is not None)
        if text is None:
            extents = np.arange(len(ids), dtype=np.int64)[:, None] + np.array([0, 1])
        else:
            extents = encoding.characters(range(len(ids)))
        read = parts.read(extents)
        pairs = pair_numbers(ids, keys, counted=read & parts.whole(extents))
        return cls(encoding, np.flatnonzero(read), pairs[read], text is not None)

    def __len__(self) -> int:
        return len(self.pairs)

    @functools.cached_property
    def scored(self) -> Mask:
        """bool [R]: the tokens with a score."""
        return self.pairs >= 0

    @functools.cached_property
    def repeated(self) -> Mask:
        """bool [R]: the tokens whose pair was read before."""
        return repeats(self.pairs)

    @functools.cached_property
    def novelty(self) -> NDArray[np.float32]:
        """float32 [R]: `novelty_weights` of the tokens in the whole text."""
        weights = novelty_weights(self.encoding.token_ids)
        return weights if self.places is None else weights[self.places]

    @functools.cached_property
    def starts(self) -> Integers:
        """int64 [R]: where the tokens start, in characters, or in tokens where only ids are read."""
        return self.starts_of(np.arange(len(self)))

    def starts_of(self, indices: Integers) -> Integers:
        """Return `starts[indices]`, cheaper than all of them."""
        places = self.of_all(indices)
        return self.encoding.characters(places)[:, 0] if self._characters else places

    def of_all(self, indices: Any) -> Integers:
        """Return the places among all T tokens of indices [N] from 0 to R."""
        at = np.asarray(indices, np.int64)
        return at if self.places is None else np.append(self.places, len(self.encoding.token_ids))[at]

    def among_all(self, values: NDArray[Any], missing: Any) -> NDArray[Any]:
        """Return values [R, ...] at their places among all T tokens, `missing` at the others."""
        if self.places is None:
            return values
        everywhere = np.full((len(self.encoding.token_ids), *values.shape[1:]), missing, values.dtype)
        everywhere[self.places] = values
        return everywhere

    def scores(self, keys: Keys) -> Scores:
        """Return x [R, K] under some keys, 0 where not scored."""
        scores: Scores = score_tokens(self.encoding.token_ids, keys).astype(np.float32, copy=False)
        if self.places is not None:
            scores = scores[self.places]
            scores[~self.scored] = 0
        return scores

    def sums(self, edges: Integers, keys: Keys, counted: Mask | None = None) -> NDArray[np.float64]:
        """Return Σ x [S, K] over the counted ones (None: all) of the tokens between `edges` [S + 1]."""
        mask = counted
        if self.places is not None:
            mask = np.zeros(len(self.encoding.token_ids), np.bool_)
            mask[self.places] = self.scored if counted is None else self.scored & counted
        sums: NDArray[np.float64] = score_spans(
            self.encoding.token_ids, self.of_all(edges), keys, counted=mask
        )
        return sums


@dataclasses.dataclass(frozen=True, eq=False)
class Axis:
    """What a decoder goes along: the tokens of one reading, or the cells in which several meet.

    A cell begins at each character at which a token of any reading starts. The evidence of a token stands in
    the cell that it starts in.

    Attributes:
        readings: of one text.
        cells: per reading int64 [R], the index that each of its tokens has on the axis, ascending.
        length: how many indices there are.
    """

    readings: tuple[Reading, ...]
    cells: tuple[Integers, ...]
    length: int
    _starts: Integers | None = None

    @classmethod
    def of(cls, readings: Sequence[Reading]) -> Axis:
        """Align readings, which have characters if there are several."""
        if len(readings) == 1:
            tokens = len(readings[0])
            return cls(tuple(readings), (np.arange(tokens),), tokens)
        starts = np.unique(np.concatenate([reading.starts for reading in readings]))
        cells = tuple(np.searchsorted(starts, reading.starts) for reading in readings)
        return cls(tuple(readings), cells, len(starts), starts)

    @property
    def starts(self) -> Integers:
        """int64 [length]: where they start, in characters, or in tokens where only ids are read."""
        return self.readings[0].starts if self._starts is None else self._starts

    def starts_of(self, indices: Integers) -> Integers:
        """Return `starts[indices]`, cheaper than all of them."""
        return self.readings[0].starts_of(indices) if self._starts is None else self._starts[indices]

    def place(self, indices: Integers, end: int) -> Integers:
        """Return the places of indices from 0 to `length`.

        Among all T tokens, or with several readings in characters, of which the text has `end`.
        """
        if self._starts is None:
            return self.readings[0].of_all(indices)
        return np.append(self._starts, end)[indices]

    def tokens(self, starts: Integers, ends: Integers) -> Integers | None:
        """Return spans [S] of indices as spans among all T tokens [S, 2]; None with several readings."""
        if self._starts is not None:
            return None
        firsts = self.readings[0].of_all(starts)
        lasts = self.readings[0].of_all(np.maximum(ends - 1, 0)) + 1
        return np.stack([firsts, np.where(ends > starts, lasts, firsts)], axis=1)

    def tokens_between(self, parts: Parts) -> Integers:
        """Return the tokens [L, 2] of the first reading that are left out, for each part that is."""
        reading = self.readings[0]
        at = np.searchsorted(reading.starts, parts.left_out[:, 0])
        befores = reading.of_all(np.maximum(at - 1, 0)) + 1
        return np.stack([np.where(at > 0, befores, 0), reading.of_all(at)], axis=1)

    def gather(self, values: Sequence[Scores]) -> Scores:
        """Add the values [R, A] of every reading's tokens up where they stand: [length, ΣA]."""
        columns = np.cumsum([0, *(part.shape[1] for part in values)])
        gathered = np.zeros((self.length, int(columns[-1])), np.float32)
        for part, at, low, high in zip(values, self.cells, columns[:-1], columns[1:], strict=True):
            np.add.at(gathered[:, low:high], at, part)  # several tokens may spell one character
        return gathered

    def spread(self, values: Sequence[Scores]) -> Scores:
        """Give every cell the values [R, A] of the token that it lies in, of each reading: [length, ΣA]."""
        if len(values) == 1:
            return values[0]
        wide = []
        for part, at in zip(values, self.cells, strict=True):
            token = np.searchsorted(at, np.arange(self.length), "right") - 1
            before = np.zeros((1, part.shape[1]), np.float32)  # the first token: index -1
            wide.append(np.append(part, before, axis=0)[token])
        return np.concatenate(wide, axis=1)


REST, LONGEST_REST = 4, 200
"""In place of a part that is left out stand 4 tokens without evidence for each of its own, 200 at most.

Hand-overs happen there more often than elsewhere, the more so the longer it is. Characters right, on ten
texts of the demo model (κ = 0.8, T = 1, 12 turns of 200 tokens), with 5 to 60 words left out after every
turn: 0.962 if nothing stands there, 0.986 with as many tokens, 0.995 with 4 times as many, 0.997 with 200
each. With 3 to 10 characters left out at six places inside every turn: 0.952, 0.948, 0.945 and 0.916.
"""


def decode_over_rests(
    decode: Callable[..., Segmentation],
    scores: Scores,
    pairs: Integers,
    at: Integers,
    lengths: Integers,
    **each: NDArray[Any],
) -> Segmentation:
    """Decode what is read as if tokens without evidence stood where something is left out.

    Args:
        decode: (scores, pairs, **each) -> Segmentation.
        scores, pairs: [R, A] and [R], as in `iet.decoding.decode`.
        at: [L], indices before which something is left out, ascending.
        lengths: [L], how many tokens that is.
        **each: [R], options with a number for every token, 1 where something is left out.
    """
    if not len(at):
        return decode(scores, pairs, **each)
    rests = np.zeros(len(scores) + 1, np.int64)
    rests[at] = np.minimum(REST * lengths, LONGEST_REST)
    rests[[0, -1]] = 0  # at the ends of the text there is nothing to hand over
    places = np.arange(len(scores)) + np.cumsum(rests)[:-1]
    length = len(scores) + int(rests.sum())
    wide = np.zeros((length, scores.shape[1]), scores.dtype)
    numbers = np.full(length, -1, np.int64)
    wide[places], numbers[places] = scores, pairs
    for name, values in each.items():
        each[name] = np.ones(length, values.dtype)
        each[name][places] = values
    found = decode(wide, numbers, **each)
    posterior = None if found.posterior is None else found.posterior[places]
    return Segmentation(found.token_agents[places], posterior, found.strengths)
