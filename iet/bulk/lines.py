"""Lines of a file (plain, .gz, .zst), read in bounded memory whatever the file holds."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from iet.bulk.places import HERE, Place
from iet.errors import InputError

MAXIMUM_EXPANSION, FREE_EXPANSION = 1000, 1 << 26
"""A compressed file may grow to so many times its size, or to so many bytes, whichever is more."""

_SKIPPED, _COMPRESSED = 1 << 16, 512
# A block of Zstandard has 4 bytes or more and holds 128 KiB at most, so 512 bytes become 16 MiB at most.


class Refused(InputError):
    """A record that is not read stands in its stead.

    Attributes:
        size: what it counts in its chunk, in bytes.
        digest: of its content, as `digest_of` makes it.
        rest: whether nothing behind it in its file is read either.
    """

    def __init__(self, reason: str, size: int = 0, digest: bytes = b"", rest: bool = False) -> None:
        super().__init__(reason)
        self.size, self.digest, self.rest = size, digest, rest


def rest_of_file(reason: str) -> Refused:
    """Return what stands for all that cannot be read in a file from here on."""
    return Refused(f"the rest of the file is not read: {reason}", rest=True)


def too_large(size: int, limit: int, unit: str, digest: bytes) -> Refused:
    """Return what stands for a record beyond the limit."""
    return Refused(
        f"got {size:,} {unit}, expected at most {limit:,} (max_record, --max-record)", size, digest
    )


def digest_of(content: bytes | bytearray | memoryview) -> bytes:
    """Return 16 bytes that know a record again."""
    return hashlib.blake2b(content, digest_size=16).digest()


def lines(
    path: str, size: int, limit: int, place: Place = HERE
) -> Iterator[tuple[int, bytes | Refused, int]]:
    """Yield the lines that are not blank: number from 0, content, and the bytes of the file read so far.

    Args:
        path: the file; .gz and .zst are decompressed.
        size: its bytes.
        limit: maximum number of bytes of a line. A longer one is refused, and those behind it are read.
        place: where the file lies.

    Raises:
        InputError: the system cannot read the file. What is broken in it is the last record, a `Refused`.
    """
    broken: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
    if path.lower().endswith(".zst"):
        import zstandard

        broken += (zstandard.ZstdError,)
    number = -1
    try:
        with place.open(path) as raw:
            compressed = path.lower().endswith((".gz", ".zst"))
            most = max(MAXIMUM_EXPANSION * size, FREE_EXPANSION) if compressed else None
            for number, line in enumerate(_cut(_decompressed(path, raw), limit, most)):
                if isinstance(line, Refused) or not line.isspace():
                    yield number, line, raw.tell()
    except broken as error:
        check_of_the_file(path, error)
        yield number + 1, rest_of_file(str(error) or type(error).__name__), size


def check_of_the_file(path: str, error: BaseException) -> None:
    """Raise an InputError where the system is at fault, and reading again may help, and not the file."""
    if isinstance(error, MemoryError):  # of Arrow, whose errors it is one of
        raise InputError(f"{path}: out of memory; resume where there is more") from None
    if isinstance(error, OSError) and error.errno is not None:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def _cut(file: BinaryIO, limit: int, most: int | None) -> Iterator[bytes | Refused]:
    """Cut at line ends, and stop after `most` bytes."""
    total = 0
    while line := file.readline(limit + 1):
        total += len(line)
        if len(line) <= limit or line.endswith(b"\n"):
            yield line
        else:
            digest, size = hashlib.blake2b(line, digest_size=16), len(line)
            while (most is None or total <= most) and not line.endswith(b"\n"):
                if not (line := file.readline(_SKIPPED)):
                    break
                digest.update(line)
                size, total = size + len(line), total + len(line)
            yield too_large(size, limit, "bytes", digest.digest())
        if most is not None and total > most:
            yield rest_of_file(
                f"it grows to more than {most:,} bytes, {MAXIMUM_EXPANSION:,} times its size; decompress it"
                " first if that is what it should hold"
            )
            return


def _decompressed(path: str, raw: BinaryIO) -> BinaryIO:
    name = path.lower()
    if name.endswith(".gz"):
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    return io.BufferedReader(_Zstandard(raw), 1 << 17) if name.endswith(".zst") else raw


class _Zstandard(io.RawIOBase):
    """The content of all frames, a bounded part at a time.

    A frame that ends too early raises, unlike in zstandard's own class.
    """

    def __init__(self, raw: BinaryIO) -> None:
        import zstandard

        self._raw = raw
        self._open = zstandard.ZstdDecompressor().decompressobj
        self._frame = self._open()
        self._begun = False
        self._left = self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            if self._frame.eof:
                self._frame, self._begun = self._open(), False
            self._left = self._left or memoryview(self._raw.read(1 << 16))
            if not self._left:
                if self._begun:
                    raise EOFError("its last frame is not complete")
                return 0
            self._begun = True
            data = self._left[:_COMPRESSED]
            self._ready = memoryview(self._frame.decompress(data))
            used = len(data) - (len(self._frame.unused_data) if self._frame.eof else 0)
            self._left = self._left[used:]
        some = self._ready[: len(buffer)]
        buffer[: len(some)], self._ready = some, self._ready[len(some) :]
        return len(some)
