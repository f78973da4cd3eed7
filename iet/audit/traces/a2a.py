"""A2A: tasks, status updates and artifacts, of versions 0.3 and 1.0, also in answers of JSON-RPC.

The protocol names no agent, only the role. Google ADK's server states the author of a status or an artifact.
"""

from __future__ import annotations

import collections
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
    by_task = collections.defaultdict[Any, list[Message]](list)
    targets = dict[str, str]()
    for item in items:
        task = field_of(item, "task_id") or item.get("id")
        by_task[task if isinstance(task, str) else None] += _messages(item, targets)
    return [piece for messages in by_task.values() for piece in read(messages, agents)]


def _messages(item: dict[str, Any], targets: dict[str, str]) -> Iterator[Message]:
    metadata = item.get("metadata")
    author = metadata.get("adk_author") if isinstance(metadata, dict) and "history" not in item else None
    author = author if isinstance(author, str) else None
    for value in item["history"] if isinstance(item.get("history"), list) else ():
        yield Message(value, None, _transfer(value, None, targets))
    status = item.get("status")
    if isinstance(status, dict) and isinstance(status.get("message"), dict):
        yield Message(status["message"], author, _transfer(status["message"], author, targets))
    artifacts = item["artifacts"] if isinstance(item.get("artifacts"), list) else []
    for artifact in [*artifacts, item.get("artifact"), item]:
        if isinstance(artifact, dict) and isinstance(identity := field_of(artifact, "artifact_id"), str):
            is_part = item.get("append") is True
            parts = {"role": "agent", "parts": artifact.get("parts")}
            yield Message(parts, author, part_of=identity, is_whole=not is_part)


def _transfer(message: Any, source: str | None, targets: dict[str, str]) -> Transfer | None:
    """Return the hand-over that a result of Google ADK's function confirms; `targets` collects its calls."""
    parts = message.get("parts") if isinstance(message, dict) else None
    for part in parts if isinstance(parts, list) else ():
        data = part.get("data") if isinstance(part, dict) else None
        if not isinstance(data, dict) or data.get("name") != "transfer_to_agent":
            continue
        identity, arguments = str(data.get("id")), data.get("args")
        if isinstance(arguments, dict) and isinstance(arguments.get("agent_name"), str):
            targets[identity] = arguments["agent_name"]
        elif "response" in data and identity in targets:
            return Transfer(source, targets[identity], identity)
    return None
