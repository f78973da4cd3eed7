"""Records of a conversation as pieces, in the formats of `FORMATS`.

Each format returns texts in the order of writing, with or without a name. This package knows no keys.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from iet.audit.traces import (
    a2a,
    adk,
    ag2,
    claude_code,
    langgraph,
    messages,
    openai,
    pydantic_ai,
    smolagents,
    spans,
    stores,
    teams,
)
from iet.audit.traces.parsing import parse
from iet.audit.traces.pieces import JOINER, Conversation, Piece, Trace, joined
from iet.errors import InputError

__all__ = ["JOINER", "NAMES", "Conversation", "Piece", "Trace", "joined", "parse", "read"]


class Format(NamedTuple):
    """A format of records.

    Attributes:
        name: what users call it, in messages and in the help of commands.
        fields: fields that its items have, for messages about an unknown kind.
        is_of: whether a parsed JSON value, which may be anything, is an item of this format.
        pieces: (lists of items, names of agents) -> a piece for each message, in the order of writing.
    """

    name: str
    fields: tuple[str, ...]
    is_of: Callable[[Any], bool]
    pieces: Callable[[list[list[Any]], frozenset[str]], list[Piece]]


def _format(name: str, module: Any, *fields: str) -> Format:
    def pieces(lists: list[list[Any]], agents: frozenset[str]) -> list[Piece]:
        result: list[Piece] = module.pieces([item for items in lists for item in items], agents)
        return result

    return Format(name, fields, module.is_of, pieces)


FORMATS = (
    _format(
        "OpenTelemetry spans and log records",
        *(spans, "resourceSpans", "resourceLogs", "spanId", "span_id", "parent_id", "attributes"),
    ),
    _format(
        "calls in Langfuse, LangSmith, Weave or the Agents SDK",
        *(stores, "traceId", "parentObservationId", "run_type", "op_name", "inputs", "outputs", "startTime"),
    ),
    _format("A2A tasks and events", a2a, "contextId", "taskId", "history", "artifacts", "artifact", "status"),
    _format("CrewAI and Agno outputs", teams, "raw", "agent", "description", "agent_role", "task"),
    _format("smolagents steps", smolagents, "step_number", "model_output", "observations", "tool_calls"),
    _format(
        "Claude Code transcripts", claude_code, "parentUuid", "isSidechain", "sessionId", "uuid", "message"
    ),
    _format("answers of model APIs", openai, "choices", "custom_id", "model", "object"),
    _format("AG2 events", ag2, "__event__", "created_at", "parts"),
    _format("Google ADK events", adk, "author", "actions", "invocationId", "invocation_id"),
    _format("LangGraph streams", langgraph, "langgraph_node", "ns"),
    _format("Pydantic AI messages", pydantic_ai, "kind", "parts", "model_name", "instructions"),
    Format("chat messages", ("role", "content", "name", "source", "type"), messages.is_of, messages.pieces),
)
"""The formats. The first that recognizes an item reads it, so the most general one is last."""

NAMES = f"{', '.join(entry.name for entry in FORMATS[:-1])}, or {FORMATS[-1].name}"
"""The names of all formats, for messages and help."""


def read(document: Any, *, agents: Collection[str] = ()) -> Trace:
    """Return the messages of a parsed JSON document, or of a list of them (JSON lines).

    A text that occurs several times, like a message in the input of every later call, is one piece.
    Messages of users, tools and systems, and inputs of calls, are pieces that are not judged. Items that are
    no messages, and messages without text, are counted and skipped.

    Args:
        document: a record in one of `FORMATS`. The guide on conversations lists the fields that are read.
        agents: names of agents. They count even with the role "user", which the text of one agent has when
            it is sent to another, and even if the name is the role itself.

    Raises:
        InputError: the document has another format, or no text.
    """
    try:
        pieces = _pieces(document, frozenset(agents))
    except RecursionError:  # Python 3.12 and later parse deeper JSON than functions can recurse
        raise InputError(
            f"got too deeply nested lists, expected the record of a conversation: {NAMES}"
        ) from None
    trace = Trace.of(pieces)
    if not trace.pieces:
        raise InputError(f"got no text in it, expected the record of a conversation: {NAMES}")
    return trace


def _pieces(document: Any, agents: frozenset[str]) -> list[Piece]:
    lists, unknown = collections.defaultdict[Format, list[list[Any]]](list), list[Any]()
    top = dict[Format, list[Any]]()  # the elements that are items themselves are one list
    for element in document if isinstance(document, list) else [document]:
        entry = _format_of(element)
        if entry is None:
            unknown.append(element)
        elif entry.is_of(element):
            if entry not in top:
                lists[entry].append(top.setdefault(entry, []))
            top[entry].append(element)
        else:
            lists[entry] += _lists(element, entry, unknown, 0)
    if not lists:
        raise InputError(_problem(document, unknown))
    pieces = [piece for entry, inner in lists.items() for piece in entry.pieces(inner, agents)]
    return [*pieces, *(Piece("", None, f"no message: {messages.kind_of_item(item)}") for item in unknown)]


_DEEPEST = 12
"""Levels of objects and lists that are searched for items."""


def _format_of(element: Any) -> Format | None:
    """Return the first format that recognizes a value, or else one of the values in it, level by level."""
    level = [element]
    for _ in range(_DEEPEST):
        for entry in FORMATS:
            if any(map(entry.is_of, level)):
                return entry
        level = [inner for value in level for inner in _values(value)]
        if not level:
            break
    return None


def _values(value: Any) -> list[Any]:
    """Return the objects and lists that a value holds."""
    values = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [inner for inner in values if isinstance(inner, (dict, list))]


def _lists(value: Any, entry: Format, unknown: list[Any], depth: int) -> Iterator[list[Any]]:
    """Yield the items of each list or object that holds some; add other items of these lists to `unknown`."""
    items = [inner for inner in _values(value) if entry.is_of(inner)]
    if items:
        yield items
        unknown += (item for item in value if not entry.is_of(item)) if isinstance(value, list) else ()
    if depth < _DEEPEST:
        for inner in _values(value):
            if not entry.is_of(inner):
                yield from _lists(inner, entry, unknown, depth + 1)


def _problem(document: Any, unknown: list[Any]) -> str:
    """Return what is wrong with a document without an item that can be read."""
    if not unknown:
        return f"got a list of 0, expected the record of a conversation: {NAMES}"
    item = unknown[0]
    shape = f"{'item 1: ' if isinstance(document, list) else ''}got {_shape(item)}"
    names = set(item) if isinstance(item, dict) else set()
    nearest = max(FORMATS, key=lambda entry: len(names.intersection(entry.fields)))
    if names.isdisjoint(nearest.fields):
        return f"{shape}, expected the record of a conversation: {NAMES}"
    return f"{shape}; nearest to {nearest.name}, whose items have {', '.join(map(repr, nearest.fields))}"


def _shape(item: Any) -> str:
    if isinstance(item, dict):
        return f"an object with {', '.join(map(repr, list(item)[:4])) or 'nothing in it'}"[:120]
    return f"a list of {len(item)}" if isinstance(item, list) else type(item).__name__
