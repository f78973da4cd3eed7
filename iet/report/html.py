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
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from iet.report.lines import harmless
from iet.report.segments import extent
from iet.report.view import (
    AGENT_COLUMNS,
    PLAIN_AGENT_COLUMNS,
    ShownAgent,
    ShownSegment,
    agents,
    agents_note,
    boundaries,
    curves,
    doubts,
    graph,
    look,
    paragraph_starts,
    segment_columns,
    segments,
    shares_of,
    writers,
)
from iet.report.wording import (
    agents_legend,
    assumptions,
    evidence_lines,
    headline,
    legend,
    limits,
    promise,
    summary,
    verdict,
)

if TYPE_CHECKING:
    from iet.report.model import Report

FIRST = 'document.documentElement.classList.add("script", "loading");'
"""The script in the head: where scripts are not run, the page must not be made for them."""


def page(report: Report, about: Sequence[str] = ()) -> str:
    """Return the report as one HTML file. O(T·P), P the agents that the decoder looked at; deterministic.

    Args:
        report: what is shown.
        about: lines for its head, of which the first is in the title, too: what the text is called, and when
            and with which registry it was read.
    """
    files = importlib.resources.files("iet.report")
    template, script = (files.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "page.js"))
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in (FIRST, script)]
    who, parts = agents(report), segments(report)
    drawn = {
        "length": report.tokens if report.text is None else len(report.text),
        "boundaries": boundaries(report),
        "doubts": doubts(report),
        "curves": curves(report),
        "graph": graph(report),
        "agents": [{"name": agent.name, "colour": agent.colour} for agent in who],
        "segments": [{"agent": s.agent, "title": s.title, "start": s.start, "end": s.end} for s in parts],
    }
    data = json.dumps(drawn, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    filling = {
        "policy": " ".join(f"'sha256-{digest}'" for digest in hashes),
        "title": html.escape(" · ".join([*map(harmless, about[:1]), f"iet: {verdict(report)}"])),
        "first": FIRST,
        "labels": _labels("segments", segment_columns(report))
        + _labels("agents", PLAIN_AGENT_COLUMNS)
        + _labels("figures", AGENT_COLUMNS),
        "palette": "".join(
            f".a{i} {{ --hue: {agent.colour}; --dash: {agent.dash}; }}\n" for i, agent in enumerate(who)
        ),
        "verdict": html.escape(verdict(report)),
        "lines": f"{_notes(map(harmless, about))}<p>{html.escape(summary(report))}</p>",
        "terms": _notes(headline(report)),
        "filters": "".join(_filters(who, shares_of(report).get(None, 0.0))),
        "text": "".join(_text(report, parts)),
        "why": "".join(_card(number, segment) for number, segment in enumerate(parts, 1)),
        "segments": _table(segment_columns(report), map(_segment_row, parts), "rows"),
        "legend": _notes(legend(report)),
        "agents": _table(PLAIN_AGENT_COLUMNS, _agent_rows(who), "rows"),
        "note": _notes([agents_legend(report)] if report.evidence else []),
        "figures": _table(AGENT_COLUMNS, (map(_cell, agent.row) for agent in who if agent.row), "rows")
        + _notes(agents_note(report)),
        "promise": _notes([promise(report)]),
        "assumed": _table(
            ["what", "value"], ((_cell(name), _cell(value, "hash")) for name, value in assumptions(report))
        ),
        "cannot": "".join(f"<li>{html.escape(line)}</li>" for line in limits(report)),
        "data": data.replace("<", "\\u003c"),
        "script": script,
    }
    filled, rest = [], template
    for name, part in filling.items():  # in their order: no part is searched for another's name
        before, rest = rest.split("{{" + name + "}}")
        filled += [before, part]
    return "".join([*filled, rest])


def _notes(lines: Iterable[str]) -> str:
    return "".join(f'<p class="soft small">{html.escape(line)}</p>' for line in lines)


def _cell(value: str, kind: str = "") -> str:
    # HTML ends cells, terms and paragraphs by itself: that keeps the page of a long report small.
    return f'<td class="{kind}">{html.escape(value)}' if kind else f"<td>{html.escape(value)}"


def _labels(section: str, columns: Sequence[str]) -> str:
    """Return the style that names cells where the screen is too narrow for a head of columns."""
    return "".join(
        f'#{section} > .scroll td:nth-child({i})::before {{ content: "{column}"; }}\n'
        for i, column in enumerate(columns, 1)
    )


def _table(columns: Sequence[str], rows: Iterable[Iterable[str]], kind: str = "") -> str:
    head = "".join(f'<th scope="col">{html.escape(column)}' for column in columns)
    body = "".join("<tr>" + "".join(cells) for cells in rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"\n<tbody>{body}</tbody></table></div>"
    )


def _swatch(agent: int | None) -> str:
    return "" if agent is None else f'<span class="swatch a{agent}" aria-hidden="true"></span>'


def _percent(share: float) -> str:
    return f"{100 * share:.{int(0 < share < 0.01)}f} %"


def _filters(agents: list[ShownAgent], unattributed: float) -> Iterator[str]:
    button = '<button type="button" aria-pressed="false" data-who="{}">{} {}</button>\n'
    for i, agent in enumerate(agents):
        if agent.share > 0:
            label = _swatch(i) + html.escape(agent.name)
            yield button.format(i, label, _percent(agent.share))
    if unattributed > 0:
        yield button.format("none", "unattributed", _percent(unattributed))


def _text(report: Report, segments: list[ShownSegment]) -> Iterator[str]:
    """Yield the text, a span for each segment; paragraphs have their number, and the name of their agent."""
    if report.text is None:
        yield "Only token ids were audited: there is no text to show."
        return
    drawn = harmless(report.text.replace("\r\n", " \n"))  # as long as the text
    paragraphs = paragraph_starts(report.text)
    for number, segment in enumerate(segments, 1):
        start, end = segment.start, segment.end
        nobody = "out" if segment.left_out else "nobody"
        kind = nobody if segment.agent is None else f"agent a{segment.agent}"
        name = f'<span class="name">{html.escape(segment.title)}</span>'
        # What stands before a character: names, after the spaces that a segment begins with.
        first = start + len(drawn[start:end]) - len(drawn[start:end].lstrip())
        before = {first: name} if first < end else {}
        low, high = (bisect.bisect_left(paragraphs, place) for place in (start, end))
        for i in range(low, high):
            before[paragraphs[i]] = f'<span class="paragraph">{i + 1}</span>{name}'
        yield (
            f'<span class="segment {kind}" id="s{number}" role="group"'
            f' tabindex="{0 if number == 1 else -1}"'
            f' aria-label="segment {number}, {html.escape(segment.title)}">'
        )
        for depth, a, b in segment.runs:
            places = [a, *(place for place in before if a < place < b), b]
            for c, d in itertools.pairwise(sorted(places)):
                run = html.escape(drawn[c:d])
                yield before.get(c, "") + (f'<i class="d{depth}">{run}</i>' if depth else run)
        yield "</span>"


def _card(number: int, segment: ShownSegment) -> str:
    title = html.escape(f"{number}. {segment.title}")
    facts, numbers = _list(segment.facts), _list(segment.numbers)
    why = "".join(f"<p>{html.escape(line)}" for line in segment.why)
    more = f"<details><summary>Numbers</summary>{numbers}</details>" if segment.numbers else ""
    return f"<article><h3>{_swatch(segment.agent)}{title}</h3>{why}{facts}{more}</article>\n"


def _list(rows: list[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{html.escape(term)}<dd>{html.escape(value)}' for term, value in rows)}</dl>"


def _segment_row(segment: ShownSegment) -> Iterator[str]:
    number, title, *cells = segment.row
    yield f'<td><a href="#s{number}" aria-label="segment {number}">{number}</a>'
    yield f"<td>{_swatch(segment.agent)}{html.escape(title)}"
    yield from map(_cell, cells)


def _agent_rows(agents: list[ShownAgent]) -> Iterator[Iterator[str]]:
    for i, agent in enumerate(agents):
        if agent.plain is not None:
            name, *cells = agent.plain
            swatch = _swatch(i if agent.share > 0 else None)
            yield iter((f"<td>{swatch}{html.escape(name)}", *map(_cell, cells)))


def fragment(report: Report) -> str:
    """Return the verdict and the coloured text for a notebook: HTML without scripts or style sheets."""
    lines, wrote = [f"<p><b>{html.escape(verdict(report))}</b></p>"], writers(report)
    if report.text is not None and report.segments:
        runs = [_run(report.text[slice(*extent(s))], s.agent, s.called, wrote) for s in report.segments]
        lines.append(f'<div style="white-space:pre-wrap;overflow-wrap:anywhere">{"".join(runs)}</div>')
    lines += [f"<p>{html.escape(line)}</p>" for line in (*headline(report), *evidence_lines(report))]
    return "\n".join(lines)


def _run(text: str, agent: str | None, called: str, wrote: list[str]) -> str:
    shown = html.escape(harmless(text))
    if agent is None:
        return f'<span title="{html.escape(called)}" style="opacity:.6">{shown}</span>'
    name, (colour, dash) = html.escape(agent), look(wrote.index(agent))
    return (
        f'<span title="{name}" style="background:{colour}55;border-bottom:2px {dash} {colour}">'
        f"<sup>{name}</sup>{shown}</span>"
    )
