"""Where files lie: on this machine, or in a store that a URI names (s3, gs, hdfs), through pyarrow.fs.

A file of a store is shown as its URI without user, password and options, in results as in run.json.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import io
import os
import re
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple, NoReturn, Protocol, TypeVar

from iet.errors import InputError, missing
from iet.marks.files import shown_path

_FIRST, _MOST = 1 << 17, 1 << 23
"""Bytes that are asked of a store first, when a file is looked into, and at once when it is read on."""

_PATIENCE = 60
"""Seconds for which Google's library tries again, unless the URI says how long. Its own are 15 minutes."""

_SHOWN = ("region", "scheme", "endpoint_override", "retry_limit_seconds")
"""Options of URIs that an error may show."""

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
"""The schemes that are read, and where each finds its credentials."""

OBJECTS = ("s3", "gs")
"""Schemes of object stores: what is written appears whole or not at all, and replaces what was there."""

_T = TypeVar("_T")


class Place(Protocol):
    """What opens files by the paths under which they are shown."""

    def open(self, path: str) -> BinaryIO:
        """Open a file, to be read from any position."""

    def table(self, path: str) -> Any:
        """Return what `pyarrow.parquet.ParquetFile` opens the file by."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """The disks of this machine."""

    def open(self, path: str) -> BinaryIO:
        """Open a file."""
        return open(path, "rb")

    def table(self, path: str) -> Any:
        """Return the path, which pyarrow opens without Python's help; the file, if its name is not UTF-8."""
        if shown_path(path) == path:
            return path
        import pyarrow as pa

        return pa.OSFile(os.fsencode(path))


HERE = Machine()


class Stored(NamedTuple):
    """A file of a store: its path, its size in bytes, and when it was written last, in ISO 8601."""

    path: str
    size: int
    modified: str


@dataclasses.dataclass(frozen=True)
class Store:
    """A bucket, or the files of HDFS.

    Attributes:
        root: what a path begins with before the name that the store knows, such as "s3://".
        uri: with credentials and options, without a path. It goes to workers, and nowhere else.
    """

    root: str
    uri: str = dataclasses.field(repr=False)

    @property
    def scheme(self) -> str:
        """The scheme, without "://"."""
        return self.root.partition(":")[0]

    def open(self, path: str) -> BinaryIO:
        """Open a file; whatever goes wrong, also later, is an InputError."""
        file = self.asked(path, "read", lambda files, key: files.open_input_file(key))
        return io.BufferedReader(_Reader(self, path, file, _FIRST), _MOST)

    def table(self, path: str) -> Any:
        """Return the open file, of which pyarrow asks whole columns at once."""
        file = self.asked(path, "read", lambda files, key: files.open_input_file(key))
        return _Reader(self, path, file)

    def there(self, path: str) -> list[Stored] | None:
        """Return the file of that path, or all files below it, hidden ones too; None: nothing is there."""
        found = self.asked(path, "read", lambda files, key: files.get_file_info(key))
        if found.type.name == "NotFound":
            self.check_bucket(path)
            return None
        if found.type.name == "Directory":
            from pyarrow import fs

            below = self.asked(
                path, "read", lambda files, key: files.get_file_info(fs.FileSelector(key, recursive=True))
            )
            return [self._stored(each) for each in below if each.type.name == "File"]
        return [self._stored(found)]

    def exists(self, path: str) -> bool:
        """Tell whether a file is there."""
        found = self.asked(path, "read", lambda files, key: files.get_file_info(key))
        return bool(found.type.name == "File")

    def names(self, path: str) -> list[str]:
        """Return the names of what lies directly below a path; none where nothing is there."""

        def listed(files: Any, key: str) -> Any:
            from pyarrow import fs

            return files.get_file_info(fs.FileSelector(key, allow_not_found=True))

        return [each.base_name for each in self.asked(path, "read", listed)]

    def write(self, path: str, content: bytes) -> None:
        """Write an object, which appears whole, or not at all, and replaces what was there."""

        def written(files: Any, key: str) -> None:
            try:
                with files.open_output_stream(key, compression=None) as file:
                    file.write(content)
            except FileNotFoundError as error:
                self.refuse(path, "written", error)

        # Ctrl-C reaches the first thread alone: here it would close, and so make, an object with part of it.
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            thread.submit(self.asked, path, "written", written).result()

    def delete(self, path: str) -> None:
        """Delete an object, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.asked(path, "deleted", lambda files, key: files.delete_file(key))

    def check_bucket(self, path: str) -> None:
        """Raise an InputError unless the bucket of a path is there."""
        if self.scheme in OBJECTS:
            bucket = path.removeprefix(self.root).partition("/")[0]
            found = self.asked(path, "read", lambda files, _: files.get_file_info(bucket))
            if found.type.name == "NotFound":
                raise InputError(f"{self.root}{bucket}: got no such bucket, expected one that is there")

    def _stored(self, found: Any) -> Stored:
        prefix = self.root.partition("://")[2]
        when = found.mtime.isoformat() if found.mtime else ""
        return Stored(f"{self.root}{found.path.removeprefix(prefix)}", found.size, when)

    def asked(self, path: str, what: str, call: Callable[[Any, str], _T]) -> _T:
        """Return what the store answers to a call with its file system and a path of its own.

        Raises:
            InputError: it refuses or cannot be reached; `what` cannot be done, such as "read".
            FileNotFoundError: it says that there is no such file.
        """
        try:
            key = path.removeprefix(self.root)
            return call(_connected(self.uri), key)
        except (FileNotFoundError, InputError):
            raise
        except (OSError, ValueError, RuntimeError) as error:  # one of which each of Arrow's own is
            self.refuse(path, what, error)

    def refuse(self, path: str, what: str, error: BaseException) -> NoReturn:
        """Raise the InputError for what a store said."""
        said = _without_secrets(" ".join(str(error).split()), self.uri)
        hint = f"; credentials come from {_KEYS[self.scheme]}" if _REFUSED.search(said) else ""
        raise InputError(f"{path}: cannot be {what} ({said:.500}{hint})") from None


class _Reader(io.RawIOBase):
    """A file of a store. Its errors are not those of the file's content, which would be passed over."""

    def __init__(self, store: Store, path: str, file: Any, most: int | None = None) -> None:
        self._store, self.name, self._file = store, path, file
        self._most = most  # bytes of the next reading, twice as many each time; None: no limit

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._most is not None:
            buffer, self._most = memoryview(buffer)[: self._most], min(2 * self._most, _MOST)
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


def is_uri(given: str) -> bool:
    """Tell whether something begins with a scheme, as "s3://" does; a Windows drive has one letter."""
    return _SCHEME.match(given) is not None


def store_of(given: str) -> tuple[Store, str]:
    """Return the store that a URI names, and the path in it as it is shown.

    Nothing is asked of the store yet.

    Raises:
        InputError: its scheme is not known, or it is no URI. What may be a secret is not in the message.
    """
    scheme, rest = given.split("://", 1)
    scheme = scheme.lower()
    if scheme not in _KEYS:
        known = ", ".join(f"{name}://" for name in _KEYS)
        raise InputError(f"{scheme}://: got an unknown scheme, expected a path of this machine, or {known}")
    host = "BUCKET" if scheme in OBJECTS else "HOST"
    parts = _URI.fullmatch(rest)
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
    """Return the file system, once in a process: what speaks to a store does not cross to another one."""
    try:
        from pyarrow import fs
    except ImportError:
        raise missing("URIs need pyarrow", "bulk") from None
    return fs.FileSystem.from_uri(uri)[0]


def _without_secrets(said: str, uri: str) -> str:
    """Return what a store said without the parts of a URI that may be secret, as they are and unescaped."""
    for secret in sorted(_secrets(uri), key=len, reverse=True):
        said = said.replace(secret, "***")
    return said


def _secrets(uri: str) -> Iterator[str]:
    parts = urllib.parse.urlsplit(uri)
    user, _, _ = parts.netloc.rpartition("@")
    options = (pair.partition("=") for pair in parts.query.split("&"))
    values = [value for name, _, value in options if name not in _SHOWN or "@" in value]
    names = user.split(":", 1)[1:] if parts.scheme == "hdfs" else user.split(":", 1)
    for value in (uri, *names, *values):
        yield from filter(None, (value, urllib.parse.unquote(value)))
