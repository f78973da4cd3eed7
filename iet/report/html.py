"""The report as a page: one file that needs nothing else, made of `page.html`, `page.js` and JSON.

Words, text and tables are HTML, so they are there without the script, which links them and draws the curves
and the graph. Everything that was audited is a stranger's: in HTML it is escaped, in the JSON "<" is, and the
script sets it as text only. A content-security policy names the scripts by their hashes and allows nothing to
be loaded.
"""

from __future__ import annotations

import base64
import bisect
import hashlib
import html
import importlib.resources
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.decoding.windows import margin
from iet.marks.foreign.waterfall import WaterfallScheme
from iet.report.model import Report, Segment, Trace, extent, p_value
from iet.report.terminal import (
    COLOURS,
    caveats,
    evidence_lines,
    harmless,
    headline,
    is_likely,
    legend,
    transition_lines,
)

DASHES = ("solid", "dashed", "dotted", "double")
"""Lines under the text beside its colour: both together tell 28 agents apart, in print and for everybody."""

DEPTHS = 5
"""Steps in which the text is shaded by posterior."""

FIRST = 'document.documentElement.classList.add("script", "loading");'
"""The script in the head: where scripts are not run, the page must not be made for them."""

POINTS = 1500
"""A curve has no more: a screen shows no more."""

VALUES = 12_000
"""All curves together have no more: those of many agents are coarser."""


def page(report: Report) -> str:
    """Return the report as one HTML file. O(T·P), P the agents that the decoder looked at; deterministic."""
    files = importlib.resources.files("iet.report")
    template, script = (files.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "page.js"))
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in (FIRST, script)]
    shown = content(report)
    drawn = {
        **{name: shown[name] for name in ("length", "boundaries", "doubts", "curves", "graph")},
        "agents": [{name: agent[name] for name in ("name", "colour")} for agent in shown["agents"]],
        "segments": [
            {name: segment[name] for name in ("agent", "title", "start", "end")}
            for segment in shown["segments"]
        ],
    }
    data = json.dumps(drawn, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    agents, segments = shown["agents"], shown["segments"]
    parts = {
        "policy": " ".join(f"'sha256-{digest}'" for digest in hashes),
        "title": html.escape(f"iet: {shown['verdict']}"),
        "first": FIRST,
        "palette": "".join(
            f".a{i} {{ --hue: {agent['colour']}; --dash: {agent['dash']}; }}\n"
            for i, agent in enumerate(shown["agents"])
        ),
        "verdict": html.escape(shown["verdict"]),
        "lines": _notes(shown["lines"]),
        "filters": "".join(_filters(shown)),
        "text": "".join(_text(report, shown)),
        "why": "".join(_card(number, segment) for number, segment in enumerate(segments, 1)),
        "segments": _table(shown["segment_columns"], map(_segment_row, segments)),
        "legend": _notes(shown["legend"]),
        "agents": _table(shown["agent_columns"], _agent_rows(agents)),
        "note": _notes(shown["agents_note"]),
        "assumed": _table(
            ["what", "value"], ((_cell(name), _cell(value, "hash")) for name, value in shown["assumed"])
        ),
        "cannot": "".join(f"<li>{html.escape(line)}</li>" for line in shown["cannot"]),
        "data": data.replace("<", "\\u003c"),
        "script": script,
    }
    filled, rest = [], template
    for name, part in parts.items():  # in their order: no part is searched for another's name
        before, rest = rest.split("{{" + name + "}}")
        filled += [before, part]
    return "".join([*filled, rest])


def _notes(lines: Iterable[str]) -> str:
    return "".join(f'<p class="soft small">{html.escape(line)}</p>' for line in lines)


def _cell(value: str, kind: str = "") -> str:
    # HTML ends cells, terms and paragraphs by itself: that keeps the page of a long report small.
    return f'<td class="{kind}">{html.escape(value)}' if kind else f"<td>{html.escape(value)}"


def _table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(column)}' for column in columns)
    body = "".join("<tr>" + "".join(cells) for cells in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def _swatch(agent: int | None) -> str:
    return "" if agent is None else f'<span class="swatch a{agent}" aria-hidden="true"></span>'


def _percent(share: float) -> str:
    return f"{100 * share:.{int(0 < share < 0.01)}f} %"


def _filters(shown: dict[str, Any]) -> Iterator[str]:
    button = '<button type="button" aria-pressed="false" data-who="{}">{} {}</button>\n'
    for i, agent in enumerate(shown["agents"]):
        if agent["share"] > 0:
            label = _swatch(i) + html.escape(agent["name"])
            yield button.format(i, label, _percent(agent["share"]))
    if shown["unattributed"] > 0:
        yield button.format("none", "unattributed", _percent(shown["unattributed"]))


def _text(report: Report, shown: dict[str, Any]) -> Iterator[str]:
    """Yield the text, a span for each segment; paragraphs have their number, and the name of their agent."""
    if report.text is None:
        yield "Only token ids were audited: there is no text to show."
        return
    drawn = harmless(report.text.replace("\r\n", " \n"))  # as long as the text
    paragraphs = shown["paragraphs"]
    for number, segment in enumerate(shown["segments"], 1):
        start, end = segment["start"], segment["end"]
        nobody = "out" if segment["left_out"] else "nobody"
        kind = nobody if segment["agent"] is None else f"agent a{segment['agent']}"
        name = f'<span class="name">{html.escape(segment["title"])}</span>'
        # What stands before a character: names, after the spaces that a segment begins with.
        first = start + len(drawn[start:end]) - len(drawn[start:end].lstrip())
        before = {first: name} if first < end else {}
        low, high = (bisect.bisect_left(paragraphs, place) for place in (start, end))
        for i in range(low, high):
            before[paragraphs[i]] = f'<span class="paragraph">{i + 1}</span>{name}'
        yield (
            f'<span class="segment {kind}" id="s{number}" role="group"'
            f' tabindex="{0 if number == 1 else -1}"'
            f' aria-label="segment {number}, {html.escape(segment["title"])}">'
        )
        for depth, a, b in segment["runs"]:
            places = [a, *(place for place in before if a < place < b), b]
            for c, d in itertools.pairwise(sorted(places)):
                piece = html.escape(drawn[c:d])
                yield before.get(c, "") + (f'<i class="d{depth}">{piece}</i>' if depth else piece)
        yield "</span>"


def _card(number: int, segment: dict[str, Any]) -> str:
    title = html.escape(f"{number}. {segment['title']}")
    facts = "".join(f"<dt>{html.escape(term)}<dd>{html.escape(value)}" for term, value in segment["facts"])
    why = "".join(f"<p>{html.escape(line)}" for line in segment["why"])
    return f"<article><h3>{_swatch(segment['agent'])}{title}</h3>{why}<dl>{facts}</dl></article>\n"


def _segment_row(segment: dict[str, Any]) -> Iterator[str]:
    number, title, *cells = segment["row"]
    yield f'<td><a href="#s{number}" aria-label="segment {number}">{number}</a>'
    yield f"<td>{_swatch(segment['agent'])}{html.escape(title)}"
    yield from map(_cell, cells)


def _agent_rows(agents: list[dict[str, Any]]) -> Iterator[Iterator[str]]:
    for i, agent in enumerate(agents):
        if agent["row"] is not None:
            name, *cells = agent["row"]
            swatch = _swatch(i if agent["share"] > 0 else None)
            yield iter((f"<td>{swatch}{html.escape(name)}", *map(_cell, cells)))


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
    """Return what the page shows, as JSON has it; of runs and paragraphs the places in the text."""
    unit = "characters" if report.text is not None else "tokens"
    wrote = list(dict.fromkeys(s.agent for s in report.segments if s.agent is not None))
    others = [name for name in report.evidence if name not in wrote]
    agents = [*wrote, *sorted(others, key=lambda name: report.evidence[name])]
    places = {name: i for i, name in enumerate(agents)}
    spans = [extent(segment) for segment in report.segments]
    length = len(report.text) if report.text is not None else report.tokens
    shares = _shares(report, spans)
    paragraphs = [] if report.text is None else _paragraph_starts(report.text)
    segments = [
        _segment(report, number, segment, span, places, runs, paragraphs)
        for number, (segment, span, runs) in enumerate(
            zip(report.segments, spans, _runs(report), strict=True), 1
        )
    ]
    shown = agents[: max(len(wrote), 30)]
    return {
        "verdict": _verdict(report),
        "lines": headline(report)[:1],
        "paragraphs": paragraphs,
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
            "paragraphs",
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


def _paragraph_starts(text: str) -> list[int]:
    """Return where paragraphs start: after blank lines, or after line ends in a text that has none."""
    between = r"\n\s*\n\s*" if re.search(r"\n\s*\n", text) else r"\n\s*"
    starts = [match.end() for match in re.finditer(rf"\A\s*|{between}", text)]
    return [start for start in dict.fromkeys(starts) if start < len(text)]


def _paragraphs_of(report: Report, low: int, high: int, starts: list[int]) -> str:
    """Return the numbers of the paragraphs that characters [low, high) are in, as people write them."""
    if report.text is None or not report.text[low:high].strip():
        return ""
    piece = report.text[low:high]
    first, last = low + len(piece) - len(piece.lstrip()), low + len(piece.rstrip()) - 1
    a, b = bisect.bisect_right(starts, first), bisect.bisect_right(starts, last)
    return f"{a:,}" if a == b else f"{a:,} to {b:,}"


def _runs(report: Report) -> Iterator[list[tuple[int, int, int]] | None]:
    """Yield for each segment its runs (depth, start, end); depth 0 is not shaded."""
    for segment in report.segments:
        if report.text is None:
            yield None
            continue
        assert segment.char_start is not None
        assert segment.char_end is not None
        low, high = segment.char_start, segment.char_end
        if segment.agent is None:
            yield [(0, low, high)]
            continue
        edges, depths = _depths(report.trace, segment.agent, low, high)
        yield [
            (depth, a, b)
            for depth, (a, b) in zip(depths, itertools.pairwise([*edges, high]), strict=True)
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
    runs: list[tuple[int, int, int]] | None,
    paragraphs: list[int],
) -> dict[str, Any]:
    unit = "characters" if report.text is not None else "tokens"
    where = f"{span[0]:,} to {span[1]:,}"
    within = _paragraphs_of(report, *span, paragraphs)
    facts = [("paragraphs", within)] if within else []
    facts.append((unit, where))
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
        why = [*_how_sure(report, segment), *_why(report, segment), *_ends(report, segment)]
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
        "row": [str(number), title, within, where, *cells, _within(segment)],
    }


def _small(probability: float) -> str:
    return "< 1e-6" if probability < 1e-6 else p_value(math.log(probability))


def _odds(probability: float) -> str:
    """Say a small probability as people do."""
    if probability < 1e-6:
        return "less than 1 in 1,000,000"
    if probability > 0.1:
        return f"{probability:.0%}"
    return f"about 1 in {float(f'{1 / probability:.2g}'):,.0f}"


def _how_sure(report: Report, segment: Segment) -> list[str]:
    """Say in plain words how sure it is that the segment's agent wrote it."""
    guess = segment.best_guess
    if guess is None:
        return []
    if not report.allow_unattributed:
        sure = "" if segment.posterior is None else f"; by the posterior it is {segment.posterior:.0%}"
        return [f"How sure: that was not tested, somebody had to be named{sure}."]
    if segment.agent is None:
        if not is_likely(segment):
            return ["Nobody is named: no key of this registry explains this better than chance does."]
        return [f"Nobody is named: perhaps it was {guess}, but the evidence does not suffice."]
    if segment.error is None:
        chance = _odds(math.exp(segment.log_p))
        return [f"How sure: text without {guess}'s mark looks as telling as this with a chance of {chance}."]
    word = "very sure" if segment.error < 1e-4 else "sure" if segment.error <= 0.01 else "fairly sure"
    lines = [
        f"How sure: {word} that {guess} wrote in here. The chance that it wrote none of this is"
        f" {_odds(segment.error)}, if what is assumed below holds."
    ]
    if segment.posterior is not None and segment.posterior < 0.9:
        lines[0] += f" Of its single words it is less sure: {segment.posterior:.0%} on average."
    if segment.log_p > math.log(report.level):
        lines.append(
            f"By itself this passage is too weak to show it (p {p_value(segment.log_p)}): it is read with"
            f" what the rest of the text says about {guess}."
        )
    return lines


def _ends(report: Report, segment: Segment) -> list[str]:
    """Say between which words the segment begins and ends, where that is uncertain."""
    if report.text is None or report.trace is None or segment.agent is None:
        return []
    lines = []
    for verb, interval in (("begins", segment.start_interval), ("ends", segment.end_interval)):
        if interval is None or interval[0] == interval[1]:
            continue
        low, high = (_place(report, position) for position in interval)
        words = " ".join(harmless(report.text[low:high]).split())
        if len(words) > 90:
            words = f"{words[:40]} … {words[-40:]}"
        lines.append(f"It {verb} somewhere in “{words}”.")
    return lines


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
        return [
            f"Why: forced choice. {guess} explains it best, however weakly.",
            "What would change that: another agent whose key fits a little better.",
        ]
    found = report.evidence.get(guess, 0.0)
    by_error = segment.error is not None
    own = segment.error if by_error else math.exp(segment.log_p)
    assert own is not None
    name = "error" if by_error else "p alone"
    if segment.agent is not None:
        if by_error:
            needed = max(own, math.exp(found))
            return [
                f"Why: {guess} is found in the text as a whole (p {p_value(found)}), and this chance of error"
                f" ({_small(own)}) is at most the level that was asked for ({level:g}).",
                f"What would change that: it would be unattributed at a level below {_small(needed)}, if it"
                " were cut much shorter, or if many of its words were replaced.",
            ]
        return [
            f"Why: its p-value ({p_value(segment.log_p)}) passes at a false-discovery rate of {level:g}.",
            "What would change that: a stricter level, a shorter segment or many replaced words.",
        ]
    lines = []
    if by_error and found > math.log(level):
        lines.append(
            f"Why: {guess} explains it best, but is not found in the text as a whole"
            f" (p {p_value(found)}, needed {level:g})."
        )
    else:
        shown = _small(own) if by_error else p_value(segment.log_p)
        lines.append(
            f"Why: {guess} explains it best, but the segment's {name} ({shown}) is above what level {level:g}"
            " asks for."
        )
    lines.append(
        "What would change that: more text of the same agent, a less strict level, or the key of an agent who"
        " is not in this registry."
    )
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
    stride = -(-len(trace.scores) // min(POINTS, VALUES // len(columns) or 1))
    scores = _means(trace.scores, stride)
    positions = _means(trace.centres[:, None], stride)[:, 0].astype(np.int64)
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
        + ". Grey, below: the margin between the best two keys. Dashed: boundaries; shaded: where they may"
        " lie.",
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
        "lines": [
            "Beside an arrow: how often one followed the other (×), and how sure that is, from 0 to 1.",
            *transition_lines(report),
        ],
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
