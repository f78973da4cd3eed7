"""The step "score": the scores of D texts under each key, one column a key."""

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
    """Scores under the keys of one profile, one column a key.

    Attributes:
        reader: the profile's keys.
        keys: the keys that are scored token by token.
        scores: x [N, K], as `TokenBatch.scores` gives it.
        chosen: int64 [K], indices of `keys` among the reader's; None: all of them.
        activity: log Λ [D, all keys of the reader]; None: not computed yet.
        log_ratios: for each text the log-likelihood ratios under a language model; None: there is no model.
    """

    reader: ProfileReader
    keys: Keys
    scores: Float32s
    chosen: Int64s | None = None
    activity: Float64s | None = None
    log_ratios: tuple[LogRatios, ...] | None = None

    @property
    def owners(self) -> Int64s:
        """int64 [K]: agents of the plan, ascending."""
        return self.keys.owners.astype(np.int64) + self.reader.first


def score(plan: Plan, reader: ProfileReader, batch: TokenBatch) -> ScoreMatrix:
    """Score texts under all keys; of more than `ALL_KEYS`, score a single text under the candidates only."""
    keys, family, chosen = reader.keys, reader.keys.profile.family, None
    counted = batch.scored & ~batch.repeated
    if reader.by_candidates:
        activity = activity_of(batch, keys)
        chosen = _candidates(plan, batch, keys, activity)
        keys = keys.subset(chosen)
        scores, activity = batch.scores(keys), activity[None]
    else:
        scores = batch.scores(keys)
        sums, counts, edges = evidence_blocks_of(scores, counted, batch.starts, batch.ends)
        activity = log_activity(sums, counts, family, edges)
    matrix = ScoreMatrix(reader, keys, scores, chosen, activity)
    if plan.model is None:
        return matrix
    return dataclasses.replace(matrix, log_ratios=tuple(_ask(plan, batch, matrix)))


def _ask(plan: Plan, batch: TokenBatch, matrix: ScoreMatrix) -> Iterator[LogRatios]:
    """Yield the log-likelihood ratios of each text under the language model."""
    assert plan.model is not None
    for d, encoding in enumerate(batch.encodings):
        # The model reads the whole text: parts that are left out are context.
        ids, inside = encoding.token_ids, batch.inside(d)
        scores, scored = matrix.scores[inside], batch.scored[inside]
        if batch.read_indices is not None:
            scores = score_tokens(ids, matrix.keys).astype(np.float32, copy=False)
            scored = batch.among_all(scored, False)
        yield plan.model.log_ratios(ids, matrix.keys, scores, scored)


def _candidates(plan: Plan, batch: TokenBatch, keys: Keys, activity: Float64s) -> Int64s:
    """Return the indices of the keys that have to be scored token by token."""
    if not len(batch):
        return np.zeros(1, np.int64)
    return plan.decoder.candidates(
        functools.partial(_sums, batch, keys),
        len(keys),
        keys.profile.family,
        batch.scored,
        batch.repeated,
        activity,
        plan.options.decoding,
    )


def activity_of(batch: TokenBatch, keys: Keys) -> Float64s:
    """Return log Λ of every key in a single text, without token-by-token scores."""
    sums = functools.partial(_sums, batch, keys)
    return sum_activity(sums, len(keys), keys.profile.family, batch.scored, batch.repeated)


def _sums(batch: TokenBatch, keys: Keys, boundaries: Int64s, counted: Bools, low: int, high: int) -> Float64s:
    """Return Σ x under the keys [low, high) over the counted tokens of each span."""
    return batch.sums(boundaries, keys.subset(slice(low, high)), counted)


def owners_of(matrices: Sequence[ScoreMatrix]) -> Int64s:
    """Return the agents [K] of the columns of all matrices, ascending."""
    return np.concatenate([matrix.owners for matrix in matrices])
