"""Chat messages of OpenAI's API, LangChain, LangGraph, AutoGen and A2A, and logs whose roles are names."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from iet.audit.traces import roles
from iet.audit.traces.content import all_text_of, decoded, is_message, text_of
from iet.audit.traces.pieces import NO_TEXT, Piece


def is_of(document: Any) -> bool:
    """Tell whether the document is a list with messages, or an object with such a list."""
    return any(_role(_flat(value)) is not None for value in _list(document))


def pieces(document: Any, agents: frozenset[str]) -> list[Piece]:
    """Return a piece for each message, with an empty text for one that has none."""
    return [
        piece_of(value, agents, f"message {i}")
        if _role(_flat(value)) is not None
        else Piece("", None, f"no message: {_kind(value)}", f"message {i}")
        for i, value in enumerate(_list(document))
    ]


def piece_of(value: Any, agents: Collection[str], origin: str, claim: str | None = None) -> Piece:
    """Return one message as a piece, under its own name or else under `claim`.

    Args:
        value: the message. Its role decides: a tool's output is no agent's text, whatever its name.
        agents: names of agents; they count also with the role of a user, or as a role.
        origin: its place in the record.
        claim: the agent whose call returned it.
    """
    message = _flat(value)
    role = _role(message) or ""
    name = message.get("name")
    name = name if isinstance(name, str) and name else None
    kind = roles.kind_of(role)
    if "source" in message and not message.get("role"):  # AutoGen
        name = message["source"] if isinstance(message["source"], str) and message["source"] else name
        event = message.get("type")
        kind = roles.kind_of_event(event if isinstance(event, str) else "")
        if kind == roles.AGENT and name not in agents and roles.kind_of(name or "") == roles.USER:
            kind = roles.USER
    skipped: str | None = kind
    if kind in (None, roles.AGENT, roles.USER) and name in agents:
        # In the log of one agent, the messages of the others have the role of a user.
        skipped = None
    elif roles.is_name(role, agents):
        name, skipped = role, None
    elif kind == roles.AGENT or (kind is None and not role and (claim or name) is not None):
        skipped = None
    elif kind is None:
        skipped = f"role {role!r:.60}, which is no agent of the registry" if role else roles.UNNAMED
    elif kind == roles.USER and name is not None and roles.kind_of(name) != roles.USER:
        skipped = f"{kind} under the name {name!r:.60}"
    content = message.get("content", message.get("parts", message.get("result")))
    content_text = text_of(content) if skipped is None else all_text_of(content)
    if not content_text.strip():
        return Piece("", None, NO_TEXT, origin)
    return Piece(content_text, (name or claim) if skipped is None else None, skipped, origin)


def output_of(value: Any, agents: Collection[str], origin: str, claim: str | None) -> Piece:
    """Return a message that a call returned as a piece; without a role it is the agent's."""
    message = _flat(value)
    return piece_of(message if _role(message) else {**message, "role": "assistant"}, agents, origin, claim)


def input_of(value: Any, agents: Collection[str], origin: str) -> Piece:
    """Return a message in the input of a call as a piece; it is judged only if it names an agent."""
    piece = piece_of(value, agents, origin)
    if piece.skipped == roles.UNNAMED or (piece.skipped is None and piece.claim not in agents):
        return Piece(piece.text, None, roles.INPUT, origin)
    return piece


def _list(document: Any) -> list[Any]:
    if isinstance(document, dict):
        inner = document.get("messages", document.get("history"))
        if inner is None and isinstance(document.get("values"), dict):  # a snapshot of LangGraph's state
            inner = document["values"].get("messages")
        document = inner
    return document if isinstance(document, list) else []


def _flat(value: Any) -> dict[str, Any]:
    """Return the fields of a message, whatever it is wrapped in."""
    if not isinstance(value, dict):
        return {}
    if value.get("type") == "constructor" and isinstance(value.get("kwargs"), dict):  # langchain.load.dumpd
        identity = value.get("id")
        kind = identity[-1] if isinstance(identity, list) and identity else None
        return {"type": kind, **value["kwargs"]}
    if isinstance(value.get("data"), dict) and isinstance(value.get("type"), str):  # messages_to_dict
        return {**value["data"], "type": value["type"]}
    inner = decoded(value.get("content"), is_message)
    return {**value, **inner} if is_message(inner) else value


_TYPES = frozenset(
    {"human", "ai", "system", "tool", "function", "chat", "remove", "AIMessageChunk"}
    | {"HumanMessage", "AIMessage", "SystemMessage", "ToolMessage", "FunctionMessage", "ChatMessage"}
)
"""Kinds of LangChain's messages."""


def _role(message: dict[str, Any]) -> str | None:
    """Return the role of a message, empty if it has only a source; None: it is no message."""
    role = message.get("role")
    if isinstance(role, str):
        return role
    kind = message.get("type")
    if isinstance(kind, str) and kind in _TYPES:
        return kind
    is_event = "content" in message or (isinstance(kind, str) and kind.endswith(("Event", "Message")))
    return "" if isinstance(message.get("source"), str) and is_event else None


def _kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else type(value).__name__
    return f"type {kind!r:.60}" if isinstance(kind, str) else "an object without a role"
