"""The report in a terminal: what the page shows, in colours where rich is installed, plain otherwise."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TextIO

import numpy as np

from iet.decoding.windows import margin
from iet.lines import cells, cut, harmless, padded, table, width_of, wrapped
from iet.report.curves import columns_of, depths_of, means_of
from iet.report.model import Report, Segment, Span, extent, p_value
from iet.report.words import (
    AGENT_COLUMNS,
    COLOURS,
    agent_row,
    agents_note,
    assumed,
    cannot,
    chance,
    headline,
    in_order,
    interval_unit,
    legend,
    shares_of,
    transition_lines,
    verdict,
)

if TYPE_CHECKING:
    from rich.text import Text

_COLUMNS = ("#", "characters", "tokens", "agent", "posterior", "error", "p alone", "starts within")
_BARS = "▁▂▃▄▅▆▇█"
_SURE = 4
"""Depth (of `iet.report.curves.DEPTHS`) below which the text is dim."""


class _Line(NamedTuple):
    text: str
    style: str = ""


def plain(report: Report, width: int | None = None) -> str:
    """Return the report as plain text, without the audited text itself.

    Args:
        report: what to show.
        width: cells of a line. None: as many as it takes.
    """
    return "\n".join(line.text for line in [*_above(report, width), _Line(""), *_below(report, width)])


def show(report: Report, file: TextIO | None = None) -> None:
    """Print the report with the text in the colours of its agents; plain where rich is missing."""
    file = sys.stdout if file is None else file
    width = width_of(file)
    parts = [*_above(report, width, _encodes(file))], [*_below(report, width)]
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        lines = [line.text for line in [*parts[0], _Line("")]]
        if report.text is not None:
            lines += [*wrapped(marked_text(report), width), ""]
        print("\n".join([*lines, *(line.text for line in parts[1])]), file=file)
        return
    console = Console(file=file, width=width or 200, highlight=False, markup=False, emoji=False)
    with console.capture() as shown:
        for line in [*parts[0], _Line("")]:
            console.print(Text(line.text, line.style), soft_wrap=True)  # they are as long as they may be
        if report.text is not None:
            console.print(coloured_text(report), soft_wrap=width is None)
            console.print()
        for line in parts[1]:
            console.print(Text(line.text, line.style), soft_wrap=True)
    file.write(shown.get())  # by hand: where the reader of a pipe is gone, rich would exit with 1


def _encodes(file: TextIO) -> bool:
    try:
        _BARS.encode(getattr(file, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _above(report: Report, width: int | None, bars: bool = True) -> Iterator[_Line]:
    """Yield what stands above the text: the answer, scores, segments."""
    colours = styles(report)
    yield from _wrapped([verdict(report)], width, "bold")
    yield from _wrapped(headline(report), width)
    yield _Line("")
    if bars and report.trace is not None and len(report.trace.scores) > 1:
        yield from _curves(report, width)
        yield _Line("")
    if report.segments:
        rows = [_COLUMNS, *(_row(i, segment) for i, segment in enumerate(report.segments, 1))]
        named = [None, *(segment.agent for segment in report.segments)]
        for lines, name in zip(table(rows, width, wraps=3), named, strict=True):
            yield from (_Line(line, colours.get(name, "")) for line in lines)
    notes = legend(report)
    if any(segment.start_interval is not None for segment in report.segments):
        notes.append(f"starts within: {interval_unit(report)} between which the boundary may lie")
    yield from _wrapped(notes, width, "dim")


def _below(report: Report, width: int | None) -> Iterator[_Line]:
    """Yield what stands below the text: agents, transitions, what was assumed and cannot be said."""
    colours, (wrote, others) = styles(report), in_order(report)
    shown = [*wrote, *others][: max(len(wrote), 30)]
    if shown:
        shares = shares_of(report)
        read = [name for name in shown if name in report.evidence]
        rows = [AGENT_COLUMNS, *(tuple(agent_row(report, name, shares)) for name in read)]
        for lines, name in zip(table(rows, width), [None, *read], strict=True):
            yield from (_Line(line, colours.get(name, "")) for line in lines)
    yield from _wrapped(agents_note(report, len(wrote) + len(others) - len(shown)), width)
    yield from _wrapped(transition_lines(report), width)
    yield _Line("")
    yield from _wrapped((f"{name}: {value}" for name, value in assumed(report)), width, "dim")
    yield _Line("")
    yield from _wrapped(cannot(report), width)


def _curves(report: Report, width: int | None) -> Iterator[_Line]:
    """Yield f(t, a) of the agents who occur as bars along the text, the margin, and where segments start."""
    colours, trace = styles(report), report.trace
    assert trace is not None
    columns = columns_of(report, trace)
    names = [harmless(trace.agents[column]) for column in columns]
    whole = min(width or 100, 100)
    label = min(max(cells(name) for name in [*names, "margin"]), 20, whole // 2)
    room = whole - label - 1
    stride = -(-len(trace.scores) // room)
    scores = means_of(trace.scores, stride)
    gaps = means_of(margin(trace.scores)[:, None], stride)[:, 0]
    highest = float(scores[:, columns].max(initial=0.0)) or 1.0
    title = f"f(t, a) along the text, means of {trace.window} tokens under each agent's key"
    yield from _wrapped([f"{title}, up to {highest:.2f}"], width)
    for name, values in [*zip(names, scores[:, columns].T, strict=True), ("margin", gaps)]:
        steps = (values / highest * len(_BARS)).astype(np.int64).clip(0, len(_BARS) - 1)
        bars = "".join(_BARS[step] for step in steps)
        yield _Line(f"{padded(cut(name, label), label)} {bars}", colours.get(name, ""))
    positions = trace.centres[stride // 2 :: stride][: len(scores)]
    starts = [extent(segment)[0] for segment in report.segments[1:]]
    there = set(np.searchsorted((positions[1:] + positions[:-1]) / 2, starts).tolist())
    marks = "".join("^" if i in there else " " for i in range(len(scores)))
    yield _Line(f"{padded('starts', label)} {marks}".rstrip())


def coloured_text(report: Report) -> Text:
    """Return the text for rich: runs in the colours of their agents, dim where that is unsure, with names."""
    from rich.text import Text

    text, colours = Text(), styles(report)
    assert report.text is not None
    for start, end, agent, left_out in _runs(report):
        colour = colours.get(agent, "")
        text.append(
            f"{chr(10) if start else ''}[{harmless(_label(agent, left_out))}] ", style=f"bold {colour}"
        )
        if agent is None:
            text.append(harmless(report.text[start:end]), style="dim strike" if left_out else "")
            continue
        edges, depths = depths_of(report.trace, agent, start, end)
        for depth, a, b in zip(depths, edges, [*edges[1:], end], strict=True):
            shade = colour if depth >= _SURE else f"dim {colour}"
            text.append(harmless(report.text[a:b]), style=shade)
    return text


def marked_text(report: Report) -> str:
    """Return the text with the agent's name in brackets before each run, [?] where unattributed."""
    assert report.text is not None
    return "\n".join(
        f"[{_label(agent, left_out)}] {harmless(report.text[start:end])}"
        for start, end, agent, left_out in _runs(report)
    )


def _label(agent: str | None, left_out: bool) -> str:
    return "left out" if left_out else agent or "?"


def _runs(report: Report) -> list[tuple[int, int, str | None, bool]]:
    """Return the runs over all characters, with those that are left out."""
    left_out = [(s.char_start or 0, s.char_end or 0, None, True) for s in report.segments if s.left_out]
    return sorted([*left_out, *((*run, False) for run in report.char_agents)], key=lambda run: run[0])


def styles(report: Report) -> dict[str | None, str]:
    """Return rich's style for each agent who occurs: the colour that it has on the page."""
    wrote, _ = in_order(report)
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(wrote)}


def _row(number: int, segment: Segment) -> tuple[str, ...]:
    chars = "" if segment.char_start is None else f"{segment.char_start}-{segment.char_end}"
    tokens = "" if segment.start is None else f"{segment.start}-{segment.end}"
    if segment.left_out:
        return str(number), chars, tokens, "left out", "", "", "", ""
    # A guess as likely as not by chance is not worth a name.
    likely = segment.log_p < math.log(0.5) or (segment.error is not None and segment.error < 0.5)
    guess = f" (perhaps {segment.best_guess})" if likely else ""
    agent = segment.agent or f"unattributed{guess}"
    posterior = "" if segment.posterior is None else f"{segment.posterior:.2f}"
    error = "" if segment.error is None else chance(segment.error)
    within = "" if segment.start_interval is None else "{}-{}".format(*segment.start_interval)
    return str(number), chars, tokens, agent, posterior, error, p_value(segment.log_p), within


def comparison(report: Report, truth: Sequence[Span], file: TextIO | None = None) -> None:
    """Print true turns beside the agents that were recovered for them, with each one's share of the turn."""
    file = sys.stdout if file is None else file
    found = report.char_agents
    rows = [("turn", "characters", "true", "recovered")]
    for number, (start, end, agent) in enumerate(truth, 1):
        shares: dict[str, int] = {}
        for run_start, run_end, who in found:
            overlap = min(end, run_end) - max(start, run_start)
            if overlap > 0:
                shares[who or "unattributed"] = shares.get(who or "unattributed", 0) + overlap
        recovered = ", ".join(
            f"{who} {count / (end - start):.0%}" for who, count in sorted(shares.items(), key=lambda s: -s[1])
        )
        rows.append((str(number), f"{start}-{end}", agent or "nobody", recovered))
    for lines in table(rows, width_of(file), wraps=3):
        print("\n".join(lines), file=file)


def _wrapped(lines: Iterable[str], width: int | None, style: str = "") -> Iterator[_Line]:
    for line in lines:
        yield from (_Line(piece, style) for piece in wrapped(line, width))
