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
from numpy.typing import NDArray

from iet.decoding.windows import margin
from iet.report.model import Report, Segment, Trace, extent, p_value
from iet.report.terminal import (
    COLOURS,
    caveats,
    evidence_lines,
    harmless,
    headline,
    legend,
    transition_lines,
)
from iet.waterfall import WaterfallScheme

DASHES = ("solid", "dashed", "dotted", "double")
"""Lines under the text beside its colour: both together tell 28 agents apart, in print and for everybody."""

DEPTHS = 5
"""Steps in which the text is shaded by posterior."""

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
        "title": html.escape(f"iet: {_verdict(report)}"),
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
    lines = [f"<p><b>{html.escape(_verdict(report))}</b></p>"]
    wrote = list(dict.fromkeys(s.agent for s in report.segments if s.agent is not None))
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
    wrote = list(dict.fromkeys(s.agent for s in report.segments if s.agent is not None))
    others = [name for name in report.evidence if name not in wrote]
    agents = [*wrote, *sorted(others, key=lambda name: report.evidence[name])]
    places = {name: i for i, name in enumerate(agents)}
    spans = [extent(segment) for segment in report.segments]
    length = len(report.text) if report.text is not None else report.tokens
    shares = _shares(report, spans)
    segments = [
        _segment(report, number, segment, span, places, runs)
        for number, (segment, span, runs) in enumerate(
            zip(report.segments, spans, _runs(report), strict=True), 1
        )
    ]
    shown = agents[: max(len(wrote), 30)]
    return {
        "verdict": _verdict(report),
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
                "row": _agent_row(report, name, shares) if name in report.evidence else None,
            }
            for i, name in enumerate(shown)
        ],
        "agent_columns": ["agent", "found", "p in the text", "strength of its mark", "segments", "share"],
        "agents_note": _agents_note(report, len(agents) - len(shown)),
        "segments": segments,
        "segment_columns": [
            "#",
            "agent",
            unit,
            "posterior",
            "error",
            "p alone",
            f"starts · ends within, {_interval_unit(report)}",
        ],
        "legend": legend(report),
        "boundaries": [end for (_, end), (start, _) in itertools.pairwise(spans) if end == start],
        "doubts": _doubts(report),
        "curves": _curves(report, places),
        "graph": _graph(report, places),
        "assumed": _assumed(report),
        "cannot": _cannot(report),
    }


def _verdict(report: Report) -> str:
    if not report.segments:
        return "Nothing in this text could be read"
    if not report.allow_unattributed:
        return f"Every token given to one of {len(report.agents)} agents (forced choice)"
    if not report.found:
        return "No registered agent was found in this text"
    count = len(report.found)
    some = ", ".join(report.found[:6]) + (f" and {count - 6} more" if count > 6 else "")
    return f"{some} wrote in this text; {report.coverage:.0%} of it is attributed"


def _shares(report: Report, spans: list[tuple[int, int]]) -> dict[str | None, float]:
    """Return the share of what was read that each agent has, and nobody (None)."""
    shares: dict[str | None, float] = {}
    for segment, (start, end) in zip(report.segments, spans, strict=True):
        if not segment.left_out:
            shares[segment.agent] = shares.get(segment.agent, 0) + end - start
    total = sum(shares.values()) or 1
    return {agent: size / total for agent, size in shares.items()}


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
        edges, depths = _depths(trace, segment.agent, low, high)
        bounds = [*edges, high]
        yield [
            (depth, harmless(text[a:b]))
            for depth, a, b in zip(depths, bounds, bounds[1:], strict=False)
            if b > a
        ]


def _depths(trace: Trace | None, agent: str, low: int, high: int) -> tuple[list[int], list[int]]:
    """Return where runs of one depth begin in characters [low, high), and their depths, 1 to `DEPTHS`."""
    if trace is None or trace.posterior is None or agent not in trace.agents:
        return [low], [DEPTHS]
    first, last = np.searchsorted(trace.starts, [low, high])
    if first == last:
        return [low], [DEPTHS]
    column = trace.posterior[first:last, trace.agents.index(agent)]
    depths = 1 + (column * DEPTHS).astype(np.int64).clip(0, DEPTHS - 1)
    changes = np.flatnonzero(np.append(True, depths[1:] != depths[:-1]))
    starts = trace.starts[first:last][changes]
    starts[0] = low  # what stands before the first token belongs to it
    return starts.tolist(), depths[changes].tolist()


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
            facts.append(("error", _small(segment.error)))
        facts.append(("p alone", p_value(segment.log_p)))
        facts.append(("log p alone", f"{segment.log_p:.2f}"))
        if segment.best_guess is not None:
            facts.append(("p in the text", p_value(report.evidence.get(segment.best_guess, 0.0))))
        for side, interval in (("starts", segment.start_interval), ("ends", segment.end_interval)):
            if interval is not None:
                facts.append(
                    (f"{side} within", f"{_interval_unit(report)} {interval[0]:,} to {interval[1]:,}")
                )
        why = _why(report, segment)
    posterior = "" if segment.posterior is None else f"{segment.posterior:.2f}"
    error = "" if segment.error is None else _small(segment.error)
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
        "row": [str(number), title, where, *cells, _within(segment)],
    }


def _small(probability: float) -> str:
    return "< 1e-6" if probability < 1e-6 else p_value(math.log(probability))


def _interval_unit(report: Report) -> str:
    return "characters" if len(report.profiles) > 1 else "tokens"


def _within(segment: Segment) -> str:
    """Say where the segment's two boundaries may lie, as far as they are uncertain."""
    if segment.start_interval is None or segment.end_interval is None:
        return ""
    (a, b), (c, d) = segment.start_interval, segment.end_interval
    return f"{a:,} to {b:,} · {c:,} to {d:,}"


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
                f" segment ({_small(own)}) is at most the level ({level:g}).",
                f"It would be unattributed at a level below {_small(needed)}, if the segment were cut much"
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
        shown = _small(own) if by_error else p_value(segment.log_p)
        lines.append(
            f"Unattributed: {guess} explains it best, but the segment's {name} ({shown}) is above what"
            f" level {level:g} asks for."
        )
    lines.append("More text of the same agent, or a key that is not in this registry, could change that.")
    return lines


def _agent_row(report: Report, name: str, shares: dict[str | None, float]) -> list[str]:
    strength = None if report.strengths is None else report.strengths.get(name)
    count = sum(segment.agent == name for segment in report.segments)
    return [
        name,
        "yes" if name in report.found else "no",
        p_value(report.evidence[name]),
        "" if strength is None else f"{strength:.2f}",
        str(count),
        f"{shares.get(name, 0.0):.1%}",
    ]


def _agents_note(report: Report, more: int) -> list[str]:
    lines = evidence_lines(report)
    if more:
        lines.append(f"{more} more agents of the registry, with higher p-values, are not shown.")
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
    columns = _columns(report, trace)
    if not columns:
        return None
    stride = -(-len(trace.scores) // POINTS)
    scores = _means(trace.scores, stride)
    positions = trace.centres[stride // 2 :: stride][: len(scores)]
    gaps = _means(margin(trace.scores)[:, None], stride)[:, 0]
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


def _columns(report: Report, trace: Trace) -> list[int]:
    """Return the columns that are drawn: agents who occur, else the three that are the likeliest."""
    wrote = [s.agent for s in report.segments if s.agent is not None]
    guessed = sorted(trace.agents, key=lambda name: report.evidence.get(name, 0.0))[:3]
    return [trace.agents.index(name) for name in dict.fromkeys(wrote or guessed) if name in trace.agents]


def _means(values: NDArray[Any], stride: int) -> NDArray[np.float64]:
    """Return the means [ceil(W/stride), K] of `stride` rows each."""
    firsts = np.arange(0, len(values), stride)
    sums = np.add.reduceat(values.astype(np.float64), firsts, axis=0)
    return np.asarray(sums / np.diff(np.append(firsts, len(values)))[:, None])


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


def _assumed(report: Report) -> list[tuple[str, str]]:
    rows = []
    for profile in report.profiles:
        rows += [
            (f"profile {profile.id}", f"{profile.scheme}, V {profile.vocab_size:,}"),
            ("profile digest", profile.digest),
            ("tokenizer digest", profile.tokenizer_digest or "none: token ids only"),
        ]
    chance = f"ranks among {report.decoys} decoy keys" if report.decoys else "the null law of scores"
    rows += [
        ("registry digest", report.registry_digest),
        ("keys of", f"{len(report.evidence):,} agents were read"),
        ("decoder", f"{report.decoder} {report.options or ''}".strip()),
        ("level", f"{report.level:g}" if report.allow_unattributed else "none: forced choice"),
        (
            "p-values",
            f"{chance}; corrected for the number of keys (Holm), p alone also for the choice of segment",
        ),
        ("tokens", f"{report.tokens:,}, {report.scored:,} scored, {report.repeated:,} repeats"),
    ]
    if report.text is not None:
        rows.append(("text, SHA-256", hashlib.sha256(report.text.encode()).hexdigest()))
    if report.model is not None:
        rows.append(("read with model", f"{report.model['name']}, digest {report.model['digest']}"))
    return rows


def _cannot(report: Report) -> list[str]:
    lines = caveats(report)
    lines += [
        "Short turns: below some dozens of tokens a mark is too weak to be read; such turns are read with"
        " their surroundings or stay unattributed.",
        "Edits: every changed word hides the mark of the words right after it. What somebody else has"
        " rewritten is that somebody's, or nobody's.",
        "Low entropy: where the next word was certain (code, lists, quotations, greedy decoding) no mark fits"
        " in.",
        "Unattributed does not mean written by a person: it means that no key of this registry explains it.",
        "A p-value speaks of agents who hold only their own keys. It is no proof against someone who has"
        " another's key, or who has learnt it from much text.",
    ]
    if any(isinstance(profile.scheme, WaterfallScheme) for profile in report.profiles):
        lines.append(
            "The ids of this scheme are no secrets: whoever knows them can write as any of the agents."
        )
    return lines
