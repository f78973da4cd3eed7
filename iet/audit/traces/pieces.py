"""The messages of a record of a conversation, and the number that was left out for each reason."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from iet.audit.traces.roles import CHUNK

REPEAT = "repeats another message"
NO_TEXT = "no text"


@dataclasses.dataclass(frozen=True)
class Piece:
    """One message.

    Attributes:
        text: of it.
        claim: the name that the record gives its writer; None without.
        skipped: why it is not judged, such as "tool output"; None: it is an agent's own text.
        where: what it is in the record, for people.
    """

    text: str
    claim: str | None
    skipped: str | None = None
    origin: str = ""


@dataclasses.dataclass(frozen=True)
class Trace:
    """The messages of a record.

    Attributes:
        pieces: those with text, once for each claimed name.
        left_out: number of messages that are no pieces because their text is in one, for each reason.
        unreadable: number of messages without text for each reason.
    """

    pieces: tuple[Piece, ...]
    left_out: Mapping[str, int]
    unreadable: Mapping[str, int]

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Trace:
        """Sort out messages without text, and those that repeat another one.

        An agent's text is also the input of later calls, and a text with a name may lack it in the call that
        was wrapped.
        """
        messages = list(pieces)
        texts = [piece for piece in messages if piece.text.strip() and piece.skipped != CHUNK]
        of_agents = {piece.text for piece in texts if piece.skipped is None}
        named = {piece.text for piece in texts if piece.claim is not None}
        pieces_kept = dict[tuple[str, str | None], Piece]()
        for piece in texts:
            is_input = piece.skipped is not None and piece.text in of_agents
            if not is_input and (piece.claim is not None or piece.text not in named):
                pieces_kept.setdefault((piece.text, piece.claim), piece)
        left_out = {REPEAT: len(texts) - len(pieces_kept), CHUNK: sum(p.skipped == CHUNK for p in messages)}
        empty = (piece for piece in messages if not piece.text.strip() and piece.skipped != CHUNK)
        return cls(
            tuple(pieces_kept.values()),
            {reason: count for reason, count in left_out.items() if count},
            collections.Counter(piece.skipped or NO_TEXT for piece in empty),
        )


JOINER = "\n\n"
"""Stands between two pieces of a conversation, and belongs to the one before it."""


class Conversation(NamedTuple):
    """A text, and the characters at which its pieces but the first begin."""

    text: str
    boundaries: list[int]


def joined(pieces: Iterable[Piece]) -> Conversation:
    """Join pieces in their order to what `Auditor.audit` reads with known `boundaries`."""
    texts = [piece.text for piece in pieces]
    ends = itertools.accumulate(len(text) + len(JOINER) for text in texts)
    return Conversation(JOINER.join(texts), list(ends)[:-1])


_FARTHEST = 256
"""Number of enclosing spans that are looked at: an agent's is near, and long chains are made on purpose."""


def around(
    inner: Mapping[str, Any], by_id: Mapping[str, Mapping[str, Any]], parent: str
) -> Iterator[Mapping[str, Any]]:
    """Yield a span, the one around it, and so on, as far as ids lead.

    Args:
        inner: the span.
        by_id: all of them, as `by_text` makes it.
        parent: name of the field that holds the id of the one around.
    """
    here: Mapping[str, Any] | None = inner
    for _ in range(_FARTHEST):
        if here is None:
            return
        yield here
        above = here.get(parent)
        here = by_id.get(above) if isinstance(above, str) else None


def by_text(values: Iterable[Mapping[str, Any]], field: str) -> dict[str, Mapping[str, Any]]:
    """Return the objects by a field; only strings count, because untrusted JSON may hold anything."""
    return {piece[field]: piece for piece in values if isinstance(piece.get(field), str)}
