"""The page at `/`: a user drops a text on it and gets its report. It loads nothing from other hosts."""

from __future__ import annotations

from markupsafe import Markup

from iet.report import html
from iet.service.requests import MEDIA_TYPES

_TEMPLATES = html.environment("iet.service")
_SCRIPT = Markup(_TEMPLATES.get_template("page.js").render(kinds=MEDIA_TYPES))

PAGE = _TEMPLATES.get_template("page.html").render(script=_SCRIPT)
"""The page, as HTML."""

# The frame that shows a report obeys the policy of this page as well as that of the report.
_SOURCES = html.policy(_SCRIPT, html.FIRST, html.SCRIPT)

HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; script-src {_SOURCES}; style-src 'unsafe-inline';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
"""HTTP headers of the page."""
