"""The result of an audit of D documents, in columns. One text is the case D = 1; `Report` is one document."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError
from iet.marks.sessions import OWN
from iet.native.arrays import Float64s, Int64s
from iet.report.model import Report, found_agents
from iet.report.segments import Segment, SessionFinding, Sessions

if TYPE_CHECKING:
    import pyarrow

DOCUMENT_DTYPES: dict[str, Any] = {
    "tokens": np.int64,
    "left_out": np.int64,
    "scored": np.int64,
    "repeated": np.int64,
    "template": np.int64,
    "published": np.int64,
    "invisible": np.int64,
    "coverage": np.float64,
}
"""The columns of `AuditResult.documents` and their dtypes."""

SEGMENT_DTYPES: dict[str, Any] = {
    **dict.fromkeys(("char_start", "char_end", "start", "end"), np.int64),
    **dict.fromkeys(("decoded", "agent", "best_guess", "session"), np.int64),
    **dict.fromkeys(("start_low", "start_high", "end_low", "end_high"), np.int64),
    **dict.fromkeys(("log_p", "posterior", "error", "share_low", "share_high", "published"), np.float64),
    "left_out": np.bool_,
}
"""The columns of `AuditResult.segments` and their dtypes."""


class FoundSession(NamedTuple):
    """An agent that is found in a session of a document; `document`, `agent` and `session` are indices."""

    document: int
    agent: int
    session: int
    log_p: float


@dataclasses.dataclass(frozen=True, eq=False)
class AuditResult:
    """The results of D documents with S segments in all.

    Attributes:
        settings: the fields of `Report` that all documents share, by name.
        session_ids: ids of the sessions that were read, and `session_digest`, their digest.
        texts: D texts as given; None if only token ids were audited.
        evidence: float64 [D, A], log p-value of each agent in each document, corrected for the number of
            keys (Holm); NaN for agents that were not read.
        documents: [D] each, by the names of `DOCUMENT_DTYPES`, as in `Report`. `template` counts the scored
            tokens that are evidence in another document (they are among the repeated ones).
        segment_counts: int64 [D].
        segments: [S] each, by the names of `SEGMENT_DTYPES`, as in `Segment`, document after document.
            `decoded`, `agent` and `best_guess` are indices of agents, `session` of sessions; -1 is None.
            `decoded` is the decoder's choice, `agent` the same if the evidence suffices. A column without
            any value is None.
        found_sessions: the sessions that agents are found in, document after document, lowest p first.
        details: for each document the other fields of its `Report`, by name. None: they were not computed.
    """

    settings: dict[str, Any]
    session_ids: tuple[str, ...]
    session_digest: str | None
    texts: tuple[str, ...] | None
    evidence: Float64s
    documents: dict[str, NDArray[Any]]
    segment_counts: Int64s
    segments: dict[str, NDArray[Any] | None]
    found_sessions: tuple[FoundSession, ...] = ()
    details: tuple[dict[str, Any], ...] | None = None

    def __len__(self) -> int:
        return len(self.evidence)

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the A agents."""
        names: tuple[str, ...] = self.settings["agents"]
        return names

    @property
    def log_p(self) -> Float64s:
        """float64 [D]: the lowest log p-value of each document."""
        return np.asarray(np.nanmin(self.evidence, axis=1, initial=0.0))

    @property
    def best_agent(self) -> Int64s:
        """int64 [D]: the agent with the lowest log p-value, -1 if none is below 0."""
        lowest = np.where(np.isnan(self.evidence), 0.0, self.evidence)
        best = lowest.argmin(axis=1)
        return np.where(lowest[np.arange(len(best)), best] < 0, best, -1)

    @property
    def found(self) -> list[Int64s]:
        """The agents that are found in each document, lowest p-value first."""
        return [found_agents(log_p, self.settings["level"]) for log_p in self.evidence]

    @property
    def best_guess(self) -> Int64s:
        """int64 [S]: `best_guess` of the segments, -1 if that agent is not found in the document.

        Without evidence in the whole document the guess is only the nearest key by chance, and naming it
        would accuse its agent (see `Report.redact_guesses`).
        """
        guess, agent = self.segments["best_guess"], self.segments["agent"]
        assert guess is not None
        assert agent is not None
        document = np.repeat(np.arange(len(self)), self.segment_counts)
        is_found = self.evidence[document, guess] <= math.log(self.settings["level"])
        return np.where((agent >= 0) | is_found, guess, -1)

    def report(self, document: int) -> Report:
        """Return the report of one document.

        Raises:
            InputError: the result holds only columns, as that of a bulk audit does.
        """
        if self.details is None:
            raise InputError("report: this result holds columns only; audit the document by itself")
        names, d = self.agents, document
        return Report(
            **self.settings,
            text=None if self.texts is None else self.texts[d],
            log_p=float(self.log_p[d]),
            evidence={name: p for name, p in zip(names, self.evidence[d].tolist(), strict=True) if p == p},
            **{name: column[d].item() for name, column in self.documents.items() if name in _SHOWN},
            segments=self._segments(d),
            sessions=self._sessions(d),
            **self.details[d],
        )

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Return a row for each document, with its segments in a list (`iet.report.arrow.FOUND`)."""
        from iet.report.arrow import nested

        return nested(self)

    def to_json(self, *, text: bool = True) -> str:
        """Return a JSON list of each document's report; `text=False` leaves the texts out."""
        return json.dumps([self.report(d).to_dict(text=text) for d in range(len(self))], ensure_ascii=False)

    def _segments(self, document: int) -> tuple[Segment, ...]:
        end = int(self.segment_counts[: document + 1].sum())
        start = end - int(self.segment_counts[document])

        def values(name: str) -> list[Any]:
            column = self.segments[name]
            return [None] * (end - start) if column is None else column[start:end].tolist()

        def labels(name: str, names: Sequence[str]) -> list[str | None]:
            return [None if i is None or i < 0 else names[i] for i in values(name)]

        def intervals(low: str, high: str) -> list[Any]:
            pairs = zip(values(low), values(high), strict=True)
            return [pair if pair[0] is not None and pair[0] >= 0 else None for pair in pairs]

        def numbers(name: str) -> list[float | None]:
            return [None if value is None or value != value else value for value in values(name)]

        fields = {
            **{name: values(name) for name in ("char_start", "char_end", "start", "end", "log_p")},
            "agent": labels("agent", self.agents),
            "best_guess": labels("best_guess", self.agents),
            "session": labels("session", self.session_ids),
            "posterior": numbers("posterior"),
            "error": numbers("error"),
            "share": numbers("posterior"),
            "share_interval": intervals("share_low", "share_high"),
            "start_interval": intervals("start_low", "start_high"),
            "end_interval": intervals("end_low", "end_high"),
            "left_out": [bool(value) for value in values("left_out")],
            "published": numbers("published"),
        }
        rows = zip(*fields.values(), strict=True)
        return tuple(Segment(**dict(zip(fields, row, strict=True))) for row in rows)

    def _sessions(self, document: int) -> Sessions | None:
        if self.session_digest is None:
            return None
        findings = tuple(
            SessionFinding(
                self.agents[f.agent], None if f.session == OWN else self.session_ids[f.session], f.log_p
            )
            for f in self.found_sessions
            if f.document == document
        )
        return Sessions(len(self.session_ids), self.session_digest, findings)


_SHOWN = ("tokens", "left_out", "scored", "repeated", "invisible", "coverage")


def concatenated(results: Iterable[AuditResult], empty: AuditResult) -> AuditResult:
    """Return the results of all documents in order; `empty` is the one of no documents."""
    parts = [empty, *results]
    offsets = np.cumsum([0, *map(len, parts)])

    def together(columns: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
        present = [column for column in columns if column is not None]
        return np.concatenate(present) if len(present) == len(columns) else None

    return dataclasses.replace(
        empty,
        texts=None if empty.texts is None else tuple(text for part in parts for text in part.texts or ()),
        evidence=np.concatenate([part.evidence for part in parts]),
        documents={
            name: np.concatenate([part.documents[name] for part in parts]) for name in DOCUMENT_DTYPES
        },
        segment_counts=np.concatenate([part.segment_counts for part in parts]),
        segments={name: together([part.segments[name] for part in parts]) for name in SEGMENT_DTYPES},
        found_sessions=tuple(
            found._replace(document=found.document + int(offset))
            for part, offset in zip(parts, offsets, strict=False)
            for found in part.found_sessions
        ),
        details=None
        if any(part.details is None for part in parts)
        else tuple(details for part in parts for details in part.details or ()),
    )
