"""A file whose content is loaded again after the file changed."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Generic, TypeVar

from iet.errors import IetError

_T = TypeVar("_T")


class ReloadingFile(Generic[_T]):
    """The current content of a file.

    Args:
        path: of the file. Links are followed, so that the replacement of a mounted secret is noticed.
        load: returns the content, or raises an IetError or OSError. It is called now, and by `get` if the
            file's inode, size or modification time differ from those at the last call.

    Raises:
        IetError, OSError: from `load`.

    Attributes:
        last: result of the last successful `load`.
        loads: number of successful calls of `load`.
    """

    def __init__(self, path: str | os.PathLike[str], load: Callable[[], _T]) -> None:
        self.path, self._load = pathlib.Path(path), load
        self._version = self._stat()  # before loading, so that a later change is noticed
        self._problem: Exception | None = None
        self.last, self.loads = load(), 1

    def get(self) -> _T:
        """Return the current content. O(1) if the file did not change.

        Raises:
            IetError, OSError: The file changed, and `load` failed. `last` is the content before the change.
        """
        version = self._stat()
        if version != self._version:
            self._version, self._problem = version, None
            try:
                self.last = self._load()
                self.loads += 1
            except (IetError, OSError) as problem:
                self._problem = problem
        if self._problem is not None:
            raise self._problem
        return self.last

    def invalidate(self) -> None:
        """Load the file at the next `get` even if it did not change."""
        self._version = None

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            stat = os.stat(self.path)
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size
