"""Compute what every form of a report shows: rows of tables, colours, shades, curves and the graph."""

from __future__ import annotations

import bisect
import collections
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from iet.decoding.windows import margin
from iet.native.arrays import Float32s, Float64s, Int64s
from iet.report.lines import harmless
from iet.report.segments import Segment, Trace, extent
from iet.report.wording import evidence_line, explain, odds, p_value, share_words, small, transition_lines

if TYPE_CHECKING:
    from iet.report.model import Report

COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
"""Palette of Okabe and Ito, which colour-blind readers can distinguish. Further agents reuse the colours."""

DASHES = ("solid", "dashed", "dotted", "double")
"""Lines under the text. Colour and line together distinguish 28 agents, also in print."""

DEPTHS = 5
"""Number of shades of the text, by posterior."""

POINTS = 1500
"""Maximum number of points of a curve: a screen shows no more."""

VALUES = 12_000
"""Maximum number of points of all curves together: the curves of many agents are coarser."""

AGENTS = 30
"""Maximum number of agents that are shown, unless more of them occur in the text."""

AGENT_COLUMNS = ("agent", "found", "p in the text", "strength of its mark", "segments", "share")
PLAIN_AGENT_COLUMNS = ("agent", "found", "chance without it", "passages", "share of the text")


# Agents


def writers(report: Report) -> list[str]:
    """Return the agents that segments are attributed to, in the order of the text."""
    return list(dict.fromkeys(s.agent for s in report.segments if s.agent is not None))


def _ordered(report: Report) -> list[str]:
    """Return the writers, then all other agents by increasing p-value."""
    wrote = writers(report)
    silent = [name for name in report.evidence if name not in wrote]
    return [*wrote, *sorted(silent, key=lambda name: report.evidence[name])]


def _indices(report: Report) -> dict[str, int]:
    return {name: i for i, name in enumerate(_ordered(report))}


def style_of(index: int) -> tuple[str, str]:
    """Return the colour and dash of an agent, from its index among the agents that are shown."""
    return COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]


def shares_of(report: Report) -> dict[str | None, float]:
    """Return the share of the text that was read of each agent, and of unattributed text (None)."""
    shares: dict[str | None, float] = {}
    for segment in report.segments:
        start, end = extent(segment)
        if not segment.left_out:
            shares[segment.agent] = shares.get(segment.agent, 0) + end - start
    total = sum(shares.values()) or 1
    return {agent: size / total for agent, size in shares.items()}


def agents(report: Report) -> list[str]:
    """Return the agents that occur in the text, and others by increasing p-value up to `AGENTS` in all."""
    return _ordered(report)[: max(len(writers(report)), AGENTS)]


def agent_rows(report: Report, *, plain: bool = False) -> list[list[str]]:
    """Return the cells of `AGENT_COLUMNS`, or of `PLAIN_AGENT_COLUMNS`, of each agent with evidence."""
    shares, detected = shares_of(report), set(report.found)
    counts = collections.Counter(segment.agent for segment in report.segments)
    rows = []
    for name in agents(report):
        if name in report.evidence:
            log_p, strength = report.evidence[name], (report.strengths or {}).get(name)
            terms = [p_value(log_p), "" if strength is None else f"{strength:.2f}"]
            figures = [odds(math.exp(log_p))] if plain else terms
            share = f"{shares.get(name, 0.0):.1%}"
            rows.append([name, "yes" if name in detected else "no", *figures, str(counts[name]), share])
    return rows


def agents_note(report: Report) -> list[str]:
    """Return the lines below the table of agents."""
    more = len(_ordered(report)) - len(agents(report))
    hidden = f"{more} more agents of the registry, with higher p-values, are not shown."
    return [evidence_line(report), *([hidden] if more else [])]


# Segments


def segment_columns(report: Report) -> list[str]:
    """Return the columns of the page's table of segments."""
    unit = "tokens" if report.text is None else "characters"
    has_errors = any(segment.error is not None for segment in report.segments)
    chance = "chance of error" if has_errors else "chance without a mark"
    return ["#", "agent", "paragraphs", unit, "its agent's share", chance]


class Page:
    """The segments of a report as its page shows them. O(T·P), P the agents that the decoder looked at.

    Args:
        report: what is shown.

    Attributes:
        segments: those of the report, without the guesses that it does not show.
        indices: position of each agent among those that are shown.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.segments = [report.redact_guesses(segment) for segment in report.segments]
        self.indices = _indices(report)
        # Replacing "\r\n" first keeps the length of the text.
        self._text = "" if report.text is None else harmless(report.text.replace("\r\n", " \n"))
        self._paragraphs = paragraph_starts(report.text or "")

    def style(self, segment: Segment) -> str:
        """Return the CSS classes of a segment's text."""
        if segment.agent is None:
            return "out" if segment.left_out else "unnamed"
        return f"agent a{self.indices[segment.agent]}"

    def pieces(self, segment: Segment) -> Iterator[tuple[int | None, bool, int, str]]:
        """Yield the text of a segment in pieces of one shade, cut at the starts of paragraphs.

        Each is the number of the paragraph that starts there or None, whether the segment's title stands
        before it, its shade from 1 to `DEPTHS` or 0, and the text. The first letter of the segment and of
        each paragraph has the title.
        """
        start, end = extent(segment)
        low, high = bisect.bisect_left(self._paragraphs, start), bisect.bisect_left(self._paragraphs, end)
        numbers = {self._paragraphs[i]: i + 1 for i in range(low, high)}
        titles = sorted({end - len(self._text[start:end].lstrip()), *numbers})
        for depth, a, b in runs(self._report, segment):
            cuts = [a, *(title for title in titles if a < title < b), b]
            for c, d in itertools.pairwise(cuts):
                yield numbers.get(c), c in titles, depth, self._text[c:d]

    def row(self, segment: Segment) -> list[str]:
        """Return the cells of `segment_columns` from the third on."""
        start, end = extent(segment)
        row = [_paragraph_numbers(self._text, start, end, self._paragraphs), _range((start, end)), "", ""]
        if not segment.left_out:
            chance = math.exp(segment.log_p) if segment.error is None else segment.error
            row[2:] = [share_words(segment), odds(chance)]
        return row

    def facts(self, segment: Segment) -> list[tuple[str, str]]:
        """Return names and values without terms of the method."""
        values = zip(segment_columns(self._report)[2:4], self.row(segment), strict=False)
        return [(term, value) for term, value in values if value]

    def numbers(self, segment: Segment) -> list[tuple[str, str]]:
        """Return names and values in terms of the method."""
        report, numbers = self._report, []
        if report.text is not None and segment.start is not None and segment.end is not None:
            numbers.append(("tokens", _range((segment.start, segment.end))))
        if not segment.left_out:
            guess, unit = segment.best_guess, interval_unit(report)
            numbers += [
                ("published before", f"{segment.published:.0%}" if segment.published else ""),
                ("posterior", "" if segment.posterior is None else f"{segment.posterior:.3f}"),
                ("share", share_words(segment)),
                ("error", "" if segment.error is None else small(segment.error)),
                ("p alone", p_value(segment.log_p)),
                ("log p alone", f"{segment.log_p:.2f}"),
                ("p in the text", "" if guess is None else p_value(report.evidence.get(guess, 0.0))),
                ("starts within", _range(segment.start_interval, unit)),
                ("ends within", _range(segment.end_interval, unit)),
            ]
        return [(term, value) for term, value in numbers if value]

    def why(self, segment: Segment) -> list[str]:
        """Return sentences on how sure the segment's agent is, the reasons, and the words at its ends."""
        return [*explain(self._report, segment), *_ends(self._report, segment)]


def _range(interval: tuple[int, int] | None, unit: str = "") -> str:
    return "" if interval is None else f"{unit} {interval[0]:,} to {interval[1]:,}".lstrip()


def paragraph_starts(text: str) -> list[int]:
    """Return the starts of paragraphs: after blank lines, or line ends if the text has no blank line."""
    between = r"\n\s*\n\s*" if re.search(r"\n\s*\n", text) else r"\n\s*"
    starts = [match.end() for match in re.finditer(rf"\A\s*|{between}", text)]
    return [start for start in dict.fromkeys(starts) if start < len(text)]


def _paragraph_numbers(text: str, start: int, end: int, paragraphs: list[int]) -> str:
    """Return the paragraphs of the characters `[start, end)`, as in "3" or "3 to 5"."""
    part = text[start:end]
    if not part.strip():
        return ""
    first, last = end - len(part.lstrip()), start + len(part.rstrip()) - 1
    a, b = bisect.bisect_right(paragraphs, first), bisect.bisect_right(paragraphs, last)
    return f"{a:,}" if a == b else f"{a:,} to {b:,}"


def posterior_runs(
    trace: Trace | None, agent: str, low: int, high: int, step: Callable[[Float32s], Any], default: int
) -> Iterator[tuple[int, int, int]]:
    """Yield runs (step, start, end) of characters `[low, high)` whose posteriors map to one step.

    Args:
        trace: of the report. Without posteriors there is one run, of the `default` step.
        agent: whose posterior.
        low, high: characters of a segment.
        step: maps posteriors, float32 [R], to steps [R].
        default: step of characters without a posterior.
    """
    starts, steps = [low], [default]
    if trace is not None and trace.posterior is not None and agent in trace.agents:
        first, last = np.searchsorted(trace.starts, [low, high])
        if first < last:
            values = step(trace.posterior[first:last, trace.agents.index(agent)])
            changes = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
            starts, steps = trace.starts[first:last][changes].tolist(), values[changes].tolist()
            starts[0] = low  # characters before the first token belong to it
    for value, (a, b) in zip(steps, itertools.pairwise([*starts, high]), strict=True):
        if b > a:
            yield value, a, b


def runs(report: Report, segment: Segment) -> list[tuple[int, int, int]]:
    """Return runs (depth, start, end) of a segment's characters in one shade, see `Page.pieces`."""
    if report.text is None:
        return []
    low, high = extent(segment)
    if segment.agent is None:
        return [(0, low, high)]

    def depth(posterior: Float32s) -> Int64s:
        return 1 + (posterior * DEPTHS).astype(np.int64).clip(0, DEPTHS - 1)

    return list(posterior_runs(report.trace, segment.agent, low, high, depth, DEPTHS))


# Boundaries


def boundaries(report: Report) -> list[int]:
    """Return the positions at which one segment ends and the next one starts."""
    spans = map(extent, report.segments)
    return [end for (_, end), (start, _) in itertools.pairwise(spans) if end == start]


def doubts(report: Report) -> list[tuple[int, int]]:
    """Return the intervals of uncertain boundaries, in the page's unit."""
    intervals = (_interval(report, segment.start_interval) for segment in report.segments[1:])
    return [interval for interval in intervals if interval is not None]


def interval_unit(report: Report) -> str:
    """Return the unit of the intervals of boundaries."""
    return "characters" if len(report.profiles) > 1 else "tokens"


def _ends(report: Report, segment: Segment) -> list[str]:
    """Return the words between which the segment begins and ends, if that is uncertain."""
    if report.text is None or report.trace is None or segment.agent is None:
        return []
    lines = []
    for verb, interval in (("begins", segment.start_interval), ("ends", segment.end_interval)):
        span = _interval(report, interval)
        if span is None:
            continue
        words = " ".join(harmless(report.text[slice(*span)]).split())
        if len(words) > 90:
            words = f"{words[:40]} … {words[-40:]}"
        lines.append(f"It {verb} somewhere in “{words}”.")
    return lines


def _interval(report: Report, interval: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return a boundary's interval in the page's unit; None if the boundary is certain."""
    if interval is None or interval[0] == interval[1]:
        return None
    return _position(report, interval[0]), _position(report, interval[1])


def _position(report: Report, position: int) -> int:
    """Convert an end of an interval, a token if there is one profile, to the page's unit."""
    trace = report.trace
    if report.text is None or len(report.profiles) > 1 or trace is None:
        return position
    index = position if not report.left_out else int(np.searchsorted(trace.tokens, position))
    return int(trace.starts[index]) if index < len(trace.starts) else len(report.text)


# Curves and graph


def curves(report: Report) -> dict[str, Any] | None:
    """Return the scores of agents along the text and the margin of the best two; None without scores."""
    trace = report.trace
    if trace is None or not len(trace.scores):
        return None
    drawn = columns(report, trace)
    if not drawn:
        return None
    stride = -(-len(trace.scores) // min(POINTS, VALUES // len(drawn) or 1))
    scores = np.round(_means(trace.scores, stride)[:, drawn], 3)
    positions = _means(trace.centres[:, None], stride)[:, 0].astype(np.int64)
    gaps = _means(margin(trace.scores)[:, None], stride)[:, 0]
    indices = _indices(report)
    return {
        "positions": positions.tolist(),
        "scores": [
            (indices[trace.agents[column]], values.tolist())
            for column, values in zip(drawn, scores.T, strict=True)
        ],
        "margin": np.round(gaps, 3).tolist(),
        "low": float(min(0.0, scores.min())),
        "high": float(max(0.0, scores.max())),
        "note": "Each line follows the mark of one agent through the text; the agent with the highest line"
        " wrote there. Grey, below: the lead of the highest line. Dashed: the boundaries of passages; shaded:"
        " where an uncertain boundary may lie.",
        "terms": [
            "Lines: f(t, a), the mean score of a window under each agent's key"
            + (f" (means of {stride} windows)" if stride > 1 else "")
            + ". Grey: the margin between the best two keys."
        ],
    }


def columns(report: Report, trace: Trace) -> Sequence[int]:
    """Return the columns of `trace.scores` that are drawn: agents that occur, else the three likeliest."""
    wrote = writers(report)
    drawn = [name for name in wrote or _ordered(report)[:AGENTS] if name in trace.agents]
    return [trace.agents.index(name) for name in (drawn if wrote else drawn[:3])]


def _means(values: NDArray[Any], stride: int) -> Float64s:
    """Return the means [ceil(W/stride), K] of `stride` rows each."""
    firsts = np.arange(0, len(values), stride)
    sums = np.add.reduceat(values.astype(np.float64), firsts, axis=0)
    return np.asarray(sums / np.diff(np.append(firsts, len(values)))[:, None])


def graph(report: Report) -> dict[str, Any] | None:
    """Return the transition graph for the page's script; None if no transition was observed."""
    transitions, indices = report.transitions, _indices(report)
    if not transitions.observed:
        return None
    nodes = list(transitions.agents)
    return {
        "nodes": [indices[str(name)] for name in nodes],
        "edges": [
            (nodes.index(source), nodes.index(target), len(confidences), round(max(confidences), 3))
            for (source, target), confidences in transitions.passages.items()
        ],
        "lines": [
            "An arrow leads from one agent to the agent that wrote next. Its label: how often (×), and the"
            " confidence from 0 to 1."
        ],
        "terms": [
            *transition_lines(report),
            "The bitmask has a bit for each pair of agents, set if one followed the other.",
        ],
    }
