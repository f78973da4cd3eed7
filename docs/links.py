"""Hooks of mkdocs: add README as the first page and pictures of other folders.

Other links out of docs/ become file names.
"""

from __future__ import annotations

import pathlib
import posixpath
import re
from typing import Any

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parent.parent
_PICTURE = re.compile(r"!\[[^\]]*\]\((?:\.\./)+(?!images/)([^)\s]+)\)")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add README.md as the first page."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=_linked(text, "index.md", "")))
    for page in (ROOT / "docs").rglob("*.md"):
        for name in _PICTURE.findall(page.read_text(encoding="utf-8")):
            files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of the other pages."""
    path = page.file.src_uri
    return markdown if path == "index.md" else _linked(markdown, path, "docs")


def _linked(markdown: str, page: str, folder: str) -> str:
    """Return the page with links that hold in the site; `folder` is where its own links start from."""

    def rewritten(match: re.Match[str]) -> str:
        picture, text, target, anchor = match.groups()
        if re.match(r"[a-z]+:", target):
            return match[0]
        base = posixpath.join(folder, posixpath.dirname(page) if folder else "")
        path = posixpath.normpath(posixpath.join(base, target))
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{page}: link to {target}, which does not exist")
        if path.startswith("docs/") or picture:
            inside = posixpath.relpath(path.removeprefix("docs/"), posixpath.dirname(page) or ".")
            return f"{picture}[{text}]({inside}{anchor or ''})"
        return text if path in text else f"{text} (`{path}`)"

    return _LINK.sub(rewritten, markdown)
