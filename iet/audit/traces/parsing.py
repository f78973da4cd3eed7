"""Parse files of records: JSON, or JSON lines."""

from __future__ import annotations

import json
from typing import Any

from iet.errors import InputError


def parse(data: bytes) -> Any:
    """Return the value of UTF-8 JSON, or a list with the value of each line of JSON lines.

    Raises:
        InputError: the data is neither, or is nested too deeply.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start} is not UTF-8; expected JSON or JSON lines") from None
    try:
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            first_error = error
        # Not splitlines(), because JSON strings may contain U+2028 and similar characters.
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        if len(lines) < 2 or not _is_json(lines[0][1]):  # one document with an error at that line
            raise InputError(f"line {first_error.lineno}: {first_error.msg}; expected JSON or JSON lines")
        return [_line(number, line) for number, line in lines]
    except (RecursionError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{type(error).__name__} in JSON; expected less deep lists and shorter numbers"
        ) from None


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return False
    return True


def _line(number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"line {number}: {error.msg}; expected JSON or JSON lines") from None
