"""Show a report in a terminal, in colours if rich is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import numpy as np

from iet.report import view, wording
from iet.report.lines import cells, cut, harmless, padded, table, width_of, wrapped
from iet.report.segments import Segment, Span, extent

if TYPE_CHECKING:
    from rich.text import Text

    from iet.report.model import Report

_COLUMNS = ("#", "characters", "tokens", "agent", "share", "error", "p alone", "starts within")
_BARS = "▁▂▃▄▅▆▇█"
_BRIGHT = 0.6
"""Posterior below which the text is dim."""


class _Line(NamedTuple):
    text: str
    style: str = ""


def plain(report: Report, width: int | None = None) -> str:
    """Return the report as plain text, without the audited text itself.

    Args:
        report: what to show.
        width: maximum number of cells of a line. None: no limit.
    """
    lines = [*_above(report, width), _Line(""), *_below(report, width)]
    return "\n".join(line.text for line in lines)


def show(report: Report, file: TextIO | None = None) -> None:
    """Print the report with the text in the colours of its agents; without colours if rich is missing."""
    file = sys.stdout if file is None else file
    width = width_of(file)
    above = [*_above(report, width, _encodes(file)), _Line("")]
    below = _below(report, width)
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        lines = [line.text for line in above]
        if report.text is not None:
            lines += [*wrapped(marked_text(report), width), ""]
        print("\n".join([*lines, *(line.text for line in below)]), file=file)
        return
    # On a dumb terminal rich ignores a width without a height.
    console = Console(file=file, width=width or 200, height=25, highlight=False, markup=False, emoji=False)
    if console.color_system is not None and report.trace is not None and report.trace.posterior is not None:
        note = f"dim text: the posterior of its agent is below {_BRIGHT:g}"
        above[-1:-1] = _wrapped([note] if report.text is not None else [], width, "dim")
    with console.capture() as output:
        for line in above:
            console.print(Text(line.text, line.style), soft_wrap=True)  # lines are wrapped already
        if report.text is not None:
            console.print(coloured_text(report), soft_wrap=width is None)
            console.print()
        for line in below:
            console.print(Text(line.text, line.style), soft_wrap=True)
    file.write(output.get())  # if the reader of a pipe is gone, rich itself would exit with 1


def _encodes(file: TextIO) -> bool:
    try:
        _BARS.encode(getattr(file, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _above(report: Report, width: int | None, bars: bool = True) -> Iterator[_Line]:
    """Yield the lines above the text: the answer, scores, segments."""
    yield from _wrapped([wording.verdict(report)], width, "bold")
    yield from _wrapped(wording.headline(report), width)
    yield _Line("")
    if bars and (drawn := view.curves(report)) is not None:
        yield from _curves(report, drawn, width)
        yield _Line("")
    if report.segments:
        rows = [_row(i, report.redact_guesses(segment)) for i, segment in enumerate(report.segments, 1)]
        names = [None, *(segment.agent for segment in report.segments)]
        yield from _styled(table([_COLUMNS, *rows], width, wraps=3), names, styles(report))
    notes = wording.legend(report)
    if any(segment.start_interval is not None for segment in report.segments):
        notes.append(f"starts within: {view.interval_unit(report)} between which the boundary may lie")
    yield from _wrapped(notes, width, "dim")


def _below(report: Report, width: int | None) -> Iterator[_Line]:
    """Yield the lines below the text: agents, transitions, assumptions, limits."""
    rows = view.agent_rows(report)
    if rows:
        lines = table([view.AGENT_COLUMNS, *rows], width)
        yield from _styled(lines, [None, *(row[0] for row in rows)], styles(report))
    yield from _wrapped(view.agents_note(report), width)
    yield from _wrapped(wording.transition_lines(report), width)
    yield _Line("")
    yield from _wrapped((f"{name}: {value}" for name, value in wording.assumptions(report)), width, "dim")
    yield _Line("")
    yield from _wrapped(wording.limits(report), width)


def _curves(report: Report, drawn: dict[str, Any], width: int | None) -> Iterator[_Line]:
    """Yield f(t, a) of the agents that occur as bars along the text, the margin, and the segments' starts."""
    colours, listed = styles(report), view.agents(report)
    named = [(listed[index], values) for index, values in drawn["scores"]]
    cells_of_line = min(width or 100, 100)
    label = min(max(cells(name) for name, _ in [*named, ("margin", [])]), 20, cells_of_line // 2)
    stride = -(-len(drawn["positions"]) // (cells_of_line - label - 1))
    highest = drawn["high"] or 1.0
    title = f"f(t, a), the mean score of a window, along the text under each agent's key, up to {highest:.2f}"
    yield from _wrapped([title], width)
    for name, values in [*named, ("margin", drawn["margin"])]:
        means = [float(np.mean(values[at : at + stride])) for at in range(0, len(values), stride)]
        bars = (_BARS[min(max(int(mean / highest * len(_BARS)), 0), len(_BARS) - 1)] for mean in means)
        yield _Line(f"{padded(cut(harmless(name), label), label)} {''.join(bars)}", colours.get(name, ""))
    # A boundary is shown under the bar with the nearest middle.
    middles = np.array(drawn["positions"][stride // 2 :: stride])
    starts = [extent(segment)[0] for segment in report.segments[1:]]
    under = set(np.searchsorted((middles[1:] + middles[:-1]) / 2, starts).tolist())
    marks = "".join("^" if i in under else " " for i in range(-(-len(drawn["positions"]) // stride)))
    yield _Line(f"{padded('starts', label)} {marks}".rstrip())


def _wrapped(lines: Iterable[str], width: int | None, style: str = "") -> Iterator[_Line]:
    for line in lines:
        yield from (_Line(part, style) for part in wrapped(line, width))


def _styled(
    rows: Iterable[list[str]], names: Sequence[str | None], colours: dict[str | None, str]
) -> Iterator[_Line]:
    for lines, name in zip(rows, names, strict=True):
        yield from (_Line(line, colours.get(name, "")) for line in lines)


def coloured_text(report: Report) -> Text:
    """Return the text for rich: runs with names in their agents' colours, dim if the posterior is low."""
    from rich.text import Text

    text, colours = Text(), styles(report)
    assert report.text is not None
    for start, end, agent, called in _runs(report):
        colour = colours.get(agent, "")
        text.append(f"{chr(10) if start else ''}[{harmless(called)}] ", f"bold {colour}")
        if agent is None:
            text.append(harmless(report.text[start:end]), "dim strike" if called == "left out" else "")
            continue
        for bright, a, b in view.posterior_runs(
            report.trace, agent, start, end, lambda p: p >= _BRIGHT, True
        ):
            text.append(harmless(report.text[a:b]), colour if bright else f"dim {colour}")
    return text


def marked_text(report: Report) -> str:
    """Return the text with the agent's name in brackets before each run, [?] where unattributed."""
    assert report.text is not None
    return "\n".join(
        f"[{harmless(called)}] {harmless(report.text[start:end])}" for start, end, _, called in _runs(report)
    )


def _runs(report: Report) -> list[tuple[int, int, str | None, str]]:
    """Return runs (start, end, agent, title) over all characters."""
    runs: list[tuple[int, int, str | None, str]] = []
    for segment in report.segments:
        start, end = extent(segment)
        called = "?" if segment.called == "unattributed" else segment.called
        if runs and not segment.left_out and runs[-1][1:] == (start, segment.agent, called):
            runs[-1] = (runs[-1][0], end, segment.agent, called)
        elif end > start:
            runs.append((start, end, segment.agent, called))
    return runs or [(*run, "?") for run in report.char_agents]


def styles(report: Report) -> dict[str | None, str]:
    """Return rich's style of each agent that occurs: its colour on the page."""
    return {name: view.style_of(i)[0] for i, name in enumerate(view.writers(report))}


def _row(number: int, segment: Segment) -> tuple[str, ...]:
    chars = "" if segment.char_start is None else f"{segment.char_start}-{segment.char_end}"
    tokens = "" if segment.start is None else f"{segment.start}-{segment.end}"
    interval = "" if segment.start_interval is None else "{}-{}".format(*segment.start_interval)
    guess = f" (perhaps {segment.best_guess})" if segment.best_guess and wording.is_likely(segment) else ""
    agent = segment.called + ("" if segment.agent is not None or segment.quoted else guess)
    share = wording.share_words(segment).removeprefix("about ")
    error = "" if segment.error is None else wording.small(segment.error)
    figures = ("", "", "") if segment.left_out else (share, error, wording.p_value(segment.log_p))
    return str(number), chars, tokens, agent, *figures, interval


def comparison(report: Report, truth: Sequence[Span], file: TextIO | None = None) -> None:
    """Print a table of true turns and the recovered agents, with their shares of the turn."""
    file = sys.stdout if file is None else file
    rows = [("turn", "characters", "true", "recovered")]
    for number, (start, end, agent) in enumerate(truth, 1):
        shares: dict[str, int] = {}
        for run_start, run_end, recovered in report.char_agents:
            overlap = min(end, run_end) - max(start, run_start)
            if overlap > 0:
                name = recovered or "unattributed"
                shares[name] = shares.get(name, 0) + overlap
        listed = ", ".join(
            f"{name} {count / (end - start):.0%}"
            for name, count in sorted(shares.items(), key=lambda share: -share[1])
        )
        rows.append((str(number), f"{start}-{end}", agent or "none", listed))
    for lines in table(rows, width_of(file), wraps=3):
        print("\n".join(lines), file=file)
