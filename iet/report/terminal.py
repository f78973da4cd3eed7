"""The report in a terminal: in colours where rich is installed, plain otherwise."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from iet.report.model import Report, Segment, Span, p_value

if TYPE_CHECKING:
    from rich.text import Text

# Okabe and Ito's palette: told apart by the colour-blind. More agents than colours share them.
COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
_COLUMNS = ("#", "characters", "tokens", "agent", "p", "posterior")


def plain(report: Report) -> str:
    """Return the report as plain text, without the audited text itself."""
    rows = [_COLUMNS, *(_row(i, segment) for i, segment in enumerate(report.segments, 1))]
    widths = [max(len(row[k]) for row in rows) for k in range(len(_COLUMNS))]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([*_headline(report), "", *table, "", *transition_lines(report), *_caveats(report)])


def show(report: Report, file: TextIO | None = None) -> None:
    """Print the report with the text in the colours of its agents; plain where rich is missing."""
    file = sys.stdout if file is None else file
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(plain(report), file=file)
        if report.text is not None:
            print("\n" + marked_text(report), file=file)
        return
    console = Console(file=file, highlight=False, markup=False, emoji=False)  # names may hold [brackets]
    flow = not console.is_terminal and "COLUMNS" not in os.environ
    if flow:  # what is piped on gets no line breaks of ours
        console.width = 200
    named = console.no_color or not console.is_terminal  # where colours say nothing, names do
    with console.capture() as shown:
        for line in _headline(report):
            console.print(line, soft_wrap=flow)
        table = Table(*_COLUMNS, box=None, pad_edge=False)
        for i, segment in enumerate(report.segments, 1):
            table.add_row(*_row(i, segment), style=style(report, segment.agent))
        console.print(table)
        if report.text is not None:
            console.print()
            console.print(coloured_text(report, named), soft_wrap=flow)
        console.print()
        for line in [*transition_lines(report), *_caveats(report)]:
            console.print(line, soft_wrap=flow)
    file.write(shown.get())  # by hand: where the reader of a pipe is gone, rich would exit with 1


def coloured_text(report: Report, named: bool = False) -> Text:
    """Return the text for rich, each run in the colour of its agent, with names in brackets if `named`."""
    from rich.text import Text

    text = Text()
    assert report.text is not None
    for start, end, agent in report.char_agents:
        if named:
            text.append(f"{chr(10) if start else ''}[{agent or '?'}] ", style="bold")
        text.append(_harmless(report.text[start:end]), style=style(report, agent))
    return text


def marked_text(report: Report) -> str:
    """Return the text with the agent's name in brackets before each run, [?] where unattributed."""
    assert report.text is not None
    runs = ((agent or "?", _harmless(report.text[start:end])) for start, end, agent in report.char_agents)
    return "\n".join(f"[{agent}] {part}" for agent, part in runs)


def style(report: Report, agent: str | None) -> str:
    """Return rich's style for an agent; unattributed text is dim."""
    return "dim" if agent is None else COLOURS[report.agents.index(agent) % len(COLOURS)]


# Audited text comes from strangers: what steers a terminal (C0, DEL, C1, bidirectional overrides) is shown as
# a symbol, or it could repaint what the report says. Line ends, tabs and right-to-left letters stay.
_CONTROLS = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: 0x2421,
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD),
}


def _harmless(text: str) -> str:
    return text.replace("\r\n", "\n").translate(_CONTROLS)


def _row(number: int, segment: Segment) -> tuple[str, ...]:
    chars = "" if segment.char_start is None else f"{segment.char_start}-{segment.char_end}"
    # A guess as likely as not by chance is not worth a name.
    guess = f" (perhaps {segment.best_guess})" if segment.log_p < math.log(0.5) else ""
    agent = segment.agent or f"unattributed{guess}"
    posterior = "" if segment.posterior is None else f"{segment.posterior:.2f}"
    return str(number), chars, f"{segment.start}-{segment.end}", agent, p_value(segment.log_p), posterior


def _headline(report: Report) -> list[str]:
    scheme, count = report.profile.scheme, len(report.segments)
    size = f"{len(report.text):,} characters, " if report.text is not None else ""
    choice = f"{report.coverage:.0%} attributed at level {report.level:g}"
    return [
        f"{size}{report.tokens:,} tokens ({report.scored:,} scored, {report.repeated:,} repeats)"
        f" · {count} segment{'' if count == 1 else 's'}"
        f" · {choice if report.allow_unattributed else 'forced choice'}",
        f"decoder {report.decoder} · {len(report.agents)} agents · profile {report.profile.id}: {scheme},"
        f" V {report.profile.vocab_size}" + (" · draft family" if report.profile.family.version == 0 else ""),
        *_model_line(report),
    ]


def _model_line(report: Report) -> list[str]:
    if report.model is None:
        return []
    name, temperature, share = (report.model[field] for field in ("name", "temperature", "share"))
    fitted = " (fitted)" if report.model["temperature_fitted"] else ""
    return [f"read with {_harmless(name)} at temperature {temperature:g}{fitted}, weight {share:.0%}"]


def transition_lines(report: Report) -> list[str]:
    """Return the transition graph in words: edges with counts and confidence, topology, μ."""
    t = report.transitions
    if not t.observed:
        return ["transitions: none"]
    confidence: dict[tuple[Any, Any], list[float]] = {}
    for passage in t.observed:
        confidence.setdefault((passage.source, passage.target), []).append(passage.confidence)
    edges = ", ".join(f"{a} → {b} ×{len(p)} ({max(p):.2f})" for (a, b), p in sorted(confidence.items()))
    names = " = ".join(t.topology.matches) or t.topology.name
    return [f"transitions: {edges}", f"as a graph: {names} · μ = {t.bitmask:#x}"]


def _caveats(report: Report) -> list[str]:
    lines = []
    if report.seam_share is not None:
        lines.append(f"tokenization uncertain at the seams: {report.seam_share:.2%} of the characters")
    if report.invisible:
        lines.append(f"{report.invisible} invisible characters were left out before tokenizing")
    if report.scored < 30:
        lines.append(f"only {report.scored} scored tokens: too short to attribute at any useful level")
    if report.segments:
        lines.append(
            "a p-value says that its agent wrote in that segment, not every word of it: short unmarked or"
            " copied passages inside are read with their surroundings"
        )
    return lines


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
    widths = [max(len(row[k]) for row in rows) for k in range(4)]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), file=file
        )
