"""A file that is read once, and again when it was changed."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Generic, TypeVar

from iet.errors import IetError

_T = TypeVar("_T")


class Watched(Generic[_T]):
    """What a file holds now.

    Args:
        path: of the file; links are followed, so that a mounted secret that is replaced is seen.
        read: returns what it holds, or raises an IetError or OSError; called now, and when the file is
            another one, or has another size or time of change, than when it was read.

    Raises:
        IetError, OSError: from `read`.

    Attributes:
        last: what was read without an error, last.
        changes: number of times that `last` was set.
    """

    def __init__(self, path: str | os.PathLike[str], read: Callable[[], _T]) -> None:
        self.path = pathlib.Path(path)
        self._read = read
        self._seen: tuple[int, int, int] | None = (
            self._look()
        )  # before reading: what is changed meanwhile is read again
        self._problem: Exception | None = None
        self.last = read()
        self.changes = 1

    def get(self) -> _T:
        """Return what the file holds. O(1) unless it was changed.

        Raises:
            IetError, OSError: it was changed, and cannot be read since; `last` is what it held before.
        """
        seen = self._look()
        if seen != self._seen:
            self._seen, self._problem = seen, None
            try:
                self.last = self._read()
                self.changes += 1
            except (IetError, OSError) as problem:
                self._problem = problem
        if self._problem is not None:
            raise self._problem
        return self.last

    def forget(self) -> None:
        """Read at the next `get`, whether the file was changed or not."""
        self._seen = None

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
