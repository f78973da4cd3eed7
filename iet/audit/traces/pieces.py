"""The messages of a record of a conversation, and the number that was left out for each reason."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from iet.audit.traces.roles import CHUNK

REPEAT = "repeats another message"
NO_TEXT = "no text"


class Transfer(NamedTuple):
    """A hand-over that a record states.

    Attributes:
        source: the agent that hands over; None: the record does not say.
        target: the agent that takes over.
        id: the same for all places of the record that state this hand-over; None: this is the only one.
    """

    source: str | None
    target: str
    id: str | None = None


@dataclasses.dataclass(frozen=True)
class Piece:
    """One message.

    Attributes:
        text: the text of the message.
        claim: the writer's name according to the record; None: it has none.
        skipped: why it is not judged, such as "tool output"; None: it is an agent's own text.
        origin: its place in the record, for reports, such as "message 3".
        transfer: the hand-over that the record states here.
    """

    text: str
    claim: str | None
    skipped: str | None = None
    origin: str = ""
    transfer: Transfer | None = None

    def readable(self) -> Piece:
        """Return the piece without lone surrogates, which a text that is only compared may hold."""
        text = self.text.encode("utf-8", "replace").decode()
        return self if text == self.text else dataclasses.replace(self, text=text)


@dataclasses.dataclass(frozen=True)
class Trace:
    """The messages of a record.

    Attributes:
        pieces: the messages with text, once for each claimed name.
        left_out: reason -> number of messages left out because another piece has their text.
        unreadable: reason -> number of messages without text.
        transfers: the stated hand-overs in their order, each once.
    """

    pieces: tuple[Piece, ...]
    left_out: Mapping[str, int]
    unreadable: Mapping[str, int]
    transfers: tuple[Transfer, ...] = ()

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Trace:
        """Leave out messages without text, and those that repeat another one.

        An agent's text is often the input of later calls too, sometimes without the agent's name.
        """
        messages = [piece if piece.skipped is None else piece.readable() for piece in pieces]
        texts = [piece for piece in messages if piece.text.strip() and piece.skipped != CHUNK]
        named = {piece.text.strip() for piece in texts if piece.claim is not None}
        written = set[str]()  # texts of agents up to here
        pieces_kept = dict[tuple[str, str | None, bool], Piece]()
        for piece in texts:
            text = piece.text.strip()  # frameworks add or drop white space around a text
            is_judged = piece.skipped is None
            # Repeated words are no evidence, so an earlier copy stays and only later ones are left out.
            is_copy = piece.claim is None and text in named if is_judged else text in written
            if not is_copy:
                pieces_kept.setdefault((text, piece.claim, is_judged), piece)
            if is_judged:
                written.add(text)
        left_out = {REPEAT: len(texts) - len(pieces_kept), CHUNK: sum(p.skipped == CHUNK for p in messages)}
        empty = (piece for piece in messages if not piece.text.strip() and piece.skipped != CHUNK)
        stated = [piece.transfer for piece in messages if piece.transfer is not None]
        keys = (i if transfer.id is None else transfer[1:] for i, transfer in enumerate(stated))
        transfers = dict(zip(keys, stated, strict=True))
        return cls(
            tuple(pieces_kept.values()),
            {reason: count for reason, count in left_out.items() if count},
            collections.Counter(piece.skipped or NO_TEXT for piece in empty if piece.transfer is None),
            tuple(transfers.values()),
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
