"""Infer the start of a writer's counts of contexts. Not in the paper.

A seed of a family with `Scheme.counted` holds how often the context occurred before in the writer's sequence,
prompt included. A reader sees the joined text, not the prompts. Counting in the whole text is right if every
writer read the whole log; a writer who saw only a part of it counted less. A score under a wrong count is no
evidence. So repeated contexts are read under several hypotheses.

**Evidence.** Hypotheses that do not depend on the keys (`Counts.hypotheses`): the whole text; the parts that
were given; paragraphs; windows of `WINDOW` tokens. A p-value is the lowest under them, times their number.

**Labels and posteriors.** The text is decoded several times. Each time the contexts are counted again, given
the segments that were found (`Counts.by_segments`), from the start of

    whole           the text
    turn            the segment
    previous turn   the segment before
    own turns       the segment, and in the earlier segments of the same key

The hypothesis with the highest expected log-likelihood ratio is taken for each text:

    L_h = Σ_t Σ_a γ_t(a)·w_t·(λ_a·x_t(a; h) - log_mgf(λ_a)),    t over repeated contexts

with γ and λ of the decoder. "Whole" starts with a lead of `LEAD` nats. These segments depend on the keys, so
they serve no p-value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from iet.audit.encode import TokenBatch
from iet.marks.families import Family
from iet.marks.keys import Keys, KeyTable
from iet.native.arrays import Bools, Float32s, Float64s, Int32s, Int64s
from iet.native.pairs import number_pairs, number_pairs_of

ROUNDS = 2
"""Number of times that repeated contexts are counted again by segments."""

LEAD = 6.0
"""Nats by which another hypothesis must be likelier than counts in the whole text."""

WINDOW = 200
"""Tokens of a window."""

MIN_SHARE, MIN_TOKENS = 0.02, 8
"""Share and number of a text's tokens whose count must differ for a hypothesis of its own."""


@dataclasses.dataclass(frozen=True, eq=False)
class Hypothesis:
    """Counts of all contexts, which do not depend on keys.

    Attributes:
        times: int32, of all tokens of the texts, those that are left out too.
        pairs, repeated: [N], as in `TokenBatch`; tokens with equal seeds have equal pairs.
        applies: bool [D], texts with enough counts that differ from those of other hypotheses.
    """

    times: Int32s
    pairs: Int64s
    repeated: Bools
    applies: Bools


@dataclasses.dataclass(frozen=True, eq=False)
class Counted:
    """Scores under inferred counts, for labels and posteriors.

    Attributes:
        scores: x [N, K], as in `ScoreMatrix`.
        pairs, repeated: [N], as in `TokenBatch`; tokens with equal seeds have equal pairs.
        times: int32, the counts of all tokens, those that are left out too; None: in the whole texts.
    """

    scores: Float32s
    pairs: Int64s
    repeated: Bools
    times: Int32s | None = None

    def changed(self, counted: Counted, batch: TokenBatch) -> Int64s:
        """Return the texts whose scores or pairs differ."""
        differ = (self.scores != counted.scores).any(axis=1) | (self.pairs != counted.pairs)
        return np.unique(batch.numbers[differ])


class Counts:
    """The repeated contexts of D texts. Its arrays hold all tokens, those that are left out too.

    Attributes:
        whole_times: int32, how often the context of each token occurred before in its text.
    """

    def __init__(self, batch: TokenBatch, n_gram: int, whole_times: Int32s, counted_again: Bools) -> None:
        self._batch, self.whole_times = batch, whole_times
        texts = self._texts = batch.joined
        self._text_of = np.repeat(np.arange(len(texts.ends)), np.diff(texts.ends, prepend=0))
        self._context = n_gram - 1
        self._positions = np.arange(len(texts.ids)) - texts.starts[self._text_of]
        inside = (self._positions >= self._context) & counted_again[self._text_of]
        numbers, _ = number_pairs_of(texts.ids, inside, texts.starts, texts.ends, n_gram, contexts=True)
        # A text's first token exceeds the numbers of all texts before.
        contexts = np.where(numbers >= 0, numbers + texts.starts[self._text_of], -1)
        often = np.bincount(contexts + 1, minlength=len(contexts) + 1) > 1
        often[0] = False
        self._repeated_at = np.flatnonzero(often[contexts + 1])
        self._contexts = contexts[self._repeated_at]
        self._scored = batch.among_all(batch.scored, False)
        self._grams, _ = number_pairs_of(texts.ids, self._scored, texts.starts, texts.ends, n_gram)

    @classmethod
    def of(cls, batch: TokenBatch, keys: Keys) -> Counts | None:
        """Return the contexts to count again; None: seeds hold no counts, or few contexts are repeated."""
        texts = batch.joined
        whole_times = keys.times_before(texts) if isinstance(keys, KeyTable) else None
        if whole_times is None or not len(whole_times):
            return None
        totals = np.add.reduceat(np.append(whole_times > 0, False), texts.starts)  # padding has no counts
        counted_again = totals >= _fewest(texts.ends - texts.starts)
        if not counted_again.any():
            return None
        return cls(batch, keys.profile.scheme.n_gram, whole_times, counted_again)

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """Return what else than counts in the whole text is evidence: at most three. No key is used."""
        batch = self._batch
        windows = _earlier(self._contexts, self._positions[self._repeated_at] // WINDOW)
        candidates = [self._with(windows)]
        candidates += [
            self._within(starts) for starts in (batch.given_starts, batch.paragraphs) if len(starts)
        ]
        hypotheses, accepted = list[Hypothesis](), [self.whole_times]
        fewest = _fewest(self._texts.ends - self._texts.starts)
        for times in candidates:
            differ = [np.bincount(self._text_of, times != of, len(fewest)) for of in accepted]
            applies = np.min(differ, axis=0) >= fewest
            if applies.any():
                hypotheses.append(Hypothesis(times, *self._pairs(times), applies))
                accepted.append(times)
        return tuple(hypotheses)

    def by_segments(
        self,
        keys: Keys,
        counted_in_text: Counted,
        labels: Int32s,
        posterior: Float32s,
        strengths: Sequence[Float64s],
    ) -> Counted:
        """Return the scores under the likeliest hypothesis of each text.

        Args:
            keys: K.
            counted_in_text: with counts in the whole text.
            labels: [N] as decoded, columns of the scores.
            posterior: γ [N, K].
            strengths: λ [K] of each text.
        """
        batch = self._batch
        spread = batch.among_all(labels, -2)
        segments, uncrossed = self._segments(spread[1:] != spread[:-1])
        contexts, segments, repeated_at = (
            self._contexts[uncrossed],
            segments[uncrossed],
            self._repeated_at[uncrossed],
        )
        labels_there = spread[repeated_at]
        turn = _earlier(contexts, segments)
        # Counts in own turns differ between keys; keys without a segment have none but this turn.
        of_keys = {
            k: _own(contexts, turn, labels_there == k) for k in np.unique(labels_there).tolist() if k >= 0
        }
        own_of_label = turn.copy()
        for k, counts in of_keys.items():
            own_of_label[labels_there == k] = counts[labels_there == k]
        times = [
            self._with(counts, uncrossed)
            for counts in (turn, turn + _previous(contexts, segments), own_of_label)
        ]
        scores = [batch.scores(keys, times[0]), batch.scores(keys, times[1])]
        scores.append(scores[0].copy())
        for k, counts in of_keys.items():
            column = keys.subset(np.array([k]))
            scores[2][:, k] = batch.scores(column, self._with(counts, uncrossed))[:, 0]

        read = (
            self._repeated_at
            if batch.read_indices is None
            else np.flatnonzero(np.isin(batch.read_indices, self._repeated_at))
        )
        text_of = batch.numbers[read]
        weights = np.where(batch.scored, batch.novelty, 0)[read]
        ratios = _Ratios(keys.profile.family, np.stack(strengths)[text_of], posterior[read], weights)
        nats = [
            np.bincount(text_of, ratios.expected(of[read]), len(batch.ends))
            for of in (counted_in_text.scores, *scores)
        ]
        best = np.argmax([nats[0] + LEAD, *nats[1:]], axis=0)
        if not best.any():
            return counted_in_text
        chosen, chosen_times = counted_in_text.scores.copy(), self.whole_times.copy()
        for h in range(1, len(nats)):
            here = best[batch.numbers] == h
            chosen[here] = scores[h - 1][here]
            here = best[self._text_of] == h
            chosen_times[here] = times[h - 1][here]
        # Counts in own turns are those of each token's own key: equal ones of two keys are different seeds.
        owners = np.where(best[self._text_of] == len(nats) - 1, spread, 0)
        return Counted(chosen, *self._pairs(chosen_times, owners), chosen_times)

    # ------------------------------------------------------------ arrays

    def _segments(self, changes: Bools) -> tuple[Int64s, Bools]:
        """Return the segment of each repeated context, and whether all its ids are in the segment.

        Args:
            changes: whether a segment starts after each token but the last; texts start one anyway.

        A number is left out between texts, so the first segment of a text has no predecessor.
        """
        begins = np.append(True, changes)
        begins[self._positions == 0] = True
        segments = np.cumsum(begins) + self._text_of
        firsts = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))
        repeated_at = self._repeated_at
        return segments[repeated_at], repeated_at - firsts[repeated_at] >= self._context

    def _within(self, starts: Int64s) -> Int32s:
        """Return the counts of all contexts from the last of some `starts` on."""
        changes = np.zeros(len(self.whole_times), np.bool_)
        changes[starts] = True
        segments, uncrossed = self._segments(changes[1:])
        return self._with(_earlier(self._contexts[uncrossed], segments[uncrossed]), uncrossed)

    def _with(self, counts: Int64s, uncrossed: Bools | slice = slice(None)) -> Int32s:
        """Return the counts in the whole text with others at the repeated contexts that are `uncrossed`."""
        times = self.whole_times.copy()
        times[self._repeated_at[uncrossed]] = counts
        return times

    def _pairs(self, times: Int32s, owners: Int32s | None = None) -> tuple[Int64s, Bools]:
        """Return the numbers of the seeds of tokens that are read, and which are repeated.

        `owners` [N]: seeds of different ones differ; None: none do.
        """
        texts, batch = self._texts, self._batch
        seeds = self._grams * (1 + int(self.whole_times.max(initial=0))) + times
        if owners is not None:
            seeds = seeds * (3 + int(owners.max(initial=0))) + owners + 2
        pairs, repeated = number_pairs_of(seeds, self._scored, texts.starts, texts.ends, 1)
        if batch.read_indices is not None:
            pairs, repeated = pairs[batch.read_indices], repeated[batch.read_indices]
        return pairs, repeated | batch.repeated


@dataclasses.dataclass(frozen=True, eq=False)
class _Ratios:
    """The parameters of the expected log-likelihood ratio of R tokens.

    Attributes:
        family: of the scores.
        strengths: λ [R, K].
        gamma: γ [R, K].
        weights: [R].
    """

    family: Family
    strengths: Float64s
    gamma: Float32s
    weights: Float32s

    def expected(self, scores: Float32s) -> Float64s:
        ratios = self.strengths * scores - self.family.log_mgf(self.strengths)
        return np.asarray(self.weights * (self.gamma * ratios).sum(axis=1))


def counts_in_all(batch: TokenBatch, keys: Keys, counted: Bools) -> tuple[Int32s | None, ...]:
    """Return for each text how often its contexts occurred in it and in all texts before.

    None: seeds hold no counts, or few of the text's `counted` tokens [N] have another count in it alone.
    """
    texts = batch.joined
    alone = keys.times_before(texts) if isinstance(keys, KeyTable) else None
    if alone is None:
        return (None,) * len(texts.ends)
    n_gram = keys.profile.scheme.n_gram
    inside = np.zeros(len(texts.ids), np.bool_)
    for start, end in zip(texts.starts.tolist(), texts.ends.tolist(), strict=True):
        inside[start + n_gram - 1 : end] = True
    times, indices = alone.copy(), np.flatnonzero(inside)
    contexts = number_pairs(texts.ids, inside, n_gram, contexts=True)[indices]
    times[indices] = _earlier(contexts, np.zeros(len(contexts), np.int64))
    differ, of_texts = counted & (times != alone), [batch.inside(d) for d in range(len(texts.ends))]
    return tuple(
        times[text] if differ[text].sum() >= _fewest(counted[text].sum()) else None for text in of_texts
    )


def _fewest(tokens: Any) -> Any:
    """Return how many counts must differ in texts of that many tokens."""
    return np.maximum(MIN_TOKENS, MIN_SHARE * tokens)


def _earlier(contexts: Int64s, parts: Int64s) -> Int64s:
    """Return how often each context occurred earlier in its part, [R]."""
    groups = contexts * (1 + int(parts.max(initial=0))) + parts
    order = np.argsort(groups, kind="stable")
    new = _changes(groups[order])
    ranks = np.arange(len(groups))
    earlier = np.empty(len(groups), np.int64)
    earlier[order] = ranks - np.maximum.accumulate(np.where(new, ranks, 0))
    return earlier


def _previous(contexts: Int64s, segments: Int64s) -> Int64s:
    """Return how often each context occurs in the segment before its own, [R]."""
    factor = 1 + int(segments.max(initial=0))
    groups, counts = np.unique(contexts * factor + segments, return_counts=True)
    wanted = contexts * factor + segments - 1
    at = np.minimum(np.searchsorted(groups, wanted), len(groups) - 1)
    return np.where(groups[at] == wanted, counts[at], 0) if len(groups) else np.zeros(0, np.int64)


def _own(contexts: Int64s, turn: Int64s, own_segments: Bools) -> Int64s:
    """Return how often each context occurred in a key's `own_segments` before and in this segment, [R]."""
    order = np.argsort(contexts, kind="stable")
    occurrences: Int64s = np.cumsum(own_segments[order]) - own_segments[order]
    new = _changes(contexts[order])
    counts = np.empty(len(contexts), np.int64)
    counts[order] = occurrences - np.maximum.accumulate(np.where(new, occurrences, 0))
    return np.where(own_segments, counts, counts + turn)


def _changes(ordered: Int64s) -> Bools:
    return np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
