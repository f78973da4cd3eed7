"""The report in a terminal: what the page shows, in colours where rich is installed, plain otherwise."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import numpy as np

from iet.marks.keys import AnyProfile
from iet.report.lines import cells, cut, padded, table, width_of, wrapped
from iet.report.lines import harmless as harmless  # the page takes it from here
from iet.report.model import Report, Segment, Span, extent, p_value

if TYPE_CHECKING:
    from rich.text import Text

# Okabe and Ito's palette: told apart by the colour-blind. More agents than colours share them.
COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
_COLUMNS = ("#", "characters", "tokens", "agent", "posterior", "error", "p alone")
_BARS = "▁▂▃▄▅▆▇█"
_SURE = 0.6
"""Posterior below which the text is dim."""


class _Line(NamedTuple):
    text: str
    style: str = ""


def plain(report: Report, width: int | None = None) -> str:
    """Return the report as plain text, without the audited text itself.

    Args:
        report: what to show.
        width: cells of a line. None: as many as it takes.
    """
    said = _content(report)
    lines = [*_above(report, said, width), _Line(""), *_below(report, said, width)]
    return "\n".join(line.text for line in lines)


def show(report: Report, file: TextIO | None = None) -> None:
    """Print the report with the text in the colours of its agents; plain where rich is missing."""
    file = sys.stdout if file is None else file
    width, said = width_of(file), _content(report)
    above = [*_above(report, said, width, _encodes(file)), _Line("")]
    below = _below(report, said, width)
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        lines = [line.text for line in above]
        if report.text is not None:
            lines += [*wrapped(marked_text(report), width), ""]
        print("\n".join([*lines, *(line.text for line in below)]), file=file)
        return
    console = Console(file=file, width=width or 200, highlight=False, markup=False, emoji=False)
    if console.color_system is not None and report.trace is not None and report.trace.posterior is not None:
        note = f"dim text: the posterior of its agent is below {_SURE:g}"
        above[-1:-1] = _wrapped([note] if report.text is not None else [], width, "dim")
    with console.capture() as shown:
        for line in above:
            console.print(Text(line.text, line.style), soft_wrap=True)  # they are as long as they may be
        if report.text is not None:
            console.print(coloured_text(report), soft_wrap=width is None)
            console.print()
        for line in below:
            console.print(Text(line.text, line.style), soft_wrap=True)
    file.write(shown.get())  # by hand: where the reader of a pipe is gone, rich would exit with 1


def _content(report: Report) -> dict[str, Any]:
    from iet.report.html import content  # which takes its words from here

    return content(report)


def _encodes(file: TextIO) -> bool:
    try:
        _BARS.encode(getattr(file, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _above(report: Report, said: dict[str, Any], width: int | None, bars: bool = True) -> Iterator[_Line]:
    """Yield what stands above the text: the answer, scores, segments."""
    yield from _wrapped([said["verdict"]], width, "bold")
    yield from _wrapped(headline(report), width)
    yield _Line("")
    if bars and said["curves"] is not None:
        yield from _curves(report, said, width)
        yield _Line("")
    if report.segments:
        rows = [(*_row(i, segment), _start(segment)) for i, segment in enumerate(report.segments, 1)]
        rows.insert(0, (*_COLUMNS, "starts within"))
        names = [None, *(segment.agent for segment in report.segments)]
        yield from _styled(table(rows, width, wraps=3), names, styles(report))
    notes = legend(report)
    if any(segment.start_interval is not None for segment in report.segments):
        unit = "characters" if len(report.profiles) > 1 else "tokens"
        notes.append(f"starts within: {unit} between which the boundary may lie")
    yield from _wrapped(notes, width, "dim")


def _below(report: Report, said: dict[str, Any], width: int | None) -> Iterator[_Line]:
    """Yield what stands below the text: agents, transitions, what was assumed and cannot be said."""
    rows = [agent["row"] for agent in said["agents"] if agent["row"] is not None]
    if rows:
        lines = table([said["agent_columns"], *rows], width)
        yield from _styled(lines, [None, *(row[0] for row in rows)], styles(report))
    yield from _wrapped(said["agents_note"], width)
    yield from _wrapped(transition_lines(report), width)
    yield _Line("")
    yield from _wrapped((f"{name}: {value}" for name, value in said["assumed"]), width, "dim")
    yield _Line("")
    yield from _wrapped(said["cannot"], width)


def _curves(report: Report, said: dict[str, Any], width: int | None) -> Iterator[_Line]:
    """Yield f(t, a) of the agents who occur as bars along the text, the margin, and where segments start."""
    curves, colours = said["curves"], styles(report)
    named = [(said["agents"][place]["name"], values) for place, values in curves["scores"]]
    whole = min(width or 100, 100)
    label = min(max(cells(name) for name, _ in [*named, ("margin", [])]), 20, whole // 2)
    stride = -(-len(curves["positions"]) // (whole - label - 1))
    highest = curves["high"] or 1.0
    title = f"f(t, a), the mean score of a window, along the text under each agent's key, up to {highest:.2f}"
    yield from _wrapped([title], width)
    for name, values in [*named, ("margin", curves["margin"])]:
        means = [float(np.mean(values[at : at + stride])) for at in range(0, len(values), stride)]
        bars = (_BARS[min(max(int(mean / highest * len(_BARS)), 0), len(_BARS) - 1)] for mean in means)
        yield _Line(f"{padded(cut(harmless(name), label), label)} {''.join(bars)}", colours.get(name, ""))
    # A boundary stands under the bar whose middle is nearest.
    middles = np.array(curves["positions"][stride // 2 :: stride])
    starts = [extent(segment)[0] for segment in report.segments[1:]]
    under = set(np.searchsorted((middles[1:] + middles[:-1]) / 2, starts).tolist())
    marks = "".join("^" if i in under else " " for i in range(-(-len(curves["positions"]) // stride)))
    yield _Line(f"{padded('starts', label)} {marks}".rstrip())


def _wrapped(lines: Iterable[str], width: int | None, style: str = "") -> Iterator[_Line]:
    for line in lines:
        yield from (_Line(piece, style) for piece in wrapped(line, width))


def _start(segment: Segment) -> str:
    return "" if segment.start_interval is None else "{}-{}".format(*segment.start_interval)


def _styled(
    rows: Iterable[list[str]], names: Sequence[str | None], colours: dict[str | None, str]
) -> Iterator[_Line]:
    for lines, name in zip(rows, names, strict=True):
        yield from (_Line(line, colours.get(name, "")) for line in lines)


def coloured_text(report: Report) -> Text:
    """Return the text for rich: runs in the colours of their agents, dim where that is unsure, with names."""
    from rich.text import Text

    text, colours = Text(), styles(report)
    assert report.text is not None
    for start, end, agent, left_out in _runs(report):
        colour = colours.get(agent, "")
        text.append(f"{chr(10) if start else ''}[{harmless(_label(agent, left_out))}] ", f"bold {colour}")
        if agent is None:
            text.append(harmless(report.text[start:end]), "dim strike" if left_out else "")
            continue
        for a, b, sure in _sure(report, agent, start, end):
            text.append(harmless(report.text[a:b]), colour if sure else f"dim {colour}")
    return text


def _sure(report: Report, agent: str, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """Yield the runs of characters [start, end) in which the agent is sure, or not: (start, end, sure)."""
    trace = report.trace
    if trace is None or trace.posterior is None or agent not in trace.agents:
        yield start, end, True
        return
    first, last = np.searchsorted(trace.starts, [start, end])
    if first == last:  # no token starts here
        yield start, end, True
        return
    sure = trace.posterior[first:last, trace.agents.index(agent)] >= _SURE
    changes = np.flatnonzero(sure[1:] != sure[:-1]) + 1
    edges = [start, *trace.starts[first:last][changes].tolist(), end]
    yield from zip(edges, edges[1:], [bool(sure[0]), *sure[changes].tolist()], strict=False)


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
    wrote = dict.fromkeys(s.agent for s in report.segments if s.agent is not None)
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(wrote)}


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


def _profile(profile: AnyProfile) -> str:
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
    for lines in table(rows, width_of(file), wraps=3):
        print("\n".join(lines), file=file)
