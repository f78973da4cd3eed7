"""Compiled loops on disk: Numba's files, pickles and machine code, which are read only if ours and whole.

Whoever can write such a file can run code here, and a flipped bit in one is another program. So a folder or
file that others can write is not used, and every file ends in the digest of what stands before it, which
Numba's readers do not look at. Folders above are not looked at: who can write those can exchange ours for
another, but not make one that is ours.

What stands beside the source is read where it cannot be written, too: whoever made the image of a container
compiled it there (`iet warm`), as root.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import stat
import uuid
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from numba.core import caching  # type: ignore[import-untyped, unused-ignore]

folders: set[str] = set()
"""Where loops of this process are kept."""

read: set[str] = set()
"""Folders beside the source from which loops of this process are read, but in which none can be kept."""

refused: dict[str, str] = {}
"""Folders that were not used, with the reason."""

_DIGEST_BYTES = 32


def writable_by_others(status: os.stat_result) -> str | None:
    """Return why others than this user and root could have written a file or folder; None: they could not."""
    if not hasattr(os, "geteuid"):
        return None
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to user {status.st_uid}"
    if status.st_mode & 0o022:
        return f"mode {stat.S_IMODE(status.st_mode):04o}, others can write it"
    return None


def _safe(locator: Any) -> Any:
    """Return a locator of Numba's that makes folders for this user alone, and passes by those of others."""

    class Safe(locator):  # type: ignore[misc]
        def ensure_cache_path(self) -> None:
            folder = pathlib.Path(self.get_cache_path())
            folder.parent.mkdir(parents=True, exist_ok=True)
            beside = issubclass(locator, caching.InTreeCacheLocator)  # whoever reads the source may read it
            folder.mkdir(mode=0o700 | (folder.parent.stat().st_mode & 0o055 if beside else 0), exist_ok=True)
            reason = writable_by_others(folder.stat())
            if reason is not None:
                refused[str(folder)] = reason
                raise PermissionError(f"{folder}: {reason}")  # Numba goes on to the next place
            super().ensure_cache_path()

    return Safe


class _Impl(caching.CompileResultCacheImpl):  # type: ignore[misc, unused-ignore]
    _locator_classes = list(map(_safe, caching.CompileResultCacheImpl._locator_classes))  # noqa: RUF012

    def get_filename_base(self, fullname: str, abiflags: str) -> str:
        # Numba's own files, without a digest, have other names.
        return f"iet-{super().get_filename_base(fullname, abiflags)}"


class _Beside(caching.InTreeCacheLocator):  # type: ignore[misc, unused-ignore]
    """The folder beside the source, to read."""

    def ensure_cache_path(self) -> None:
        reason = writable_by_others(os.stat(self.get_cache_path()))
        if reason is not None:
            raise PermissionError(f"{self.get_cache_path()}: {reason}")


class _ImplBeside(_Impl):
    _locator_classes = [_Beside]  # noqa: RUF012


class _Unsafe(OSError):
    """A file of the cache that is not read."""


class _Files(caching.IndexDataCacheFile):  # type: ignore[misc, unused-ignore]
    def __init__(self, cache_path: str, filename_base: str, source_stamp: Any, tell: Callable[[str], None]):
        super().__init__(cache_path, filename_base, source_stamp)
        self._tell = tell

    def _load_index(self) -> Any:
        try:
            _check(self._index_path)
            return super()._load_index()
        except FileNotFoundError:
            return {}
        except Exception as error:  # whatever Numba raises on what it cannot read
            self._tell(f"{self._index_path}: {error}")
            return {}

    def _load_data(self, name: str) -> Any:
        try:
            _check(self._data_path(name))
            return super()._load_data(name)
        except FileNotFoundError:
            raise
        except Exception as error:
            self._tell(f"{self._data_path(name)}: {error}")
            raise _Unsafe from None  # Numba takes an OSError for a file that is not there

    @contextlib.contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[Any]:
        temporary = f"{filepath}.tmp.{uuid.uuid4().hex[:16]}"
        try:
            mode = 0o600 | (os.stat(self._cache_path).st_mode & 0o044)  # who may read the folder reads it
            with open(temporary, "xb", opener=lambda path, flags: os.open(path, flags, mode)) as file:
                hashing = _Hashing(file)
                yield hashing
                file.write(hashing.digest.digest())
            os.replace(temporary, filepath)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


class _Hashing:
    def __init__(self, file: Any):
        self.digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._file = file

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return int(self._file.write(data))


def _check(path: str) -> None:
    with open(path, "rb") as file:
        reason = writable_by_others(os.fstat(file.fileno()))
        if reason is not None:
            raise _Unsafe(reason)
        content = file.read()
    found = hashlib.blake2b(content[:-_DIGEST_BYTES], digest_size=_DIGEST_BYTES).digest()
    if found != content[-_DIGEST_BYTES:]:
        raise _Unsafe("damaged")


class Cache(caching.FunctionCache):  # type: ignore[misc, unused-ignore]
    """What was compiled of one function; what cannot be read or kept is compiled anew, with one warning.

    Args:
        function: to be compiled.
        beside: to be asked for what is not kept here.

    Raises:
        RuntimeError: there is no folder that can be written, and by nobody else.
    """

    _impl_class = _Impl
    _told = False

    def __init__(self, function: Callable[..., Any], beside: ReadCache | None = None):
        super().__init__(function)
        reason = writable_by_others(os.stat(self._cache_path))
        if reason is not None:  # of a locator that the environment names
            refused[self._cache_path] = reason
            raise RuntimeError(f"{self._cache_path}: {reason}")
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, stamp, self._tell)
        self._beside = None
        if beside is not None and beside.cache_path != self._cache_path:
            self._beside = beside.used()
        self._list()

    def _list(self) -> None:
        folders.add(self._cache_path)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was compiled for these types, or None."""
        try:
            found = super().load_overload(sig, target_context)
        except Exception as error:
            self._tell(f"{self._cache_path}: {type(error).__name__}: {error}")
            found = None
        if found is None and self._beside is not None:
            return self._beside.load_overload(sig, target_context)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled, if that is possible."""
        try:
            super().save_overload(sig, data)
        except Exception as error:
            self._tell(f"{self._cache_path}: {type(error).__name__}: {error}", "not kept")

    @staticmethod
    def _tell(what: str, so: str = "compiled anew") -> None:
        if not Cache._told:
            Cache._told = True
            message = f"cache of compiled loops: {what}; {so}"
            warnings.warn_explicit(message, RuntimeWarning, "iet", 0)  # one line, without one of source


class ReadCache(Cache):
    """What stands of one function beside its source, where it cannot be written.

    Raises:
        RuntimeError: there is no such folder, or others can write it.
    """

    _impl_class = _ImplBeside

    @classmethod
    def of(cls, function: Callable[..., Any]) -> ReadCache | None:
        """Return it, or None where nothing of the function is there."""
        with contextlib.suppress(RuntimeError):
            found = cls(function)
            if os.path.exists(found._cache_file._index_path):
                return found
        return None

    def _list(self) -> None:
        """Stand in no list before it is used."""

    def used(self) -> ReadCache:
        """Stand in the list of folders that are read, and return this."""
        read.add(self._cache_path)
        return self

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep nothing."""
