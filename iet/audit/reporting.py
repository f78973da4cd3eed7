"""From an attribution to what is shown of it: characters of spans, segments, transitions, the report."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from iet.audit.alignment import Axis
from iet.audit.attribution import Attribution
from iet.audit.parts import Parts
from iet.audit.plan import Plan
from iet.decoding import boundary_intervals, windows
from iet.decoding.transitions import transitions
from iet.marks.sessions import OWN, sessions_digest
from iet.native.arrays import Bools, Float32s, Float64s, Int64s
from iet.report import LEFT_OUT, Report, Segment, SessionFinding, Sessions, Trace


def extents(found: Attribution, texts: Sequence[str]) -> Int64s:
    """Return the characters `[start, end)` of each span [S, 2]; with what is left out they cover a text."""
    starts, parts = found.starts, found.parts
    if found.given:
        assert parts is not None
        return parts.audited
    lows, highs = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
    edges = np.searchsorted(found.texts, np.arange(len(texts) + 1))
    for d in np.flatnonzero(edges[1:] > edges[:-1]).tolist():
        low, high = edges[d], edges[d + 1]
        inner = starts[low + 1 : high]
        if len(inner):
            if found.axis is None:
                places = found.readings[0].origins_of(inner, d)
            else:
                places = found.axis.origins_of(inner)
            lows[low + 1 : high] = highs[low : high - 1] = places
        highs[high - 1] = len(texts[d])
    if parts is not None and len(starts):
        after = np.searchsorted(starts, found.cuts)  # the span behind what is left out
        there = after < len(starts)
        lows[after[there]] = parts.left_out[there, 1]
        highs[after[after > 0] - 1] = parts.left_out[after > 0, 0]
    return np.stack([lows, highs], axis=1)


_SIZES = ("window", "step")
"""Options of a decoder that also size the windows of the transition graph."""


def report(found: Attribution, text: str | None) -> Report:
    """Return the report of a single text."""
    plan, axis, parts = found.plan, found.axis, found.parts
    assert axis is not None
    names, present = plan.names, found.present
    starts, ends, guesses, attributed = found.starts, found.ends, found.guesses, found.attributed
    posterior = None if found.posteriors is None else found.posteriors[0]
    columns = np.where(found.agents >= 0, np.searchsorted(present, found.agents), -1)
    spans = list(zip(starts.tolist(), ends.tolist(), columns.tolist(), strict=True))
    # Between two spans the decoder chose a boundary, unless pieces are given or something is left out, or
    # they are pieces of one, some of them named and some open.
    cut = np.isin(starts[1:], found.cuts)
    within = ~cut & (found.agents[1:] == found.agents[:-1]) & (not found.given)
    chosen = ~cut & ~within & (not found.given)
    end = axis.length_of_text if text is None else len(text)
    place = functools.partial(axis.place, end=end)
    segments = _with_published(found, _segments(found, text, posterior, spans, chosen, place))
    tokens = axis.has_tokens
    if parts is not None:
        gone = axis.tokens_between(parts) if tokens else None
        segments = _with_left_out(segments, parts, gone, text is not None)
    decided = np.where(attributed, guesses, -1).astype(np.int32)
    own = plan.options.decoder_options
    sizes = {name: own[name] for name in _SIZES if name in own}
    scores = _window_scores(found, sizes)
    observed = transitions(_named_whole(spans, attributed, within), scores, **sizes)
    passed = [passage.start for passage in observed.observed]
    read = found.columns[0].read
    evidence = found.evidence[0]
    return Report(
        text=text,
        profiles=plan.profiles,
        registry_digest=plan.registry_digest,
        agents=names,
        decoder=plan.options.decoder,
        options=plan.shown_options,
        level=plan.options.level,
        allow_unattributed=plan.options.allow_unattributed,
        decoys=plan.options.decoys,
        log_p=float(np.nanmin(evidence)),
        evidence={name: p for name, p in zip(names, evidence.tolist(), strict=True) if not math.isnan(p)},
        tokens=sum(len(r.ids) for r in axis.readings),
        left_out=sum(len(r.ids) - len(r) for r in axis.readings),
        scored=sum(int(r.scored.sum()) for r in axis.readings),
        repeated=sum(int(r.repeated.sum()) for r in axis.readings),
        invisible=axis.readings[0].encodings[0].skipped,
        seam_share=None if text is None else _seam_share(found, axis, text, chosen),
        segments=tuple(segments),
        transitions=observed.rename({i: names[agent] for i, agent in enumerate(present.tolist())}).moved(
            dict(zip(passed, axis.place(np.array(passed, np.int64), end=0).tolist(), strict=True))
        ),
        labels=axis.among_all(np.repeat(decided, ends - starts), LEFT_OUT) if tokens else None,
        posterior=axis.among_all(posterior, 0) if tokens and posterior is not None else None,
        posterior_agents=present.astype(np.int32) if tokens and posterior is not None else None,
        strengths=_strengths(found),
        model=None if plan.model is None or read is None else plan.model.describe(read[0]),
        published=None if plan.published is None else sum(int(r.published_each.sum()) for r in axis.readings),
        sessions=_sessions(found),
        trace=Trace(tuple(names[agent] for agent in present.tolist()), axis, posterior, scores, **sizes),
    )


def _sessions(found: Attribution) -> Sessions | None:
    plan = found.plan
    if not plan.sessions:
        return None
    findings = tuple(
        SessionFinding(plan.names[pair.agent], _session(plan, pair.session), pair.log_p)
        for pair in found.found_sessions
    )
    return Sessions(len(plan.sessions), sessions_digest(plan.sessions), findings)


def _session(plan: Plan, number: int) -> str | None:
    return None if number == OWN else plan.sessions[number]


def _named_whole(
    spans: list[tuple[int, int, int]], attributed: Bools, within: Bools
) -> list[tuple[int, int, int]]:
    """Return the spans with -1 for whom nothing is attributed to, and pieces `within` one span as that one.

    Who followed whom does not depend on which words of a turn are named.
    """
    if not spans:
        return []
    firsts = np.flatnonzero(np.append(True, ~within))
    lasts = np.append(firsts[1:], len(spans)) - 1
    named = np.logical_or.reduceat(attributed, firsts)
    return [
        (spans[first][0], spans[last][1], spans[first][2] if yes else -1)
        for first, last, yes in zip(firsts.tolist(), lasts.tolist(), named.tolist(), strict=True)
    ]


def _segments(
    found: Attribution,
    text: str | None,
    posterior: Float32s | None,
    spans: list[tuple[int, int, int]],
    chosen: Bools,
    place: Any,
) -> list[Segment]:
    """Put the segments together; a boundary that was not `chosen` lies where it lies."""
    names, count, axis = found.plan.names, len(spans), found.axis
    assert axis is not None
    characters = None if text is None else extents(found, [text])
    tokens = axis.tokens(found.starts, found.ends)
    nowhere = [(None, None)] * count
    bounds: list[tuple[Any, Any]] = nowhere
    if posterior is not None:
        exact = tokens if tokens is not None else characters
        assert exact is not None
        intervals = np.array(boundary_intervals(posterior, spans), dtype=np.int64).reshape(-1, 2)
        left, right = place(intervals[:-1]), place(intervals[1:])
        left = np.where(np.append(False, chosen)[:count, None], left, exact[:, :1])
        right = np.where(np.append(chosen, False)[:count, None], right, exact[:, 1:])
        bounds = [(tuple(a), tuple(b)) for a, b in zip(left.tolist(), right.tolist(), strict=True)]
    sure = found.certainty
    sures = (
        [(None, None, None, None)] * count
        if sure is None
        else list(zip(*(v.tolist() for v in sure), strict=True))
    )
    known = {(pair.agent, pair.session) for pair in found.found_sessions}
    in_sessions = [
        _session(found.plan, session) if yes and (guess, session) in known else None
        for guess, session, yes in zip(
            found.guesses.tolist(), found.sessions.tolist(), found.attributed.tolist(), strict=True
        )
    ]
    return [
        Segment(
            low,
            high,
            start,
            end,
            guess if yes else None,
            guess,
            p,
            mean,
            wrong,
            before,
            after,
            share=mean,
            share_interval=None if mean is None else (least, most),
            session=session,
        )
        for (low, high), (start, end), guess, yes, p, (mean, wrong, least, most), (
            before,
            after,
        ), session in zip(
            nowhere if characters is None else characters.tolist(),
            nowhere if tokens is None else tokens.tolist(),
            [names[guess] for guess in found.guesses.tolist()],
            found.attributed.tolist(),
            found.log_p.tolist(),
            sures,
            bounds,
            in_sessions,
            strict=True,
        )
    ]


def _with_published(found: Attribution, segments: list[Segment]) -> list[Segment]:
    """Return the segments with how much of each was published before, where an index was read."""
    if found.plan.published is None:
        return segments
    assert found.axis is not None
    seen, all_of = (np.zeros(len(segments), np.int64) for _ in range(2))
    for reading, cells in zip(found.axis.readings, found.axis.cells, strict=True):
        published = np.zeros(len(reading), np.bool_) if reading.published is None else reading.published
        for values, total in ((published, seen), (published | reading.scored, all_of)):
            before = np.append(0, np.cumsum(values))
            total += before[np.searchsorted(cells, found.ends)] - before[np.searchsorted(cells, found.starts)]
    return [
        dataclasses.replace(segment, published=count / among if among else None)
        for segment, count, among in zip(segments, seen.tolist(), all_of.tolist(), strict=True)
    ]


def _with_left_out(
    segments: list[Segment], parts: Parts, tokens: Int64s | None, characters: bool
) -> list[Segment]:
    """Return the segments with those that were left out, in the order of the text."""
    nowhere = [(None, None)] * len(parts.left_out)
    left_out = [
        Segment(low, high, start, end, None, None, 0.0, None, None, None, None, left_out=True)
        for (low, high), (start, end) in zip(
            parts.left_out.tolist() if characters else nowhere,
            nowhere if tokens is None else tokens.tolist(),
            strict=True,
        )
    ]
    return sorted([*segments, *left_out], key=lambda s: (s.char_start if characters else s.start) or 0)


def _window_scores(found: Attribution, sizes: dict[str, int]) -> Float64s:
    """Return f [W, P] by agent, with one score for each agent and token.

    Under the key that the decoder chose where it chose this agent, under the last key elsewhere. So keys that
    were rotated out raise nobody's f.
    """
    assert found.axis is not None
    scores = found.axis.spread([columns.scores for columns in found.columns])
    owners = np.unique(found.owners, return_inverse=True)[1]
    last = np.flatnonzero(np.append(owners[1:] != owners[:-1], True))
    labels = found.decoded.labels
    if len(last) < len(owners):
        by_agent = scores[:, last]
        chosen = np.flatnonzero(labels >= 0)
        by_agent[chosen, owners[labels[chosen]]] = scores[chosen, labels[chosen]]
        scores = by_agent
    elif found.decoded.window_scores is not None:
        return found.decoded.window_scores[0]
    return windows(scores, **sizes)


def _seam_share(found: Attribution, axis: Axis, text: str, chosen: Bools) -> float:
    """Return the share of characters in the two tokens that touch each boundary that was chosen.

    A turn may have ended inside one of them: then its text was generated as other tokens than those read.
    """
    uncertain = 0.0
    firsts = np.cumsum([0, *(len(reader.keys.names) for reader in found.plan.readers)])
    boundaries = found.starts[1:][chosen]
    for i, (reading, cells) in enumerate(zip(axis.readings, axis.cells, strict=True)):
        ours = np.searchsorted(firsts, found.guesses, "right") - 1 == i
        lefts = np.searchsorted(cells, boundaries[ours[:-1][chosen]]) - 1
        rights = np.searchsorted(cells, boundaries[ours[1:][chosen]])
        tokens = np.unique(np.append(lefts, rights))
        tokens = tokens[(tokens >= 0) & (tokens < len(reading))]
        uncertain += float(np.diff(reading.encodings[0].characters(reading.of_all(tokens)), axis=1).sum())
    return min(1.0, uncertain / len(text)) if text else 0.0


def _strengths(found: Attribution) -> dict[str, float] | None:
    """Return the strength of each agent, the highest of its keys."""
    if found.decoded.strengths is None:
        return None
    names = found.plan.names
    strengths: dict[str, float] = {}
    for owner, strength in zip(found.owners.tolist(), found.decoded.strengths[0].tolist(), strict=True):
        strengths[names[owner]] = max(strength, strengths.get(names[owner], 0.0))
    return strengths
