"""Chat messages, as OpenAI's API, LangChain and LangGraph write them."""

from __future__ import annotations

from typing import Any

from iet.audit.traces.pieces import AGENT_ROLES, Piece, text_of


def is_of(document: Any) -> bool:
    """Tell whether the document is a list of messages, or an object that holds one."""
    values = _list(document)
    return bool(values) and all(_role(_flat(value)) is not None for value in values)


def pieces(document: Any, agents: frozenset[str]) -> list[Piece]:
    """Return a piece for each message that has text."""
    return [piece_of(value, agents, f"message {i}") for i, value in enumerate(_list(document))]


def piece_of(value: Any, agents: frozenset[str], where: str, claim: str | None = None) -> Piece:
    """Return one message as a piece, under its own name or else under `claim`."""
    message = _flat(value)
    role, name = _role(message) or "", message.get("name") or message.get("source")
    name = name if isinstance(name, str) and name else None
    said = text_of(message.get("content", message.get("parts")))
    # In the log of one agent, what another one said stands as a user's, under its name.
    is_agent = role in AGENT_ROLES or name in agents or (role == "" and (claim or name) is not None)
    return Piece(said, (name or claim) if is_agent else None, is_agent, where)


def _list(document: Any) -> list[Any]:
    if isinstance(document, dict):
        inner = document.get("messages")
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
    return value


_TYPES = frozenset(
    {"human", "ai", "system", "tool", "function", "chat", "remove", "TextMessage", "AIMessageChunk"}
    | {"HumanMessage", "AIMessage", "SystemMessage", "ToolMessage", "FunctionMessage", "ChatMessage"}
)


def _role(message: dict[str, Any]) -> str | None:
    role = message.get("role")
    if isinstance(role, str):
        return role
    kind = message.get("type")
    if isinstance(kind, str) and kind in _TYPES:
        return kind
    return "assistant" if isinstance(message.get("source"), str) and "content" in message else None
