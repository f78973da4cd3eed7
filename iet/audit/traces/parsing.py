"""Parse files of records: JSON, or JSON lines."""

from __future__ import annotations

import json
import re
from typing import Any

from iet.errors import InputError


def parse(data: bytes) -> Any:
    """Return the value of UTF-8 JSON, or a list with each value of several (JSON lines, printed objects).

    Raises:
        InputError: the data is neither, or is nested too deeply.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start} is not UTF-8; expected {_EXPECTED}") from None
    values, position = list[Any](), _skip_spaces(text, 0)
    try:
        while position < len(text) or not values:
            value, position = _DECODER.raw_decode(text, position)
            values.append(value)
            position = _skip_spaces(text, position)
    except json.JSONDecodeError as error:
        line = (
            text.count("\n", 0, position) + 1 if values else error.lineno
        )  # the first line of a later value
        raise InputError(f"line {line}: {error.msg}; expected {_EXPECTED}") from None
    except (RecursionError, ValueError) as error:
        raise InputError(
            f"{type(error).__name__} in JSON; expected less deep lists and shorter numbers"
        ) from None
    return values[0] if len(values) == 1 else values


_EXPECTED = "JSON or JSON lines"

_DECODER = json.JSONDecoder()

_SPACES = re.compile(r"[ \t\r\n]*")  # JSON's white space


def _skip_spaces(text: str, position: int) -> int:
    match = _SPACES.match(text, position)
    return match.end() if match else position
