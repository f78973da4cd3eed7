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
        text: the text of the message.
        claim: the writer's name according to the record; None: it has none.
        skipped: why it is not judged, such as "tool output"; None: it is an agent's own text.
        origin: its place in the record, for reports, such as "message 3".
    """

    text: str
    claim: str | None
    skipped: str | None = None
    origin: str = ""


@dataclasses.dataclass(frozen=True)
class Trace:
    """The messages of a record.

    Attributes:
        pieces: the messages with text, once for each claimed name.
        left_out: reason -> number of messages left out because another piece has their text.
        unreadable: reason -> number of messages without text.
    """

    pieces: tuple[Piece, ...]
    left_out: Mapping[str, int]
    unreadable: Mapping[str, int]

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Trace:
        """Leave out messages without text, and those that repeat another one.

        An agent's text is often the input of later calls too, sometimes without the agent's name.
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
"""Separates two pieces of a conversation; it counts to the first of them."""


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
"""Maximum number of enclosing spans to search for an agent: untrusted records may have endless chains."""


def around(
    inner: Mapping[str, Any], by_id: Mapping[str, Mapping[str, Any]], parent: str
) -> Iterator[Mapping[str, Any]]:
    """Yield a span, its parent, and so on, as long as the ids are known.

    Args:
        inner: the span.
        by_id: all spans, from `by_text`.
        parent: name of the field with the parent's id.
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
