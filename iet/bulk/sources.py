"""Which files are read: paths, folders and patterns, what each file is, and which of them share chunks."""

from __future__ import annotations

import collections
import dataclasses
import glob
import hashlib
import os
import pathlib
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from iet.audit import formats
from iet.errors import InputError, missing

_LINES = re.compile(r"\.(jsonl|ndjson)(\.gz|\.zst)?$", re.IGNORECASE)
_TEXTS = (".txt", ".md", ".markdown")
_EDGE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Source:
    """One input file.

    Attributes:
        path: as given.
        kind: "parquet", "jsonl" or "text" (one document).
        size: bytes.
    """

    path: str
    kind: str
    size: int

    @property
    def name(self) -> str:
        """The path in valid Unicode."""
        return os.fsencode(self.path).decode(errors="backslashreplace")

    @property
    def plain(self) -> bool:
        """Whether its bytes are those of its documents."""
        return self.kind != "parquet" and not self.path.lower().endswith((".gz", ".zst"))

    def describe(self) -> dict[str, Any]:
        """Return path, size, and a digest of the first and the last MiB, by which a run knows it again."""
        digest = hashlib.sha256()
        with open(self.path, "rb") as file:
            digest.update(file.read(_EDGE))
            file.seek(max(0, self.size - _EDGE))
            digest.update(file.read(_EDGE))
        return {"path": self.path, "bytes": self.size, "edges_sha256": digest.hexdigest()}


def expand(
    inputs: Iterable[str | os.PathLike[str]], out: pathlib.Path
) -> tuple[list[Source], dict[str, int]]:
    """Return the files that paths, folders and patterns name; files of a folder are sorted by path.

    A folder stands for all .parquet, .jsonl, .ndjson (also .gz, .zst), .txt, .md and .markdown files below
    it, and documents that can be read here (`iet.audit.formats`), without hidden ones and without `out`.

    Returns:
        The files, and how many others lie in the folders, by the ends of their names ("": those without;
        with " (no file)" pipes, devices, and links that lead nowhere).

    Raises:
        InputError: nothing is there, or a file is named twice or cannot be read.
    """
    found, others = list[str](), collections.Counter[str]()
    for item in inputs:
        given = os.fspath(item)
        if os.path.isdir(given):
            files = sorted(_walk(pathlib.Path(given), out.resolve(), others))
        elif os.path.exists(given) or not glob.has_magic(given):
            files = [given]
        else:
            files = sorted(path for path in glob.glob(given, recursive=True) if os.path.isfile(path))
        if not files:
            there = f" ({told_of(others)})" if others else ""
            raise InputError(
                f"{given}: got no .parquet, .jsonl, .txt or .md file there{there}, expected some"
            )
        found += files
    seen = dict[str, str]()
    for path in found:
        real = os.path.realpath(path)
        if real in seen:
            raise InputError(f"{path}: got it twice (as {seen[real]}), expected each file once")
        seen[real] = path
    return [_source(path) for path in found], dict(sorted(others.items()))


def told_of(not_read: Mapping[str, int]) -> str:
    """Return in words how many files of which kinds are not read."""
    kinds = ", ".join(f"{end or 'without an end of the name'} {count}" for end, count in not_read.items())
    count = sum(not_read.values())
    return (
        f"{count:,} {'file' if count == 1 else 'files'} not read: {kinds}; convert them to text first:"
        " pandoc --wrap=none -t plain FILE -o FILE.txt (or install the extra documents: .docx, .pdf, .html)"
    )


def _walk(folder: pathlib.Path, out: pathlib.Path, others: collections.Counter[str]) -> Iterator[str]:
    ends = (".parquet", *_TEXTS, *filter(formats.readable, formats.SUFFIXES))
    for path, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and (pathlib.Path(path) / name).resolve() != out
        ]
        for name in files:
            if name.startswith("."):
                continue
            read = name.lower().endswith(ends) or _LINES.search(name)
            if read and os.path.isfile(os.path.join(path, name)):
                yield os.path.join(path, name)
            else:
                end = pathlib.PurePath(name).suffix.lower().encode(errors="backslashreplace").decode()[:20]
                others[f"{end} (no file)" if read else end] += 1


def _source(path: str) -> Source:
    kind = "parquet" if path.lower().endswith(".parquet") else "jsonl" if _LINES.search(path) else "text"
    if path.lower().endswith(".zst") and kind == "jsonl":
        try:
            import zstandard  # noqa: F401
        except ImportError:
            raise missing(f"{path}: needs zstandard", "bulk") from None
    try:
        # A pipe would be waited for, and cannot be read again.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InputError(f"{path}: got a pipe, socket or device, expected a file")
        with open(path, "rb") as file:
            return Source(path, kind, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def groups_of(sources: Sequence[Source], size: int) -> list[int]:
    """Return the group of each source: neighbours of `size` bytes together at most, or one larger file.

    No chunk crosses from one group to the next, so that a file that changes leaves the others' chunks alone.
    """
    groups, total = list[int](), 0
    for source in sources:
        total += source.size
        new = bool(groups) and total > size
        groups.append((groups[-1] if groups else 0) + new)
        total = source.size if new else total
    return groups
