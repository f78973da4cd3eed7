"""The step "encode": D texts in the tokens of one profile, with numbered pairs and scores under keys."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.audit.parts import Parts
from iet.decoding.activity import LEVELS
from iet.kernels import pair_numbers, score_spans, score_tokens
from iet.marks.keys import Keys, KeyTable
from iet.marks.tokenizer import Encoding
from iet.native.arrays import Bools, Float32s, Float64s, Int32s, Int64s, UInt8s
from iet.native.pairs import novelty_weights, number_pairs, repeats
from iet.native.texts import Texts


@dataclasses.dataclass(frozen=True, eq=False)
class TokenBatch:
    """The tokens of D texts, joined into one array with padding between texts.

    If parts of a single text are left out, R of its T tokens are read: those that no left-out part covers or
    touches. Scores and pairs come from the whole text, so each context holds the ids that precede the token
    in it.

    Attributes:
        encodings: the D whole texts.
        ids: int64 [N], the ids of all texts with the padding.
        read_indices: int64 [R], indices of the tokens that are read among all T; None: all are read.
        starts, ends: int64 [D], the tokens `[start, end)` of each text in the arrays below.
        pairs: int64 [N] (or [R]), numbers of the (context, token) pairs of each text; -1 for tokens that have
            no score or that a boundary cuts. A pair that occurs before only in a left-out part is no repeat.
        repeated: bool [N] (or [R]), the tokens whose pair occurred before, or counts in another document.
        texts: with their characters; None: only ids are known.
        parts: what is left out of a single text, and given boundaries; None: nothing.
        published: bool [N] (or [R]), tokens without a score only because their pair was published before;
            None: unknown.
    """

    encodings: tuple[Encoding, ...]
    ids: Int64s
    read_indices: Int64s | None
    starts: Int64s
    ends: Int64s
    pairs: Int64s
    repeated: Bools
    texts: tuple[str, ...] | None
    parts: Parts | None = None
    published: Bools | None = None

    @classmethod
    def of(cls, encoding: Encoding, parts: Parts | None, keys: Keys, text: str | None) -> TokenBatch:
        """Return the batch of one text, or of ids, without what `parts` leaves out (None: nothing)."""
        ids, read_indices, published = encoding.token_ids, None, encoding.published
        unpublished = None if published is None else ~published
        if parts is None:
            pairs = pair_numbers(ids, keys, counted=unpublished)
        else:
            extents = token_extents(encoding, text is not None)
            read = parts.read(extents)
            counted = read & parts.whole(extents)
            if published is not None:
                published, counted = (published & counted)[read], counted & ~published
            pairs = pair_numbers(ids, keys, counted=counted)[read]
            read_indices = np.flatnonzero(read)
        bounds, repeated = (np.array([0]), np.array([len(pairs)])), repeats(pairs)
        if encoding.elsewhere is not None:
            repeated |= (encoding.elsewhere if read_indices is None else encoding.elsewhere[read_indices]) & (
                pairs >= 0
            )
        texts = None if text is None else (text,)
        return cls((encoding,), ids, read_indices, *bounds, pairs, repeated, texts, parts, published)

    @classmethod
    def of_many(cls, encodings: Sequence[Encoding], keys: Keys, texts: Sequence[str] | None) -> TokenBatch:
        """Return the batch of many whole texts. Each has the numbers that it would have alone."""
        joined = Texts.of([encoding.token_ids for encoding in encodings], keys.profile.scheme.n_gram)
        published = None
        if any(encoding.published is not None for encoding in encodings):
            published = np.zeros(len(joined.ids), np.bool_)
            for encoding, start, end in zip(encodings, joined.starts, joined.ends, strict=True):
                published[start:end] = False if encoding.published is None else encoding.published
        pairs, repeated = keys.pairs(joined, None if published is None else ~published)
        for encoding, start, end in zip(encodings, joined.starts, joined.ends, strict=True):
            if encoding.elsewhere is not None:
                repeated[start:end] |= encoding.elsewhere & (pairs[start:end] >= 0)
        bounds, of_texts = (joined.starts, joined.ends), None if texts is None else tuple(texts)
        return cls(
            tuple(encodings), joined.ids, None, *bounds, pairs, repeated, of_texts, published=published
        )

    def without_evidence_in(self, ids: Int64s, n_gram: int) -> TokenBatch:
        """Return the batch with those tokens as `repeated` that end n ids which are also in other `ids`."""
        scored = np.append(np.arange(len(ids)) >= n_gram - 1, self.among_all(self.scored, False))
        numbers = number_pairs(np.append(ids, self.ids), scored, n_gram)
        repeated = np.isin(numbers[len(ids) :], numbers[: len(ids)]) & scored[len(ids) :]
        repeated = repeated if self.read_indices is None else repeated[self.read_indices]
        return dataclasses.replace(self, repeated=self.repeated | repeated)

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def spelled(self) -> bool:
        """Whether the texts have characters, not only ids."""
        return self.texts is not None

    @property
    def joined(self) -> Texts:
        """The ids of all texts, also of what is left out."""
        if self.read_indices is not None:
            return Texts.single(self.ids)
        return Texts(self.ids, self.starts, self.ends)

    @property
    def given_starts(self) -> Int64s:
        """int64: the tokens, among all of the ids, at which parts start or end and pieces start."""
        if self.parts is None:
            return np.zeros(0, np.int64)
        cuts = self.parts.left_out.ravel()
        if self.parts.boundaries is not None:
            cuts = np.append(cuts, self.parts.boundaries)
        starts = token_extents(self.encodings[0], self.spelled)[:, 0]
        tokens = np.unique(np.searchsorted(starts, cuts))
        return tokens[tokens < len(starts)]

    @property
    def paragraphs(self) -> Int64s:
        """int64: the tokens, among all of the ids, that start a paragraph; lines, if no line is blank."""
        if self.texts is None:
            return np.zeros(0, np.int64)
        found = []
        for text, encoding, first in zip(
            self.texts, self.encodings, self.joined.starts.tolist(), strict=True
        ):
            ends = [match.end() for match in re.finditer(r"\n[ \t\r]*\n\s*", text)]
            ends = ends or [match.end() for match in re.finditer(r"\n\s*", text)]
            if ends:
                starts = encoding.char_starts
                tokens = np.unique(np.searchsorted(starts, ends))
                found.append(first + tokens[tokens < len(starts)])
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    @functools.cached_property
    def scored(self) -> Bools:
        """bool [N] (or [R]): the tokens with a score."""
        return self.pairs >= 0

    @functools.cached_property
    def evidence_here(self) -> Int64s:
        """`pairs`, with -1 for tokens that are evidence in another document."""
        if all(encoding.elsewhere is None for encoding in self.encodings):
            return self.pairs
        elsewhere = np.zeros(len(self.ids), np.bool_)
        for d, encoding in enumerate(self.encodings):
            if encoding.elsewhere is not None:
                elsewhere[self.inside(d) if self.read_indices is None else slice(None)] = encoding.elsewhere
        return np.where(
            elsewhere if self.read_indices is None else elsewhere[self.read_indices], -1, self.pairs
        )

    @functools.cached_property
    def numbers(self) -> Int64s:
        """int64 [N]: the text of each token; padding belongs to the text that follows it."""
        return np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))

    def count(self, mask: Bools) -> Int64s:
        """Return the number of True entries [D] of the mask [N] in each text."""
        spans = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return np.array([np.count_nonzero(mask[start:end]) for start, end in spans], np.int64)

    @property
    def published_counts(self) -> Int64s:
        """int64 [D]: number of tokens of each text whose pair was published before."""
        if self.published is None:
            return np.zeros(len(self.ends), np.int64)
        return self.count(self.published)

    def inside(self, text: int) -> slice:
        """Return the slice of a text's tokens."""
        return slice(int(self.starts[text]), int(self.ends[text]))

    @functools.cached_property
    def novelty(self) -> Float32s:
        """float32 [N] (or [R]): `novelty_weights`, computed in the whole texts."""
        if self.read_indices is not None:
            return novelty_weights(self.ids)[self.read_indices]
        return novelty_weights(self.ids, self.starts, self.ends)

    def scores(self, keys: Keys, times: Int32s | None = None) -> Float32s:
        """Return x [N, K] (or [R, K]) under some keys, float32; 0 for tokens without a score.

        `times`: the counts in the seeds, of all ids; None: those in the whole texts.
        """
        if times is not None:
            assert isinstance(keys, KeyTable)
            scores_of_all = keys.scores(self.joined, 0, times)
        elif len(self.ends) > 1:
            scores_of_all = keys.scores(self.joined, 0)
        else:
            scores_of_all = score_tokens(self.ids, keys)
        scores: Float32s = scores_of_all.astype(np.float32, copy=False)
        if self.read_indices is not None:
            scores = scores[self.read_indices]
        if self.read_indices is not None or self.published is not None:
            scores[~self.scored] = 0
        return scores

    # The methods below need a batch of a single text.

    @functools.cached_property
    def origins(self) -> Int64s:
        """int64 [R]: first character of each token, or its index if only ids are read."""
        return self.origins_of(np.arange(len(self)))

    def origins_of(self, indices: Int64s, text: int = 0) -> Int64s:
        """Return `origins[indices]` of a text without computing all of them."""
        read_indices = self.of_all(indices)
        return self.encodings[text].characters(read_indices)[:, 0] if self.spelled else read_indices

    def of_all(self, indices: Any) -> Int64s:
        """Return the indices among all T tokens of indices [N] from 0 to R."""
        picked = np.asarray(indices, np.int64)
        return picked if self.read_indices is None else np.append(self.read_indices, len(self.ids))[picked]

    def among_all(self, values: NDArray[Any], missing: Any) -> NDArray[Any]:
        """Return values [R, ...] spread over all T tokens, with `missing` for the others."""
        if self.read_indices is None:
            return values
        everywhere = np.full((len(self.ids), *values.shape[1:]), missing, values.dtype)
        everywhere[self.read_indices] = values
        return everywhere

    def sums(
        self, edges: Int64s, keys: Keys, counted: Bools | None = None, times: Int32s | None = None
    ) -> Float64s:
        """Return Σ x [S, K] over the counted tokens (None: all) between `edges` [S + 1]; see `scores`."""
        mask = counted
        if self.read_indices is None and self.published is not None:
            mask = self.scored if counted is None else self.scored & counted
        elif self.read_indices is not None:
            mask = np.zeros(len(self.ids), np.bool_)
            mask[self.read_indices] = self.scored if counted is None else self.scored & counted
        if times is not None:
            assert isinstance(keys, KeyTable)
            everything = np.ones(len(self.ids), np.bool_) if mask is None else mask
            return keys.sums(self.ids, self.of_all(edges), everything, 0, times)
        return score_spans(self.ids, self.of_all(edges), keys, counted=mask)

    def weighted_sums(
        self, edges: Int64s, keys: Keys, levels: UInt8s, times: Int32s | None = None
    ) -> Float64s:
        """Return Σ c·x [S, K] between `edges` [S + 1], with c = `levels` [N] / 16; see `scores`."""
        everywhere = self.among_all(levels, np.uint8(0))
        arguments = self.ids, self.of_all(edges), everywhere, 0
        if times is None:
            return keys.sums(*arguments) / LEVELS
        assert isinstance(keys, KeyTable)
        return keys.sums(*arguments, times) / LEVELS


def token_extents(encoding: Encoding, spelled: bool) -> Int64s:
    """Return the characters `[start, end)` of each token [T, 2]; without characters its index."""
    tokens = np.arange(len(encoding.token_ids), dtype=np.int64)
    return encoding.characters(tokens) if spelled else tokens[:, None] + np.array([0, 1])
