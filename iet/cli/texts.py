"""Read and decode the text that a command audits as one, and refuse a text that is too large."""

from __future__ import annotations

import pathlib
import shlex
import sys

from iet.errors import InputError, check_number
from iet.marks.files import shown_path

MAXIMUM = 1 << 23
"""Default size in bytes of the largest text that is audited as one: that of a document of a bulk audit."""

_MEMORY = 100
"""Bytes of memory that an audit takes for each of a text's, with four agents (docs/guides/audit_text.md)."""


def read_text(file: str, encoding: str | None, maximum: int = MAXIMUM) -> str:
    """Return the text of a file, or of standard input for "-".

    Args:
        file: its path.
        encoding: for Python's codecs. None: UTF-8, or what a mark of byte order says.
        maximum: bytes of the largest one that is taken. No more than that is read.

    Raises:
        InputError: it cannot be read, is empty, larger, or no text.
    """
    from iet.audit.documents import check_encoding, text_of

    check_encoding(encoding)
    check_number("--max-text", maximum, 1)
    name = "standard input" if file == "-" else shown_path(file) or "''"
    try:
        if file == "-":
            data, size = sys.stdin.buffer.read(maximum + 1), None
        else:
            with pathlib.Path(file).open("rb") as opened:
                data = opened.read(maximum + 1)
            size = pathlib.Path(file).stat().st_size
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror}); expected a UTF-8 text, or -") from None
    if len(data) > maximum:
        raise InputError(f"{name}: {_too_large(shown_path(file), size, maximum)}")
    if not data:
        raise InputError(f"{name}: got nothing, expected text")
    try:
        return text_of(data, encoding, name="FILE" if file == "-" else name)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def _too_large(file: str, size: int | None, maximum: int) -> str:
    got = f"more than {maximum:,} bytes" if size is None or size <= maximum else f"{size:,} bytes"
    memory = "" if size is None else f" here about {size * _MEMORY / 1e9:.1f} GB,"
    source = "FILE" if file == "-" else shlex.quote(file)
    return (
        f"got {got}, expected at most {maximum:,} (--max-text) in one text: an audit takes some {_MEMORY}"
        f" bytes of memory for each of them,{memory} and more with many agents. Cut it at line ends, and"
        f" audit the parts as documents: mkdir parts; split -C 4M --additional-suffix=.txt {source} parts/;"
        " iet audit parts/ -o OUT/. In each part agents have to be found anew, and where"
        " lines are longer than 4 MiB split cuts characters: docs/guides/audit_text.md has another way"
    )
