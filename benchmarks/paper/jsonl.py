"""A file of JSON lines that is only appended to, by one process at a time, and survives a kill."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import IO, Any, Self

from iet.errors import InputError, SchemeMismatch


class Lines:
    """Append lines to a file, made with its folder if it is not there.

    Used as a context; a second one of the same file is refused. A line that a kill cut short lacks its end,
    so it is known as torn; `drop_torn` removes it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path)
        self.data = b""
        """What the file held on entering."""
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "ab+")
        try:
            lock(self._file, self.path)
            self._file.seek(0)
            self.data = self._file.read()
            self.take()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        assert self._file is not None
        self._file.close()

    def take(self) -> None:
        """Read what the file held on entering; what is raised here closes it."""

    @property
    def whole(self) -> list[bytes]:
        """Its lines on entering, without one that a kill cut short."""
        return self.data.split(b"\n")[:-1]

    def drop_torn(self) -> None:
        """Remove a line that a kill cut short, if there is one."""
        assert self._file is not None, "used outside its context"
        whole = self.data.rfind(b"\n") + 1
        if whole < len(self.data):
            self._file.truncate(whole)
            self.data = self.data[:whole]

    def put(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write some lines; when this returns they are on the disk."""
        assert self._file is not None, "used outside its context"
        # Every line that is cut short lacks its end, because that is written last.
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        self._file.write(text.encode())
        self._file.flush()
        os.fsync(self._file.fileno())


def parsed(path: pathlib.Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line.decode())
        if not isinstance(found, dict):
            raise ValueError(f"a {type(found).__name__}")
    except ValueError as error:
        raise InputError(f"{path}, line {number}: damaged ({error}), expected a JSON object") from None
    return found


def header(path: pathlib.Path, line: bytes, form: str, version: int) -> dict[str, Any]:
    found = parsed(path, 1, line)
    if found.get("format") != form:
        raise InputError(f"{path}, line 1: format {found.get('format')!r}, expected {form!r}")
    if found.get("version") != version:
        raise SchemeMismatch(f"{path}, line 1: version {found.get('version')!r}, expected {version}")
    return found


def lock(file: IO[bytes], path: pathlib.Path) -> None:
    """Keep a file to this process for as long as it is open."""
    try:
        import fcntl
    except ImportError:  # Windows: two writers are not noticed
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError(f"{path}: another process writes to it, expected one at a time") from None
