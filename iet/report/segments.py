"""The parts of a report: segments, runs of characters, and what the decoder saw along the text."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple, Protocol

import numpy as np

from iet.native.arrays import Float32s, Float64s, Int64s

LEFT_OUT = -2
"""The label of a token that was not read, because it lies in a part that was left out, or partly in it."""


class Span(NamedTuple):
    """Characters `[start, end)` of the text as given, and their agent (None: unattributed)."""

    start: int
    end: int
    agent: str | None


@dataclasses.dataclass(frozen=True)
class Segment:
    """One stretch of text, and who wrote it.

    Attributes:
        char_start, char_end: characters `[char_start, char_end)` of the text as given; None where only ids
            were audited. Segments of a text cover it without gaps.
        start, end: tokens `[start, end)`. None where profiles have tokens of their own.
        agent: who wrote it, None where nobody's key explains it at the report's level (see `Auditor`), or it
            is left out.
        best_guess: the agent whose key explains it best; equal to `agent` unless that is None. None where
            the segment is left out. Nobody is found by it: `Report.told` leaves out the guesses that no form
            of a report names.
        log_p: natural log of the p-value of `best_guess`, corrected for the number of keys and for having
            chosen the segment: how likely unmarked text would yield any segment as telling as this. By
            itself, without what the rest of the text says about the agent. Where the boundaries were given,
            corrected for the number of keys and pieces. 0 where left out.
        posterior: mean posterior of `best_guess` over the tokens, lower than that of the report's `posterior`
            where little evidence speaks for the agent or words are quoted; None where the decoder has none.
        error: probability that `best_guess` wrote none of it: at most 1 - the highest posterior of one of its
            tokens, its odds raised where much of the text is nobody's (see `iet.audit.certainty`). None where
            the decoder has no posterior.
        start_interval, end_interval: tokens between which the boundary may lie: towards either side, the
            posterior of that side's agent is below 0.95. Characters where there are several profiles; None
            where the decoder has no posterior.
        left_out: the caller said that this is no agent's text: it was not read, and counts in no share.
            Its tokens are those that lie at least partly in it.
        share: expected share of its tokens that are `best_guess`'s, the same number as `posterior`.
        share_interval: (low, high), between which that share is with a probability of 0.9, see
            `iet.decoding.share_intervals`. Both are None where the decoder has no posterior.
        session: id of the session whose key explains it best, where it is attributed and its agent is found
            in that session (`Report.sessions`); None elsewhere, also where its agent's own key does.
        published: share of its tokens that carry a score, or would, whose (context, token) pair agents had
            published before: they are evidence for nobody. None where no index was read, or none would.
    """

    char_start: int | None
    char_end: int | None
    start: int | None
    end: int | None
    agent: str | None
    best_guess: str | None
    log_p: float
    posterior: float | None
    error: float | None
    start_interval: tuple[int, int] | None
    end_interval: tuple[int, int] | None
    left_out: bool = False
    share: float | None = None
    share_interval: tuple[float, float] | None = None
    session: str | None = None
    published: float | None = None

    @property
    def quoted(self) -> bool:
        """Whether nobody is named, and half of it or more was published before."""
        return self.agent is None and self.published is not None and self.published >= 0.5

    @property
    def called(self) -> str:
        """What every form of a report calls it: its agent, or "quoted", "unattributed" or "left out"."""
        return self.agent or ("left out" if self.left_out else "quoted" if self.quoted else "unattributed")


@dataclasses.dataclass(frozen=True)
class SessionFinding:
    """An agent that is found in a session.

    Attributes:
        agent: its name.
        session: id of the session; None: under the agent's own keys, which are of no session.
        log_p: natural log of the p-value, corrected for all agents and sessions.
    """

    agent: str
    session: str | None
    log_p: float


@dataclasses.dataclass(frozen=True)
class Sessions:
    """Which sessions were read, and in which of them agents are found.

    Attributes:
        read: their number.
        digest: BLAKE2b-256, in hex, of their ids, joined by line feeds.
        found: the findings at the report's level, the surest first.
    """

    read: int
    digest: str
    found: tuple[SessionFinding, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**dataclasses.asdict(self), "found": [dataclasses.asdict(each) for each in self.found]}


class _Axis(Protocol):
    """What a decoder went along, see `iet.audit.alignment.Axis`."""

    @property
    def origins(self) -> Int64s: ...
    def place(self, indices: Int64s, end: int) -> Int64s: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """What the decoder saw along the text: for pictures, in no file. Positions are computed when asked for.

    Attributes:
        agents: P names, the columns below: those whose keys were looked at.
        axis: the R tokens that were read. With several profiles, the places where a token of any of them
            starts.
        posterior: float32 [R, P], or None where the decoder has none.
        scores: f [W, P], the mean score of each window under each agent's key.
        window, step: that the windows were made with, in tokens.
    """

    agents: tuple[str, ...]
    axis: _Axis = dataclasses.field(repr=False)
    posterior: Float32s | None = dataclasses.field(repr=False)
    scores: Float64s = dataclasses.field(repr=False)
    window: int = 64
    step: int = 16

    @functools.cached_property
    def starts(self) -> Int64s:
        """int64 [R], where each of the tokens starts: its character, or its number where there is no text."""
        return self.axis.origins

    @property
    def tokens(self) -> Int64s:
        """int64 [R], their numbers among all tokens of the text; with several profiles their `starts`."""
        return self.axis.place(np.arange(len(self.starts)), 0)

    @property
    def centres(self) -> Int64s:
        """int64 [W], where the centres of the windows lie, in the unit of `starts`."""
        middle = min(self.window, len(self.starts)) // 2
        return self.starts[np.arange(len(self.scores)) * self.step + middle]


def extent(segment: Segment) -> tuple[int, int]:
    """Return where a segment lies: its characters, or its tokens where only ids were audited."""
    if segment.char_start is not None and segment.char_end is not None:
        return segment.char_start, segment.char_end
    assert segment.start is not None
    assert segment.end is not None
    return segment.start, segment.end
