"""The step "decode": the agent of each token of D texts, and the spans of equal labels.

The decoder "posterior" fits strengths, shares and the length of segments to each text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iet.audit.align import TokenAlignment
from iet.audit.counting import LEAD, ROUNDS, Counted, Counts, Hypothesis
from iet.audit.encode import TokenBatch
from iet.audit.plan import Plan, ProfileReader
from iet.audit.score import ScoreMatrix, evidence_levels, key_log_p, owners_of, readings_of
from iet.decoding import Scored, Segmentation
from iet.decoding.fit import log_ratios as ratios_of
from iet.decoding.pieces import piece_posterior, piece_ratios
from iet.decoding.posterior import evidence_weight
from iet.marks.keys import KeyTable
from iet.native.arrays import Float32s, Float64s, Int32s, Int64s

PADDING, LONGEST_PADDING = 4, 200
"""Number of tokens without evidence that replace each token of a part that is left out, and their maximum.

Hand-overs are more frequent there than elsewhere, and more so the longer the part is
(docs/internals/decoding.md).
"""

_NO_CUTS = np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class Decoded:
    """The output of a decoder for D texts. Labels are columns of the score matrices, side by side.

    Attributes:
        labels: int32 [N], -1 for unattributed tokens and padding.
        posterior: float32 [N, K], 0 for padding; None if the decoder has none.
        strengths: for each text float64 [K]; None if the decoder has none.
        window_scores: for each text f [W, K]; None if the decoder computes none.
        counted: the scores that were decoded; None: those of the matrix.
    """

    labels: Int32s
    posterior: Float32s | None = None
    strengths: tuple[Float64s, ...] | None = None
    window_scores: tuple[Float64s, ...] | None = None
    counted: Counted | None = None


def decode(
    plan: Plan,
    matrix: ScoreMatrix,
    batch: TokenBatch,
    allow_unattributed: bool,
    cuts: Int64s = _NO_CUTS,
    lengths: Int64s = _NO_CUTS,
) -> Decoded:
    """Decode texts in the tokens of one profile; `lengths` [L] tokens are left out before `cuts` [L]."""
    decoder, options = plan.decoder, plan.options.decoding
    if decoder.decode_many is not None and len(batch.ends) > 1:
        family = matrix.keys.profile.family
        texts = matrix.scores, batch.scored, batch.starts, batch.ends
        return Decoded(decoder.decode_many(*texts, family, options, allow_unattributed))
    if matrix.chosen is not None and decoder.has_posterior and options.strengths is not None:
        strengths = np.asarray(options.strengths)[matrix.chosen]
        options = dataclasses.replace(options, strengths=strengths)
    counted = matrix.start if decoder.has_posterior else matrix.readings[0]
    labels = np.full(len(batch), -1, np.int32)
    posterior = np.zeros(matrix.scores.shape, np.float32) if decoder.has_posterior else None
    segmentations, ratios = dict[int, Segmentation](), None

    def decode_texts(texts: Int64s) -> None:
        scored = _scored(plan, matrix, batch, counted, ratios)
        # Only `posterior` models hand-overs; other decoders would count the padding as text.
        if decoder.has_posterior and len(cuts):
            segmentations_of_texts = [
                _decode_padded(plan, scored, options, allow_unattributed, cuts, lengths)
            ]
        else:
            bounds = batch.starts[texts], batch.ends[texts]
            segmentations_of_texts = decoder.decode_each(scored, *bounds, options, allow_unattributed)
        for d, segmentation in zip(texts.tolist(), segmentations_of_texts, strict=True):
            segmentations[d] = segmentation
            labels[batch.inside(d)] = segmentation.token_agents
            if posterior is not None:
                posterior[batch.inside(d)] = segmentation.posterior

    everything = np.arange(len(batch.ends))
    if plan.model is None or matrix.counts is not None:
        decode_texts(everything)
    for _ in range(ROUNDS if decoder.has_posterior and matrix.counts is not None else 0):
        assert matrix.counts is not None
        assert posterior is not None
        fitted = (segmentations[d].strengths for d in range(len(batch.ends)))
        of_each = [values for values in fitted if values is not None]
        previous = counted
        counted = matrix.counts.by_segments(matrix.keys, matrix.readings[0], labels, (posterior, of_each))
        changed = counted.changed(previous, batch)
        if not len(changed):
            break
        decode_texts(changed)
    if plan.model is not None:
        ratios = tuple(_ratios_under_model(batch, matrix, counted))
        decode_texts(everything)
    gathered = _gathered(labels, posterior, [segmentations[d] for d in range(len(batch.ends))])
    return dataclasses.replace(gathered, counted=counted)


def _ratios_under_model(batch: TokenBatch, matrix: ScoreMatrix, counted: Counted) -> Iterator[Float32s]:
    """Yield the log-likelihood ratios of each text under the language model, those of left-out parts too."""
    assert matrix.predictions is not None
    assert isinstance(matrix.keys, KeyTable)
    firsts = batch.joined.starts
    for d, prediction in enumerate(matrix.predictions):
        times = None
        if counted.times is not None:
            times = counted.times[firsts[d] : firsts[d] + len(prediction.ids)]
        scores = batch.among_all(counted.scores[batch.inside(d)], np.float32(0))
        yield prediction.log_ratios(matrix.keys, scores, times)


def _gathered(labels: Int32s, posterior: Float32s | None, segmentations: Sequence[Segmentation]) -> Decoded:
    strengths = tuple(s.strengths for s in segmentations if s.strengths is not None)
    windows = tuple(s.window_scores for s in segmentations if s.window_scores is not None)
    return Decoded(labels, posterior, strengths or None, windows or None)


def _scored(
    plan: Plan,
    matrix: ScoreMatrix,
    batch: TokenBatch,
    counted: Counted,
    log_ratios: Sequence[Float32s] | None = None,
) -> Scored:
    """Return the input of a decoder for all texts of a batch, joined as in the batch."""
    family, values = matrix.keys.profile.family, counted.scores
    # For a family that adds a bounded κ, how predictable a token is hardly matters.
    weights = batch.novelty if plan.decoder.has_posterior and family.chooses else None
    if log_ratios is not None:
        values = np.zeros_like(values)
        for d, ratios in enumerate(log_ratios):
            read = slice(None) if batch.read_indices is None else batch.read_indices
            values[batch.inside(d)] = ratios[read]
    return Scored(
        values,
        None if log_ratios is not None else family,
        batch.scored,
        counted.repeated,
        counted.pairs,
        None if matrix.chosen is None else len(matrix.reader.keys),
        weights,
        _shares(matrix),
    )


def _shares(matrix: ScoreMatrix) -> Float64s | None:
    """Return the prior shares of the columns among their profile's agents; None: equal shares."""
    reader = matrix.reader
    if len(reader.keys_of_agents) == len(reader.keys):
        return None
    return reader.shares if matrix.chosen is None else reader.shares[matrix.chosen]


def _shares_together(plan: Plan, matrices: Sequence[ScoreMatrix]) -> Float64s:
    """Return the prior shares of the columns of all profiles among all agents."""
    return np.concatenate(
        [
            plan.share_of(matrix.reader)
            * matrix.reader.shares[slice(None) if matrix.chosen is None else matrix.chosen]
            for matrix in matrices
        ]
    )


def _decode_padded(
    plan: Plan, text: Scored, options: Any, allow_unattributed: bool, cuts: Int64s, lengths: Int64s
) -> Segmentation:
    """Decode a text with padding in place of the `lengths` [L] tokens that are left out before `cuts` [L]."""
    padding = np.zeros(len(text.values) + 1, np.int64)
    padding[cuts] = np.minimum(PADDING * lengths, LONGEST_PADDING)
    padding[[0, -1]] = 0  # no hand-over can happen at the ends of the text
    positions = np.arange(len(text.values)) + np.cumsum(padding)[:-1]
    length = len(text.values) + int(padding.sum())

    def widened(values: NDArray[Any], missing: Any) -> NDArray[Any]:
        wide = np.full((length, *values.shape[1:]), missing, values.dtype)
        wide[positions] = values
        return wide

    wide = dataclasses.replace(
        text,
        values=widened(text.values, 0),
        scored=widened(text.scored, False),
        repeated=widened(text.repeated, False),
        pairs=None if text.pairs is None else widened(text.pairs, -1),
        weights=None if text.weights is None else widened(text.weights, 1),
    )
    decoded = plan.decoder.decode(wide, options, allow_unattributed)
    posterior = None if decoded.posterior is None else decoded.posterior[positions]
    return Segmentation(decoded.token_agents[positions], posterior, decoded.strengths)


def decode_together(
    plan: Plan,
    alignment: TokenAlignment,
    matrices: Sequence[ScoreMatrix],
    cuts: Int64s,
    lengths: Int64s,
) -> Decoded:
    """Decode a text of several profiles: fit strengths in each, and add the log ratios on the alignment."""
    ratios, counted, strengths = list[Float32s](), np.zeros(alignment.length, np.bool_), list[Float64s]()
    for matrix, batch, cells in zip(matrices, alignment.batches, alignment.cells, strict=True):
        fitted = decode(plan, matrix, batch, True)
        assert fitted.strengths is not None
        strengths.append(fitted.strengths[0])
        text = _scored(plan, matrix, batch, fitted.counted or matrix.readings[0])
        weights = evidence_weight(text, plan.options.decoding.repeats)
        ratios.append(ratios_of(text.values, weights, strengths[-1], matrix.keys.profile.family))
        counted[cells[weights > 0]] = True
    tokens = sum(len(batch) for batch in alignment.batches) / len(alignment.batches)
    scale = alignment.length / tokens if tokens else 1.0
    # `scale` can be below 1: several tokens may start at one character.
    sizes: dict[str, Any] = {"min_segment": round(max(1, scale * plan.options.decoding.min_segment))}
    if plan.options.decoding.mean_segment is not None:
        sizes["mean_segment"] = max(1, scale * plan.options.decoding.mean_segment)
    options = dataclasses.replace(plan.options.decoding, strengths=None, **sizes)
    text = Scored(
        alignment.gather(ratios),
        None,
        counted,
        np.zeros(alignment.length, np.bool_),
        agents=plan.choices,
        shares=None if plan.agents == plan.choices else _shares_together(plan, matrices),
    )
    allow = plan.options.allow_unattributed
    if len(cuts):
        segmentation = _decode_padded(plan, text, options, allow, cuts, lengths)
    else:
        segmentation = plan.decoder.decode(text, options, allow)
    return dataclasses.replace(
        _gathered(segmentation.token_agents, segmentation.posterior, [segmentation]),
        strengths=(np.concatenate(strengths),),
    )


class Spans(NamedTuple):
    """The text, start, end and agent of S spans, [S] each; starts and ends are relative to the text."""

    texts: Int64s
    starts: Int64s
    ends: Int64s
    agents: Int64s


def spans_of(labels: Int32s, owners: Int64s, starts: Int64s, ends: Int64s, cuts: Int64s = _NO_CUTS) -> Spans:
    """Return the maximal runs of one agent in each text, cut at the parts that are left out."""
    agents = np.append(owners, -1)[labels]
    begins = np.zeros(len(labels), np.bool_)
    begins[1:] = agents[1:] != agents[:-1]
    begins[starts[ends > starts]] = True
    begins[cuts] = True
    for low, high in zip(np.append(0, ends[:-1]).tolist(), starts.tolist(), strict=True):
        begins[low:high] = False  # padding
    firsts = np.flatnonzero(begins)
    texts = np.searchsorted(ends, firsts, "right")
    ending = np.append(texts[1:] != texts[:-1], True)[: len(texts)]
    lasts = np.where(ending, ends[texts], np.append(firsts[1:], 0)[: len(texts)])
    return Spans(texts, firsts - starts[texts], lasts - starts[texts], agents[firsts])


def name_pieces(
    plan: Plan, alignment: TokenAlignment, pieces: Int64s
) -> tuple[tuple[ScoreMatrix, ...], Decoded, Spans]:
    """Score the pieces [S, 2] of a text with known boundaries, and name the agent of each."""
    options, null_prior = plan.options, 0.0
    if plan.decoder.has_posterior and options.allow_unattributed:
        null_prior = options.decoding.null_prior
    counts = [
        Counts.of(batch, reader.keys) for reader, batch in zip(plan.readers, alignment.batches, strict=True)
    ]
    hypotheses = [() if of_batch is None else of_batch.hypotheses() for of_batch in counts]
    weighed = [
        _weigh(plan, reader, batch, _edges(batch.origins, pieces), null_prior, of_batch)
        for reader, batch, of_batch in zip(plan.readers, alignment.batches, hypotheses, strict=True)
    ]
    ratios = np.concatenate([part for part, _ in weighed], axis=1)
    best = ratios.argmax(axis=1)
    matrices, chosen, low = list[ScoreMatrix](), list[Int64s](), 0
    for reader, batch, (part, _), counted, of_batch in zip(
        plan.readers, alignment.batches, weighed, counts, hypotheses, strict=True
    ):
        candidates = np.arange(part.shape[1])
        if reader.by_candidates:  # the best two of each piece
            candidates = np.unique(np.append(np.argpartition(part, -2, axis=1)[:, -2:], 0))
        keys = reader.keys.subset(candidates)
        readings = readings_of(batch, keys, counted, of_batch)
        log_p = key_log_p(reader, batch, evidence_levels(batch, keys), of_batch)
        matrices.append(
            ScoreMatrix(reader, keys, readings, log_p, readings[0], candidates, hypotheses=of_batch)
        )
        chosen.append(candidates + low)
        low += part.shape[1]
    scored_columns = np.concatenate(chosen)
    edges = _edges(alignment.origins, pieces)
    lengths, labels = np.diff(edges), np.searchsorted(scored_columns, best)
    posterior = strengths = None
    if plan.decoder.has_posterior:
        shares = np.concatenate([plan.share_of(reader) * reader.shares for reader in plan.readers])
        of_pieces = piece_posterior(ratios, null_prior, shares)[:, scored_columns].astype(np.float32)
        posterior = np.repeat(of_pieces, lengths, axis=0)
        strengths = (np.concatenate([fitted for _, fitted in weighed if fitted is not None])[scored_columns],)
    decoded = Decoded(np.repeat(labels, lengths).astype(np.int32), posterior, strengths)
    spans = Spans(np.zeros(len(pieces), np.int64), edges[:-1], edges[1:], owners_of(matrices)[labels])
    return tuple(matrices), decoded, spans


def _weigh(
    plan: Plan,
    reader: ProfileReader,
    batch: TokenBatch,
    edges: Int64s,
    null_prior: float,
    hypotheses: Sequence[Hypothesis],
) -> tuple[Float64s, Float64s | None]:
    """Return the log-likelihood ratio (or sum) of each key in each piece [S, K], and fitted strengths [K].

    Contexts are counted under the hypothesis with the highest ratios of the pieces' best keys.
    """
    # For the agents of one profile, pieces by agents of other profiles are unattributed.
    elsewhere_prior = min(0.99, 1 - (1 - null_prior) * plan.share_of(reader))
    weighed = list[tuple[Float64s, Float64s | None]]()
    for hypothesis in (None, *hypotheses):
        # `posterior` counts a repeated pair once (unless repeats="count"), other decoders each time.
        counted, times = batch.scored, None if hypothesis is None else hypothesis.times
        if plan.decoder.has_posterior and plan.options.decoding.repeats != "count":
            counted = counted & ~(batch.repeated if hypothesis is None else hypothesis.repeated)
        sums = batch.sums(edges, reader.keys, counted, times)
        if not plan.decoder.has_posterior:
            return sums, None
        counts = np.diff(np.append(0, np.cumsum(counted))[edges]).astype(np.float64)
        family, shares = reader.keys.profile.family, reader.shares
        weighed.append(piece_ratios(sums, counts, family, elsewhere_prior, shares, plan.options.decoding))
    nats = [ratios.max(axis=1).sum() - LEAD * (i > 0) for i, (ratios, _) in enumerate(weighed)]
    return weighed[int(np.argmax(nats))]


def _edges(origins: Int64s, pieces: Int64s) -> Int64s:
    """Return the first token of each piece [S, 2], and the end of the last one: [S + 1]."""
    return np.append(np.searchsorted(origins, pieces[:, 0]), len(origins))
