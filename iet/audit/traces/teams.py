"""Outputs of teams: CrewAI's tasks, log and events of models' calls, and the runs of Agno's agents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from iet.audit.traces import roles
from iet.audit.traces.content import parsed
from iet.audit.traces.messages import Message, read
from iet.audit.traces.pieces import Piece

_DELEGATES = ("delegate_work_to_coworker", "ask_question_to_coworker")
"""Tools that call another agent; their result is that agent's text."""


_AGNO = ("agent_name", "team_name")


def is_of(item: Any) -> bool:
    """Tell whether a value is the output of a task or a run, an entry of a log, or an event of a call."""
    if not isinstance(item, dict):
        return False
    if any(isinstance(item.get(name), str) for name in _AGNO):
        return "run_id" in item and "messages" in item
    if isinstance(item.get("agent_role"), str):
        return "response" in item and "messages" in item
    return isinstance(item.get("agent"), str) and (
        ("raw" in item and "description" in item) or ("task" in item and "status" in item)
    )


def pieces(items: list[Any], agents: frozenset[str]) -> list[Piece]:
    """Return a piece for each task's output and model's answer, and for prompts and tools' outputs."""
    return read((message for item in items for message in _messages(item)), agents)


def _messages(item: dict[str, Any]) -> Iterator[Message]:
    for run in item["member_responses"] if isinstance(item.get("member_responses"), list) else ():
        if is_of(run):
            yield from _messages(run)
    agent = next(
        (item[name] for name in ("agent", "agent_role", *_AGNO) if isinstance(item.get(name), str)), None
    )
    coworkers = dict[str, str]()
    for message in item["messages"] if isinstance(item.get("messages"), list) else ():
        role = message.get("role") if isinstance(message, dict) else None
        if roles.kind_of(role if isinstance(role, str) else "") != roles.AGENT:
            coworker = coworkers.get(str(message.get("tool_call_id"))) if isinstance(message, dict) else None
            if coworker is not None:
                yield Message({"role": "assistant", "content": message.get("content")}, coworker)
            yield Message(message)
        elif "agent" in item:  # a task's messages are its agent's; an event's messages may be by any agent
            coworkers |= dict(_coworkers(message.get("tool_calls")))
            yield Message(message, agent)
    output = next(
        (item[name] for name in ("raw", "output", "response", "content") if isinstance(item.get(name), str)),
        None,
    )
    yield Message({"role": "assistant", "content": output}, agent)


def _coworkers(tool_calls: Any) -> Iterator[tuple[str, str]]:
    """Yield (id of the call, agent) of calls that delegate."""
    for call in tool_calls if isinstance(tool_calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and function.get("name") in _DELEGATES:
            arguments = parsed(function.get("arguments"))
            coworker = arguments.get("coworker") if isinstance(arguments, dict) else None
            if isinstance(coworker, str):
                yield str(call.get("id")), coworker
