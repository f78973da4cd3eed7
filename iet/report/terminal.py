"""The report in a terminal: in colours where rich is installed, plain otherwise."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from iet.foreign import ForeignProfile
from iet.report.model import Report, Segment, Span, p_value
from iet.scheme import Profile

if TYPE_CHECKING:
    from rich.text import Text

# Okabe and Ito's palette: told apart by the colour-blind. More agents than colours share them.
COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
_COLUMNS = ("#", "characters", "tokens", "agent", "posterior", "error", "p alone")


def plain(report: Report) -> str:
    """Return the report as plain text, without the audited text itself."""
    rows = [_COLUMNS, *(_row(i, segment) for i, segment in enumerate(report.segments, 1))]
    widths = [max(len(row[k]) for row in rows) for k in range(len(_COLUMNS))]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join(
        [
            *headline(report),
            "",
            *table,
            *legend(report),
            "",
            *evidence_lines(report),
            *transition_lines(report),
            *caveats(report),
        ]
    )


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
        for line in headline(report):
            console.print(line, soft_wrap=flow)
        table = Table(*_COLUMNS, box=None, pad_edge=False)
        for i, segment in enumerate(report.segments, 1):
            table.add_row(*_row(i, segment), style=style(report, segment.agent))
        console.print(table)
        for line in legend(report):
            console.print(line, style="dim", soft_wrap=flow)
        if report.text is not None:
            console.print()
            console.print(coloured_text(report, named), soft_wrap=flow)
        console.print()
        for line in [*evidence_lines(report), *transition_lines(report), *caveats(report)]:
            console.print(line, soft_wrap=flow)
    file.write(shown.get())  # by hand: where the reader of a pipe is gone, rich would exit with 1


def coloured_text(report: Report, named: bool = False) -> Text:
    """Return the text for rich, each run in the colour of its agent, with names in brackets if `named`."""
    from rich.text import Text

    text = Text()
    assert report.text is not None
    for start, end, agent, left_out in _runs(report):
        if named:
            text.append(f"{chr(10) if start else ''}[{_label(agent, left_out)}] ", style="bold")
        text.append(
            harmless(report.text[start:end]), style="dim strike" if left_out else style(report, agent)
        )
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


def harmless(text: str) -> str:
    """Return the text with what steers a terminal or turns its order around as symbols."""
    return text.replace("\r\n", "\n").translate(_CONTROLS)


def _row(number: int, segment: Segment) -> tuple[str, ...]:
    chars = "" if segment.char_start is None else f"{segment.char_start}-{segment.char_end}"
    tokens = "" if segment.start is None else f"{segment.start}-{segment.end}"
    if segment.left_out:
        return str(number), chars, tokens, "left out", "", "", ""
    guess = f" (perhaps {segment.best_guess})" if is_likely(segment) else ""
    agent = segment.agent or f"unattributed{guess}"
    posterior = "" if segment.posterior is None else f"{segment.posterior:.2f}"
    error = "" if segment.error is None else _chance(segment.error)
    return str(number), chars, tokens, agent, posterior, error, p_value(segment.log_p)


def is_likely(segment: Segment) -> bool:
    """Tell whether the best guess is worth a name: one as likely as not by chance is not."""
    return segment.log_p < math.log(0.5) or (segment.error is not None and segment.error < 0.5)


def _chance(probability: float) -> str:
    # A posterior is a float32: of less than a millionth it says no more.
    return "< 1e-6" if probability < 1e-6 else p_value(math.log(probability))


def headline(report: Report) -> list[str]:
    """Return what was read, and how."""
    count = len(report.segments)
    size = f"{len(report.text):,} characters, " if report.text is not None else ""
    separator = " · " if len(report.profiles) == 1 else "\n  "
    choice = f"{report.coverage:.0%} attributed at level {report.level:g}"
    left_out = f", {report.left_out:,} left out" if report.left_out else ""
    several = "" if len(report.profiles) == 1 else f" of {len(report.profiles)} profiles"
    return [
        f"{size}{report.tokens:,} tokens{several}"
        f" ({report.scored:,} scored, {report.repeated:,} repeats{left_out})"
        f" · {count} segment{'' if count == 1 else 's'}"
        f" · {choice if report.allow_unattributed else 'forced choice'}",
        f"decoder {report.decoder} · {len(report.agents)} agents"
        + "".join(f"{separator}{_profile(profile)}" for profile in report.profiles),
        *_model_line(report),
    ]


def evidence_lines(report: Report) -> list[str]:
    """Return who is found in the text, and how surely."""
    chance = f"ranks among {report.decoys} decoy keys" if report.decoys else "the null law of scores"
    law = f"p-values from {chance}, corrected for the number of keys"
    agents = ", ".join(f"{name} (p {p_value(report.evidence[name])})" for name in report.found)
    who = agents or f"none; lowest p {p_value(report.log_p)}"
    return [f"agents found in the text at level {report.level:g}: {who} · {law}"]


def legend(report: Report) -> list[str]:
    """Return what the columns of the segments say, as far as they are filled."""
    if not report.segments:
        return []
    lines = ["p alone: p-value of this segment by itself, whatever the rest of the text says about its agent"]
    if any(segment.error is not None for segment in report.segments):
        lines[:0] = [
            "posterior: mean probability, over its tokens, that the agent wrote them ·"
            " error: probability, at most, that it wrote none of them"
        ]
    if report.allow_unattributed:
        rule = "error is at most {0}" if len(lines) > 1 else "p alone passes at a false-discovery rate of {0}"
        found = "its agent is found in the text and its " if len(lines) > 1 else "its "
        lines.append(f"a segment is attributed if {found}{rule.format(f'{report.level:g}')}")
    return lines


def _profile(profile: Profile | ForeignProfile) -> str:
    draft = " · draft family" if profile.family.version == 0 else ""
    return f"profile {profile.id}: {profile.scheme}, V {profile.vocab_size}{draft}"


def _model_line(report: Report) -> list[str]:
    if report.model is None:
        return []
    name, temperature, share = (report.model[field] for field in ("name", "temperature", "share"))
    fitted = " (fitted)" if report.model["temperature_fitted"] else ""
    return [f"read with {harmless(name)} at temperature {temperature:g}{fitted}, weight {share:.0%}"]


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


def caveats(report: Report) -> list[str]:
    """Return what this report in particular is unsure of."""
    lines = []
    if report.seam_share is not None:
        lines.append(f"tokenization uncertain at the seams: {report.seam_share:.2%} of the characters")
    if report.invisible:
        lines.append(f"{report.invisible} invisible characters were left out before tokenizing")
    if report.scored < 30:
        lines.append(f"only {report.scored} scored tokens: too short to attribute at any useful level")
    if report.segments:
        lines.append(
            "an agent wrote in its segments, not every word of them: short unmarked or copied passages inside"
            " are read with their surroundings; a verbatim quotation reads as the quoted agent"
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
