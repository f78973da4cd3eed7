"""Write files atomically, and read files that only their owner may read."""

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
"""A byte order mark and white space may precede the keys."""

_OBJECT = re.compile(_BEGINNING + rb"\{")
_PRIVATE_KEY = re.compile(_BEGINNING + rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_REGISTRY = re.compile(rb'"format"\s*:\s*"iet\.registry\\?/')
"""The field at any position, because tools sort fields. In a registry quoted by JSON, quotes are escaped."""


def kind_of_keys(data: bytes | mmap.mmap) -> str | None:
    """Return "a registry" or "a private key" if a file with this content is one, else None."""
    if _PRIVATE_KEY.match(data):
        return "a private key"
    return "a registry" if _OBJECT.match(data) and _REGISTRY.search(data) else None


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return a path in valid Unicode for results: bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode(errors="backslashreplace")


def walk(folder: str | os.PathLike[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk as os.walk does, but raise the OSError of a folder that cannot be read."""

    def refuse(error: OSError) -> None:
        raise error

    return os.walk(os.fspath(folder), onerror=refuse)


HIDDEN = "hidden"
"""The key under which `take_hidden` counts, beside suffixes of files that are not read."""


def take_hidden(
    path: str, folders: list[str], files: list[str], leave: pathlib.Path | None = None
) -> Mapping[str, int]:
    """Remove hidden files and folders from a step of `walk`, and count the files.

    Args:
        path: of the folder.
        folders: names of its folders. Changed in place.
        files: names of its files. Changed in place.
        leave: resolved path of a folder whose files do not count.

    Returns:
        {HIDDEN: number of files}, with those in hidden folders; empty if the number is 0. A link, and a
        folder that cannot be read, count as one file.
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
                count += len(inside) + sum(os.path.islink(os.path.join(below, name)) for name in deeper)
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
    """Create or replace a file atomically, even if the process or the machine stops.

    The content is written to `.NAME.RANDOM.tmp` in the same folder, synced to disk, and renamed. While the
    folder is locked, the name ends in `.locked.tmp`: the next writer that locks the folder deletes such files
    of writers that were killed, because they may hold secrets.

    Args:
        path: the file. If it is a link, its target is replaced. A device or a pipe, such as /dev/stdout, is
            written to directly.
        content: the bytes, or a function that writes them to the open file.
        mode: of a new file, less the bits of the umask. With the default, an existing file keeps its mode.
        check: raises an error to prevent writing. From its start until the file is written, no other process
            that passes `check` can write in this folder.

    Raises:
        OSError: the file cannot be written. The old file is unchanged.
        RegistryError: the present file holds secret keys (`kind_of_keys`), and there is no `check`.
    """
    path = pathlib.Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        if check is not None:
            raise OSError(errno.EINVAL, "it is no file of a disk", str(path))
        with open(path, "wb") as stream:
            _write_content(stream, content)
        return
    target = pathlib.Path(os.path.realpath(path))
    if check is None:
        refuse_to_lose_keys(path)
    suffix = "locked.tmp" if check is not None or target.parent in _locked.get() else "tmp"
    temporary = target.with_name(f".{target.name[:40]}.{os.urandom(8).hex()}.{suffix}")
    with _folder(target.parent, locked=check is not None) as folder:
        if check is not None:
            check()
        try:
            with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                if mode == USUAL and sys.platform != "win32" and target.exists():
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                _write_content(file, content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except OSError as error:
            if error.filename is None or os.fspath(error.filename) == str(temporary):
                # The error of a full disk names no file, or the temporary one.
                raise OSError(error.errno, error.strerror or str(error), str(target)) from None
            raise
        finally:
            temporary.unlink(missing_ok=True)
        if folder is not None:
            # The file is in place by now, and some file systems cannot do this.
            with contextlib.suppress(OSError):
                os.fsync(folder)


def _write_content(file: BinaryIO, content: bytes | Callable[[BinaryIO], object]) -> None:
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
    except (OSError, ValueError):  # not readable, or empty
        return
    if kind is not None:
        raise RegistryError(f"{path}: it holds {kind}, which would be lost; expected another path")


_TEMPORARY = re.compile(r"\..{1,40}\.[0-9a-f]{16}\.locked\.tmp", re.DOTALL)

_locked: contextvars.ContextVar[frozenset[pathlib.Path]] = contextvars.ContextVar(
    "locked", default=frozenset()
)
"""Folders that this context has locked."""


@contextlib.contextmanager
def alone_in(folder: pathlib.Path) -> Iterator[None]:
    """Hold the lock of a folder: no other process that passes a check to `write_file` can write there.

    `write_file` in this context does not wait for the lock again.

    Raises:
        OSError: the folder cannot be opened.
    """
    with _folder(folder, locked=True):
        token = _locked.set(_locked.get() | {folder})
        try:
            yield
        finally:
            _locked.reset(token)


@contextlib.contextmanager
def _folder(path: pathlib.Path, *, locked: bool) -> Iterator[int | None]:
    """Open a folder, and lock it, so that the second of two writers sees the file of the first.

    No lock file is left. Windows and some network file systems do not support this: there a check can miss a
    file that is written at the same moment.
    """
    if sys.platform == "win32":
        yield None
        return
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:  # a folder may be writable but not readable
        if locked:
            raise
        descriptor = None
    if descriptor is None:
        yield None
        return
    try:
        if locked and path not in _locked.get():
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                for name in filter(_TEMPORARY.fullmatch, os.listdir(path)):
                    with contextlib.suppress(OSError):  # another user's file
                        os.unlink(path / name)
        yield descriptor
    finally:
        os.close(descriptor)


def read_private(path: pathlib.Path, secret_mount: bool) -> Secret:
    """Return the content of a file that only its owner may read, or raise a RegistryError.

    Args:
        path: the file.
        secret_mount: accept any mode if this process cannot write the file.
    """
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait
            raise RegistryError(f"{path}: not a file")
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            if sys.platform != "win32" and mode & 0o077:
                import shlex

                command = f"run: chmod 600 {shlex.quote(str(path))}"
                if not secret_mount:
                    raise RegistryError(
                        f"{path}: mode {mode:04o}, expected 0600; {command}"
                        " (a read-only secret mount: IET_SECRET_MOUNT=1, or secret_mount=True)"
                    )
                # Root may write any file, so for root only the mode counts.
                if os.access(path, os.W_OK) and (os.geteuid() != 0 or mode & 0o222):
                    raise RegistryError(
                        f"{path}: mode {mode:04o}, but this process can write it, no secret mount; {command}"
                    )
            return Secret(file.read())
    except OSError as error:
        raise RegistryError(f"{path}: cannot be read ({error.strerror or error})") from error
