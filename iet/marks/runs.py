"""Sorted runs of numbered hashes, a file each: what an index on disk is made of."""

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
"""Begins a run: behind it stand the number of hashes (8 bytes), the hashes (8 each) and numbers (4 each)."""

ENTRY_BYTES = 12

CHECKED_BYTES = 1 << 26
"""Size up to which a run is compared with its digest whenever it is opened; larger ones by `Run.check`."""

_SLICE = 1 << 20  # entries that are merged at once


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """Hashes, each once, in ascending order, and a number for each; read where they lie on disk.

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
            InputError: it cannot be read, or is not the run with this digest.
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
            where = functools.partial(np.memmap, path, mode="r")
            hashes: Any = where(dtype="<u8", offset=len(head), shape=(count,))
            numbers: Any = where(dtype="<u4", offset=len(head) + 8 * count, shape=(count,))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
        return cls(path, hashes.view(np.ndarray), numbers.view(np.ndarray), digest)

    @classmethod
    def write(cls, path: pathlib.Path, parts: Sequence[tuple[Hashes, Numbers]]) -> Run:
        """Write what some runs hold together as one, which appears whole or not at all, of mode 0600.

        Args:
            path: the new file.
            parts: hashes and numbers of each; ascending, and no hash in two of them.

        Cost: O(N log N) time, bounded memory.
        """
        digest, count = hashlib.blake2b(digest_size=32), sum(len(hashes) for hashes, _ in parts)

        def content(file: BinaryIO) -> None:
            # The numbers stand behind all the hashes, so the parts are merged twice.
            for data in (MAGIC, count.to_bytes(8, "little"), *_merged(parts, 0), *_merged(parts, 1)):
                digest.update(data)
                file.write(data)

        write_file(path, content, mode=0o600)
        return cls.open(path, digest.hexdigest())

    def check(self) -> None:
        """Compare all of the file with its digest, or raise an InputError. O(N)."""
        with open(self.path, "rb") as file:
            _compare(file, self.path, self.digest)

    def numbers_of(self, hashes: Hashes, missing: int) -> NDArray[np.int64]:
        """Return the numbers of some hashes [M], `missing` of those that are not here. O(M·log N)."""
        at = np.searchsorted(self.hashes, hashes).clip(0, len(self) - 1)
        return np.where(self.hashes[at] == hashes, self.numbers[at].astype(np.int64), missing)


def _compare(file: BinaryIO, path: pathlib.Path, digest: str) -> None:
    found = hashlib.blake2b(digest_size=32)
    while data := file.read(1 << 20):
        found.update(data)
    if found.hexdigest() != digest:
        raise InputError(f"{path}: its digest does not fit, so it was cut off or damaged; take a backup")


def _merged(parts: Sequence[tuple[Hashes, Numbers]], which: int) -> Iterator[bytes]:
    """Yield the hashes (0) or numbers (1) of all parts in the order of the hashes, some at a time."""
    cuts = np.unique(np.concatenate([hashes[_SLICE - 1 :: _SLICE] for hashes, _ in parts]))
    places = [np.searchsorted(hashes, cuts, "right") for hashes, _ in parts]
    bounds = [np.concatenate([[0], at, [len(hashes)]]) for at, (hashes, _) in zip(places, parts, strict=True)]
    for i in range(len(cuts) + 1):
        here = [slice(int(at[i]), int(at[i + 1])) for at in bounds]
        hashes = np.concatenate([each[some] for (each, _), some in zip(parts, here, strict=True)])
        order = np.argsort(hashes, kind="stable")
        if which:
            numbers = np.concatenate([each[some] for (_, each), some in zip(parts, here, strict=True)])
            yield numbers[order].astype("<u4").tobytes()
        else:
            yield hashes[order].astype("<u8").tobytes()
