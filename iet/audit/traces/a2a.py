"""A2A: tasks, status updates and artifacts, of versions 0.3 and 1.0, also in answers of JSON-RPC.

The protocol names no agent, only the role. Google ADK's server states the author of a status or an artifact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from iet.audit.traces.content import field_of
from iet.audit.traces.messages import Message, read
from iet.audit.traces.pieces import Piece, Transfer


def is_of(item: Any) -> bool:
    """Tell whether a value is a task, an update of one, or an artifact alone."""
    if not isinstance(item, dict):
        return False
    if isinstance(field_of(item, "artifact_id"), str):
        return True
    is_task = isinstance(field_of(item, "context_id"), str) or isinstance(field_of(item, "task_id"), str)
    return is_task and any(
        isinstance(item.get(name), (dict, list)) for name in ("status", "artifact", "artifacts")
    )


def pieces(items: list[Any], agents: frozenset[str]) -> list[Piece]:
    """Return a piece for each message, and one for each artifact, whose parts are joined."""
    return read((message for item in items for message in _messages(item)), agents)


def _messages(item: dict[str, Any]) -> Iterator[Message]:
    metadata = item.get("metadata")
    author = metadata.get("adk_author") if isinstance(metadata, dict) and "history" not in item else None
    author = author if isinstance(author, str) else None
    for value in item["history"] if isinstance(item.get("history"), list) else ():
        yield _message(value, None)
    status = item.get("status")
    if isinstance(status, dict) and isinstance(status.get("message"), dict):
        yield _message(status["message"], author)
    artifacts = item["artifacts"] if isinstance(item.get("artifacts"), list) else []
    for artifact in [*artifacts, item.get("artifact"), item]:
        if isinstance(artifact, dict) and isinstance(identity := field_of(artifact, "artifact_id"), str):
            yield Message({"role": "agent", "parts": artifact.get("parts")}, author, part_of=identity)


def _message(value: Any, author: str | None) -> Message:
    """Return a message; the calls of functions in its data are those of Google ADK."""
    parts = value.get("parts") if isinstance(value, dict) else None
    for part in parts if isinstance(parts, list) else ():
        data = part.get("data") if isinstance(part, dict) else None
        if (
            isinstance(data, dict)
            and data.get("name") == "transfer_to_agent"
            and isinstance(data.get("args"), dict)
        ):
            target, identity = data["args"].get("agent_name"), data.get("id")
            if isinstance(target, str):
                return Message(
                    value, author, Transfer(author, target, identity if isinstance(identity, str) else None)
                )
    return Message(value, author)
