"""Bearer tokens and API keys: a file of their hashes and their holders, for the service and for the gateway.

    # SHA-256 of the token, and its holder
    9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 alice

A token has 256 random bits, so its plain SHA-256 reveals nothing about it; a slow hash, as passwords need it,
would only slow every request down. Keys that people choose must not be used.
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
from iet.service.reloading import ReloadingFile

PREFIX = "iet_"
"""Start of every token, by which scanners for leaked secrets recognise it."""

_LINE = re.compile(r"([0-9a-fA-F]{64})[ \t]+(.+)")
_EMPTY_DIGEST = hashlib.sha256().hexdigest()


class Credentials:
    """The holders of tokens, by a file that is read again after it changed.

    Args:
        path: of a file with a SHA-256 in hexadecimal and a name in each line. Empty lines and lines that
            start with # are ignored.

    Raises:
        InputError: The file cannot be read, or a line has another form, a hash that an earlier line has, or
            the hash of an empty token.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = ReloadingFile(path, lambda: _parse(pathlib.Path(path)))

    def name_of(self, token: bytes) -> str | None:
        """Return the holder of a token, None for an unknown or empty one.

        Raises:
            InputError: The file was changed and cannot be read. Then all tokens are refused, because the
                change may have withdrawn one.
        """
        return self.name_of_hash(hashlib.sha256(token).hexdigest()) if token else None

    def name_of_hash(self, digest: str) -> str | None:
        """Return the holder of the token with this SHA-256 (lower-case hexadecimal), as `name_of`."""
        # The time of the comparison can reveal parts of a hash, but a hash does not reveal its token.
        return self._file.get().get(digest)

    @property
    def names(self) -> frozenset[str]:
        """All holders of tokens."""
        return frozenset(self._file.get().values())


def bearer(headers: Any) -> bytes:
    """Return the token in ASGI headers (pairs of lower-case name and value); empty without one."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = bytes(value).strip().partition(b" ")
            return token.strip() if scheme.lower() == b"bearer" else b""
    return b""


def add_token(path: str | os.PathLike[str], name: str) -> str:
    """Draw a token, add its hash to the file, and return the token.

    Args:
        path: the file. It is created, mode 0600, or replaced atomically.
        name: the token's holder, who may hold several tokens.

    Raises:
        InputError: The name is not accepted, or the file is not one of hashes.
        OSError: The file cannot be written.
    """
    path, name = pathlib.Path(path), checked_name(name)
    token = PREFIX + secrets.token_urlsafe(32)
    line = f"{hashlib.sha256(token.encode()).hexdigest()} {name}\n"
    with alone_in(path.parent):  # so that no process overwrites the other's token
        content = ""
        if path.exists():
            _parse(path)
            content = path.read_text("utf-8")
        if content and not content.endswith("\n"):
            content += "\n"
        write_file(path, (content + line).encode(), mode=0o600)
    return token


def _parse(path: pathlib.Path) -> dict[str, str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8, expected lines of a SHA-256 and a name") from None
    holders = dict[str, str]()
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        parts = _LINE.fullmatch(line)
        if parts is None:  # messages do not quote the line, which may hold a token by mistake
            raise InputError(f"{path}: line {number} is not a SHA-256 in hexadecimal and a name")
        digest = parts[1].lower()
        if digest == _EMPTY_DIGEST:  # the output of `printf %s "$KEY" | sha256sum` if KEY is not set
            raise InputError(f"{path}: line {number} is the SHA-256 of nothing, expected that of a token")
        if digest in holders:
            raise InputError(f"{path}: the hash of line {number} stands there twice, expected once")
        holders[digest] = checked_name(parts[2])
    return holders
