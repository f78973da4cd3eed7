"""The page of commands equals the help of the parsers."""

from __future__ import annotations

import pathlib
import runpy

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def test_the_page_of_commands_is_current() -> None:
    page = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    assert page == runpy.run_path(str(DOCS / "commands.py"))["reference"]()
    assert "## iet keys rotate" in page
    assert "* `--fdr RATE`: " in page
