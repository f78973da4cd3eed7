"""The list of sessions that a gateway has passed on: `iet audit --sessions` reads it.

Text of a session that no auditor is told of is nobody's. So a session that a client names is passed on only
once its id stands in the file.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Iterator

from iet.errors import InputError
from iet.marks.names import checked_session

MAX_SESSIONS = 1_000_000
"""Maximum number of ids in a list: an audit reads the keys of all of them."""

MAX_NEW = 100_000
"""Maximum number of ids that one agent adds while a process runs, so that none fills the list by itself."""


class FullList(Exception):
    """There is no room for another session, or it cannot be written."""


class ShareTaken(FullList):
    """An agent has added as many sessions as one may."""


class SessionList:
    """Ids of sessions in a file, one a line, of which several processes may keep theirs.

    Args:
        path: of the file, which is made, mode 0600, with the first id.

    Raises:
        InputError: it cannot be read, or holds what is no id.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self._lock = pathlib.Path(path), threading.Lock()
        self._added = collections.Counter[str]()
        try:
            lines = self._path.read_bytes().decode().split("\n") if self._path.exists() else []
            self._known = {checked_session(line) for line in lines if line}
        except (OSError, UnicodeDecodeError, InputError) as error:
            raise InputError(f"{path}: no list of sessions ({error}), expected ids, one a line") from None

    def __contains__(self, session: str) -> bool:
        return session in self._known

    def keep(self, session: str, agent: str) -> None:
        """Return when an id that was checked is on the disk.

        Args:
            session: the id.
            agent: who names it. Ids do not stand in the file with who named them, so that agents' numbers
                begin again at 0 in every process.

        Raises:
            ShareTaken: it is new, and the agent has added `MAX_NEW` of them.
            FullList: it is new, and there are `MAX_SESSIONS` of them, or the file cannot be written.
        """
        with self._lock:
            if session in self._known:
                return
            if len(self._known) >= MAX_SESSIONS:
                raise FullList(f"the list holds {MAX_SESSIONS} sessions, and takes no more")
            if self._added[agent] >= MAX_NEW:
                raise ShareTaken(
                    f"{agent} has named {MAX_NEW} new sessions since the gateway started, expected at most"
                    " that; a session that was named before still passes"
                )
            try:
                # One write, behind whatever other processes have written, be it half a line of one that died.
                file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                try:
                    line = f"\n{session}\n".encode()
                    with _alone_at_the_end(file) as cut:
                        if os.write(file, line) < len(line):  # its end is on a full disk
                            cut()
                            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(file)
                finally:
                    os.close(file)
            except OSError as error:
                raise FullList(f"the list of sessions cannot be written ({error.strerror})") from None
            self._known.add(session)
            self._added[agent] += 1


@contextlib.contextmanager
def _alone_at_the_end(file: int) -> Iterator[Callable[[], None]]:
    """Wait until no other process writes at the end of the list; yield what takes back what is written then.

    Where files have no locks (Windows, some network file systems) nothing is taken back: it may be another's.
    """
    size = None
    if sys.platform != "win32":
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed, or below
            size = os.fstat(file).st_size
    try:
        yield lambda: None if size is None else os.ftruncate(file, size)
    finally:
        if size is not None:
            fcntl.flock(file, fcntl.LOCK_UN)
