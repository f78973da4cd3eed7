"""The results of many audits in columns: some over the documents, some over their segments."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iet.audit.attribution import Attribution, attribute
from iet.audit.plan import Plan
from iet.audit.reporting import extents
from iet.audit.texts import Reading
from iet.marks.sessions import OWN
from iet.marks.tokenizer import Encoding

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

SEGMENT_INTEGERS = ("char_start", "char_end", "start", "end")
SEGMENT_AGENTS = ("agent", "best_guess")
SEGMENT_SESSIONS = ("session",)
SEGMENT_FLOATS = ("log_p", "posterior", "error", "share", "share_low", "share_high")


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """Results of D documents, which have S segments in all.

    Attributes:
        names: of the agents.
        documents: [D] each: the integers `tokens`, `scored`, `repeated` and `invisible`, and the floats
            `log_p` and `coverage`, as in `Report`; and `template`, how many of the scored tokens stand in
            passages that count in another document (they are among the repeated ones); and `published`, how
            many more would be scored, had their pair not been published before.
        best_agent: int64 [D], index of the agent with the lowest log p, -1 where none is below 0.
        found: int64 [F], the agents that are found (`Report.found`), document after document.
        found_counts: int64 [D], how many of them each document has.
        segment_counts: int64 [D], how many segments each document has.
        segments: [S] each, as in `Segment`; agents are indices, -1 for None; `share_low` and `share_high` are
            its `share_interval`. Sessions are indices, -1 for None. A column that the reports leave open is
            None.
        sessions: ids of the sessions that were read.
    """

    names: tuple[str, ...]
    documents: dict[str, NDArray[Any]]
    best_agent: Integers
    found: Integers
    found_counts: Integers
    segment_counts: Integers
    segments: dict[str, NDArray[Any] | None]
    sessions: tuple[str, ...] = ()


DOCUMENT_COLUMNS: dict[str, Any] = {
    "tokens": np.int64,
    "scored": np.int64,
    "repeated": np.int64,
    "template": np.int64,
    "published": np.int64,
    "invisible": np.int64,
    "log_p": np.float64,
    "coverage": np.float64,
}
"""The columns of `Results.documents` and their types."""


def find(
    plan: Plan,
    texts: Sequence[str] | None,
    ids: Sequence[ArrayLike] | None = None,
    elsewhere: Sequence[Integers] | None = None,
) -> Results:
    """Audit texts, or their token ids, each as `Auditor.audit` does.

    Transitions and intervals of boundaries, which no table holds, are not computed. `elsewhere` has for each
    document the stretches [N, 2] that are no evidence in it, in characters or in ids, ascending.

    Raises:
        InputError: a text is not valid Unicode, an id is no int64, or profiles differ in their ids.
        TokenizerMismatch: no tokenizer with a profile's digest.
    """
    if texts is not None:
        encodings = plan.encode(texts)
    else:
        encodings = [plan.encoding_of_ids(each) for each in ids or ()]
    if elsewhere is not None:
        encodings = [
            tuple(_without(encoding, stretches, texts is not None) for encoding in each)
            for each, stretches in zip(encodings, elsewhere, strict=True)
        ]
    parts, at = list[Results](), 0
    for found in attribute(plan, texts, encodings):
        count = len(found.evidence)
        parts.append(_results(found, None if texts is None else texts[at : at + count]))
        at += count
    return joined(plan.names, parts)


def _without(encoding: Encoding, stretches: Integers, spelled: bool) -> Encoding:
    """Return the encoding whose tokens inside the stretches are no evidence."""
    if not len(stretches):
        return encoding
    tokens = np.arange(len(encoding.token_ids))
    extents = encoding.characters(tokens) if spelled else tokens[:, None] + np.array([0, 1])
    at = np.searchsorted(stretches[:, 0], extents[:, 0], "right") - 1
    return dataclasses.replace(encoding, elsewhere=(at >= 0) & (extents[:, 1] <= stretches[at, 1]))


def _results(found: Attribution, texts: Sequence[str] | None) -> Results:
    plan, readings, axis = found.plan, found.readings, found.axis
    count = len(found.evidence)
    best, agents, agent_counts = found_agents(found.evidence, plan.options.level)
    characters = None if texts is None else extents(found, texts)
    tokens = np.stack([found.starts, found.ends], axis=1) if axis is None else axis.tokens(*found.bounds)
    # Tokens of several profiles are no measure of a text: there its characters are.
    spans = tokens if tokens is not None else characters
    assert spans is not None
    lengths = np.diff(spans, axis=1)[:, 0]
    covered = np.bincount(found.texts, weights=lengths * found.attributed, minlength=count)
    whole = np.bincount(found.texts, weights=lengths, minlength=count)

    # A guess is a name only where that agent is found, as in `Report.told`.
    known = found.evidence[found.texts, found.guesses] <= math.log(plan.options.level)

    def total(of: Callable[[Reading], Any]) -> Integers:
        return np.asarray(np.sum([of(reading) for reading in readings], axis=0, dtype=np.int64))

    def column(table: Integers | None, at: int) -> Integers | None:
        return None if table is None else table[:, at]

    return Results(
        plan.names,
        {
            "tokens": total(lambda r: [len(e.token_ids) for e in r.encodings]),
            "scored": total(lambda r: r.each(r.scored)),
            "repeated": total(lambda r: r.each(r.repeated)),
            "template": total(_template),
            "published": total(lambda r: r.published_each),
            "invisible": np.array([encoding.skipped for encoding in readings[0].encodings], np.int64),
            "log_p": np.nanmin(found.evidence, axis=1),
            "coverage": covered / np.maximum(1, whole),
        },
        best,
        agents,
        agent_counts,
        np.bincount(found.texts, minlength=count),
        {
            "char_start": column(characters, 0),
            "char_end": column(characters, 1),
            "start": column(tokens, 0),
            "end": column(tokens, 1),
            "agent": np.where(found.attributed, found.guesses, -1),
            "best_guess": np.where(found.attributed | known, found.guesses, -1),
            "log_p": found.log_p,
            "session": _sessions(found),
            **_certainty(found),
        },
        plan.sessions,
    )


def _sessions(found: Attribution) -> Integers | None:
    """Return the session [S] of each segment whose agent is found there, as in `Segment`; -1: of none."""
    if not found.plan.sessions:
        return None
    known = {(pair.text, pair.agent, pair.session) for pair in found.found_sessions}
    claimed = zip(found.texts.tolist(), found.guesses.tolist(), found.sessions.tolist(), strict=True)
    there = np.array([pair in known for pair in claimed], np.bool_)
    return np.where(found.attributed & there, found.sessions, OWN)


def _template(reading: Reading) -> Integers:
    found = np.zeros(len(reading.encodings), np.int64)
    for d, encoding in enumerate(reading.encodings):
        if encoding.elsewhere is not None:
            found[d] = np.count_nonzero(encoding.elsewhere & reading.scored[reading.inside(d)])
    return found


def _certainty(found: Attribution) -> dict[str, Floats | None]:
    sure = found.certainty
    if sure is None:
        return dict.fromkeys(("posterior", "error", "share", "share_low", "share_high"))
    return {
        "posterior": sure.means,
        "error": sure.errors,
        "share": sure.means,
        "share_low": sure.lows,
        "share_high": sure.highs,
    }


def joined(names: tuple[str, ...], parts: Sequence[Results]) -> Results:
    """Return the results of all documents of some parts, in turn."""

    def together(columns: Sequence[NDArray[Any] | None], kind: Any) -> NDArray[Any] | None:
        there = [column for column in columns if column is not None]
        if columns and not there:
            return None
        return np.concatenate([np.zeros(0, kind), *there])

    kinds = {
        **dict.fromkeys((*SEGMENT_INTEGERS, *SEGMENT_AGENTS, *SEGMENT_SESSIONS), np.int64),
        **dict.fromkeys(SEGMENT_FLOATS, np.float64),
    }
    whole = {
        name: together([getattr(part, name) for part in parts], np.int64)
        for name in ("best_agent", "found", "found_counts", "segment_counts")
    }
    return Results(
        names,
        {
            name: np.concatenate([np.zeros(0, kind), *(part.documents[name] for part in parts)])
            for name, kind in DOCUMENT_COLUMNS.items()
        },
        **whole,  # type: ignore[arg-type]
        segments={name: together([part.segments[name] for part in parts], kinds[name]) for name in kinds},
        sessions=next((part.sessions for part in parts), ()),
    )


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
