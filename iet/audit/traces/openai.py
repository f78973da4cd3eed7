"""Answers of model APIs: OpenAI's completions and responses, lines of its and Anthropic's batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from iet.audit.traces.messages import Message, read
from iet.audit.traces.pieces import Piece


def is_of(item: Any) -> bool:
    """Tell whether a value is the answer of a model API, or a line of a batch's results."""
    answer = _answer(item)
    return isinstance(answer, dict) and (
        (isinstance(answer.get("choices"), list) and "id" in answer)
        or (answer.get("object") == "response" and isinstance(answer.get("output"), list))
        or (answer is not item and "role" in answer)
    )


def pieces(items: list[Any], agents: frozenset[str]) -> list[Piece]:
    """Return a piece for each message of each answer. No answer names its writer."""
    return [piece for item in items for piece in read(_messages(_answer(item)), agents)]


def _answer(item: Any) -> Any:
    """Return the answer in the line of a batch; other values as they are."""
    if isinstance(item, dict) and "custom_id" in item:
        for holder, field in (("response", "body"), ("result", "message")):
            if isinstance(item.get(holder), dict) and isinstance(item[holder].get(field), dict):
                return item[holder][field]
    return item


def _messages(answer: dict[str, Any]) -> Iterator[Message]:
    instructions = answer.get("instructions")
    if isinstance(instructions, str):
        yield Message({"role": "system", "content": instructions})
    choices, output = answer.get("choices"), answer.get("output")
    if isinstance(choices, list):
        for choice in choices:
            yield Message(choice.get("message") if isinstance(choice, dict) else choice)
    elif isinstance(output, list):
        yield from map(Message, output)
    else:
        yield Message(answer)
