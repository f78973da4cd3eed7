"""The page at `/`, on which a text is dropped and its report appears. It loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
from typing import Any

from iet.report.html import FIRST
from iet.service import documents


def _read(package: str, name: str) -> str:
    return importlib.resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


_SCRIPT = _read("iet.service", "page.js").replace("{{kinds}}", json.dumps(documents.NAMES))

PAGE = _read("iet.service", "page.html").replace("{{script}}", _SCRIPT)
"""The page, as HTML."""

# A report is shown in a frame, which stands under the policy of the page as well as under its own.
_SCRIPTS = " ".join(map(_hash, (_SCRIPT, FIRST, _read("iet.report", "page.js"))))

HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; script-src {_SCRIPTS}; style-src 'unsafe-inline';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
"""What it is sent with."""


def report_schema() -> dict[str, Any]:
    """Return the JSON schema of a report."""
    schema: dict[str, Any] = json.loads(_read("iet.report", "schema.json"))
    return schema
