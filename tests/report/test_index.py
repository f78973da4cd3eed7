"""The index of many documents: hostile file names are shown as text."""

from __future__ import annotations

import html.parser

from iet.report.index import COLUMNS, Row, index

ROWS = [
    Row("<script>alert(1)</script>", ["a<b", "c"], 0.5, -30.0, 1234, 'pages/"1.html'),
    Row("=1+1", (), 0.0, -0.1, 0),
    Row("\u202egnp.exe\x1b[2J", problem='"got" a PDF'),
]


class Cells(html.parser.HTMLParser):
    """Collects tags and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str | None] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name == "href"]

    def handle_data(self, data: str) -> None:
        self.words += data


def test_page_escapes_file_names() -> None:
    made = index(ROWS, ["read today with <team>.json"])
    page = Cells()
    page.feed(made)
    assert page.tags.count("tr") == 1 + len(ROWS)
    assert page.tags.count("td") == len(COLUMNS) * len(ROWS)
    assert "script" not in page.tags
    assert page.links == ['pages/"1.html']
    for words in ("<script>alert(1)</script>", "a<b, c", "50%", "9.4e-14", "1,234", "none", '"got" a PDF'):
        assert words in page.words
    assert "read today with <team>.json" in page.words
    assert "\u202e" not in made
    assert "\x1b" not in made
