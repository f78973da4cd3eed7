"""The step "score": the scores of D texts under each key, one column a key."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from iet.audit.counting import LEAD, Counted, Counts, Hypothesis
from iet.audit.encode import TokenBatch
from iet.audit.evidence import activity_log_p, decoy_log_p
from iet.audit.plan import Plan, ProfileReader
from iet.audit.prediction import Prediction
from iet.decoding import log_activity
from iet.decoding.activity import LEVELS, WeightedBlocks, evidence_blocks_of
from iet.decoding.candidates import sum_activity, weighted_activity
from iet.marks.keys import Keys
from iet.native.arrays import Bools, Float32s, Float64s, Int32s, Int64s, UInt8s

PER_NAT = 0.8
"""How fast the weight of a token as evidence rises with its surprise."""


class Activity(NamedTuple):
    """log Λ [D, K], and the number of tokens [D] whose null law it has."""

    log_ratios: Float64s
    tokens: Int64s


@dataclasses.dataclass(frozen=True, eq=False)
class ScoreMatrix:
    """Scores under the keys of one profile, one column a key.

    Attributes:
        reader: the profile's keys.
        keys: the keys that are scored token by token.
        readings: x [N, K] with contexts counted in the whole texts, then under each of the hypotheses.
        log_p: log p-value of each key of the reader by itself, [D, all keys].
        start: what is decoded first: of each text the likeliest of the `readings`.
        chosen: int64 [K], indices of `keys` among the reader's; None: all of them.
        counts, hypotheses: of repeated contexts, if seeds hold counts.
        predictions: of each text, by the language model; None: there is no model.
    """

    reader: ProfileReader
    keys: Keys
    readings: tuple[Counted, ...]
    log_p: Float64s
    start: Counted
    chosen: Int64s | None = None
    counts: Counts | None = None
    hypotheses: tuple[Hypothesis, ...] = ()
    predictions: tuple[Prediction, ...] | None = None

    @property
    def scores(self) -> Float32s:
        """x [N, K], with contexts counted in the whole texts."""
        return self.readings[0].scores

    @property
    def owners(self) -> Int64s:
        """int64 [K]: agents of the plan, ascending."""
        return self.keys.owners.astype(np.int64) + self.reader.first


def score(plan: Plan, reader: ProfileReader, batch: TokenBatch) -> ScoreMatrix:
    """Score texts under all keys; of more than `ALL_KEYS`, score a single text under the candidates only."""
    keys, chosen = reader.keys, None
    counts = Counts.of(batch, keys)
    hypotheses = () if counts is None else counts.hypotheses()
    predictions = None if plan.model is None else tuple(_predict(plan, batch, keys))
    levels = evidence_levels(batch, keys, predictions)
    if reader.by_candidates:
        activities = [activity_of(batch, keys, levels, h) for h in (None, *hypotheses)]
        highest = np.max([activity.log_ratios[0] for activity in activities], axis=0)
        chosen = _candidates(plan, batch, keys, highest)
        keys = keys.subset(chosen)
        readings = readings_of(batch, keys, counts, hypotheses)
    else:
        readings = readings_of(batch, keys, counts, hypotheses)
        activities = [_activity(batch, keys, levels, reading) for reading in readings]
    return ScoreMatrix(
        reader,
        keys,
        readings,
        key_log_p(reader, batch, levels, hypotheses, activities),
        _likeliest(batch, readings, activities, hypotheses),
        chosen,
        counts,
        hypotheses,
        predictions,
    )


def _predict(plan: Plan, batch: TokenBatch, keys: Keys) -> Iterator[Prediction]:
    """Yield what the language model predicts of each text."""
    assert plan.model is not None
    for d, encoding in enumerate(batch.encodings):
        # The model reads the whole text: parts that are left out are context.
        scored = batch.among_all(batch.scored[batch.inside(d)], False)
        spelled = None if batch.texts is None else (batch.texts[d], encoding.char_starts)
        yield plan.model.predict(encoding.token_ids, keys, scored, spelled=spelled)


def evidence_levels(
    batch: TokenBatch, keys: Keys, predictions: Sequence[Prediction] | None = None
) -> UInt8s | None:
    """Return the weight of each token [N] as evidence, in sixteenths; None: all weigh the same.

    c = `novelty_weights`, or with the surprise -log q under a language model √novelty·(1 - q^0.8). A family
    that adds a bounded κ gains nothing from weights. They depend on the texts alone, so p-values stay exact.
    """
    if not keys.profile.family.chooses:
        return None
    weights = batch.novelty
    if predictions is not None:
        weights = np.sqrt(weights)
        for d, prediction in enumerate(predictions):
            surprise = prediction.surprise
            if batch.read_indices is not None:
                surprise = surprise[batch.read_indices]
            weights[batch.inside(d)] *= -np.expm1(-PER_NAT * surprise)
    return np.rint(LEVELS * weights).astype(np.uint8)


def key_log_p(
    reader: ProfileReader,
    batch: TokenBatch,
    levels: UInt8s | None,
    hypotheses: Sequence[Hypothesis],
    activities: Sequence[Activity] | None = None,
) -> Float64s:
    """Return the log p-value of each key by itself [D, all keys]: the lowest, times the number of hypotheses.

    Args:
        levels: weights as `evidence_levels` returns them.
        activities: of all keys with counts in the whole text, then under each hypothesis.
    """
    keys, family, lowest, number = reader.keys, reader.keys.profile.family, None, np.ones(len(batch.ends))
    for i, hypothesis in enumerate((None, *hypotheses)):
        activity = activity_of(batch, keys, levels, hypothesis) if activities is None else activities[i]
        if reader.decoys is None:
            log_p = activity_log_p(activity.log_ratios, activity.tokens, family)
        else:
            decoys = activity_of(batch, reader.decoys, levels, hypothesis).log_ratios[0]
            log_p = decoy_log_p(activity.log_ratios[0], decoys)[None]
        if hypothesis is not None:
            log_p = np.where(hypothesis.applies[:, None], log_p, 0.0)
            number += hypothesis.applies
        lowest = log_p if lowest is None else np.minimum(lowest, log_p)
    assert lowest is not None
    return np.asarray(np.minimum(0.0, lowest + np.log(number)[:, None]))


def readings_of(
    batch: TokenBatch, keys: Keys, counts: Counts | None, hypotheses: Sequence[Hypothesis]
) -> tuple[Counted, ...]:
    """Return the scores of all tokens with counts in the whole texts, and under each hypothesis."""
    if counts is None:
        return (Counted(batch.scores(keys), batch.pairs, batch.repeated),)
    times = counts.whole_times
    in_text = Counted(batch.scores(keys, times), batch.pairs, batch.repeated, times)
    others = (Counted(batch.scores(keys, h.times), h.pairs, h.repeated, h.times) for h in hypotheses)
    return (in_text, *others)


def _evidence(
    batch: TokenBatch, counted: Counted | Hypothesis | None, levels: UInt8s | None
) -> tuple[Bools, WeightedBlocks | None]:
    """Return the tokens [N] whose scores are evidence, and their blocks if they have weights.

    `counted` None: with counts in the whole texts.
    """
    evidence = batch.scored & ~(batch.repeated if counted is None else counted.repeated)
    if levels is None:
        return evidence, None
    weights = np.where(evidence, levels, np.uint8(0))
    return evidence, WeightedBlocks.of(weights, batch.starts, batch.ends)


def _activity(batch: TokenBatch, keys: Keys, levels: UInt8s | None, counted: Counted) -> Activity:
    """Return the activity of keys in D texts, from their scores."""
    evidence, blocks = _evidence(batch, counted, levels)
    if blocks is not None:
        sums = blocks.sums(counted.scores)
        return Activity(blocks.log_activity(sums, keys.profile.family), blocks.number)
    unweighted, counts, edges = evidence_blocks_of(counted.scores, evidence, batch.starts, batch.ends)
    return Activity(log_activity(unweighted, counts, keys.profile.family, edges), batch.count(evidence))


def _likeliest(
    batch: TokenBatch,
    readings: Sequence[Counted],
    activities: Sequence[Activity],
    hypotheses: Sequence[Hypothesis],
) -> Counted:
    """Return the scores under the likeliest hypothesis of each text, by Σ max(0, log Λ) over the keys."""
    likelihoods = np.array([np.maximum(0.0, activity.log_ratios).sum(axis=1) for activity in activities])
    likelihoods[0] += LEAD
    for i, hypothesis in enumerate(hypotheses, 1):
        likelihoods[i, ~hypothesis.applies] = -np.inf
    best = likelihoods.argmax(axis=0)
    if not best.any():
        return readings[0]
    if len(best) == 1:
        return readings[int(best[0])]
    of_token = best[batch.numbers]
    arrays = []
    for name in ("scores", "pairs", "repeated", "times"):
        values = getattr(readings[0], name).copy()
        for i, counted in enumerate(readings[1:], 1):
            values[of_token == i] = getattr(counted, name)[of_token == i]
        arrays.append(values)
    return Counted(*arrays)


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


def activity_of(
    batch: TokenBatch, keys: Keys, levels: UInt8s | None, hypothesis: Hypothesis | None = None
) -> Activity:
    """Return the activity of every key in a single text, without token-by-token scores."""
    evidence, blocks = _evidence(batch, hypothesis, levels)
    family, times = keys.profile.family, None if hypothesis is None else hypothesis.times
    if blocks is not None:
        weights = np.zeros(len(evidence), np.uint8)
        weights[blocks.tokens] = blocks.levels

        def weighted_sums(edges: Int64s, low: int, high: int) -> Float64s:
            return batch.weighted_sums(edges, keys.subset(slice(low, high)), weights, times)

        log_ratios = weighted_activity(weighted_sums, len(keys), family, blocks, len(evidence))
        return Activity(log_ratios[None], blocks.number)
    sums = functools.partial(_sums, batch, keys, times=times)
    log_ratios = sum_activity(sums, len(keys), family, evidence, np.zeros_like(evidence))
    return Activity(log_ratios[None], batch.count(evidence))


def _sums(
    batch: TokenBatch,
    keys: Keys,
    boundaries: Int64s,
    counted: Bools,
    low: int,
    high: int,
    times: Int32s | None = None,
) -> Float64s:
    """Return Σ x under the keys [low, high) over the counted tokens of each span."""
    return batch.sums(boundaries, keys.subset(slice(low, high)), counted, times)


def owners_of(matrices: Sequence[ScoreMatrix]) -> Int64s:
    """Return the agents [K] of the columns of all matrices, ascending."""
    return np.concatenate([matrix.owners for matrix in matrices])
