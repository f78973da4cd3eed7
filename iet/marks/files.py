"""Files that are written whole or not at all, and files that only their owner may read."""

from __future__ import annotations

import contextlib
import contextvars
import errno
import mmap
import os
import pathlib
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO

from iet.errors import RegistryError
from iet.marks.keys import Secret

USUAL = 0o666
"""Mode of a file that is not private, less the bits of the umask."""

_BEGINNING = rb"(?:\xef\xbb\xbf)?\s*"
"""What may stand before the keys: a mark of byte order, and white space."""

_OBJECT = re.compile(_BEGINNING + rb"\{")
_PRIVATE_KEY = re.compile(_BEGINNING + rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_REGISTRY = re.compile(rb'"format"\s*:\s*"iet\.registry\\?/')
"""A field at any place, as tools sort them. Where JSON quotes a registry, its quotation marks are escaped."""


def kind_of_keys(data: bytes | mmap.mmap) -> str | None:
    """Return which secret keys the whole content of a file is: a registry or a private key; None: neither."""
    if _PRIVATE_KEY.match(data):
        return "a private key"
    return "a registry" if _OBJECT.match(data) and _REGISTRY.search(data) else None


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return a path in valid Unicode, as results show it: bytes of a name that are not UTF-8 are escaped."""
    return os.fsencode(path).decode(errors="backslashreplace")


def walk(folder: str | os.PathLike[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk as os.walk does, but raise the OSError of a folder that cannot be read."""

    def refuse(error: OSError) -> None:
        raise error

    return os.walk(os.fspath(folder), onerror=refuse)


HIDDEN = "hidden"
"""What `take_hidden` counts, among the ends of names of what is not read."""


def take_hidden(
    path: str, folders: list[str], files: list[str], leave: pathlib.Path | None = None
) -> Mapping[str, int]:
    """Take what is hidden out of a step of `walk`, so that it is not walked.

    Returns:
        {HIDDEN: how many files it is}, with those in hidden folders; nothing if there are none. A link, and a
        folder that cannot be read, count as one: nobody asked for what is in them.

    Args:
        path: of the folder.
        folders: names of those in it. Changed in place.
        files: names of those in it. Changed in place.
        leave: resolved path of a folder whose files do not count.
    """
    count = sum(name.startswith(".") for name in files)
    unread = list[OSError]()
    for name in folders:
        hidden = os.path.join(path, name)
        if not name.startswith("."):
            continue
        if os.path.islink(hidden):
            count += 1
            continue
        for below, deeper, inside in os.walk(hidden, onerror=unread.append):
            if leave is not None and pathlib.Path(below).resolve() == leave:
                deeper.clear()
            else:
                count += len(inside) + sum(os.path.islink(os.path.join(below, each)) for each in deeper)
    folders[:] = [name for name in folders if not name.startswith(".")]
    files[:] = [name for name in files if not name.startswith(".")]
    count += len(unread)
    return {HIDDEN: count} if count else {}


def write_file(
    path: str | os.PathLike[str],
    content: bytes | Callable[[BinaryIO], object],
    *,
    mode: int = USUAL,
    check: Callable[[], object] | None = None,
) -> None:
    """Let a file appear, or replace it, whole or not at all, whatever happens to the process or the machine.

    It is written beside its place, as `.NAME.RANDOM.tmp`, brought to disk, and renamed. What a writer that
    was killed left under such a name is deleted by the next one in the folder that gives a check.

    Args:
        path: the file. Of a link what it leads to is replaced. What is no file of a disk (a device, a pipe,
            such as /dev/stdout) is written into.
        content: the bytes, or a function that writes them to the file that it is given.
        mode: of a new file, less the bits of the umask. The usual one leaves that of a file as it is.
        check: raises what speaks against writing, as an error of its own. While it runs, and until the file
            is there, no other process that gives a check can write in this folder.

    Raises:
        OSError: the file cannot be written. The old one is as it was.
        RegistryError: the file holds secret keys (`kind_of_keys`), and no check is given.
    """
    given = pathlib.Path(path)
    if given.exists() and not given.is_file() and not given.is_dir():
        if check is not None:
            raise OSError(errno.EINVAL, "it is no file of a disk", str(given))
        _write_into(given, content)
        return
    target = pathlib.Path(os.path.realpath(given))
    if check is None:
        refuse_to_lose_keys(given)
    temporary = target.with_name(f".{target.name[:40]}.{os.urandom(8).hex()}.tmp")
    with _folder(target.parent, locked=check is not None) as folder:
        if check is not None:
            check()
        try:
            with _created(temporary, mode) as file:
                if mode == USUAL and sys.platform != "win32" and target.exists():
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                if callable(content):
                    content(file)
                else:
                    file.write(content)
                file.flush()
                os.fsync(file.fileno())
                if sys.platform != "win32":
                    os.replace(temporary, target)  # while it is locked
            if sys.platform == "win32":  # where no open file is renamed
                os.replace(temporary, target)
        except OSError as error:
            if error.filename is None or os.fspath(error.filename) == str(temporary):
                # A full disk names nothing, or a name that nobody knows.
                raise OSError(error.errno, error.strerror or str(error), str(target)) from None
            raise
        finally:
            temporary.unlink(missing_ok=True)
        if folder is not None:
            # The file is in place by now, and some file systems cannot do this.
            with contextlib.suppress(OSError):
                os.fsync(folder)


def _write_into(stream: pathlib.Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    with open(stream, "wb") as file:
        if callable(content):
            content(file)
        else:
            file.write(content)


def refuse_to_lose_keys(path: pathlib.Path) -> None:
    """Raise a RegistryError if a file that would be replaced holds secret keys."""
    if not path.is_file():
        return
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            kind = kind_of_keys(content)
    except (OSError, ValueError):  # none that this process reads, or an empty one
        return
    if kind is not None:
        raise RegistryError(f"{path}: it holds {kind}, which would be lost; expected another path")


_TEMPORARY = re.compile(r"\..{1,40}\.[0-9a-f]{16}\.tmp", re.DOTALL)

_held: contextvars.ContextVar[frozenset[pathlib.Path]] = contextvars.ContextVar("_held", default=frozenset())
"""Folders that this context has locked."""


@contextlib.contextmanager
def alone_in(folder: pathlib.Path) -> Iterator[None]:
    """Wait for the lock of a folder, and hold it: no other process that gives a check can write there.

    `write_file` in it does not wait for itself.

    Raises:
        OSError: the folder cannot be opened.
    """
    with _folder(folder, locked=True):
        before = _held.set(_held.get() | {folder})
        try:
            yield
        finally:
            _held.reset(before)


@contextlib.contextmanager
def _folder(path: pathlib.Path, *, locked: bool) -> Iterator[int | None]:
    """Open a folder, and lock it: the second of two writers must see the file of the first.

    No lock file stays behind. Windows and some network file systems have no such locks: there a check can
    miss what is written at the same moment.
    """
    if sys.platform == "win32":
        yield None
        return
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:  # a folder may be for writing only
        if locked:
            raise
        descriptor = None
    if descriptor is None:
        yield None
        return
    try:
        if locked and path not in _held.get():
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                _sweep(path)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _created(path: pathlib.Path, mode: int) -> Iterator[BinaryIO]:
    """Make a file, and hold its lock while it is written: whoever finds it without one may delete it."""
    while True:
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            if sys.platform != "win32":
                import fcntl

                with contextlib.suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_EX)
                if os.fstat(file.fileno()).st_nlink == 0:  # deleted before it was locked
                    continue
            yield file
            return


def _sweep(folder: pathlib.Path) -> None:
    """Delete what writers of ours left that were killed: it may hold secrets, and nobody else would."""
    if sys.platform == "win32":
        return
    import fcntl

    for name in filter(_TEMPORARY.fullmatch, os.listdir(folder)):
        with contextlib.suppress(OSError):  # somebody else's, a link, or being written
            descriptor = os.open(folder / name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(folder / name)
            finally:
                os.close(descriptor)


def read_private(path: pathlib.Path, secret_mount: bool) -> Secret:
    """Return what a file holds that only its owner may read, or raise a RegistryError."""
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait
            raise RegistryError(f"{path}: not a file")
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            if sys.platform != "win32" and mode & 0o077:
                import shlex

                mend = f"run: chmod 600 {shlex.quote(str(path))}"
                if not secret_mount:
                    raise RegistryError(
                        f"{path}: mode {mode:04o}, expected 0600; {mend}"
                        " (a read-only secret mount: secret_mount=True, --secret-mount, in an engine"
                        " IET_SECRET_MOUNT=1)"
                    )
                # Root may write whatever the mode says, so for root the mode decides.
                if os.access(path, os.W_OK) and (os.geteuid() != 0 or mode & 0o222):
                    raise RegistryError(
                        f"{path}: mode {mode:04o}, but this process can write it, no secret mount; {mend}"
                    )
            return Secret(file.read())
    except OSError as error:
        raise RegistryError(f"{path}: cannot be read ({error.strerror or error})") from error
