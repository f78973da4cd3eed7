"""What a report shows: rows of tables, colours, shading, curves and graph. The forms lay it out."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iet.decoding.windows import margin
from iet.native.arrays import Float32s, Float64s, Int64s
from iet.report.lines import harmless
from iet.report.segments import Segment, Trace, extent
from iet.report.wording import (
    evidence_lines,
    how_sure,
    odds,
    p_value,
    reasons,
    share_words,
    small,
    transition_lines,
)

if TYPE_CHECKING:
    from iet.report.model import Report

COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
"""Okabe and Ito's palette: told apart by the colour-blind. More agents than colours share them."""

DASHES = ("solid", "dashed", "dotted", "double")
"""Lines under the text beside its colour: both together tell 28 agents apart, in print and for everybody."""

DEPTHS = 5
"""Steps in which the text is shaded by posterior."""

POINTS = 1500
"""Maximum number of points of a curve: a screen shows no more."""

VALUES = 12_000
"""Maximum number of points of all curves together: those of many agents are coarser."""

AGENTS = 30
"""Maximum number of agents that are shown, unless more of them occur in the text."""


@dataclasses.dataclass(frozen=True)
class ShownAgent:
    """An agent: how its text looks, its share of what was read, and its row under `AGENT_COLUMNS`.

    `plain` is its row under `PLAIN_AGENT_COLUMNS`. Without evidence it has no rows.
    """

    index: int
    name: str
    colour: str
    dash: str
    share: float
    row: list[str] | None
    plain: list[str] | None


class Piece(NamedTuple):
    """Text in one shade, and the badges before it.

    Attributes:
        paragraph: number of the paragraph that starts here, None elsewhere.
        named: whether the segment's title is shown before the text.
        depth: shade from 1 to `DEPTHS`, or 0 for none.
        text: without control characters.
    """

    paragraph: int | None
    named: bool
    depth: int
    text: str


@dataclasses.dataclass(frozen=True)
class ShownSegment:
    """A segment: its words, and its row under `segment_columns`.

    Attributes:
        agent: index into `agents(report)`, None where it has no agent.
        start, end: characters, or tokens where only ids were audited.
        facts, numbers: where it stands, in words of everybody; and in the method's terms.
        runs: (depth, start, end) of characters: shaded in depth 1 to `DEPTHS`, or 0, not at all. Empty where
            only ids were audited.
        pieces: the same runs as text, split at the starts of paragraphs.
    """

    agent: int | None
    left_out: bool
    start: int
    end: int
    runs: list[tuple[int, int, int]]
    pieces: list[Piece]
    title: str
    facts: list[tuple[str, str]]
    numbers: list[tuple[str, str]]
    why: list[str]
    row: list[str]

    @property
    def style(self) -> str:
        """CSS classes of its text."""
        unnamed = "out" if self.left_out else "nobody"
        return unnamed if self.agent is None else f"agent a{self.agent}"


AGENT_COLUMNS = ("agent", "found", "p in the text", "strength of its mark", "segments", "share")
PLAIN_AGENT_COLUMNS = ("agent", "found", "chance without it", "passages", "share of the text")


def agents(report: Report) -> list[ShownAgent]:
    """Return the first `AGENTS`, or all who occur in the text, in order, then others, the likeliest first."""
    shares = shares_of(report)
    return [
        ShownAgent(
            i,
            name,
            *look(i),
            shares.get(name, 0.0),
            _agent_row(report, name, shares) if name in report.evidence else None,
            _plain_agent_row(report, name, shares) if name in report.evidence else None,
        )
        for i, name in enumerate(_ordered(report)[: max(len(writers(report)), AGENTS)])
    ]


def agents_note(report: Report) -> list[str]:
    """Return the lines below the table of agents."""
    more = len(_ordered(report)) - len(agents(report))
    left = f"{more} more agents of the registry, with higher p-values, are not shown."
    return [*evidence_lines(report), *([left] if more else [])]


def segment_columns(report: Report) -> list[str]:
    """Return the columns of the table of segments."""
    unit = "tokens" if report.text is None else "characters"
    sure = any(segment.error is not None for segment in report.segments)
    chance = "chance of error" if sure else "chance without a mark"
    return ["#", "agent", "paragraphs", unit, "its agent's share", chance]


def segments(report: Report) -> list[ShownSegment]:
    """Return the segments in order. O(T·P), P the agents that the decoder looked at; deterministic."""
    places = _places(report)
    text = "" if report.text is None else harmless(report.text.replace("\r\n", " \n"))  # of equal length
    starts = paragraph_starts(report.text or "")
    return [_segment(report, segment, places, text, starts) for segment in report.segments]


def writers(report: Report) -> list[str]:
    """Return the agents that segments are attributed to, in the order in which they first occur."""
    return list(dict.fromkeys(s.agent for s in report.segments if s.agent is not None))


def _ordered(report: Report) -> list[str]:
    wrote = writers(report)
    others = [name for name in report.evidence if name not in wrote]
    return [*wrote, *sorted(others, key=lambda name: report.evidence[name])]


def _places(report: Report) -> dict[str, int]:
    return {name: i for i, name in enumerate(_ordered(report))}


def look(place: int) -> tuple[str, str]:
    """Return colour and dash of an agent by its place among those that are shown."""
    return COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)]


def interval_unit(report: Report) -> str:
    """Return the unit of the intervals of boundaries."""
    return "characters" if len(report.profiles) > 1 else "tokens"


def shares_of(report: Report) -> dict[str | None, float]:
    """Return the share of what was read that each agent has, and nobody (None)."""
    shares: dict[str | None, float] = {}
    for segment in report.segments:
        start, end = extent(segment)
        if not segment.left_out:
            shares[segment.agent] = shares.get(segment.agent, 0) + end - start
    total = sum(shares.values()) or 1
    return {agent: size / total for agent, size in shares.items()}


def paragraph_starts(text: str) -> list[int]:
    """Return where paragraphs start: after blank lines, or after line ends in a text that has none."""
    between = r"\n\s*\n\s*" if re.search(r"\n\s*\n", text) else r"\n\s*"
    starts = [match.end() for match in re.finditer(rf"\A\s*|{between}", text)]
    return [start for start in dict.fromkeys(starts) if start < len(text)]


def _paragraphs_of(report: Report, low: int, high: int, starts: list[int]) -> str:
    """Return the numbers of the paragraphs that characters [low, high) are in, as people write them."""
    if report.text is None or not report.text[low:high].strip():
        return ""
    text = report.text[low:high]
    first, last = low + len(text) - len(text.lstrip()), low + len(text.rstrip()) - 1
    a, b = bisect.bisect_right(starts, first), bisect.bisect_right(starts, last)
    return f"{a:,}" if a == b else f"{a:,} to {b:,}"


def posterior_runs(
    trace: Trace | None, agent: str, low: int, high: int, step: Callable[[Float32s], Any], full: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the runs (step, start, end) of characters [low, high) in which a posterior stays in one step.

    `step` makes steps of posteriors; where none is known the step is `full`.
    """
    edges, steps = [low], [full]
    if trace is not None and trace.posterior is not None and agent in trace.agents:
        first, last = np.searchsorted(trace.starts, [low, high])
        if first < last:
            found = step(trace.posterior[first:last, trace.agents.index(agent)])
            changes = np.flatnonzero(np.append(True, found[1:] != found[:-1]))
            edges, steps = trace.starts[first:last][changes].tolist(), found[changes].tolist()
            edges[0] = low  # what stands before the first token belongs to it
    for value, (a, b) in zip(steps, itertools.pairwise([*edges, high]), strict=True):
        if b > a:
            yield value, a, b


def _runs(report: Report, segment: Segment) -> list[tuple[int, int, int]]:
    if report.text is None:
        return []
    low, high = extent(segment)
    if segment.agent is None:
        return [(0, low, high)]

    def depth(posterior: Float32s) -> Int64s:
        return 1 + (posterior * DEPTHS).astype(np.int64).clip(0, DEPTHS - 1)

    return list(posterior_runs(report.trace, segment.agent, low, high, depth, DEPTHS))


def _pieces(
    text: str, start: int, end: int, runs: list[tuple[int, int, int]], paragraphs: list[int]
) -> list[Piece]:
    """Split the runs of a segment at paragraphs; the name stands at its first letter and at each of them."""
    low, high = bisect.bisect_left(paragraphs, start), bisect.bisect_left(paragraphs, end)
    numbers = {paragraphs[i]: i + 1 for i in range(low, high)}
    first = end - len(text[start:end].lstrip())
    badges = sorted({first, *numbers})
    pieces = []
    for depth, a, b in runs:
        cuts = [a, *(badge for badge in badges if a < badge < b), b]
        pieces += [
            Piece(numbers.get(c), c in numbers or c == first, depth, text[c:d])
            for c, d in itertools.pairwise(cuts)
        ]
    return pieces


def _segment(
    report: Report, segment: Segment, places: dict[str, int], text: str, paragraphs: list[int]
) -> ShownSegment:
    segment = report.redact_guesses(segment)
    span, unit = extent(segment), "tokens" if report.text is None else "characters"
    where = _range(span)
    within = _paragraphs_of(report, *span, paragraphs)
    facts, numbers = [("paragraphs", within), (unit, where)], []
    if report.text is not None and segment.start is not None and segment.end is not None:
        numbers.append(("tokens", _range((segment.start, segment.end))))
    if segment.left_out:
        title, why = "left out", ["The caller said that this is no agent's text: it was not read."]
    else:
        title = segment.called
        guess, intervals = segment.best_guess, interval_unit(report)
        numbers += [
            ("published before", f"{segment.published:.0%}" if segment.published else ""),
            ("posterior", "" if segment.posterior is None else f"{segment.posterior:.3f}"),
            ("share", share_words(segment)),
            ("error", "" if segment.error is None else small(segment.error)),
            ("p alone", p_value(segment.log_p)),
            ("log p alone", f"{segment.log_p:.2f}"),
            ("p in the text", "" if guess is None else p_value(report.evidence.get(guess, 0.0))),
            ("starts within", _range(segment.start_interval, intervals)),
            ("ends within", _range(segment.end_interval, intervals)),
        ]
        why = [*how_sure(report, segment), *reasons(report, segment), *_ends(report, segment)]
    runs = _runs(report, segment)
    return ShownSegment(
        agent=None if segment.agent is None else places[segment.agent],
        left_out=segment.left_out,
        start=span[0],
        end=span[1],
        runs=runs,
        pieces=_pieces(text, *span, runs, paragraphs),
        title=title,
        facts=[(term, value) for term, value in facts if value],
        numbers=[(term, value) for term, value in numbers if value],
        why=why,
        row=[within, where, *_plain_figures(segment)],
    )


def figures(segment: Segment) -> list[str]:
    """Return the cells of a table of segments that hold share, error and p alone."""
    if segment.left_out:
        return ["", "", ""]
    share = share_words(segment).removeprefix("about ")
    error = "" if segment.error is None else small(segment.error)
    return [share, error, p_value(segment.log_p)]


def _plain_figures(segment: Segment) -> list[str]:
    """Return the cells of the page's table that hold the share, and the chance of an error."""
    if segment.left_out:
        return ["", ""]
    return [
        share_words(segment),
        odds(math.exp(segment.log_p) if segment.error is None else segment.error),
    ]


def _range(interval: tuple[int, int] | None, unit: str = "") -> str:
    return "" if interval is None else f"{unit} {interval[0]:,} to {interval[1]:,}".lstrip()


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


def _plain_agent_row(report: Report, name: str, shares: dict[str | None, float]) -> list[str]:
    _, found, _, _, count, share = _agent_row(report, name, shares)
    return [name, found, odds(math.exp(report.evidence[name])), count, share]


def boundaries(report: Report) -> list[int]:
    """Return where one segment ends and the next one starts."""
    spans = map(extent, report.segments)
    return [end for (_, end), (start, _) in itertools.pairwise(spans) if end == start]


def doubts(report: Report) -> list[tuple[int, int]]:
    """Return the stretches, in the page's unit, within which boundaries that are uncertain may lie."""
    stretches = (_stretch(report, segment.start_interval) for segment in report.segments[1:])
    return [stretch for stretch in stretches if stretch is not None]


def _ends(report: Report, segment: Segment) -> list[str]:
    """Say between which words the segment begins and ends, where that is uncertain."""
    if report.text is None or report.trace is None or segment.agent is None:
        return []
    lines = []
    for verb, interval in (("begins", segment.start_interval), ("ends", segment.end_interval)):
        stretch = _stretch(report, interval)
        if stretch is None:
            continue
        words = " ".join(harmless(report.text[slice(*stretch)]).split())
        if len(words) > 90:
            words = f"{words[:40]} … {words[-40:]}"
        lines.append(f"It {verb} somewhere in “{words}”.")
    return lines


def _stretch(report: Report, interval: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return a boundary's interval in the page's unit; None where the boundary is certain."""
    if interval is None or interval[0] == interval[1]:
        return None
    return _place(report, interval[0]), _place(report, interval[1])


def _place(report: Report, position: int) -> int:
    """Return one end of a boundary's interval, which counts tokens with one profile, in the page's unit."""
    trace = report.trace
    if report.text is None or len(report.profiles) > 1 or trace is None:
        return position
    index = position if not report.left_out else int(np.searchsorted(trace.tokens, position))
    return int(trace.starts[index]) if index < len(trace.starts) else len(report.text)


def curves(report: Report) -> dict[str, Any] | None:
    """Return what the page's script draws along the text: scores of agents, and the margin of the best two.

    None where there is nothing to draw.
    """
    trace = report.trace
    if trace is None or not len(trace.scores):
        return None
    drawn = columns(report, trace)
    if not drawn:
        return None
    stride = -(-len(trace.scores) // min(POINTS, VALUES // len(drawn) or 1))
    scores = _means(trace.scores, stride)
    positions = _means(trace.centres[:, None], stride)[:, 0].astype(np.int64)
    gaps = _means(margin(trace.scores)[:, None], stride)[:, 0]
    shown, places = np.round(scores[:, drawn], 3), _places(report)
    return {
        "positions": positions.tolist(),
        "scores": [
            (places[trace.agents[column]], values.tolist())
            for column, values in zip(drawn, shown.T, strict=True)
        ],
        "margin": np.round(gaps, 3).tolist(),
        "low": float(min(0.0, shown.min())),
        "high": float(max(0.0, shown.max())),
        "note": "Each line follows the mark of one agent through the text: whose line is the highest wrote"
        " there. Grey, below: how far ahead it is. Dashed: where one passage ends and the next one begins;"
        " shaded: where that may be.",
        "terms": [
            "Lines: f(t, a), the mean score of a window under each agent's key"
            + (f" (means of {stride} windows)" if stride > 1 else "")
            + ". Grey: the margin between the best two keys."
        ],
    }


def columns(report: Report, trace: Trace) -> list[int]:
    """Return the columns that are drawn: agents who occur, else the three that are the likeliest.

    All of them are among the `agents` that are shown.
    """
    wrote = writers(report)
    there = [name for name in wrote or _ordered(report)[:AGENTS] if name in trace.agents]
    return [trace.agents.index(name) for name in (there if wrote else there[:3])]


def _means(values: NDArray[Any], stride: int) -> Float64s:
    """Return the means [ceil(W/stride), K] of `stride` rows each."""
    firsts = np.arange(0, len(values), stride)
    sums = np.add.reduceat(values.astype(np.float64), firsts, axis=0)
    return np.asarray(sums / np.diff(np.append(firsts, len(values)))[:, None])


def graph(report: Report) -> dict[str, Any] | None:
    """Return the transition graph as the page's script draws it; None where no passage was observed."""
    observed, places = report.transitions, _places(report)
    if not observed.observed:
        return None
    nodes = list(observed.agents)
    return {
        "nodes": [places[str(name)] for name in nodes],
        "edges": [
            (nodes.index(source), nodes.index(target), len(found), round(max(found), 3))
            for (source, target), found in observed.passages.items()
        ],
        "lines": [
            "An arrow leads from one agent to the one who wrote next. Beside it: how often (×), and how sure"
            " that is, from 0 to 1."
        ],
        "terms": [
            *transition_lines(report),
            "μ has a bit for each pair of agents, set if one followed the other.",
        ],
    }
