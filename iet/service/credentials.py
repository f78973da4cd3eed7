"""Who holds which bearer token or API key: a file of hashes, for the audit service and for the gateway.

    # SHA-256 of the token, and whose it is
    9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 alice

Tokens are drawn with 256 bits. Nobody finds one from its SHA-256, so that a slow hash, as passwords need it,
would only make every request slow. Keys that people chose have no place here.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
import secrets
from typing import Any

from iet.errors import InputError
from iet.marks.files import alone_in, write_file
from iet.marks.names import checked_name
from iet.service.watched import Watched

PREFIX = "iet_"
"""Begins every token, so that scanners for secrets know one when it leaks."""

_LINE = re.compile(r"([0-9a-fA-F]{64})[ \t]+(.+)")
_OF_NOTHING = hashlib.sha256().hexdigest()


class Credentials:
    """The names that a file gives to tokens; it is read again when it was changed.

    Args:
        path: lines of a SHA-256 in hexadecimal and a name, empty ones, and comments that begin with #.

    Raises:
        InputError: the file cannot be read, or a line is not of this form, or a hash stands there twice, or
            is that of nothing, which would let in whoever sends no token.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = Watched(path, lambda: _parsed(pathlib.Path(path)))

    def name_of(self, token: bytes) -> str | None:
        """Return whose token this is, None if it is nobody's. An empty one is nobody's: none was sent.

        Raises:
            InputError: the file was changed and cannot be read since. Nobody is let in then: what was
                changed may be that a token was withdrawn.
        """
        return self.name_of_hash(hashlib.sha256(token).hexdigest()) if token else None

    def name_of_hash(self, digest: str) -> str | None:
        """Return whose the token of this SHA-256 (lower case, hexadecimal) is; else as `name_of`."""
        # A comparison in constant time would hide nothing: who times it learns about a hash, not its token.
        return self._file.get().get(digest)

    @property
    def names(self) -> frozenset[str]:
        """Everybody who holds a token."""
        return frozenset(self._file.get().values())


def bearer(headers: Any) -> bytes:
    """Return the token of ASGI `headers`, pairs of lower-case name and value; empty if there is none."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = bytes(value).strip().partition(b" ")
            return token.strip() if scheme.lower() == b"bearer" else b""
    return b""


def add_token(path: str | os.PathLike[str], name: str) -> str:
    """Draw a token, add its hash to the file, which is made if it is not there, and return the token.

    Args:
        path: the file, replaced whole or not at all, mode 0600.
        name: of whoever will hold it; one name may hold several tokens.

    Raises:
        InputError: no such name is accepted, or the file is not one of hashes.
        OSError: it cannot be written.
    """
    path, name = pathlib.Path(path), checked_name(name)
    token = PREFIX + secrets.token_urlsafe(32)
    line = f"{hashlib.sha256(token.encode()).hexdigest()} {name}\n"
    with alone_in(path.parent):  # or of two tokens that are drawn at once one is lost
        before = ""
        if path.exists():
            _parsed(path)
            before = path.read_text("utf-8")
        before += "\n" * (not before.endswith("\n") and bool(before))
        write_file(path, (before + line).encode(), mode=0o600)
    return token


def _parsed(path: pathlib.Path) -> dict[str, str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8, expected lines of a SHA-256 and a name") from None
    found = dict[str, str]()
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        parts = _LINE.fullmatch(line)
        if parts is None:  # it may hold a token by mistake: nothing of it is quoted
            raise InputError(f"{path}: line {number} is not a SHA-256 in hexadecimal and a name")
        digest = parts[1].lower()
        if digest == _OF_NOTHING:  # what `printf %s "$KEY" | sha256sum` says where KEY is not set
            raise InputError(f"{path}: line {number} is the SHA-256 of nothing, expected that of a token")
        if digest in found:
            raise InputError(f"{path}: the hash of line {number} stands there twice, expected once")
        found[digest] = checked_name(parts[2])
    return found
