"""Records of a conversation as pieces, in the formats of `FORMATS`.

Each format returns texts in the order of writing, with or without a name. This package knows no keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from iet.audit.traces import langfuse, messages, spans
from iet.audit.traces.parsing import parse
from iet.audit.traces.pieces import JOINER, Conversation, Piece, Trace, joined
from iet.errors import InputError

__all__ = ["JOINER", "NAMES", "Conversation", "Piece", "Trace", "joined", "parse", "read"]


class Format(NamedTuple):
    """A format of records.

    Attributes:
        name: what users call it, in messages and in the help of commands.
        is_of: whether a parsed JSON value, which may be anything, has this format.
        pieces: (document, names of agents) -> a piece for each message, in the order of writing.
    """

    name: str
    is_of: Callable[[Any], bool]
    pieces: Callable[[Any, frozenset[str]], list[Piece]]


FORMATS = (
    Format("OpenTelemetry spans (OTLP JSON)", spans.is_of, spans.pieces),
    Format("Langfuse's observations", langfuse.is_of, langfuse.pieces),
    Format("chat messages (OpenAI, LangChain, LangGraph, AutoGen, A2A)", messages.is_of, messages.pieces),
)
"""The formats. The first that recognizes a document reads it, so the most general one is last."""

_NAMES = [entry.name for entry in reversed(FORMATS)]
NAMES = f"{', '.join(_NAMES[:-1])} or {_NAMES[-1]}"
"""The names of all formats, for messages and help."""

EXPECTED = f"expected {NAMES}"


def read(document: Any, *, agents: Collection[str] = ()) -> Trace:
    """Return the messages of a parsed JSON document, or of a list of them (JSON lines).

    A text that occurs several times, like a message in the input of every later call, is one piece.
    Messages of users, tools and systems, and inputs of calls, are pieces that are not judged. Items that are
    no messages, and messages without text, are counted and skipped.

    Args:
        document: one of
            - messages, a list, {"messages": [...]} or {"history": [...]}: {"role", "content", "name"} as of
              chat completions, {"type": "ai", "content", "name"} as of LangChain's `model_dump`,
              `messages_to_dict` or `dumpd`, {"type", "source", "content"} as of AutoGen;
            - OTLP JSON, {"resourceSpans": [...]}: `gen_ai.output.messages` on a span or its event, or its
              predecessors (`gen_ai.choice`, `gen_ai.completion.0.content`), or OpenInference's
              `llm.output_messages`; under `gen_ai.agent.name` (`.id`) of the span or the nearest around it;
            - Langfuse, {"observations": [...]}, {"data": [...]} or a list: the outputs of generations,
              under the name of the enclosing agent, or of LangGraph's node.
        agents: names of agents. They count even with the role "user", which the text of one agent has when
            it is sent to another, and even if the name is the role itself.

    Raises:
        InputError: the document has another format, or no text.
    """
    try:
        pieces = _pieces(document, frozenset(agents))
    except RecursionError:  # Python 3.12 and later parse deeper JSON than functions can recurse
        raise InputError(f"got too deeply nested lists, {EXPECTED}") from None
    if pieces is None:
        raise InputError(f"got {_shape(document)}, {EXPECTED}")
    trace = Trace.of(pieces)
    if not trace.pieces:
        raise InputError(f"got no text in it, {EXPECTED}")
    return trace


def _pieces(document: Any, agents: frozenset[str]) -> list[Piece] | None:
    for entry in FORMATS:
        if entry.is_of(document):
            return entry.pieces(document, agents)
    if isinstance(document, list):  # JSON lines: each line is a document
        parts = [None if isinstance(line, list) else _pieces(line, agents) for line in document]
        unknown = [Piece("", None, "line of an unknown kind")]
        if any(part is not None for part in parts):
            return [piece for part in parts for piece in (unknown if part is None else part)]
    return None


def _shape(document: Any, inner: bool = False) -> str:
    if isinstance(document, dict):
        return f"an object with {', '.join(map(repr, list(document)[:4])) or 'nothing in it'}"[:120]
    if isinstance(document, list):
        first = f", first {_shape(document[0], inner=True)}" if document and not inner else ""
        return f"a list of {len(document)}{first}"
    return type(document).__name__
