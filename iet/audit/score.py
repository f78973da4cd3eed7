"""The step "score": what each key gives in D texts, column by column."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from iet.audit.encode import TokenBatch
from iet.audit.language_model import LogRatios
from iet.audit.plan import Plan, ProfileReader
from iet.decoding import log_activity
from iet.decoding.activity import evidence_blocks_of
from iet.decoding.candidates import sum_activity
from iet.kernels import score_tokens
from iet.marks.keys import Keys
from iet.native.arrays import Bools, Float32s, Float64s, Int64s


@dataclasses.dataclass(frozen=True, eq=False)
class ScoreMatrix:
    """What the keys of one profile give: a column of scores each.

    Attributes:
        reader: of the profile.
        keys: those that are looked at token by token.
        scores: [N, K], as `TokenBatch.scores`.
        chosen: int64 [K], which of the reader's keys those are; None: all.
        activity: log Λ [D, all keys of the reader]; None: not needed yet.
        read: what a language model makes of each text; None without.
    """

    reader: ProfileReader
    keys: Keys
    scores: Float32s
    chosen: Int64s | None = None
    activity: Float64s | None = None
    read: tuple[LogRatios, ...] | None = None

    @property
    def owners(self) -> Int64s:
        """int64 [K]: agents of the plan, ascending."""
        return self.keys.owners.astype(np.int64) + self.reader.first


def score(plan: Plan, reader: ProfileReader, reading: TokenBatch) -> ScoreMatrix:
    """Score what is read: under all keys, or of many under the decoder's candidates of a single text."""
    keys, family, chosen = reader.keys, reader.keys.profile.family, None
    counted = reading.scored & ~reading.repeated
    if reader.by_candidates:
        activity = activity_of(reading, keys)
        chosen = _candidates(plan, reading, keys, activity)
        keys = keys.subset(chosen)
        scores, activity = reading.scores(keys), activity[None]
    else:
        scores = reading.scores(keys)
        sums, counts, edges = evidence_blocks_of(scores, counted, reading.starts, reading.ends)
        activity = log_activity(sums, counts, family, edges)
    columns = ScoreMatrix(reader, keys, scores, chosen, activity)
    if plan.model is None:
        return columns
    return dataclasses.replace(columns, read=tuple(_ask(plan, reading, columns)))


def _ask(plan: Plan, reading: TokenBatch, columns: ScoreMatrix) -> Iterator[LogRatios]:
    """Return what the language model makes of each text."""
    assert plan.model is not None
    for d, encoding in enumerate(reading.encodings):
        # The model reads all of the text: what is left out is context as well.
        ids, inside = encoding.token_ids, reading.inside(d)
        scores, scored = columns.scores[inside], reading.scored[inside]
        if reading.places is not None:
            scores = score_tokens(ids, columns.keys).astype(np.float32, copy=False)
            scored = reading.among_all(scored, False)
        yield plan.model.log_ratios(ids, columns.keys, scores, scored)


def _candidates(plan: Plan, reading: TokenBatch, keys: Keys, activity: Float64s) -> Int64s:
    """Return the columns of the keys that the decoder has to look at token by token."""
    if not len(reading):
        return np.zeros(1, np.int64)
    return plan.decoder.candidates(
        functools.partial(_sums, reading, keys),
        len(keys),
        keys.profile.family,
        reading.scored,
        reading.repeated,
        activity,
        plan.options.decoding,
    )


def activity_of(reading: TokenBatch, keys: Keys) -> Float64s:
    """Return log Λ of every key in a single text, without a score of every token."""
    sums = functools.partial(_sums, reading, keys)
    return sum_activity(sums, len(keys), keys.profile.family, reading.scored, reading.repeated)


def _sums(
    reading: TokenBatch, keys: Keys, boundaries: Int64s, counted: Bools, low: int, high: int
) -> Float64s:
    """Return Σ of the scores under keys [low, high) over the counted tokens of each span."""
    return reading.sums(boundaries, keys.subset(slice(low, high)), counted)


def owners_of(columns: Sequence[ScoreMatrix]) -> Int64s:
    """Return the agents [K] of the columns of all profiles, ascending."""
    return np.concatenate([some.owners for some in columns])
