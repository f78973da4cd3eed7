"""Open files of this machine, or by URI those of a store (s3, gs, hdfs), through pyarrow.fs.

Results and run.json show a store's file as its URI without user, password and options.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import io
import os
import pathlib
import re
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple, NoReturn, TypeVar

from iet.errors import InputError, missing
from iet.marks.files import write_file

_FIRST, _MOST = 1 << 17, 1 << 23
"""Size of the first request to a store for a file, and maximum size of the following ones, in bytes."""

_PATIENCE = 60
"""Seconds for which Google's library retries if the URI has no limit. Its own default is 15 minutes."""

_SHOWN = ("region", "scheme", "endpoint_override", "retry_limit_seconds")
"""Options of URIs that error messages may contain."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_URI = re.compile(r"(?:([^/?@]*)@)?([A-Za-z0-9._-]*(?::\d+)?)(/[^?]*)?(?:\?(.*))?", re.DOTALL)
_REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE|HTTP status 40[13]|[Cc]redential|PERMISSION"
)

_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws/credentials, or the role of the machine",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS or the machine's account; gs://anonymous@... reads what is public",
    "hdfs": "the tickets and the configuration of Hadoop",
}
"""Supported schemes, and the source of each one's credentials."""

OBJECTS = ("s3", "gs")
"""Schemes of object stores: an object is written completely or not at all, and replaces an older one."""

Content = bytes | Callable[[BinaryIO], object]
"""The content of a file, or a function that writes it to the open file."""

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class LocalStorage:
    """The disks of this machine."""

    def open(self, path: str) -> BinaryIO:
        """Open a file."""
        return open(path, "rb")

    def table(self, path: str) -> Any:
        """Open a file for pyarrow, whose own paths must be UTF-8."""
        import pyarrow as pa

        return pa.OSFile(os.fsencode(path))

    def exists(self, path: str) -> bool:
        """Tell whether a file exists."""
        return os.path.exists(path)

    def names(self, path: str) -> list[str]:
        """Return the names of all entries of a folder."""
        return os.listdir(path)

    def write(self, path: str, content: Content, *, locked: bool = False) -> None:
        """Write a file completely or not at all; with `locked`, while its folder is locked.

        Raises:
            InputError: it cannot be written.
        """
        try:
            write_file(path, content, check=(lambda: None) if locked else None)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None

    def delete(self, path: str) -> None:
        """Delete a file if it exists."""
        pathlib.Path(path).unlink(missing_ok=True)


HERE = LocalStorage()


class Stored(NamedTuple):
    """A file of a store: its path, its size in bytes, and its modification time in ISO 8601."""

    path: str
    size: int
    modified: str


@dataclasses.dataclass(frozen=True)
class Store:
    """A bucket, or the files of HDFS.

    Attributes:
        root: prefix of shown paths that the store's own paths lack, such as "s3://".
        uri: with credentials and options, without a path. Only workers receive it.
    """

    root: str
    uri: str = dataclasses.field(repr=False)

    @property
    def scheme(self) -> str:
        """The scheme, without "://"."""
        return self.root.partition(":")[0]

    def open(self, path: str) -> BinaryIO:
        """Open a file. Opening and reading it raise no error but InputError."""
        return io.BufferedReader(self._reader(path, _FIRST), _MOST)

    def table(self, path: str) -> Any:
        """Return the open file; pyarrow requests whole columns from it."""
        return self._reader(path)

    def _reader(self, path: str, max_bytes: int | None = None) -> _Reader:
        file = self.asked(path, "read", lambda files, key: files.open_input_file(key))
        return _Reader(self, path, file, max_bytes)

    def files(self, path: str) -> list[Stored] | None:
        """Return the file of that path, or all files below it with hidden ones; None if nothing exists."""
        info = self._info(path)
        if info.type.name == "NotFound":
            self.check_bucket(path)
            return None
        if info.type.name == "Directory":
            from pyarrow import fs

            below = self.asked(
                path, "read", lambda files, key: files.get_file_info(fs.FileSelector(key, recursive=True))
            )
            return [self._stored(info) for info in below if info.type.name == "File"]
        return [self._stored(info)]

    def exists(self, path: str) -> bool:
        """Tell whether a file exists."""
        return bool(self._info(path).type.name == "File")

    def _info(self, path: str) -> Any:
        return self.asked(path, "read", lambda files, key: files.get_file_info(key))

    def names(self, path: str) -> list[str]:
        """Return the names of all entries of a folder; an unknown folder has none."""

        def listed(files: Any, key: str) -> Any:
            from pyarrow import fs

            return files.get_file_info(fs.FileSelector(key, allow_not_found=True))

        return [info.base_name for info in self.asked(path, "read", listed)]

    def write(self, path: str, content: Content, *, locked: bool = False) -> None:
        """Write an object completely or not at all; it replaces an older one. Nothing is ever locked."""

        def written(files: Any, key: str) -> None:
            try:
                with files.open_output_stream(key, compression=None) as file:
                    content(file) if callable(content) else file.write(content)
            except FileNotFoundError as error:
                self.refuse(path, "written", error)

        # Ctrl-C interrupts only the main thread. Here it would close, and so create, an incomplete object.
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            thread.submit(self.asked, path, "written", written).result()

    def delete(self, path: str) -> None:
        """Delete an object if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.asked(path, "deleted", lambda files, key: files.delete_file(key))

    def check_bucket(self, path: str) -> None:
        """Raise an InputError unless the bucket of a path exists."""
        if self.scheme in OBJECTS:
            bucket = path.removeprefix(self.root).partition("/")[0]
            if self._info(self.root + bucket).type.name == "NotFound":
                raise InputError(f"{self.root}{bucket}: no such bucket, expected an existing one")

    def _stored(self, info: Any) -> Stored:
        prefix = self.root.partition("://")[2]
        when = info.mtime.isoformat() if info.mtime else ""
        return Stored(f"{self.root}{info.path.removeprefix(prefix)}", info.size, when)

    def asked(self, path: str, action: str, call: Callable[[Any, str], _T]) -> _T:
        """Return the result of a call with the store's file system and its own name of the path.

        Raises:
            InputError: it refuses or cannot be reached; the message says that it cannot be `what` ("read").
            FileNotFoundError: the file does not exist.
        """
        try:
            key = path.removeprefix(self.root)
            return call(_connected(self.uri), key)
        except (FileNotFoundError, InputError):
            raise
        except (OSError, ValueError, RuntimeError) as error:  # the bases of Arrow's errors
            self.refuse(path, action, error)

    def refuse(self, path: str, action: str, error: BaseException) -> NoReturn:
        """Raise an InputError with the message of a store's error."""
        message = _without_secrets(" ".join(str(error).split()), self.uri)
        hint = f"; credentials come from {_KEYS[self.scheme]}" if _REFUSED.search(message) else ""
        raise InputError(f"{path}: cannot be {action} ({message:.500}{hint})") from None


class _Reader(io.RawIOBase):
    """A file of a store. Its errors are InputErrors, which are not taken for errors of the content."""

    def __init__(self, store: Store, path: str, file: Any, max_bytes: int | None = None) -> None:
        self._store, self.name, self._file = store, path, file
        self._max_bytes = (
            max_bytes  # maximum bytes of the next request, which doubles each time; None: no limit
        )

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._max_bytes is not None:
            buffer, self._max_bytes = memoryview(buffer)[: self._max_bytes], min(2 * self._max_bytes, _MOST)
        try:
            return int(self._file.readinto(buffer))
        except OSError as error:
            self._store.refuse(self.name, "read", error)

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


Storage = LocalStorage | Store
"""Holds files, by the paths that are shown."""


def is_uri(text: str) -> bool:
    """Tell whether a text begins with a scheme such as "s3://"; a Windows drive has one letter."""
    return _SCHEME.match(text) is not None


def store_of(uri: str) -> tuple[Store, str]:
    """Return the store of a URI, and the path in it as it is shown. No request is sent.

    Raises:
        InputError: the scheme is unknown, or the URI is malformed. The message contains no secrets.
    """
    scheme, remainder = uri.split("://", 1)
    scheme = scheme.lower()
    if scheme not in _KEYS:
        supported = ", ".join(f"{name}://" for name in _KEYS)
        raise InputError(
            f"{scheme}://: got an unknown scheme, expected a path of this machine, or {supported}"
        )
    host = "BUCKET" if scheme in OBJECTS else "HOST"
    parts = _URI.fullmatch(remainder)
    if parts is None or (scheme in OBJECTS and (not parts[2] or ":" in parts[2])):
        raise InputError(
            f"{scheme}://...: got no URI, expected {scheme}://[USER:PASSWORD@]{host}/PATH[?OPTIONS], with /"
            " of user and password as %2F, : as %3A and @ as %40"
        )
    user, host, path, options = parts[1], parts[2], urllib.parse.unquote(parts[3] or ""), parts[4]
    store = f"{scheme}://{user}@{host}" if user is not None else f"{scheme}://{host}"
    if scheme == "gs" and "retry_limit_seconds=" not in (options or ""):
        options = "&".join(filter(None, (options, f"retry_limit_seconds={_PATIENCE}")))
    store += f"/?{options}" if options is not None else "/"
    path = path.rstrip("/")
    if scheme in OBJECTS:
        return Store(f"{scheme}://", store), f"{scheme}://{host}{path}"
    return Store(f"{scheme}://{host}", store), f"{scheme}://{host}{path or '/'}"


@functools.lru_cache
def _connected(uri: str) -> Any:
    """Return the file system, cached for this process; connections cannot be sent to workers."""
    try:
        from pyarrow import fs
    except ImportError:
        raise missing("URIs need pyarrow", "bulk") from None
    return fs.FileSystem.from_uri(uri)[0]


def _without_secrets(message: str, uri: str) -> str:
    """Remove the parts of a URI that may be secret, escaped or not, from a store's message."""
    for secret in sorted(_secrets(uri), key=len, reverse=True):
        message = message.replace(secret, "***")
    return message


def _secrets(uri: str) -> Iterator[str]:
    parts = urllib.parse.urlsplit(uri)
    user, _, _ = parts.netloc.rpartition("@")
    options = (pair.partition("=") for pair in parts.query.split("&"))
    values = [value for name, _, value in options if name not in _SHOWN or "@" in value]
    names = user.split(":", 1)[1:] if parts.scheme == "hdfs" else user.split(":", 1)
    for value in (uri, *names, *values):
        yield from filter(None, (value, urllib.parse.unquote(value)))
