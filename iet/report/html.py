"""Render reports and tables as HTML pages with Jinja2, from the templates in `iet/report/templates/`.

Audited texts, file names and agents' names are untrusted input. Jinja2 escapes them in HTML and in the JSON
of the page, and the page's script sets them as text only. Each page is one file that loads nothing: its
content-security policy allows only its own scripts, which it names by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup

from iet.report import view, wording
from iet.report.lines import harmless
from iet.report.segments import extent

if TYPE_CHECKING:
    from iet.report.model import Report

FIRST = 'document.documentElement.classList.add("script", "loading");'
"""Script in the head of the page: styles differ if scripts run."""


def _percent(share: float) -> str:
    return f"{100 * share:.{int(0 < share < 0.01)}f} %"


def environment(package: str) -> jinja2.Environment:
    """Return an environment that loads the templates of a package and escapes every value."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(printable=harmless, percent=_percent)
    made.policies["json.dumps_kwargs"] = {
        "ensure_ascii": False,
        "separators": (",", ":"),
        "allow_nan": False,
    }
    return made


_TEMPLATES = environment("iet.report")
SCRIPT = Markup(_TEMPLATES.get_template("page.js").render())
"""Script of the page of a report."""


def policy(*scripts: str) -> str:
    """Return the sources of a content-security policy that allow these scripts, by their hashes."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def page(report: Report, about: Sequence[str] = ()) -> str:
    """Return the report as one HTML file. O(T·P), P the agents that the decoder looked at; deterministic.

    Args:
        report: what is shown.
        about: lines at the top of the page: the name of the text, which is in the title too, and the time and
            registry of the audit.
    """
    lines = [harmless(line) for line in about]
    agents, shown = view.agents(report), view.Page(report)
    drawn = {
        "length": report.tokens if report.text is None else len(report.text),
        "boundaries": view.boundaries(report),
        "doubts": view.doubts(report),
        "curves": view.curves(report),
        "graph": view.graph(report),
        "agents": [{"name": name, "colour": view.style_of(i)[0]} for i, name in enumerate(agents)],
        "segments": [
            {
                "agent": None if segment.agent is None else shown.indices[segment.agent],
                "title": segment.called,
                "start": extent(segment)[0],
                "end": extent(segment)[1],
            }
            for segment in report.segments
        ],
    }
    return _TEMPLATES.get_template("page.html").render(
        report=report,
        view=view,
        wording=wording,
        title=" · ".join([*lines[:1], f"iet: {wording.verdict(report)}"]),
        about=lines,
        agents=agents,
        page=shown,
        data=drawn,
        policy=Markup(policy(FIRST, SCRIPT)),
        first=Markup(FIRST),
        script=SCRIPT,
    )


def table_page(
    title: str,
    heading: str,
    columns: Sequence[str],
    rows: Iterable[tuple[str, str | None, Sequence[str]]],
    *,
    above: Iterable[str] = (),
    below: Iterable[str] = (),
) -> str:
    """Return a page with one table and no script.

    Args:
        title, heading: of the page.
        columns: their names, which are constants of the program: the style sheet holds them unescaped.
        rows: the CSS class of each row or "", the link of its first cell or None, and its cells.
        above, below: lines before and after the table.
    """
    return _TEMPLATES.get_template("table.html").render(
        title=title, heading=heading, columns=columns, rows=rows, above=above, below=below
    )


def fragment(report: Report) -> str:
    """Return the verdict and the coloured text for a notebook: HTML without scripts or style sheets."""
    styles = {name: view.style_of(i) for i, name in enumerate(view.writers(report))}
    return _TEMPLATES.get_template("notebook.html").render(
        report=report, wording=wording, styles=styles, extent=extent
    )
