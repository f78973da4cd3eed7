"""AG2 1.x: the events of an agent's stream. Only the answer of a subtask names its agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from iet.audit.traces.content import all_text_of
from iet.audit.traces.messages import Message, read
from iet.audit.traces.pieces import Piece


def is_of(item: Any) -> bool:
    """Tell whether a value is an event."""
    return isinstance(item, dict) and isinstance(item.get("__event__"), str)


def pieces(items: list[Any], agents: frozenset[str]) -> list[Piece]:
    """Return a piece for each request, each answer of a model, of a subtask and of a tool."""
    return read((message for item in items for message in _messages(item)), agents)


def _messages(item: dict[str, Any]) -> Iterator[Message]:
    event = item["__event__"].rpartition(".")[2]
    if event == "ModelRequest":
        yield Message({"role": "user", "content": all_text_of(item.get("parts"))})
    elif event == "ModelResponse" and isinstance(item.get("message"), dict):
        yield Message({"role": "assistant", "content": item["message"].get("content")})
    elif event == "TaskCompleted":
        agent = item.get("agent_name")
        yield Message(
            {"role": "assistant", "content": item.get("result")}, agent if isinstance(agent, str) else None
        )
    elif event == "ToolResultEvent" and isinstance(item.get("result"), dict):
        data = item["result"].get("data")
        yield Message(
            {"role": "tool", "content": all_text_of(data.get("parts") if isinstance(data, dict) else None)}
        )
