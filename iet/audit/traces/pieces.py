"""A piece of a conversation, and the text of what chat APIs call content."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

AGENT_ROLES = frozenset({"assistant", "ai", "AIMessage", "AIMessageChunk", "model"})
"""What an agent's message says it is, in any of the APIs."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """What one party said at once.

    Attributes:
        text: of it.
        claim: the name that it came under, None without.
        agents: whether it is an agent's text; else it is a user's, a tool's or a system's.
        where: what it is in the record, for people.
    """

    text: str
    claim: str | None
    agents: bool
    where: str = ""


def distinct(pieces: Iterable[Piece]) -> list[Piece]:
    """Return each text once for each name that it came under, where it first did; empty ones are left out.

    A text that is an agent's somewhere stands elsewhere as the input of another call, and one that came
    under a name may stand without it in the call that was wrapped.
    """
    kept = [piece for piece in pieces if piece.text.strip()]
    agents = {piece.text for piece in kept if piece.agents}
    named = {piece.text for piece in kept if piece.claim is not None}
    found = dict[tuple[str, str | None], Piece]()
    for piece in kept:
        of_agent = piece.agents or piece.text not in agents
        if of_agent and (piece.claim is not None or piece.text not in named):
            found.setdefault((piece.text, piece.claim), piece)
    return list(found.values())


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


def text_of(content: Any) -> str:
    """Return the text of a message's content: a string, or a list of parts, of which some are text."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return ""
    return "".join(part if isinstance(part, str) else _part(part) for part in content)


def _part(part: Any) -> str:
    if not isinstance(part, dict) or part.get("type", "text") not in ("text", "output_text", "input_text"):
        return ""
    text = part.get("text", part.get("content"))
    return text if isinstance(text, str) else ""


_FARTHEST = 256
"""Number of spans around one that are looked at: an agent's is near, and long chains are made on purpose."""


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
    """Return the objects by a field, as far as it holds a string: a stranger's JSON may hold anything."""
    return {each[field]: each for each in values if isinstance(each.get(field), str)}


def parsed(value: Any) -> Any:
    """Return what a string of JSON holds; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def messages_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the messages of what a call took in or put out: one, a list, or an API's response around them."""
    value = parsed(value)
    if isinstance(value, str):
        yield {"role": "", "content": value}
    elif isinstance(value, list):
        for each in value:
            if isinstance(each, (dict, str)):
                yield from messages_in(each)
            elif isinstance(each, list):  # LangChain's callbacks give a list for each prompt of a batch
                yield from (inner for inner in each if isinstance(inner, dict))
    elif isinstance(value, dict):
        for key in ("messages", "choices", "message"):
            if isinstance(value.get(key), (list, dict)):
                yield from messages_in(value[key])
                return
        yield value
