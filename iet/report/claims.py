"""Which claims about who wrote which piece hold: data, words, a table, a page, events."""

from __future__ import annotations

import collections
import csv
import dataclasses
import io
import shlex
from collections.abc import Mapping
from typing import Any, Literal

from iet.errors import InputError
from iet.report.index import no_formula
from iet.report.lines import harmless, table
from iet.report.wording import p_value

CLAIMS_SCHEMA = "iet.claims/1"

Verdict = Literal["confirmed", "contradicted", "named", "unknown name", "open", "skipped"]

MEANINGS: dict[Verdict, str] = {
    "confirmed": "the agent that it came under left its mark in it",
    "contradicted": "another agent's mark is in it, and the mark of the one it came under was not found",
    "named": "it came under no name, and this agent's mark is in it",
    "unknown name": "no key of the name that it came under was read, so it is neither confirmed nor"
    " contradicted; iet check --agent NAME=AGENT says which agent it is",
    "open": "no mark was found: too short, too predictable, or not marked; this is no finding",
    "skipped": "not judged, for the reason beside it; iet check --agent NAME=AGENT maps a role or a user's"
    " name that is an agent's",
}
"""Verdict -> what it says, in words."""

GIVEN = "said to be no agent's"
"""Why a piece was skipped if only its number was given."""

COLUMNS = ("piece", "came under", "verdict", "mark of", "p", "tokens", "note")

_REASONS = 8
"""Number of reasons that are named in one line."""

EVALUATION = "iet.claim"
"""`gen_ai.evaluation.name` of its events."""


@dataclasses.dataclass(frozen=True)
class CheckedPiece:
    """One piece, and what became of the name that it came under.

    Attributes:
        index: of the piece, from 0.
        claim: the name that it came under, None without.
        verdict: see `MEANINGS`.
        agent: whose mark is in it: the claimed agent's ("confirmed"), another's ("contradicted", "named",
            "unknown name").
        log_p: natural logarithm of the p-value that the verdict rests on, corrected for the number of
            pieces and, where it is of another agent than the claimed, for the number of agents; of an open
            claim that of the claimed agent's mark.
        also: another agent whose mark is in a confirmed piece as well.
        characters, tokens: its length.
        counted: number of tokens that are evidence.
        repeated: number of tokens that stood in an earlier piece in the same words, and are none.
        published: number of tokens that were published before, and are none; None: no index was read.
        enough: of an open piece the number of counted tokens that would confirm its agent half of the time,
            at the strength of the confirmed ones; None: nothing was confirmed that would tell.
        session: id of the session under whose keys `agent` marked it, where that is found at the level for
            all agents, sessions and pieces together; None elsewhere, also under the agent's own keys.
        reason: why it was skipped; None: it was judged.
        nearest: registered name that an unknown name is most like; None: the name is known, or like none.
    """

    index: int
    claim: str | None
    verdict: str
    agent: str | None
    log_p: float
    also: str | None
    characters: int
    tokens: int
    counted: int
    repeated: int
    published: int | None
    enough: int | None
    session: str | None = None
    reason: str | None = None
    nearest: str | None = None

    @property
    def note(self) -> str:
        """What there is to say beside the numbers."""
        said = []
        if self.reason is not None:
            said.append(harmless(self.reason))
        if self.verdict == "unknown name":
            option = shlex.quote(f"{harmless(self.claim or '')}={self.nearest}")
            near = f"the nearest name is {self.nearest}: iet check --agent {option}"
            said.append(near if self.nearest else "no registered name is like it")
        if self.session is not None:
            said.append(f"in session {harmless(self.session)}")
        if self.also is not None:
            said.append(f"holds a mark of {self.also} as well")
        if self.verdict == "open":
            quoted = self.published or 0
            if quoted >= self.repeated + self.counted and quoted:
                said.append(f"{quoted} of its tokens were published before")
            elif 2 * self.repeated >= self.repeated + self.counted and self.repeated:
                said.append(f"{self.repeated} of its tokens stood in an earlier piece")
            elif not self.counted:
                said.append("nothing in it can be read")
            elif self.enough is not None:
                more = "" if self.counted < self.enough else ", if it were as free as the confirmed ones"
                said.append(f"some {self.enough} counted tokens would do{more}")
        return "; ".join(said)


@dataclasses.dataclass(frozen=True)
class ClaimReport:
    """What `Auditor.check` found.

    Attributes:
        pieces: one for each, in order.
        agents: names of the agents whose keys were read.
        level: the chance, at most, that any claim among all is confirmed though its agent had no part, and
            that any piece is contradicted or named though nobody but the claimed agent had one.
        registry_digest: of the keys.
        sessions: how many sessions' keys were read beside agents' own; None: none.
        skipped: number of messages that were not judged, for each reason; of a trace also of those that
            repeat another message and are no pieces.
        unreadable: number of messages of a trace without text, and of items that are no messages, for each
            reason. They are no pieces.
    """

    pieces: tuple[CheckedPiece, ...]
    agents: tuple[str, ...]
    level: float
    registry_digest: str
    sessions: int | None = None
    skipped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unreadable: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def of(self, verdict: Verdict) -> tuple[CheckedPiece, ...]:
        """Return the pieces with a verdict, one of `MEANINGS`."""
        if verdict not in MEANINGS:
            raise InputError(f"verdict: got {verdict!r}, expected one of {', '.join(MEANINGS)}")
        return tuple(piece for piece in self.pieces if piece.verdict == verdict)

    @property
    def headline(self) -> str:
        """The answer, in one line."""
        counts = collections.Counter(piece.verdict for piece in self.pieces)
        said = [f"{counts[verdict]} {verdict}" for verdict in MEANINGS if counts[verdict]]
        count = len(self.pieces)
        return f"{count} piece{'' if count == 1 else 's'}: {', '.join(said) or 'nothing to check'}"

    @property
    def counts(self) -> str:
        """How many messages were judged, skipped and unreadable, with the reasons, in one line."""
        judged = sum(piece.reason is None for piece in self.pieces)
        said = [f"judged: {judged}"]
        for name, reasons in (("skipped", self.skipped), ("unreadable", self.unreadable)):
            most = sorted(reasons.items(), key=lambda each: -each[1])
            why = [f"{harmless(reason)} {count}" for reason, count in most[:_REASONS]]
            if most[_REASONS:]:
                why.append(f"other reasons {sum(count for _, count in most[_REASONS:])}")
            named = f" ({', '.join(why)})" if why else ""
            said.append(f"{name}: {sum(reasons.values())}{named}")
        return "; ".join(said)

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON (`iet.claims/1`): no text and no key is in it."""
        return {
            "schema": CLAIMS_SCHEMA,
            "level": self.level,
            "registry_digest": self.registry_digest,
            "agents": list(self.agents),
            **({} if self.sessions is None else {"sessions": self.sessions}),
            "skipped": dict(self.skipped),
            "unreadable": dict(self.unreadable),
            "pieces": [{**dataclasses.asdict(piece), "note": piece.note} for piece in self.pieces],
        }

    def rows(self) -> list[tuple[str, ...]]:
        """Return the cells of `COLUMNS` for each piece."""
        return [
            (
                str(piece.index),
                piece.claim or "",
                piece.verdict,
                piece.agent or "",
                "" if piece.verdict == "skipped" else p_value(piece.log_p),
                "" if piece.verdict == "skipped" else f"{piece.counted} of {piece.tokens}",
                piece.note,
            )
            for piece in self.pieces
        ]

    def text(self, width: int | None = None) -> str:
        """Return it as lines of a terminal of that width; None: as wide as it takes."""
        lines = [self.headline, self.counts, ""]
        for row in table([COLUMNS, *self.rows()], width, wraps=6):
            lines += row
        return "\n".join([*lines, "", *self.legend()])

    def legend(self) -> list[str]:
        """Return what the verdicts say, as far as they occur."""
        said = {piece.verdict for piece in self.pieces}
        return [
            *(f"{verdict}: {meaning}" for verdict, meaning in MEANINGS.items() if verdict in said),
            f"chance, at most, that any claim is confirmed wrongly: {self.level:g}; contradicted wrongly:"
            f" {self.level:g}. Words that stood in an earlier piece are evidence for no agent.",
        ]

    def to_csv(self) -> str:
        """Return the pieces as CSV, with a head; log_p is a natural logarithm."""
        held = io.StringIO()
        writer = csv.writer(held, lineterminator="\r\n")
        writer.writerow(
            ["piece", "claim", "verdict", "agent", "log_p", "tokens", "counted", "repeated", "note"]
        )
        for piece in self.pieces:
            numbers = [piece.log_p, piece.tokens, piece.counted, piece.repeated]
            texts = [no_formula(text or "") for text in (piece.claim, piece.verdict, piece.agent, piece.note)]
            writer.writerow([piece.index, *texts[:3], *numbers, texts[3]])
        return held.getvalue()

    def to_html(self, about: tuple[str, ...] = ()) -> str:
        """Return it as a page: HTML that loads nothing and has no script; `about` are lines for its head."""
        from iet.report.html import table_page

        return table_page(
            " · ".join(["iet: who wrote which piece", *about[:1]]),
            "Did they write what they are said to have written?",
            COLUMNS,
            ((row[2], None, row) for row in self.rows()),
            above=[*about, self.headline, self.counts],
            below=self.legend(),
        )

    def events(self) -> list[dict[str, Any]]:
        """Return the attributes of one OpenTelemetry event a piece, for `iet.report.telemetry.emit`."""
        found = []
        for piece in self.pieces:
            if piece.verdict == "skipped":
                continue
            attributes = {
                "gen_ai.evaluation.name": EVALUATION,
                "gen_ai.evaluation.score.label": piece.verdict,
                "gen_ai.evaluation.explanation": piece.note or None,
                "gen_ai.agent.name": piece.claim,
                "iet.agent": piece.agent,
                "iet.session": piece.session,
                "iet.log_p": piece.log_p,
                "iet.piece": piece.index,
                "iet.level": self.level,
                "iet.registry_digest": self.registry_digest,
            }
            found.append({name: value for name, value in attributes.items() if value is not None})
        return found
