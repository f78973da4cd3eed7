"""The results of many audits in columns: some over the documents, some over their segments."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from iet.report import Report

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

SEGMENT_INTEGERS = ("char_start", "char_end", "start", "end")
SEGMENT_AGENTS = ("agent", "best_guess")
SEGMENT_FLOATS = ("log_p", "posterior", "error")


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """Results of D documents, which have S segments in all.

    Attributes:
        names: of the agents.
        documents: [D] each: the integers `tokens`, `scored`, `repeated` and `invisible`, and the floats
            `log_p` and `coverage`, as in `Report`.
        best_agent: int64 [D], index of the agent with the lowest log p, -1 where none is below 0.
        found: int64 [F], the agents that are found (`Report.found`), document after document.
        found_counts: int64 [D], how many of them each document has.
        segment_counts: int64 [D], how many segments each document has.
        segments: [S] each, as in `Segment`; agents are indices, -1 for None. A column that the reports leave
            open is None.
    """

    names: tuple[str, ...]
    documents: dict[str, NDArray[Any]]
    best_agent: Integers
    found: Integers
    found_counts: Integers
    segment_counts: Integers
    segments: dict[str, NDArray[Any] | None]


def of_reports(names: tuple[str, ...], reports: Sequence[Report]) -> Results:
    """Return the columns of some reports."""
    at = {name: i for i, name in enumerate(names)}
    segments = [segment for report in reports for segment in report.segments]
    columns: dict[str, NDArray[Any] | None] = {}
    for name in (*SEGMENT_INTEGERS, *SEGMENT_FLOATS):
        values = [getattr(segment, name) for segment in segments]
        kind = np.int64 if name in SEGMENT_INTEGERS else np.float64
        columns[name] = None if values and values[0] is None else np.array(values, kind)
    for name in SEGMENT_AGENTS:
        columns[name] = np.array([at.get(getattr(segment, name), -1) for segment in segments], np.int64)
    lowest = [min(report.evidence, key=report.evidence.__getitem__) for report in reports]
    found = [report.found for report in reports]
    return Results(
        names,
        {
            name: np.array([getattr(report, name) for report in reports], kind)
            for name, kind in DOCUMENT_COLUMNS.items()
        },
        np.array(
            [at[name] if report.log_p < 0 else -1 for name, report in zip(lowest, reports, strict=True)],
            np.int64,
        ),
        np.array([at[name] for some in found for name in some], np.int64),
        np.array([len(some) for some in found], np.int64),
        np.array([len(report.segments) for report in reports], np.int64),
        columns,
    )


DOCUMENT_COLUMNS: dict[str, Any] = {
    "tokens": np.int64,
    "scored": np.int64,
    "repeated": np.int64,
    "invisible": np.int64,
    "log_p": np.float64,
    "coverage": np.float64,
}
"""The columns of `Results.documents` and their types."""


def found_agents(evidence: Floats, level: float) -> tuple[Integers, Integers, Integers]:
    """Return best_agent, found and found_counts of log p-values [D, A] of agents (NaN: not read)."""
    lowest = np.where(np.isnan(evidence), np.inf, evidence)
    best = lowest.argmin(axis=1)
    best[lowest[np.arange(len(best)), best] >= 0] = -1
    sure = lowest <= math.log(level)
    some = [
        np.flatnonzero(sure[d])[np.argsort(lowest[d, sure[d]], kind="stable")]
        for d in np.flatnonzero(sure.any(axis=1))
    ]
    found = np.concatenate([np.zeros(0, np.int64), *some])
    return best, found, sure.sum(axis=1)
