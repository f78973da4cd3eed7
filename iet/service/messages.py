"""Lists of chat messages as one text, of which each message is a piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import pydantic

from iet.errors import InputError

JOINER = "\n\n"
"""Stands between two messages, and belongs to the piece before it."""


class _Form(pydantic.BaseModel):
    # Fields that are not read here are those of somebody's chat API: no reason to refuse a message.
    model_config = pydantic.ConfigDict(strict=True, extra="ignore", hide_input_in_errors=True)


class Part(_Form):
    """A part of a message's content; parts without text, such as images, are not read."""

    type: str
    text: str | None = None


class Message(_Form):
    """A message of OpenAI's chat completions."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None


class Pieces(NamedTuple):
    """A text, and the characters at which its pieces but the first begin."""

    text: str
    boundaries: list[int]


def pieces_of(messages: Sequence[Message]) -> Pieces:
    """Join the texts of messages; those without text, such as calls of tools, are no pieces.

    Raises:
        InputError: no message has text.
    """
    texts = [text for text in map(_text, messages) if text]
    if not texts:
        raise InputError("messages: got none with text, expected at least one")
    boundaries, at = list[int](), 0
    for text in texts[:-1]:
        at += len(text) + len(JOINER)
        boundaries.append(at)
    return Pieces(JOINER.join(texts), boundaries)


def _text(message: Message) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    return "".join(part.text or "" for part in message.content)
