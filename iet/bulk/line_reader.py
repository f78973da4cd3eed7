"""Lines of plain, .gz and .zst files, read in bounded memory."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

from iet.bulk.storage import HERE, Storage
from iet.errors import InputError

MAXIMUM_EXPANSION, FREE_EXPANSION = 1000, 1 << 26
"""Limit of what a compressed file may grow to: a multiple of its size, or bytes, whichever is larger."""

_SKIP_BYTES = 1 << 16

_BUFFER_BYTES = 512
"""Decompressed bytes that are lost at most in front of the place at which a file is broken."""


class Refused(InputError):
    """Replaces a record that is not read.

    Attributes:
        size: what it counts in its chunk, in bytes.
        digest: of its content, as `digest_of` makes it.
        rest: whether the rest of its file is not read either.
    """

    def __init__(self, reason: str, size: int = 0, digest: bytes = b"", ends_file: bool = False) -> None:
        super().__init__(reason)
        self.size, self.digest, self.ends_file = size, digest, ends_file


def rest_of_file(reason: str) -> Refused:
    """Return the record that replaces the unreadable rest of a file."""
    return Refused(f"the rest of the file is not read: {reason}", ends_file=True)


def too_large(size: int, limit: int, unit: str, digest: bytes) -> Refused:
    """Return the record that replaces one beyond the limit."""
    return Refused(f"got {size:,} {unit}, expected at most {limit:,} (max_record, --max-text)", size, digest)


def digest_of(content: bytes | bytearray | memoryview) -> bytes:
    """Return a digest of a record, 16 bytes."""
    return hashlib.blake2b(content, digest_size=16).digest()


def lines(
    path: str, size: int, limit: int, storage: Storage = HERE
) -> Iterator[tuple[int, bytes | Refused, int]]:
    """Yield the lines that are not blank: number from 0, content, and the bytes of the file read so far.

    Args:
        path: the file; .gz and .zst are decompressed.
        size: its bytes.
        limit: maximum number of bytes of a line. A longer one is refused, and the next ones are read.
        storage: what opens the file.

    Raises:
        InputError: the system cannot read the file. If the file is broken, its last record is a `Refused`.
    """
    number = -1
    try:
        with storage.open(path) as raw:
            suffix = path.lower().rpartition(".")[2]
            compression = {"gz": "gzip", "zst": "zstd"}.get(suffix)
            content, max_bytes = raw, None
            if compression is not None:
                stream = pa.CompressedInputStream(pa.PythonFile(raw, "r"), compression)
                content, max_bytes = io.BufferedReader(stream, _BUFFER_BYTES), MAXIMUM_EXPANSION * size
                max_bytes = max(max_bytes, FREE_EXPANSION)
            for number, line in enumerate(_cut(content, limit, max_bytes)):
                if isinstance(line, Refused) or not line.isspace():
                    yield number, line, raw.tell()
    except OSError as error:
        check_of_the_file(path, error)
        yield number + 1, rest_of_file(str(error) or type(error).__name__), size


def check_of_the_file(path: str, error: BaseException) -> None:
    """Raise an InputError if the system failed, so that reading again may help; the file may be intact."""
    if isinstance(error, MemoryError):  # a base of Arrow's error
        raise InputError(f"{path}: out of memory; resume where there is more") from None
    if isinstance(error, OSError) and error.errno is not None:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def _cut(file: BinaryIO, limit: int, max_bytes: int | None) -> Iterator[bytes | Refused]:
    """Cut at line ends, and stop after `most` bytes."""
    total = 0
    while line := file.readline(limit + 1):
        total += len(line)
        if len(line) <= limit or line.endswith(b"\n"):
            yield line
        else:
            digest, size = hashlib.blake2b(line, digest_size=16), len(line)
            while (max_bytes is None or total <= max_bytes) and not line.endswith(b"\n"):
                if not (line := file.readline(_SKIP_BYTES)):
                    break
                digest.update(line)
                size, total = size + len(line), total + len(line)
            yield too_large(size, limit, "bytes", digest.digest())
        if max_bytes is not None and total > max_bytes:
            yield rest_of_file(
                f"it grows to more than {max_bytes:,} bytes, {MAXIMUM_EXPANSION:,} times its size;"
                " decompress it first if that is intended"
            )
            return
