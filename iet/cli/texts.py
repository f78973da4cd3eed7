"""Read the files that a command names, and decode them."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

from iet.errors import InputError, check_number
from iet.marks.files import shown_path

MAXIMUM = 1 << 23
"""Default size in bytes of the largest text that is audited as one: that of a document of a bulk audit."""


def shown(file: str | os.PathLike[str]) -> str:
    """Return the name of a file for messages; "-" is standard input."""
    return "standard input" if file == "-" else shown_path(file) or "''"


def read_bytes(file: str | os.PathLike[str], max_bytes: int = -1) -> bytes:
    """Return the first `max_bytes` bytes of a file, or of standard input for "-". -1: all.

    Raises:
        InputError: it cannot be read. The message names it.
    """
    try:
        if file == "-":
            return sys.stdin.buffer.read(max_bytes)
        with pathlib.Path(file).open("rb") as opened:
            return opened.read(max_bytes)
    except OSError as error:
        raise InputError(f"{shown(file)}: cannot be read ({error.strerror})") from None


def decoded(data: bytes, encoding: str | None, file: str | os.PathLike[str]) -> str:
    """Return the text of a file. An InputError names the file.

    Args:
        data: its content.
        encoding: for Python's codecs. None: UTF-8, or what a mark of byte order says.
        file: its path, or "-".
    """
    from iet.audit.documents import check_encoding, text_of

    check_encoding(encoding)
    try:
        return text_of(data, encoding, name="FILE" if file == "-" else shown_path(file))
    except InputError as error:
        raise InputError(f"{shown(file)}: {error}") from None


def read_text(file: str, encoding: str | None, maximum: int = MAXIMUM) -> str:
    """Return the text of a file, or of standard input for "-".

    Args:
        file: its path.
        encoding: as in `decoded`.
        maximum: size in bytes of the largest text. No more than that is read.

    Raises:
        InputError: it cannot be read, is empty, larger, or no text.
    """
    check_number("--max-text", maximum, 1)
    data = read_bytes(file, maximum + 1)
    if len(data) > maximum:
        raise InputError(
            f"{shown(file)}: got more than {maximum:,} bytes, expected at most that in one text (--max-text)."
            " Cut it at line ends, and audit the parts as documents: docs/guides/audit_text.md says how"
        )
    if not data:
        raise InputError(f"{shown(file)}: got nothing, expected text")
    return decoded(data, encoding, file)


def conversation_in(text: str, file: str | os.PathLike[str]) -> Any:
    """Return the messages of a record of a conversation as one text (`traces.joined`), for `--messages`."""
    from iet.audit import traces

    try:
        return traces.joined(traces.read(traces.parse(text.encode())).pieces)
    except InputError as error:
        raise InputError(f"{shown(file)}: {error}") from None
