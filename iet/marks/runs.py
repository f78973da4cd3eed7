"""Sorted runs of hashes with a number each, one file for each run: the storage of an index on disk."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError
from iet.marks.files import write_file

Hashes = NDArray[np.uint64]
Numbers = NDArray[np.uint32]

MAGIC = b"iet.run/1\n".ljust(24, b"\0")
"""Start of a run; the number of hashes (8 bytes), the hashes (8 each) and the numbers (4 each) follow."""

ENTRY_BYTES = 12

CHECKED_BYTES = 1 << 26
"""Runs up to this size are compared with their digest when they are opened; larger ones by `Run.check`."""

_SLICE = 1 << 20  # entries that are merged at once


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """Distinct hashes in ascending order, and a number for each, in a memory-mapped file.

    Attributes:
        path: the file.
        hashes: uint64 [N].
        numbers: uint32 [N].
        digest: BLAKE2b-256 of the file, in hex.
    """

    path: pathlib.Path
    hashes: Hashes
    numbers: Numbers
    digest: str

    def __len__(self) -> int:
        return len(self.hashes)

    @classmethod
    def open(cls, path: pathlib.Path, digest: str) -> Run:
        """Map a run into memory.

        Raises:
            InputError: the file cannot be read, or has another digest.
        """
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                head = file.read(len(MAGIC) + 8)
                if size <= CHECKED_BYTES:
                    file.seek(0)
                    _compare(file, path, digest)
            count = int.from_bytes(head[len(MAGIC) :], "little")
            if head[: len(MAGIC)] != MAGIC or not count or size != len(head) + ENTRY_BYTES * count:
                raise InputError(f"{path}: cut off or damaged, expected a run of an index; take a backup")
            mapped = functools.partial(np.memmap, path, mode="r")
            hashes: Any = mapped(dtype="<u8", offset=len(head), shape=(count,))
            numbers: Any = mapped(dtype="<u4", offset=len(head) + 8 * count, shape=(count,))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
        return cls(path, hashes.view(np.ndarray), numbers.view(np.ndarray), digest)

    @classmethod
    def write(cls, path: pathlib.Path, parts: Sequence[tuple[Hashes, Numbers]]) -> Run:
        """Merge runs into one, written atomically with mode 0600.

        Args:
            path: the new file.
            parts: hashes and numbers of each run; ascending, and no hash in two of them.

        Cost: O(N log N) time, bounded memory.
        """
        digest, count = hashlib.blake2b(digest_size=32), sum(len(hashes) for hashes, _ in parts)

        def content(file: BinaryIO) -> None:
            # All hashes come before all numbers, so the parts are merged twice.
            for data in (MAGIC, count.to_bytes(8, "little"), *_merged(parts, 0), *_merged(parts, 1)):
                digest.update(data)
                file.write(data)

        write_file(path, content, mode=0o600)
        return cls.open(path, digest.hexdigest())

    def check(self) -> None:
        """Raise an InputError unless the whole file has its digest. O(N)."""
        with open(self.path, "rb") as file:
            _compare(file, self.path, self.digest)

    def numbers_of(self, hashes: Hashes, missing: int) -> NDArray[np.int64]:
        """Return the numbers of hashes [M], `missing` for unknown hashes. O(M·log N)."""
        index = np.searchsorted(self.hashes, hashes).clip(0, len(self) - 1)
        return np.where(self.hashes[index] == hashes, self.numbers[index].astype(np.int64), missing)


def _compare(file: BinaryIO, path: pathlib.Path, digest: str) -> None:
    actual = hashlib.blake2b(digest_size=32)
    while data := file.read(1 << 20):
        actual.update(data)
    if actual.hexdigest() != digest:
        raise InputError(f"{path}: its digest does not fit, so it was cut off or damaged; take a backup")


def _merged(parts: Sequence[tuple[Hashes, Numbers]], column: int) -> Iterator[bytes]:
    """Yield the hashes (`column` 0) or numbers (1) of all parts in the order of the hashes, in slices."""
    cuts = np.unique(np.concatenate([hashes[_SLICE - 1 :: _SLICE] for hashes, _ in parts]))
    bounds = [[0, *np.searchsorted(hashes, cuts, "right").tolist(), len(hashes)] for hashes, _ in parts]
    for i in range(len(cuts) + 1):
        slices = [slice(bound[i], bound[i + 1]) for bound in bounds]
        hashes = np.concatenate([part[0][piece] for part, piece in zip(parts, slices, strict=True)])
        order = np.argsort(hashes, kind="stable")
        if column:
            numbers = np.concatenate([part[1][piece] for part, piece in zip(parts, slices, strict=True)])
            yield numbers[order].astype("<u4").tobytes()
        else:
            yield hashes[order].astype("<u8").tobytes()
