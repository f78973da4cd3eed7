"""The steps "fit" and "decode": who holds each token of D texts, and the spans that this makes.

Strengths, shares and the length of segments are fitted text by text, inside the decoder "posterior".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iet.audit.align import TokenAlignment
from iet.audit.encode import TokenBatch
from iet.audit.plan import Plan, ProfileReader
from iet.audit.score import ScoreMatrix, owners_of
from iet.decoding import Scored, Segmentation
from iet.decoding.fit import log_ratios
from iet.decoding.pieces import piece_posterior, piece_ratios
from iet.decoding.posterior import evidence_weight
from iet.native.arrays import Float32s, Float64s, Int32s, Int64s

PADDING, LONGEST_PADDING = 4, 200
"""Tokens without evidence that stand for each token of a part that is left out, and their maximum.

Hand-overs happen there more often than elsewhere, the more so the longer the part
(docs/internals/decoding.md).
"""

_NOWHERE = np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class Decoded:
    """What a decoder says of D texts; its agents are columns, those of all profiles side by side.

    Attributes:
        labels: int32 [N], -1 for nobody and padding.
        posteriors: of each text float32 [T, K]; None where the decoder has none.
        strengths: of each text float64 [K]; None where the decoder has none.
        window_scores: of each text f [W, K]; None where the decoder made none.
    """

    labels: Int32s
    posteriors: tuple[Float32s, ...] | None = None
    strengths: tuple[Float64s, ...] | None = None
    window_scores: tuple[Float64s, ...] | None = None


def decode(
    plan: Plan,
    columns: ScoreMatrix,
    reading: TokenBatch,
    allow_unattributed: bool,
    cuts: Int64s = _NOWHERE,
    lengths: Int64s = _NOWHERE,
) -> Decoded:
    """Decode what is read in the tokens of one profile; before `cuts` [L], `lengths` [L] are left out."""
    decoder, options = plan.decoder, plan.options.decoding
    if decoder.decode_many is not None and len(reading.ends) > 1:
        family = columns.keys.profile.family
        texts = columns.scores, reading.scored, reading.starts, reading.ends
        return Decoded(decoder.decode_many(*texts, family, options, allow_unattributed))
    labels, found = np.full(len(reading), -1, np.int32), []
    if columns.chosen is not None and decoder.has_posterior and options.strengths is not None:
        strengths = np.asarray(options.strengths)[columns.chosen]
        options = dataclasses.replace(options, strengths=strengths)
    for d in range(len(reading.ends)):
        text = _text(plan, columns, reading, d)
        # The other decoders know no hand-overs, and would count the padding as text.
        if decoder.has_posterior and len(cuts):
            each = _decode_padded(plan, text, options, allow_unattributed, cuts, lengths)
        else:
            each = decoder.decode(text, options, allow_unattributed)
        labels[reading.inside(d)] = each.token_agents
        found.append(each)
    return _gathered(labels, found)


def _gathered(labels: Int32s, found: Sequence[Segmentation]) -> Decoded:
    posteriors = tuple(each.posterior for each in found if each.posterior is not None)
    strengths = tuple(each.strengths for each in found if each.strengths is not None)
    windows = tuple(each.window_scores for each in found if each.window_scores is not None)
    return Decoded(labels, posteriors or None, strengths or None, windows or None)


def _text(plan: Plan, columns: ScoreMatrix, reading: TokenBatch, text: int) -> Scored:
    """Return one of the texts as decoders read it."""
    inside, family = reading.inside(text), columns.keys.profile.family
    values, weights = columns.scores[inside], None
    if columns.read is not None:
        values = columns.read[text].values
        values = values if reading.places is None else values[reading.places]
    # How well the text foretells a token hardly matters where κ bounds what the mark can do.
    elif plan.decoder.has_posterior and family.chooses:
        weights = reading.novelty(text)
    return Scored(
        values,
        None if columns.read is not None else family,
        reading.scored[inside],
        reading.repeated[inside],
        reading.pairs[inside],
        None if columns.chosen is None else len(columns.reader.keys),
        weights,
        shares=_shares(columns),
    )


def _shares(columns: ScoreMatrix) -> Float64s | None:
    """Return the shares of the columns in what their profile's agents wrote; None: all alike."""
    reader = columns.reader
    if len(reader.keys_of_agents) == len(reader.keys):
        return None
    return reader.shares if columns.chosen is None else reader.shares[columns.chosen]


def _shares_together(plan: Plan, columns: Sequence[ScoreMatrix]) -> Float64s:
    """Return the shares of the columns of all profiles in what all agents wrote."""
    return np.concatenate(
        [
            plan.share_of(some.reader)
            * some.reader.shares[slice(None) if some.chosen is None else some.chosen]
            for some in columns
        ]
    )


def _decode_padded(
    plan: Plan, text: Scored, options: Any, allow_unattributed: bool, cuts: Int64s, lengths: Int64s
) -> Segmentation:
    """Decode a text as if padding stood where tokens are left out: `lengths` [L] before `cuts` [L]."""
    padding = np.zeros(len(text.values) + 1, np.int64)
    padding[cuts] = np.minimum(PADDING * lengths, LONGEST_PADDING)
    padding[[0, -1]] = 0  # at the ends of the text there is nothing to hand over
    places = np.arange(len(text.values)) + np.cumsum(padding)[:-1]
    length = len(text.values) + int(padding.sum())

    def widened(values: NDArray[Any], missing: Any) -> NDArray[Any]:
        wide = np.full((length, *values.shape[1:]), missing, values.dtype)
        wide[places] = values
        return wide

    wide = dataclasses.replace(
        text,
        values=widened(text.values, 0),
        scored=widened(text.scored, False),
        repeated=widened(text.repeated, False),
        pairs=None if text.pairs is None else widened(text.pairs, -1),
        weights=None if text.weights is None else widened(text.weights, 1),
    )
    found = plan.decoder.decode(wide, options, allow_unattributed)
    posterior = None if found.posterior is None else found.posterior[places]
    return Segmentation(found.token_agents[places], posterior, found.strengths)


def decode_together(
    plan: Plan,
    axis: TokenAlignment,
    columns: Sequence[ScoreMatrix],
    cuts: Int64s,
    lengths: Int64s,
) -> Decoded:
    """Decode a text of several profiles: strengths are fitted in each, and ratios meet on the axis."""
    ratios, counted, strengths = list[Float32s](), np.zeros(axis.length, np.bool_), list[Float64s]()
    for some, reading, cells in zip(columns, axis.readings, axis.cells, strict=True):
        fitted = decode(plan, some, reading, True)
        assert fitted.strengths is not None
        strengths.append(fitted.strengths[0])
        text = _text(plan, some, reading, 0)
        weights = evidence_weight(text, plan.options.decoding.repeats)
        ratios.append(log_ratios(some.scores, weights, strengths[-1], some.keys.profile.family))
        counted[cells[weights > 0]] = True
    tokens = sum(len(reading) for reading in axis.readings) / len(axis.readings)
    scale = axis.length / tokens if tokens else 1.0
    # A character of several tokens makes the axis shorter than a text in tokens.
    sizes: dict[str, Any] = {"min_segment": round(max(1, scale * plan.options.decoding.min_segment))}
    if plan.options.decoding.mean_segment is not None:
        sizes["mean_segment"] = max(1, scale * plan.options.decoding.mean_segment)
    options = dataclasses.replace(plan.options.decoding, strengths=None, **sizes)
    text = Scored(
        axis.gather(ratios),
        None,
        counted,
        np.zeros(axis.length, np.bool_),
        agents=plan.choices,
        shares=None if plan.agents == plan.choices else _shares_together(plan, columns),
    )
    allow = plan.options.allow_unattributed
    if len(cuts):
        found = _decode_padded(plan, text, options, allow, cuts, lengths)
    else:
        found = plan.decoder.decode(text, options, allow)
    return dataclasses.replace(_gathered(found.token_agents, [found]), strengths=(np.concatenate(strengths),))


class Spans(NamedTuple):
    """The text, start, end and agent of S spans, [S] each; starts and ends are counted in the text."""

    texts: Int64s
    starts: Int64s
    ends: Int64s
    agents: Int64s


def spans_of(labels: Int32s, owners: Int64s, starts: Int64s, ends: Int64s, cuts: Int64s = _NOWHERE) -> Spans:
    """Return the maximal runs of one agent in each text, those cut in two in which something is left out."""
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
    plan: Plan, axis: TokenAlignment, pieces: Int64s
) -> tuple[tuple[ScoreMatrix, ...], Decoded, Spans]:
    """Score and name the pieces [S, 2] of a text, whose boundaries are known."""
    options, nobody = plan.options, 0.0
    if plan.decoder.has_posterior and options.allow_unattributed:
        nobody = options.decoding.nobody
    weighed = [
        _weigh(plan, reader, reading, _edges(reading.origins, pieces), nobody)
        for reader, reading in zip(plan.readers, axis.readings, strict=True)
    ]
    ratios = np.concatenate([part for part, _ in weighed], axis=1)
    best = ratios.argmax(axis=1)
    columns, chosen, low = list[ScoreMatrix](), list[Int64s](), 0
    for reader, reading, (part, _) in zip(plan.readers, axis.readings, weighed, strict=True):
        some = np.arange(part.shape[1])
        if reader.by_candidates:  # those that compete for a piece
            some = np.unique(np.append(np.argpartition(part, -2, axis=1)[:, -2:], 0))
        keys = reader.keys.subset(some)
        columns.append(ScoreMatrix(reader, keys, reading.scores(keys), some))
        chosen.append(some + low)
        low += part.shape[1]
    looked_at = np.concatenate(chosen)
    edges = _edges(axis.origins, pieces)
    lengths, labels = np.diff(edges), np.searchsorted(looked_at, best)
    posteriors = strengths = None
    if plan.decoder.has_posterior:
        shares = np.concatenate([plan.share_of(reader) * reader.shares for reader in plan.readers])
        posterior = piece_posterior(ratios, nobody, shares)[:, looked_at].astype(np.float32)
        posteriors = (np.repeat(posterior, lengths, axis=0),)
        strengths = (np.concatenate([fitted for _, fitted in weighed if fitted is not None])[looked_at],)
    decoded = Decoded(np.repeat(labels, lengths).astype(np.int32), posteriors, strengths)
    spans = Spans(np.zeros(len(pieces), np.int64), edges[:-1], edges[1:], owners_of(columns)[labels])
    return tuple(columns), decoded, spans


def _weigh(
    plan: Plan, reader: ProfileReader, reading: TokenBatch, edges: Int64s, nobody: float
) -> tuple[Float64s, Float64s | None]:
    """Return how well each key explains each piece [S, K], and the strengths [K] behind it, if any."""
    # A pair counts once, or every time for the decoders that know no repeats.
    counted = reading.scored
    if plan.decoder.has_posterior and plan.options.decoding.repeats != "count":
        counted = counted & ~reading.repeated
    sums = reading.sums(edges, reader.keys, counted)
    if not plan.decoder.has_posterior:
        return sums, None
    counts = np.diff(np.append(0, np.cumsum(counted))[edges]).astype(np.float64)
    # To these agents the pieces of other profiles' agents are nobody's; each one's prior is the same.
    nobodys = min(0.99, 1 - (1 - nobody) * plan.share_of(reader))
    return piece_ratios(
        sums, counts, reader.keys.profile.family, nobodys, reader.shares, plan.options.decoding
    )


def _edges(origins: Int64s, pieces: Int64s) -> Int64s:
    """Return where the tokens of the pieces [S, 2] begin and the last ones end: [S + 1]."""
    return np.append(np.searchsorted(origins, pieces[:, 0]), len(origins))
