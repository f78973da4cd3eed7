"""The index of many documents: a page with a row for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from iet.report.html import table_page
from iet.report.wording import p_value

COLUMNS = ("document", "agents found", "attributed", "p", "tokens", "what is wrong")


@dataclasses.dataclass(frozen=True)
class Row:
    """One document.

    Attributes:
        name: of the document.
        found: the agents that were found in it, by increasing p-value.
        coverage: share of its tokens that is attributed, None if it was not read.
        log_p: natural log of the p-value, None if it was not read.
        tokens: number of tokens, None if it was not read.
        link: path of the page of its report, relative to the index; None without a page.
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
        """Return the cells of `COLUMNS`."""
        share = "" if self.coverage is None else f"{self.coverage:.0%}"
        p = "" if self.log_p is None else p_value(self.log_p)
        tokens = "" if self.tokens is None else f"{self.tokens:,}"
        agents = ", ".join(self.found) or ("none" if self.tokens is not None else "")
        return self.name, agents, share, p, tokens, self.problem


def index(rows: Iterable[Row], about: Sequence[str] = ()) -> str:
    """Return the page: HTML that loads nothing and has no script. O(rows); deterministic.

    Args:
        rows: in the order of the table.
        about: lines above the table, such as the time and the registry of the audit.
    """
    title = " · ".join(["iet: who wrote what", *about[:1]])
    explanation = (
        "p: how often an unused key shows as much evidence in one document by chance. Among many documents"
        " some have a low p by chance."
    )
    cells = (("", row.link, row.cells()) for row in rows)
    return table_page(title, "Who wrote what", COLUMNS, cells, above=about, below=[explanation])
