"""Many documents on one page, a row each, with links to the pages of their reports; the same as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable, Sequence

from iet.report.html import table_page
from iet.report.wording import p_value

COLUMNS = ("document", "agents found", "attributed", "p", "tokens", "what is wrong")


@dataclasses.dataclass(frozen=True)
class Row:
    """One document.

    Attributes:
        name: of the document.
        found: the agents that are found in it, the surest first.
        coverage: share of its tokens that is attributed, None where it was not read.
        log_p: natural log of the p-value, None where it was not read.
        tokens: their number, None where it was not read.
        link: the page of its report, as a path from this page; None: there is none.
        problem: why it was not read.
    """

    name: str
    found: Sequence[str] = ()
    coverage: float | None = None
    log_p: float | None = None
    tokens: int | None = None
    link: str | None = None
    problem: str = ""

    def cells(self) -> tuple[str, ...]:
        """Return what people read, in the order of `COLUMNS`."""
        share = "" if self.coverage is None else f"{self.coverage:.0%}"
        p = "" if self.log_p is None else p_value(self.log_p)
        tokens = "" if self.tokens is None else f"{self.tokens:,}"
        found = ", ".join(self.found) or ("nobody" if self.tokens is not None else "")
        return self.name, found, share, p, tokens, self.problem


def index(rows: Iterable[Row], about: Sequence[str] = ()) -> str:
    """Return the page: HTML that loads nothing and has no script. O(rows); deterministic.

    Args:
        rows: in the order in which they are shown.
        about: lines for its head, such as when and with which registry the texts were read.
    """
    title = " · ".join(["iet: who wrote what", *about[:1]])
    explanation = (
        "p: how often a key that was never used looks as active by chance, of one document. Among many"
        " documents some have a low p by chance."
    )
    cells = (("", row.link, row.cells()) for row in rows)
    return table_page(title, "Who wrote what", COLUMNS, cells, above=about, below=[explanation])


def as_csv(rows: Iterable[Row]) -> str:
    """Return the rows as CSV, with a head; numbers are not rounded, and log_p is a natural logarithm."""
    held = io.StringIO()
    writer = csv.writer(held, lineterminator="\r\n")
    writer.writerow(["document", "found", "coverage", "log_p", "tokens", "page", "problem"])
    for row in rows:
        numbers = ["" if value is None else value for value in (row.coverage, row.log_p, row.tokens)]
        texts = [no_formula(text) for text in (row.name, ";".join(row.found), row.link or "", row.problem)]
        writer.writerow([texts[0], texts[1], *numbers, *texts[2:]])
    return held.getvalue()


FORMULA = "=+-@\t\r\n"
"""A cell that begins with one of these is a formula to a spreadsheet."""


def no_formula(cell: str) -> str:
    """Return a cell that no spreadsheet takes for a formula: names of documents are a stranger's."""
    return f"'{cell}" if cell[:1] and cell[0] in FORMULA else cell
