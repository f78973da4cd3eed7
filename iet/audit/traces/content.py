"""The text of what chat APIs call content: strings, lists of parts, and JSON of either inside a string."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_TEXT_PARTS = ("text", "output_text", "input_text")

_PARTS = frozenset(_TEXT_PARTS).union(
    ("tool_call", "tool_use", "tool_call_response", "tool_result", "function_call", "reasoning", "thinking"),
    ("redacted_thinking", "refusal", "image", "image_url", "input_image", "blob", "uri", "file"),
)
"""Types of parts, by which a string is told to be JSON of content and not an agent's own JSON."""

_BLOCKS = frozenset({"text", "toolUse", "toolResult", "reasoningContent", "image", "document", "cachePoint"})
"""Fields of the Bedrock API's blocks of content, which have one field each."""

_HOLDERS = ("messages", "choices", "message", "generations", "update", "outputs", "output", "log")
"""Fields of an API's response, or of a function's output, that hold messages."""

_TEXT_FIELDS = ("text", "content", "output", "response", "result", "toolResult")
"""Fields of parts that hold text, in tools' results too."""

_DEEPEST = 16
"""Levels of lists and objects in content that are read."""

_LAYERS = 4
"""Number of times that JSON inside JSON is decoded."""


def text_of(content: Any) -> str:
    """Return the text of a message's content: a string, or a list of parts, some of them text."""
    content = decoded(content)
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return ""
    return "".join(part if isinstance(part, str) else _part(part) for part in content)


def _part(part: Any) -> str:
    if not isinstance(part, dict) or part.get("type", "text") not in _TEXT_PARTS:
        return ""
    # Only a part with a type has text under "content": AutoGen's results of tools have one without a type.
    text = decoded(part.get("text", part.get("content") if "type" in part else None))
    return text if isinstance(text, str) else ""


def all_text_of(content: Any) -> str:
    """Return the text of content that is not judged, such as a tool's output: of parts of any type.

    What an agent repeats of it is no evidence, so the more of it is read the better.
    """
    texts, waiting = list[str](), [(content, 0)]
    while waiting:
        value, depth = waiting.pop()
        value = decoded(value)
        if isinstance(value, str):
            texts.append(value)
        elif depth < _DEEPEST and isinstance(value, list):
            waiting += ((part, depth + 1) for part in reversed(value))
        elif depth < _DEEPEST and isinstance(value, dict):
            waiting += ((value[key], depth + 1) for key in reversed(_TEXT_FIELDS) if key in value)
    return "\n".join(texts)


def decoded(value: Any, is_wanted: Callable[[Any], bool] | None = None) -> Any:
    """Return the value of a JSON string if that is content or an escaped string.

    Instrumentations store content as JSON in a string, some of them twice. JSON that an agent wrote itself
    is text and stays as it is. `is_wanted` names more that is decoded.
    """
    for _ in range(_LAYERS):
        if not isinstance(value, str):
            break
        inner = _json(value)
        if isinstance(inner, str) or is_content(inner) or (is_wanted is not None and is_wanted(inner)):
            value = inner
        else:
            break
    return value


def field_of(item: Mapping[str, Any], name: str) -> Any:
    """Return a field whose name in a record is in snake case, as given, or in camel case."""
    first, *words = name.split("_")
    return item.get(name, item.get(first + "".join(map(str.capitalize, words))))


def parsed(value: Any) -> Any:
    """Return the list or object that a string of JSON holds; anything else as it is."""
    inner = _json(value) if isinstance(value, str) else None
    return value if inner is None or isinstance(inner, str) else inner


def parsed_text(text: str) -> Any:
    """Return the value of JSON, or None for other text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _json(text: str) -> Any:
    """Return the list, object or escaped string that a text is the JSON of; None: none of them."""
    start, end = text.lstrip()[:1], text.rstrip()[-1:]
    # A quotation without escapes is a text in quotation marks.
    if (start, end) not in (("{", "}"), ("[", "]")) and not (start == end == '"' and "\\" in text):
        return None
    return parsed_text(text)


def is_content(value: Any) -> bool:
    """Tell whether JSON is a part of content or a list of parts."""
    parts = value if isinstance(value, list) else [value]
    if isinstance(value, list) and all(isinstance(part, dict) and len(part) == 1 for part in value):
        return bool(value) and all(_BLOCKS.issuperset(part) for part in value)
    return bool(parts) and all(
        isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] in _PARTS
        for part in parts
    )


def is_messages(value: Any) -> bool:
    """Tell whether JSON is a message, a list of messages, or a response of an API around them."""
    if isinstance(value, list):
        return bool(value) and all(is_messages(part) for part in value)
    if is_message(value):
        return True
    inner = next((value[key] for key in _HOLDERS if key in value), None) if isinstance(value, dict) else None
    return isinstance(inner, (list, dict)) and is_messages(inner)


def is_message(value: Any) -> bool:
    """Tell whether JSON is a message with a role."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("role"), str)
        and ("content" in value or "parts" in value)
    )


def messages_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the messages of what a call took in or put out: one, a list, or an API's response around them.

    What is neither, such as an agent's own JSON, is a message without a role.
    """
    value = decoded(value, is_messages)
    if isinstance(value, str) or is_content(value):
        yield {"role": "", "content": value}
    elif isinstance(value, list):
        for part in value:
            if isinstance(part, (dict, str)):
                yield from messages_in(part)
            elif isinstance(part, list):  # LangChain's callbacks give a list for each prompt of a batch
                for inner in part:
                    if isinstance(inner, dict):
                        yield from messages_in(inner)
    elif isinstance(value, dict):
        fields = (value.get(key) for key in _HOLDERS if not is_message(value))
        inner = next((inner for inner in fields if isinstance(inner, (list, dict, str)) and inner), value)
        if inner is value:
            yield value
        else:
            yield from messages_in(inner)
