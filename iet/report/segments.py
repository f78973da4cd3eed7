"""The parts of a report: segments, runs of characters, sessions, and the trace of the decoder."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple, Protocol

import numpy as np

from iet.native.arrays import Float32s, Float64s, Int64s

LEFT_OUT = -2
"""Label of a token that lies at least partly in a part of the text that the caller left out."""


class Span(NamedTuple):
    """Characters `[start, end)` of the original text, and their agent (None: unattributed)."""

    start: int
    end: int
    agent: str | None


@dataclasses.dataclass(frozen=True)
class Segment:
    """A stretch of text, its agent, and the evidence.

    Attributes:
        char_start, char_end: characters `[char_start, char_end)` of the original text; None if only ids were
            audited. Segments of a text cover it without gaps.
        start, end: tokens `[start, end)`. None if there are several profiles, which tokenize differently.
        agent: the agent that wrote it. None if no key explains it at the report's level (see `Auditor`), or
            if it is left out.
        best_guess: the agent with the best evidence; equal to `agent` unless that is None. None if the
            segment is left out. A guess is no finding: `Report.redact_guesses` removes guesses that no form
            of a report shows.
        log_p: natural log of the p-value of `best_guess`: the probability that unmarked text has a segment
            with as much evidence, corrected for the number of keys and for the choice of the segment. It
            ignores what the rest of the text shows about the agent. If the caller gave the boundaries, it is
            corrected for the numbers of keys and pieces. 0 if left out.
        posterior: mean posterior of `best_guess` over the tokens. It is lower than the mean of the report's
            `posterior` if the evidence for the agent is weak or words are quoted. None if the decoder has no
            posterior.
        error: probability that `best_guess` wrote none of it: at most 1 - the highest posterior of its
            tokens, with higher odds if much of the text is unattributed (see `iet.audit.certainty`). None if
            the decoder has no posterior.
        start_interval, end_interval: tokens between which the boundary may lie; outside, the posterior of
            the agent on that side is at least 0.95. Characters if there are several profiles; None if the
            decoder has no posterior.
        left_out: whether the caller excluded it. Its tokens are those at least partly in the excluded part;
            they count in no share.
        share: expected share of its tokens that `best_guess` wrote, the same number as `posterior`.
        share_interval: (low, high), which contains that share with probability 0.9, see
            `iet.decoding.share_intervals`. Both are None if the decoder has no posterior.
        session: id of the session whose key explains it best, if it is attributed and `Report.sessions` has
            its agent in that session; else None, also if the agent's own key explains it best.
        published: share of its scored tokens whose (context, token) pair agents had published before; these
            tokens are no evidence. None if no index was read, or if no token would be scored.
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
        """Whether it has no agent, and at least half of it was published before."""
        return self.agent is None and self.published is not None and self.published >= 0.5

    @property
    def called(self) -> str:
        """Its title in every form of a report: its agent, or "quoted", "unattributed" or "left out"."""
        return self.agent or ("left out" if self.left_out else "quoted" if self.quoted else "unattributed")


@dataclasses.dataclass(frozen=True)
class SessionFinding:
    """An agent that is found in a session.

    Attributes:
        agent: its name.
        session: id of the session; None if the agent's own key was found, which belongs to no session.
        log_p: natural log of the p-value, corrected for all agents and sessions.
    """

    agent: str
    session: str | None
    log_p: float


@dataclasses.dataclass(frozen=True)
class Sessions:
    """The sessions whose keys were read, and the agents found in them.

    Attributes:
        read: number of sessions.
        digest: BLAKE2b-256, in hex, of the session ids, joined by line feeds.
        found: the findings at the report's level, by increasing p-value.
    """

    read: int
    digest: str
    found: tuple[SessionFinding, ...]


class _Axis(Protocol):
    """The positions that a decoder read, see `iet.audit.alignment`."""

    @property
    def origins(self) -> Int64s: ...
    def place(self, indices: Int64s, end: int) -> Int64s: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """Scores and posteriors along the text, for plots; no file holds them.

    Attributes:
        agents: names of the P agents whose keys the decoder looked at: the columns below.
        axis: the R tokens that were read. With several profiles: the positions at which a token of any
            profile starts.
        posterior: float32 [R, P], or None if the decoder has no posterior.
        scores: f [W, P], the mean score of each window under each agent's key.
        window, step: length and distance of the windows, in tokens.
    """

    agents: tuple[str, ...]
    axis: _Axis = dataclasses.field(repr=False)
    posterior: Float32s | None = dataclasses.field(repr=False)
    scores: Float64s = dataclasses.field(repr=False)
    window: int = 64
    step: int = 16

    @functools.cached_property
    def starts(self) -> Int64s:
        """int64 [R], the character at which each token starts, or the token's index if there is no text."""
        return self.axis.origins

    @property
    def tokens(self) -> Int64s:
        """int64 [R], the index of each token among all tokens of the text; with several profiles `starts`."""
        return self.axis.place(np.arange(len(self.starts)), 0)

    @property
    def centres(self) -> Int64s:
        """int64 [W], the centres of the windows, in the unit of `starts`."""
        middle = min(self.window, len(self.starts)) // 2
        return self.starts[np.arange(len(self.scores)) * self.step + middle]


def extent(segment: Segment) -> tuple[int, int]:
    """Return the characters `[start, end)` of a segment, or its tokens if only ids were audited."""
    if segment.char_start is not None and segment.char_end is not None:
        return segment.char_start, segment.char_end
    assert segment.start is not None
    assert segment.end is not None
    return segment.start, segment.end
