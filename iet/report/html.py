"""The report as a page: one file that needs nothing else, made of `page.html`, `page.js` and JSON.

Everything that was audited is a stranger's: it travels as JSON, in which "<" is escaped, and the script sets
it as text only. A content-security policy names the script by its hash and allows nothing to be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from iet.decoding.windows import margin
from iet.lines import harmless
from iet.report.curves import columns_of, depths_of, means_of
from iet.report.model import Report, Segment, extent, p_value
from iet.report.words import (
    AGENT_COLUMNS,
    COLOURS,
    agent_row,
    agents_note,
    assumed,
    cannot,
    chance,
    evidence_lines,
    headline,
    in_order,
    interval_unit,
    legend,
    shares_of,
    transition_lines,
    verdict,
    within,
)

DASHES = ("solid", "dashed", "dotted", "double")
"""Lines under the text beside its colour: both together tell 28 agents apart, in print and for everybody."""

POINTS = 1500
"""A curve has no more: a screen shows no more."""


def page(report: Report) -> str:
    """Return the report as one HTML file. O(T·P), P the agents that the decoder looked at; deterministic."""
    files = importlib.resources.files("iet.report")
    template, script = (files.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "page.js"))
    policy = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = json.dumps(content(report), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    parts = {
        "policy": f"'sha256-{policy}'",
        "title": html.escape(f"iet: {verdict(report)}"),
        "script": script,
        "data": data.replace("<", "\\u003c"),
    }
    filled, rest = [], template
    for name in (
        "policy",
        "title",
        "data",
        "script",
    ):  # in their order: no part is searched for another's name
        before, rest = rest.split("{{" + name + "}}")
        filled += [before, parts[name]]
    return "".join([*filled, rest])


def fragment(report: Report) -> str:
    """Return the verdict and the coloured text for a notebook: HTML without scripts or style sheets."""
    lines = [f"<p><b>{html.escape(verdict(report))}</b></p>"]
    wrote, _ = in_order(report)
    pieces = []
    for segment in report.segments if report.text is not None else ():
        start, end = extent(segment)
        assert report.text is not None
        text = html.escape(harmless(report.text[start:end]))
        if segment.agent is None:
            pieces.append(f'<span style="opacity:.6">{text}</span>')
            continue
        place = wrote.index(segment.agent)
        colour, dash = COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)]
        pieces.append(
            f'<span title="{html.escape(segment.agent)}" style="background:{colour}55;'
            f'border-bottom:2px {dash} {colour}"><sup>{html.escape(segment.agent)}</sup>{text}</span>'
        )
    if pieces:
        lines.append(f'<div style="white-space:pre-wrap;overflow-wrap:anywhere">{"".join(pieces)}</div>')
    lines += [f"<p>{html.escape(line)}</p>" for line in (*headline(report), *evidence_lines(report))]
    return "\n".join(lines)


def content(report: Report) -> dict[str, Any]:
    """Return what the page shows, as JSON has it."""
    unit = "characters" if report.text is not None else "tokens"
    wrote, others = in_order(report)
    agents = [*wrote, *others]
    places = {name: i for i, name in enumerate(agents)}
    spans = [extent(segment) for segment in report.segments]
    length = len(report.text) if report.text is not None else report.tokens
    shares = shares_of(report)
    segments = [
        _segment(report, number, segment, span, places, runs)
        for number, (segment, span, runs) in enumerate(
            zip(report.segments, spans, _runs(report), strict=True), 1
        )
    ]
    shown = agents[: max(len(wrote), 30)]
    return {
        "verdict": verdict(report),
        "lines": headline(report),
        "has_text": report.text is not None,
        "length": length,
        "unattributed": shares.get(None, 0.0),
        "agents": [
            {
                "name": name,
                "colour": COLOURS[i % len(COLOURS)],
                "dash": DASHES[i // len(COLOURS) % len(DASHES)],
                "share": shares.get(name, 0.0),
                "row": agent_row(report, name, shares) if name in report.evidence else None,
            }
            for i, name in enumerate(shown)
        ],
        "agent_columns": AGENT_COLUMNS,
        "agents_note": agents_note(report, len(agents) - len(shown)),
        "segments": segments,
        "segment_columns": [
            "#",
            "agent",
            unit,
            "posterior",
            "error",
            "p alone",
            f"starts · ends within, {interval_unit(report)}",
        ],
        "legend": legend(report),
        "boundaries": [end for (_, end), (start, _) in itertools.pairwise(spans) if end == start],
        "doubts": _doubts(report),
        "curves": _curves(report, places),
        "graph": _graph(report, places),
        "assumed": assumed(report),
        "cannot": cannot(report),
    }


def _runs(report: Report) -> Iterator[list[tuple[int, str]] | None]:
    """Yield for each segment its text in runs of one depth; depth 0 is not shaded."""
    text, trace = report.text, report.trace
    for segment in report.segments:
        if text is None:
            yield None
            continue
        assert segment.char_start is not None
        assert segment.char_end is not None
        low, high = segment.char_start, segment.char_end
        if segment.agent is None:
            yield [(0, harmless(text[low:high]))]
            continue
        edges, depths = depths_of(trace, segment.agent, low, high)
        bounds = [*edges, high]
        yield [
            (depth, harmless(text[a:b]))
            for depth, a, b in zip(depths, bounds, bounds[1:], strict=False)
            if b > a
        ]


def _segment(
    report: Report,
    number: int,
    segment: Segment,
    span: tuple[int, int],
    places: dict[str, int],
    runs: list[tuple[int, str]] | None,
) -> dict[str, Any]:
    unit = "characters" if report.text is not None else "tokens"
    where = f"{span[0]:,} to {span[1]:,}"
    facts = [(unit, where)]
    if report.text is not None and segment.start is not None and segment.end is not None:
        facts.append(("tokens", f"{segment.start:,} to {segment.end:,}"))
    if segment.left_out:
        title, why = "left out", ["The caller said that this is no agent's text: it was not read."]
    else:
        title = segment.agent or "unattributed"
        if segment.posterior is not None:
            facts.append(("posterior", f"{segment.posterior:.3f}"))
        if segment.error is not None:
            facts.append(("error", chance(segment.error)))
        facts.append(("p alone", p_value(segment.log_p)))
        facts.append(("log p alone", f"{segment.log_p:.2f}"))
        if segment.best_guess is not None:
            facts.append(("p in the text", p_value(report.evidence.get(segment.best_guess, 0.0))))
        for side, interval in (("starts", segment.start_interval), ("ends", segment.end_interval)):
            if interval is not None:
                facts.append(
                    (f"{side} within", f"{interval_unit(report)} {interval[0]:,} to {interval[1]:,}")
                )
        why = _why(report, segment)
    posterior = "" if segment.posterior is None else f"{segment.posterior:.2f}"
    error = "" if segment.error is None else chance(segment.error)
    cells = ["", "", ""] if segment.left_out else [posterior, error, p_value(segment.log_p)]
    return {
        "agent": None if segment.agent is None else places[segment.agent],
        "left_out": segment.left_out,
        "start": span[0],
        "end": span[1],
        "runs": runs,
        "title": title,
        "facts": facts,
        "why": why,
        "row": [str(number), title, where, *cells, within(segment)],
    }


def _why(report: Report, segment: Segment) -> list[str]:
    """Say why the segment has its agent, or none, and what would change that."""
    guess, level = segment.best_guess, report.level
    if guess is None:
        return []
    if not report.allow_unattributed:
        return [f"Forced choice: {guess} explains it best, however weakly."]
    found = report.evidence.get(guess, 0.0)
    by_error = segment.error is not None
    own = segment.error if by_error else math.exp(segment.log_p)
    assert own is not None
    name = "error" if by_error else "p alone"
    if segment.agent is not None:
        if by_error:
            needed = max(own, math.exp(found))
            return [
                f"Attributed because {guess} is found in the text (p {p_value(found)}) and the error of this"
                f" segment ({chance(own)}) is at most the level ({level:g}).",
                f"It would be unattributed at a level below {chance(needed)}, if the segment were cut much"
                " shorter, or if many of its words were replaced.",
            ]
        return [
            f"Attributed because its p-value ({p_value(segment.log_p)}) passes at a false-discovery rate of"
            f" {level:g}. A stricter level, a shorter segment or many replaced words would change that."
        ]
    lines = []
    if by_error and found > math.log(level):
        lines.append(
            f"Unattributed: nobody is found here. {guess} explains it best, but is not found in the text"
            f" (p {p_value(found)}, needed {level:g})."
        )
    else:
        shown = chance(own) if by_error else p_value(segment.log_p)
        lines.append(
            f"Unattributed: {guess} explains it best, but the segment's {name} ({shown}) is above what"
            f" level {level:g} asks for."
        )
    lines.append("More text of the same agent, or a key that is not in this registry, could change that.")
    return lines


def _doubts(report: Report) -> list[tuple[int, int]]:
    """Return the stretches, in the page's unit, within which each boundary may lie."""
    found = []
    for segment in report.segments[1:]:
        interval = segment.start_interval
        if interval is None or interval[0] == interval[1]:
            continue
        low, high = (_place(report, token) for token in interval)
        found.append((low, high))
    return found


def _place(report: Report, position: int) -> int:
    """Return a boundary interval's end, in tokens with one profile, in the page's unit."""
    trace = report.trace
    if report.text is None or len(report.profiles) > 1 or trace is None:
        return position
    index = position if not report.left_out else int(np.searchsorted(trace.tokens, position))
    return int(trace.starts[index]) if index < len(trace.starts) else len(report.text)


def _curves(report: Report, places: dict[str, int]) -> dict[str, Any] | None:
    trace = report.trace
    if trace is None or not len(trace.scores):
        return None
    columns = columns_of(report, trace)
    if not columns:
        return None
    stride = -(-len(trace.scores) // POINTS)
    scores = means_of(trace.scores, stride)
    positions = trace.centres[stride // 2 :: stride][: len(scores)]
    gaps = means_of(margin(trace.scores)[:, None], stride)[:, 0]
    shown = np.round(scores[:, columns], 3)
    return {
        "positions": positions.tolist(),
        "scores": [
            (places[trace.agents[column]], values.tolist())
            for column, values in zip(columns, shown.T, strict=True)
        ],
        "margin": np.round(gaps, 3).tolist(),
        "low": float(min(0.0, shown.min())),
        "high": float(max(0.0, shown.max())),
        "note": "Lines: f(t, a), the mean score of a window under each agent's key"
        + (f" (means of {stride} windows)" if stride > 1 else "")
        + ". Below: who is the agent there, and the margin between the best two keys. Dashed: boundaries;"
        " shaded: where they may lie.",
    }


def _graph(report: Report, places: dict[str, int]) -> dict[str, Any] | None:
    observed = report.transitions
    if not observed.observed:
        return None
    nodes = list(observed.agents)
    passages: dict[tuple[Any, Any], list[float]] = {}
    for passage in observed.observed:
        passages.setdefault((passage.source, passage.target), []).append(passage.confidence)
    return {
        "nodes": [places[str(name)] for name in nodes],
        "edges": [
            (nodes.index(source), nodes.index(target), len(found), round(max(found), 3))
            for (source, target), found in passages.items()
        ],
        "lines": transition_lines(report),
    }
