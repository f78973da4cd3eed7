"""The parts of a single text's report: intervals of boundaries, transitions, labels, data for plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from iet.audit.align import TokenAlignment
from iet.audit.decode import Spans
from iet.audit.plan import Plan
from iet.audit.score import owners_of
from iet.decoding import boundary_intervals, windows
from iet.decoding.transitions import transitions
from iet.native.arrays import Bools, Float32s, Float64s, Int64s
from iet.report import LEFT_OUT, Trace

if TYPE_CHECKING:
    from iet.audit.attribution import DecodedTexts

_SIZES = ("window", "step")
"""Decoder options that also size the windows of the transition graph."""


def chosen_boundaries(read: DecodedTexts, spans: Spans) -> Bools:
    """Return which boundaries between spans, bool [S - 1], the decoder chose.

    No boundary is chosen if pieces were given. A part that is left out has known boundaries. Inside a turn
    with some attributed and some open words there is no boundary.
    """
    same_agent = spans.agents[1:] == spans.agents[:-1]
    chosen: Bools = ~np.isin(spans.starts[1:], read.cuts) & ~same_agent & (not read.pieces_given)
    return chosen


def boundary_columns(
    alignment: TokenAlignment,
    spans: Spans,
    columns_of_agents: list[tuple[int, int, int]],
    posterior: Float32s,
    chosen: Bools,
    extents: Int64s,
    end: int,
) -> dict[str, NDArray[Any]]:
    """Return the intervals of the starts and ends of spans; a boundary that was not `chosen` is certain.

    Args:
        alignment, spans: of the text.
        columns_of_agents: (start, end, column of the posterior) of each span.
        posterior: γ [R, P].
        chosen: bool [S - 1].
        extents: int64 [S, 2], the spans in tokens, or in characters with several profiles.
        end: length of the text in that unit.
    """
    count = len(spans.starts)
    intervals = np.array(boundary_intervals(posterior, columns_of_agents), np.int64).reshape(-1, 2)
    start_bounds, end_bounds = alignment.place(intervals[:-1], end), alignment.place(intervals[1:], end)
    start_bounds = np.where(np.append(False, chosen)[:count, None], start_bounds, extents[:, :1])
    end_bounds = np.where(np.append(chosen, False)[:count, None], end_bounds, extents[:, 1:])
    return {
        "start_low": start_bounds[:, 0],
        "start_high": start_bounds[:, 1],
        "end_low": end_bounds[:, 0],
        "end_high": end_bounds[:, 1],
    }


def published_shares(alignment: TokenAlignment, spans: Spans) -> Float64s:
    """Return the share [S] of each span's scored tokens that were published before; NaN without any."""
    published, all_of = np.zeros((2, len(spans.starts)), np.int64)
    for batch, cells in zip(alignment.batches, alignment.cells, strict=True):
        seen = np.zeros(len(batch), np.bool_) if batch.published is None else batch.published
        for mask, total in ((seen, published), (seen | batch.scored, all_of)):
            cumulative = np.append(0, np.cumsum(mask))
            total += (
                cumulative[np.searchsorted(cells, spans.ends)]
                - cumulative[np.searchsorted(cells, spans.starts)]
            )
    return np.where(all_of > 0, published / np.maximum(1, all_of), np.nan)


def details_of(
    plan: Plan,
    read: DecodedTexts,
    spans: Spans,
    columns_of_agents: list[tuple[int, int, int]],
    attributed: Bools,
    guesses: Int64s,
    chosen: Bools,
    owners: Int64s,
    posterior: Float32s | None,
    text: str | None,
) -> dict[str, Any]:
    """Return the fields of a `Report` that `AuditResult` has no columns for.

    Args:
        plan, read, spans, columns_of_agents, chosen: as in `boundary_columns`.
        attributed, guesses: bool [S] and int64 [S].
        owners: int64 [P], the agents whose keys were scored token by token, ascending.
        posterior: γ [R, P] of these agents; None if the decoder has none.
        text: None if only token ids were audited.
    """
    alignment, names = read.alignment, plan.names
    sizes = {
        name: plan.options.decoder_options[name] for name in _SIZES if name in plan.options.decoder_options
    }
    scores = _window_scores(read, sizes)
    inside = (spans.agents[1:] == spans.agents[:-1]) & ~np.isin(spans.starts[1:], read.cuts)
    turns = _turns(columns_of_agents, attributed, inside & (not read.pieces_given))
    observed = transitions(turns, scores, **sizes)
    starts = [transition.start for transition in observed.observed]
    positions = alignment.place(np.array(starts, np.int64), end=0).tolist()
    has_tokens, model = alignment.has_tokens, read.matrices[0].predictions
    decided = np.where(attributed, guesses, -1).astype(np.int32)
    has_posterior = has_tokens and posterior is not None
    return {
        "seam_share": None if text is None else _seam_share(plan, alignment, spans, guesses, text, chosen),
        "transitions": observed.rename({i: names[agent] for i, agent in enumerate(owners.tolist())}).moved(
            dict(zip(starts, positions, strict=True))
        ),
        "labels": alignment.among_all(np.repeat(decided, spans.ends - spans.starts), LEFT_OUT)
        if has_tokens
        else None,
        "posterior": alignment.among_all(posterior, 0) if has_posterior and posterior is not None else None,
        "posterior_agents": owners.astype(np.int32) if has_posterior else None,
        "strengths": _strengths(plan, read),
        "model": None if plan.model is None or model is None else plan.model.describe(model[0]),
        "published": None
        if plan.published is None
        else sum(int(batch.published_counts.sum()) for batch in alignment.batches),
        "trace": Trace(tuple(names[a] for a in owners.tolist()), alignment, posterior, scores, **sizes),
    }


def _turns(
    spans: Sequence[tuple[int, int, int]], attributed: Bools, inside: Bools
) -> list[tuple[int, int, int]]:
    """Return the spans as turns: pieces `inside` one turn are joined, and unattributed turns have agent -1.

    The transitions do not depend on how many words of a turn are attributed.
    """
    if not spans:
        return []
    firsts = np.flatnonzero(np.append(True, ~inside))
    lasts = np.append(firsts[1:], len(spans)) - 1
    is_named = np.logical_or.reduceat(attributed, firsts)
    return [
        (spans[first][0], spans[last][1], spans[first][2] if named else -1)
        for first, last, named in zip(firsts.tolist(), lasts.tolist(), is_named.tolist(), strict=True)
    ]


def _window_scores(read: DecodedTexts, sizes: dict[str, int]) -> Float64s:
    """Return f [W, P] with one column for each agent.

    A token has the score under the key that the decoder chose if it chose this agent, else under the agent's
    last key. So keys that were rotated out raise the f of no agent.
    """
    scores = read.alignment.spread([matrix.scores for matrix in read.matrices])
    owners = np.unique(owners_of(read.matrices), return_inverse=True)[1]
    last = np.flatnonzero(np.append(owners[1:] != owners[:-1], True))
    labels = read.decoded.labels
    if len(last) < len(owners):
        by_agent = scores[:, last]
        chosen = np.flatnonzero(labels >= 0)
        by_agent[chosen, owners[labels[chosen]]] = scores[chosen, labels[chosen]]
        scores = by_agent
    elif read.decoded.window_scores is not None:
        return read.decoded.window_scores[0]
    return windows(scores, **sizes)


def _seam_share(
    plan: Plan, alignment: TokenAlignment, spans: Spans, guesses: Int64s, text: str, chosen: Bools
) -> float:
    """Return the share of characters in the two tokens that touch each boundary that was chosen.

    A turn may have ended inside one of them: then its text was generated as other tokens than those read.
    """
    uncertain = 0.0
    firsts = np.cumsum([0, *(len(reader.keys.names) for reader in plan.readers)])
    boundaries = spans.starts[1:][chosen]
    for i, (batch, cells) in enumerate(zip(alignment.batches, alignment.cells, strict=True)):
        in_profile = np.searchsorted(firsts, guesses, "right") - 1 == i
        lefts = np.searchsorted(cells, boundaries[in_profile[:-1][chosen]]) - 1
        rights = np.searchsorted(cells, boundaries[in_profile[1:][chosen]])
        tokens = np.unique(np.append(lefts, rights))
        tokens = tokens[(tokens >= 0) & (tokens < len(batch))]
        uncertain += float(np.diff(batch.encodings[0].characters(batch.of_all(tokens)), axis=1).sum())
    return min(1.0, uncertain / len(text)) if text else 0.0


def _strengths(plan: Plan, read: DecodedTexts) -> dict[str, float] | None:
    """Return the strength of each agent, the highest of its keys."""
    if read.decoded.strengths is None:
        return None
    strengths: dict[str, float] = {}
    owners = owners_of(read.matrices).tolist()
    for owner, strength in zip(owners, read.decoded.strengths[0].tolist(), strict=True):
        name = plan.names[owner]
        strengths[name] = max(strength, strengths.get(name, 0.0))
    return strengths
