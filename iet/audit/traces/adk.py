"""Google's Agent Development Kit: events of sessions, and evaluation sets, in camel or snake case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from iet.audit.traces import roles
from iet.audit.traces.content import field_of
from iet.audit.traces.messages import Message, read
from iet.audit.traces.pieces import Piece, Transfer


def is_of(item: Any) -> bool:
    """Tell whether a value is an event, or an invocation of an evaluation set."""
    return isinstance(item, dict) and (
        (isinstance(item.get("author"), str) and ("content" in item or "actions" in item))
        or isinstance(field_of(item, "user_content"), dict)
    )


def pieces(items: list[Any], agents: frozenset[str]) -> list[Piece]:
    """Return a piece for each event with text, under the name of its author."""
    return read((message for item in items for message in _messages(item)), agents)


def _messages(item: dict[str, Any]) -> Iterator[Message]:
    if isinstance(item.get("author"), str):
        yield _event(item)
        return
    yield Message(_said(field_of(item, "user_content"), None))
    data = field_of(item, "intermediate_data")
    data = data if isinstance(data, dict) else {}
    events = field_of(data, "invocation_events")
    for event in events if isinstance(events, list) else ():
        if isinstance(event, dict) and isinstance(event.get("author"), str):
            yield _event(event)
    answers = field_of(data, "intermediate_responses")
    for answer in answers if isinstance(answers, list) else ():
        if isinstance(answer, list) and len(answer) == 2 and isinstance(answer[0], str):
            yield Message(_said({"role": "model", "parts": answer[1]}, answer[0]))
    last = (
        events[-1].get("author")
        if isinstance(events, list) and events and isinstance(events[-1], dict)
        else None
    )
    yield Message(_said(field_of(item, "final_response"), last if isinstance(last, str) else None))


def _event(event: dict[str, Any]) -> Message:
    author = event["author"]
    message = _said(event.get("content"), author)
    if event.get("partial") is True:
        message["role"] = roles.CHUNK
    return Message(message, transfer=_transfer(event, author))


def _transfer(event: dict[str, Any], author: str) -> Transfer | None:
    """Return the hand-over in an event: the call of the tool, or its result, which have one id."""
    target = identity = None
    for part in _parts(event.get("content")):
        for name in ("function_call", "function_response"):
            call = field_of(part, name)
            if isinstance(call, dict) and call.get("name") == "transfer_to_agent":
                arguments, identity = call.get("args"), call.get("id")
                target = arguments.get("agent_name") if isinstance(arguments, dict) else target
    actions = event.get("actions")
    target = (field_of(actions, "transfer_to_agent") if isinstance(actions, dict) else None) or target
    if not isinstance(target, str) or not target:
        return None
    return Transfer(author, target, identity if isinstance(identity, str) else None)


def _parts(content: Any) -> list[dict[str, Any]]:
    parts = content.get("parts") if isinstance(content, dict) else None
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _said(content: Any, author: str | None) -> dict[str, Any]:
    """Return content as a chat message; the results of functions are a tool's."""
    parts = [part for part in _parts(content) if not part.get("thought")]
    results = [field_of(part, "function_response") for part in parts]
    results = [result.get("response") for result in results if isinstance(result, dict)]
    if results:
        return {"role": "tool", "content": results}
    role = "user" if isinstance(content, dict) and content.get("role") == "user" else "model"
    if author is not None:
        role = "user" if author == "user" else "model"
    return {"role": role, "name": None if author == "user" else author, "content": parts}
