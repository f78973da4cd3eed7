"""smolagents: the steps in an agent's memory, of one agent or under the agents' names.

Steps do not name their agent. The answer of a managed agent is in the observation of the step that called it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from iet.audit.traces.messages import Message, read
from iet.audit.traces.pieces import Piece

_MANAGED = re.compile(
    r"Here is the final answer from your managed agent '([^']+)':\n(.*?)"
    r"(?=\n+(?:Last output from|For more detail, find below|Here is the final answer from)|\Z)",
    re.DOTALL,
)


def is_of(item: Any) -> bool:
    """Tell whether a value is a step, or steps under the names of agents."""
    return _is_step(item) or (
        isinstance(item, dict)
        and bool(item)
        and all(isinstance(steps, list) and any(map(_is_action, steps)) for steps in item.values())
    )


def pieces(items: list[Any], agents: frozenset[str]) -> list[Piece]:
    """Return a piece for each text of a step."""
    return read((message for item in items for message in _messages(item)), agents)


def _is_step(item: Any) -> bool:
    return _is_action(item) or (
        isinstance(item, dict) and isinstance(item.get("task"), str) and "task_images" in item
    )


def _is_action(item: Any) -> bool:
    return isinstance(item, dict) and "step_number" in item and "observations" in item


def _messages(item: dict[str, Any]) -> Iterator[Message]:
    if _is_step(item):
        yield from _step(item, None)
        return
    for agent, steps in item.items():
        for step in steps:
            if _is_step(step):
                yield from _step(step, agent)


def _step(step: dict[str, Any], agent: str | None) -> Iterator[Message]:
    yield Message({"role": "user", "content": step.get("task")})
    yield Message({"role": "assistant", "content": step.get("model_output")}, agent)
    tool_calls = step["tool_calls"] if isinstance(step.get("tool_calls"), list) else ()
    functions = [call["function"] for call in tool_calls if isinstance(call, dict) and "function" in call]
    functions = [function for function in functions if isinstance(function, dict)]
    for function in functions:
        if function.get("name") == "final_answer":
            arguments = function.get("arguments")
            answer = arguments.get("answer") if isinstance(arguments, dict) else arguments
            yield Message({"role": "assistant", "content": answer}, agent)
    observation = step.get("observations")
    for managed in _MANAGED.finditer(observation) if isinstance(observation, str) else ():
        if any(_calls(function, managed[1]) for function in functions):  # any tool may put out these words
            yield Message({"role": "assistant", "content": managed[2].strip("\n")}, managed[1])
    yield Message({"role": "tool", "content": observation})


def _calls(function: dict[str, Any], agent: str) -> bool:
    """Tell whether a step's call is of an agent, or of code that calls it."""
    return function.get("name") == agent or (
        function.get("name") == "python_interpreter"
        and re.search(rf"\b{re.escape(agent)}\s*\(", str(function.get("arguments"))) is not None
    )
