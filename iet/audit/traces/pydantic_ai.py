"""Pydantic AI's messages: `ModelMessagesTypeAdapter.dump_json(result.all_messages())`. They name no agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from iet.audit.traces.messages import Message, read
from iet.audit.traces.pieces import Piece

_ROLES = {
    "text": "assistant",
    "user-prompt": "user",
    "system-prompt": "system",
    "instructions": "system",
    **dict.fromkeys(("tool-return", "builtin-tool-return", "retry-prompt"), "tool"),
}
"""Kind of part -> role; other parts hold no text of anyone."""


def is_of(item: Any) -> bool:
    """Tell whether a value is a request or a response."""
    return (
        isinstance(item, dict)
        and item.get("kind") in ("request", "response")
        and isinstance(item.get("parts"), list)
    )


def pieces(items: list[Any], agents: frozenset[str]) -> list[Piece]:
    """Return a piece for each message; the text parts of a response are one."""
    return read((message for item in items for message in _messages(item)), agents)


def _messages(item: dict[str, Any]) -> Iterator[Message]:
    if isinstance(item.get("instructions"), str):
        yield Message({"role": "system", "content": item["instructions"]})
    parts = [part for part in item["parts"] if isinstance(part, dict)]
    if item["kind"] == "response":
        texts = [part.get("content") for part in parts if part.get("part_kind") == "text"]
        yield Message(
            {"role": "assistant", "content": "".join(text for text in texts if isinstance(text, str))}
        )
        return
    for part in parts:
        yield Message(
            {"role": _ROLES.get(str(part.get("part_kind")), "tool"), "content": part.get("content")}
        )
