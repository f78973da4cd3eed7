"""Documentation: every relative link resolves, and the pages stay within a budget of words."""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
        *ROOT.glob("benchmarks/**/README.md"),
        *ROOT.glob("benchmarks/notes/*.md"),
    ]
)
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page: pathlib.Path) -> str:
    """Return the page without its code blocks and code spans."""
    return CODE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: pathlib.Path) -> set[str]:
    """Return the anchors of the headings, as GitHub derives them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: pathlib.Path) -> list[str]:
    """Return the relative links of the page whose file or heading does not exist."""
    broken = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        exists = target.exists()
        if not exists or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_resolves(page: pathlib.Path) -> None:
    assert broken_links(page) == []


def test_links_to_missing_files_and_headings_are_reported(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title, here\n[a](#a-title-here) [b](none.md) [c](page.md#other) `[d](code.md)`\n")
    assert broken_links(page) == ["none.md", "page.md#other"]


def test_the_documentation_stays_within_its_budget_of_words() -> None:
    words = {page: len(page.read_text(encoding="utf-8").split()) for page in PAGES}
    documentation = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    assert sum(words[page] for page in documentation) <= 30_000
    assert words[ROOT / "docs/reference/numbers.md"] <= 1_500
