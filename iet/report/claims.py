"""The result of checking who wrote which piece: data, sentences, a table, a page and events."""

from __future__ import annotations

import collections
import csv
import dataclasses
import io
import shlex
from collections.abc import Mapping
from typing import Any, Literal

from iet.errors import InputError
from iet.report.lines import harmless, table
from iet.report.wording import p_value

CLAIMS_SCHEMA = "iet.claims/1"

Verdict = Literal["confirmed", "contradicted", "named", "unknown name", "open", "skipped"]

MEANINGS: dict[Verdict, str] = {
    "confirmed": "the mark of the claimed agent is in it",
    "contradicted": "the mark of another agent is in it, and that of the claimed agent was not found",
    "named": "no agent was claimed, and the mark of this agent is in it",
    "unknown name": "no key of the claimed name was read, so the claim is neither confirmed nor contradicted;"
    " iet check --agent NAME=AGENT maps the name to an agent",
    "open": "no mark was found: the piece is too short, too predictable or not marked; this is no finding",
    "skipped": "not checked, for the reason in the note; iet check --agent NAME=AGENT maps a role or a user's"
    " name to an agent",
}
"""Verdict -> its meaning in words."""

EXCLUDED = "said to be no agent's"
"""Reason of pieces that the caller excluded by their number alone."""

COLUMNS = ("piece", "claimed agent", "verdict", "mark of", "p", "tokens", "note")

MAX_REASONS = 8
"""Maximum number of reasons in one line."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of a cell that a spreadsheet reads as a formula."""

EVALUATION = "iet.claim"
"""`gen_ai.evaluation.name` of the events."""


@dataclasses.dataclass(frozen=True)
class CheckedPiece:
    """A piece of text, and the verdict on its claimed agent.

    Attributes:
        index: of the piece, from 0.
        claim: the name of the claimed agent, None without a claim.
        verdict: see `MEANINGS`.
        agent: the agent whose mark is in it: the claimed agent ("confirmed") or another one
            ("contradicted", "named", "unknown name").
        log_p: natural logarithm of the p-value of the verdict, corrected for the number of pieces and, if it
            is about another agent than the claimed one, for the number of agents. If the claim is open: of
            the claimed agent's mark.
        also: another agent whose mark is in a confirmed piece as well.
        characters, tokens: its length.
        counted: number of tokens that are evidence.
        repeated: number of tokens that repeat the same words of an earlier piece, and are no evidence.
        published: number of tokens that were published before, and are no evidence; None: no index was read.
        enough: if the claim is open: number of counted tokens that would confirm it half of the time, if its
            mark is as strong as that of the confirmed pieces; None if no piece was confirmed.
        session: id of the session whose key marked it, if it is found at the level for all agents, sessions
            and pieces together; None elsewhere, also if the agent's own key marked it.
        reason: why it was skipped; None if it was checked.
        nearest: the registered name that is most similar to an unknown name; None if no name is similar, or
            the name is registered.
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
        """Information beyond the numbers of the piece, in words."""
        notes = []
        if self.reason is not None:
            notes.append(harmless(self.reason))
        if self.verdict == "unknown name":
            option = shlex.quote(f"{harmless(self.claim or '')}={self.nearest}")
            similar = f"the nearest name is {self.nearest}: iet check --agent {option}"
            notes.append(similar if self.nearest else "no registered name is similar")
        if self.session is not None:
            notes.append(f"in session {harmless(self.session)}")
        if self.also is not None:
            notes.append(f"holds a mark of {self.also} as well")
        if self.verdict == "open":
            candidates, published = self.repeated + self.counted, self.published or 0
            if published and published >= candidates:
                notes.append(f"{published} of its tokens were published before")
            elif self.repeated and 2 * self.repeated >= candidates:
                notes.append(f"{self.repeated} of its tokens repeat an earlier piece")
            elif not self.counted:
                notes.append("it has no token that can be read")
            elif self.enough is not None:
                condition = "" if self.counted < self.enough else ", with the entropy of the confirmed pieces"
                notes.append(f"about {self.enough} counted tokens would suffice{condition}")
        return "; ".join(notes)


HandOver = tuple[str | None, str]
"""The agent that hands over, None if the record does not name it, and the agent that takes over."""


@dataclasses.dataclass(frozen=True)
class HandOvers:
    """The hand-overs that a record claims, compared with those that the marks show.

    The marks show one where two checked pieces, one after the other, have the marks of two agents. A piece
    without a mark between them hides it. All conversations of a record count as one. Each pair is listed as
    often as it occurs.

    Attributes:
        found: claimed and found.
        missing: claimed and not found.
        unclaimed: found and not claimed.
    """

    found: tuple[HandOver, ...] = ()
    missing: tuple[HandOver, ...] = ()
    unclaimed: tuple[HandOver, ...] = ()

    @property
    def lines(self) -> list[str]:
        """The comparison in words."""
        titles = {
            "hand-overs claimed and found": self.found,
            "claimed and not found": self.missing,
            "found and not claimed": self.unclaimed,
        }
        lines = []
        for title, pairs in titles.items():
            counts = collections.Counter(pairs)
            listed = [
                f"{harmless(source or 'an unnamed agent')} to {harmless(target)}{f' {n}x' if n > 1 else ''}"
                for (source, target), n in counts.most_common(MAX_REASONS)
            ]
            others = [f"{len(counts) - len(listed)} other pairs"] if len(counts) > len(listed) else []
            lines.append(f"{title}: {len(pairs)}{' (' + ', '.join(listed + others) + ')' if pairs else ''}")
        return lines


@dataclasses.dataclass(frozen=True)
class ClaimReport:
    """The result of `Auditor.check`.

    Attributes:
        pieces: the checked pieces, in order.
        agents: names of the agents whose keys were read.
        level: upper bound on the probability that any claim is confirmed although its agent wrote nothing in
            the piece, and on the probability that any piece is contradicted or named although no other agent
            than the claimed one wrote in it.
        registry_digest: of the keys.
        sessions: number of sessions whose keys were read besides the agents' own; None: none.
        skipped: number of messages that were not checked, for each reason; of a trace also of messages that
            repeat another one and are no pieces.
        unreadable: number of messages of a trace without text, and of items that are no messages, for each
            reason. They are no pieces.
        hand_overs: those that the record claims, and those that the marks show; None: the record claims none.
    """

    pieces: tuple[CheckedPiece, ...]
    agents: tuple[str, ...]
    level: float
    registry_digest: str
    sessions: int | None = None
    skipped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unreadable: Mapping[str, int] = dataclasses.field(default_factory=dict)
    hand_overs: HandOvers | None = None

    def of(self, verdict: Verdict) -> tuple[CheckedPiece, ...]:
        """Return the pieces with a verdict. Raises InputError if it is not in `MEANINGS`."""
        if verdict not in MEANINGS:
            raise InputError(f"verdict: got {verdict!r}, expected one of {', '.join(MEANINGS)}")
        return tuple(piece for piece in self.pieces if piece.verdict == verdict)

    @property
    def headline(self) -> str:
        """The answer, in one line."""
        counts = collections.Counter(piece.verdict for piece in self.pieces)
        listed = ", ".join(f"{counts[verdict]} {verdict}" for verdict in MEANINGS if counts[verdict])
        count = len(self.pieces)
        return f"{count} piece{'' if count == 1 else 's'}: {listed or 'nothing to check'}"

    @property
    def counts(self) -> str:
        """Numbers of messages that were checked, skipped and unreadable, with the reasons, in one line."""
        parts = [f"judged: {sum(piece.reason is None for piece in self.pieces)}"]
        for name, reasons in (("skipped", self.skipped), ("unreadable", self.unreadable)):
            ranked = sorted(reasons.items(), key=lambda item: -item[1])
            listed = [f"{harmless(reason)} {count}" for reason, count in ranked[:MAX_REASONS]]
            if ranked[MAX_REASONS:]:
                listed.append(f"other reasons {sum(count for _, count in ranked[MAX_REASONS:])}")
            why = f" ({', '.join(listed)})" if listed else ""
            parts.append(f"{name}: {sum(reasons.values())}{why}")
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form (`iet.claims/1`), which holds no text and no key."""
        return {
            "schema": CLAIMS_SCHEMA,
            "level": self.level,
            "registry_digest": self.registry_digest,
            "agents": list(self.agents),
            **({} if self.sessions is None else {"sessions": self.sessions}),
            "skipped": dict(self.skipped),
            "unreadable": dict(self.unreadable),
            **({} if self.hand_overs is None else {"hand_overs": dataclasses.asdict(self.hand_overs)}),
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
        """Return it as plain text in lines of at most `width` cells; None: no limit."""
        lines = [self.headline, self.counts, ""]
        for row in table([COLUMNS, *self.rows()], width, wraps=6):
            lines += row
        return "\n".join([*lines, "", *self.legend()])

    def legend(self) -> list[str]:
        """Return the hand-overs, the meanings of the verdicts that occur, and what the level bounds."""
        occurring = {piece.verdict for piece in self.pieces}
        return [
            *([] if self.hand_overs is None else ["; ".join(self.hand_overs.lines)]),
            *(f"{verdict}: {meaning}" for verdict, meaning in MEANINGS.items() if verdict in occurring),
            f"probability, at most, that any claim is confirmed wrongly: {self.level:g}; that any is"
            f" contradicted wrongly: {self.level:g}. Words that repeat an earlier piece are evidence for no"
            " agent.",
        ]

    def to_csv(self) -> str:
        """Return the pieces as CSV with a header; log_p is a natural logarithm."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\r\n")
        columns = ["piece", "claim", "verdict", "agent", "log_p", "tokens", "counted", "repeated", "note"]
        writer.writerow(columns)
        for piece in self.pieces:
            cells = (getattr(piece, "index" if name == "piece" else name) for name in columns)
            writer.writerow([f"'{x}" if isinstance(x, str) and x.startswith(_FORMULA) else x for x in cells])
        return file.getvalue()

    def to_html(self, about: tuple[str, ...] = ()) -> str:
        """Return it as a page without scripts that loads nothing; `about` are lines above its table."""
        from iet.report.html import table_page

        return table_page(
            " · ".join(["iet: who wrote which piece", *about[:1]]),
            "Did the claimed agents write these pieces?",
            COLUMNS,
            ((row[2], None, row) for row in self.rows()),
            above=[*about, self.headline, self.counts],
            below=self.legend(),
        )

    def events(self) -> list[dict[str, Any]]:
        """Return the attributes of an OpenTelemetry event for each piece, for `iet.report.telemetry.emit`."""
        events = []
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
            events.append({name: value for name, value in attributes.items() if value is not None})
        return events
