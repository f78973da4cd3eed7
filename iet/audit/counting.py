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

    L_h = Σ_t γ_t(a)·w_t·(λ_a·x_t(a; h) - log_mgf(λ_a)),    t over repeated contexts, a the label of t

with γ and λ of the decoder. "Whole" starts with a lead of `LEAD` nats. These segments depend on the keys, so
they serve no p-value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from iet.audit.encode import TokenBatch
from iet.marks.keys import Keys, KeyTable
from iet.native.arrays import Bools, Float32s, Float64s, Int32s, Int64s
from iet.native.pairs import number_pairs_of, times_before

ROUNDS = 2
"""Number of times that repeated contexts are counted again by segments."""

LEAD = 6.0
"""Nats by which another hypothesis must be likelier than counts in the whole text."""

WINDOW = 200
"""Tokens of a window."""

MIN_SHARE, MIN_TOKENS = 0.04, 8
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
    """The repeated contexts of D texts.

    Arrays [R] hold the tokens with a repeated context, those that are left out too, in the order of
    contexts, then of positions. So tokens of one context and segment are side by side.

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
        repeated_at = np.flatnonzero(often[contexts + 1])
        self._repeated_at = repeated_at[np.argsort(contexts[repeated_at], kind="stable")]
        self._new_context = _changes(contexts[self._repeated_at])
        self._scored = batch.among_all(batch.scored, False)
        self._grams, _ = number_pairs_of(texts.ids, self._scored, texts.starts, texts.ends, n_gram)
        self._rows = np.sort(repeated_at[self._scored[repeated_at]])
        if batch.read_indices is not None:
            self._rows = np.flatnonzero(np.isin(batch.read_indices, self._rows))

    @classmethod
    def of(cls, batch: TokenBatch, keys: Keys) -> Counts | None:
        """Return the contexts to count again; None: seeds hold no counts, or few contexts are repeated."""
        texts = batch.joined
        whole_times = keys.times_before(texts) if isinstance(keys, KeyTable) else None
        if whole_times is None or not len(batch):
            return None
        totals = np.add.reduceat(np.append(whole_times > 0, False), texts.starts)  # padding has no counts
        counted_again = totals >= _fewest(texts.ends - texts.starts)
        if not counted_again.any():
            return None
        return cls(batch, keys.profile.scheme.n_gram, whole_times, counted_again)

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """Return what else than counts in the whole text is evidence: at most three. No key is used."""
        batch = self._batch
        windows = self._positions[self._repeated_at] // WINDOW
        candidates = [self._with(_earlier(self._new_context | _changes(windows)))]
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
        in_text: Counted,
        labels: Int32s,
        fitted: tuple[Float32s, Sequence[Float64s]],
    ) -> Counted:
        """Return the scores under the likeliest hypothesis of each text.

        Args:
            keys: K.
            in_text: with counts in the whole text.
            labels: [N] as decoded, columns of the scores.
            fitted: γ [N, K], and λ [K] of each text.
        """
        batch = self._batch
        spread = batch.among_all(labels, -2)
        segments, uncrossed = self._segments(spread[1:] != spread[:-1])
        new_segment = self._new_context | _changes(segments)
        labels_there = spread[self._repeated_at]
        turn = _earlier(new_segment, uncrossed)
        previous = turn + _previous(self._new_context, new_segment, segments, uncrossed)
        own_turns, of_keys = turn.copy(), dict[int, Int64s]()
        for k in np.unique(labels_there[labels_there >= 0]).tolist():
            labelled = labels_there == k
            of_keys[k] = _own(self._new_context, turn, labelled, uncrossed)
            own_turns[labelled] = of_keys[k][labelled]
        times = [self._with(counts, uncrossed) for counts in (turn, previous, own_turns)]
        scores = [in_text.scores, *(batch.scores(keys, counts) for counts in times)]
        best = self._likeliest(scores, labels, fitted)
        if not best.any():
            return in_text
        if (best == len(times)).any():
            # Counts in own turns differ between keys; those without a segment have none but this turn.
            scores[-1] = scores[1].copy()
            for k, counts in of_keys.items():
                column = batch.scores(keys.subset(np.array([k])), self._with(counts, uncrossed))
                scores[-1][:, k] = column[:, 0]
        chosen, chosen_times = in_text.scores.copy(), self.whole_times.copy()
        for d, h in enumerate(best.tolist()):
            chosen[batch.inside(d)] = scores[h][batch.inside(d)]
            text = slice(self._texts.starts[d], self._texts.ends[d])
            chosen_times[text] = (self.whole_times, *times)[h][text]
        # Equal counts of two keys in their own turns are different seeds.
        owners = np.where(best[self._text_of] == len(times), spread, 0)
        return Counted(chosen, *self._pairs(chosen_times, owners), chosen_times)

    def _likeliest(
        self, scores: Sequence[Float32s], labels: Int32s, fitted: tuple[Float32s, Sequence[Float64s]]
    ) -> Int64s:
        """Return for each text the likeliest of several scores [N, K], by its repeated contexts."""
        batch, posterior, strengths = self._batch, *fitted
        rows = self._rows[labels[self._rows] >= 0]
        columns, text_of = labels[rows], batch.numbers[rows]
        # Terms without a score are those of every hypothesis.
        weights = posterior[rows, columns] * batch.novelty[rows] * np.stack(strengths)[text_of, columns]
        nats = [np.bincount(text_of, weights * of[rows, columns], len(batch.ends)) for of in scores]
        return np.asarray(np.argmax([nats[0] + LEAD, *nats[1:]], axis=0))

    # ------------------------------------------------------------ arrays

    def _segments(self, changes: Bools) -> tuple[Int64s, Bools]:
        """Return the segment of each repeated context [R], and whether all its ids are in the segment.

        Args:
            changes: whether a segment starts after each token but the last; texts start one anyway.

        A number is left out between texts, so the first segment of a text has no predecessor.
        """
        begins = np.append(True, changes)
        begins[self._positions == 0] = True
        segments = np.cumsum(begins) + self._text_of
        firsts = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))
        at = self._repeated_at
        return segments[at], at - firsts[at] >= self._context

    def _within(self, starts: Int64s) -> Int32s:
        """Return the counts of all contexts from the last of some `starts` on."""
        changes = np.zeros(len(self.whole_times), np.bool_)
        changes[starts] = True
        segments, uncrossed = self._segments(changes[1:])
        return self._with(_earlier(self._new_context | _changes(segments), uncrossed), uncrossed)

    def _with(self, counts: Int64s, uncrossed: Bools | slice = slice(None)) -> Int32s:
        """Return the counts in the whole text, with others [R] where contexts are `uncrossed`."""
        times = self.whole_times.copy()
        times[self._repeated_at[uncrossed]] = counts[uncrossed]
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


def counts_in_all(batch: TokenBatch, keys: Keys, counted: Bools) -> tuple[Int32s | None, ...]:
    """Return for each text how often its contexts occurred in it and in all texts before.

    None: seeds hold no counts, or few of the text's `counted` tokens [N] have another count in it alone.
    """
    texts = batch.joined
    alone = keys.times_before(texts) if isinstance(keys, KeyTable) else None
    if alone is None:
        return (None,) * len(texts.ends)
    times = times_before(texts.ids, keys.profile.scheme.n_gram)  # contexts with padding are not scored
    differ, of_texts = counted & (times != alone), [batch.inside(d) for d in range(len(texts.ends))]
    return tuple(
        times[text] if differ[text].sum() >= _fewest(counted[text].sum()) else None for text in of_texts
    )


def _fewest(tokens: Any) -> Any:
    """Return how many counts must differ in texts of that many tokens."""
    return np.maximum(MIN_TOKENS, MIN_SHARE * tokens)


def _earlier(new: Bools, counted: Bools | None = None) -> Int64s:
    """Return how many `counted` tokens [R] are before each token in its group; `new` groups start."""
    preceding = np.arange(len(new)) if counted is None else np.cumsum(counted) - counted
    return np.asarray(preceding - np.maximum.accumulate(np.where(new, preceding, 0)))


def _previous(new_context: Bools, new_segment: Bools, segments: Int64s, counted: Bools) -> Int64s:
    """Return how many `counted` tokens of each token's context are in the segment before its own, [R]."""
    firsts = np.flatnonzero(new_segment)
    sizes = np.add.reduceat(counted.astype(np.int64), firsts) if len(firsts) else np.zeros(0, np.int64)
    follows = np.append(False, segments[firsts[1:]] == segments[firsts[:-1]] + 1)[: len(firsts)]
    follows &= ~new_context[firsts]
    of_groups = np.where(follows, np.append(0, sizes[:-1])[: len(firsts)], 0)
    return np.asarray(of_groups[np.cumsum(new_segment) - 1])


def _own(new_context: Bools, turn: Int64s, of_key: Bools, counted: Bools) -> Int64s:
    """Return how many `counted` tokens of each context were in a key's segments or in this one, [R]."""
    counts = _earlier(new_context, of_key & counted)
    return np.where(of_key, counts, counts + turn)


def _changes(ordered: Int64s) -> Bools:
    return np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
