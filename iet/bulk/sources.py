"""Find input files from paths, folders, patterns and URIs, and group them into chunks."""

from __future__ import annotations

import collections
import dataclasses
import functools
import glob
import hashlib
import os
import pathlib
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from iet.audit import formats
from iet.bulk.storage import HERE, Storage, Stored, is_uri, store_of
from iet.errors import InputError
from iet.marks.files import HIDDEN, shown_path, take_hidden, walk

_LINES = re.compile(r"\.(jsonl|ndjson)(\.gz|\.zst)?$", re.IGNORECASE)
_TEXTS = (".txt", ".md", ".markdown")
_EDGE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Source:
    """One input file.

    Attributes:
        path: as the user wrote it.
        kind: "parquet", "jsonl" or "text" (one document).
        size: bytes.
        storage: what opens it.
        modified: when it was last modified, for files of a store; None for files of this machine.
    """

    path: str
    kind: str
    size: int
    storage: Storage = HERE
    modified: str | None = None

    @property
    def name(self) -> str:
        """The path in valid Unicode."""
        return shown_path(self.path)

    @property
    def plain(self) -> bool:
        """Whether its size is the size of its text."""
        return self.kind != "parquet" and not self.path.lower().endswith((".gz", ".zst"))

    def describe(self) -> dict[str, Any]:
        """Return what identifies the file in a resumed run: path, size, digest of its first and last MiB.

        For a file of a store, its modification time replaces the digest, which would take two requests.
        """
        if self.modified is not None:
            return {"path": self.path, "bytes": self.size, "modified": self.modified}
        digest = hashlib.sha256()
        with open(self.path, "rb") as file:
            digest.update(file.read(_EDGE))
            file.seek(max(0, self.size - _EDGE))
            digest.update(file.read(_EDGE))
        return {"path": self.path, "bytes": self.size, "edges_sha256": digest.hexdigest()}


@dataclasses.dataclass(frozen=True)
class FileKinds:
    """How files are read, by their names.

    Attributes:
        whole: suffixes of files that are one record.
        lines: whether a line of JSON lines (also .gz, .zst) is a record.
        expected: the suffixes, for messages.
    """

    whole: tuple[str, ...]
    lines: bool
    expected: str

    def of(self, path: str) -> str | None:
        """Return the kind of a `Source`; None for a suffix that folders are not searched for."""
        name = path.lower()
        if name.endswith(".parquet"):
            return "parquet"
        if self.lines and _LINES.search(name):
            return "jsonl"
        return "text" if name.endswith(self.whole) else None


def documents() -> FileKinds:
    """Return how documents are read: texts, and what this installation can read (`iet.audit.formats`)."""
    suffixes = (*_TEXTS, *filter(formats.readable, formats.SUFFIXES))
    return FileKinds(suffixes, True, ".parquet, .jsonl, .txt or .md")


def conversations(per_line: bool) -> FileKinds:
    """Return how conversations are read: one from each file, or from each line of JSON lines."""
    suffixes = (".json",) if per_line else (".json", ".jsonl", ".ndjson")
    return FileKinds(suffixes, per_line, ".json, .jsonl or .parquet")


def expand(
    inputs: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str], kinds: FileKinds
) -> tuple[list[Source], dict[str, int]]:
    """Return the files that paths, folders, patterns and URIs name, sorted by path in each folder.

    A folder means all files below it that have a kind, except hidden ones and `out`. A pattern means the
    files that match it, except `out` and other results. Named files without a kind are texts.

    Returns:
        The files, and the number of other files by their suffix. Keys are also `HIDDEN`, `FOLDERS`, `LINKS`
        and `RESULTS`; " (no file)" after a suffix marks pipes, devices and broken links.

    Raises:
        InputError: there are no files, or one is named twice or cannot be read.
    """
    files, unread = list[Source | str](), collections.Counter[str]()
    for item in inputs:
        name = os.fspath(item)
        if is_uri(name):
            name, stored = _stored(name, os.fspath(out), unread, kinds)
            matched: Sequence[Source | str] = stored
        else:
            matched = _local(name, pathlib.Path(out), unread, kinds)
        if not matched:
            note = f" ({not_read_note(unread)})" if unread else ""
            raise InputError(f"{name}: got no {kinds.expected} file there{note}, expected some")
        files += matched
    seen = dict[str, str]()
    for file in files:
        path, real = (file, os.path.realpath(file)) if isinstance(file, str) else (file.path, file.path)
        if real in seen:
            raise InputError(f"{path}: got it twice (as {seen[real]}), expected each file once")
        seen[real] = path
    sources = [_source(file, kinds) if isinstance(file, str) else file for file in files]
    return sources, dict(sorted(unread.items()))


def _local(name: str, out: pathlib.Path, unread: collections.Counter[str], kinds: FileKinds) -> list[str]:
    """Return the files of this machine that a path, a folder or a pattern names."""
    if os.path.isdir(name):
        return sorted(_walk(pathlib.Path(name), out.resolve(), unread, kinds))
    if os.path.exists(name) or not glob.has_magic(name):
        return [name]
    return list(_matched(name, out.resolve(), unread))


def _matched(pattern: str, out: pathlib.Path, unread: collections.Counter[str]) -> Iterator[str]:
    """Yield the files that match a pattern, sorted, without `out` and results of other audits."""
    root = pathlib.PurePath(os.path.dirname(re.split(r"[*?[]", pattern, maxsplit=1)[0]))

    @functools.cache
    def results_around(folder: pathlib.PurePath) -> str | pathlib.Path | None:
        if folder != root and pathlib.Path(folder).resolve() == out:
            return out
        if os.path.exists(folder / _RUN) and _are_results(os.listdir(folder)):
            return RESULTS
        return None if folder in (root, folder.parent) else results_around(folder.parent)

    for path in sorted(glob.glob(pattern, recursive=True)):
        pure_path = pathlib.PurePath(path)
        results = results_around(pure_path if os.path.isdir(path) else pure_path.parent)
        if results == RESULTS:
            unread[RESULTS] += 1
        elif results is None and os.path.isfile(path):
            yield path
        elif results is None and not os.path.isdir(path):
            unread[f"{_suffix(pure_path.name)} (no file)"] += 1
        elif results is None and "**" not in pattern:  # such a pattern also matches the folder's files
            unread[LINKS if os.path.islink(path) else FOLDERS] += 1


_RUN = "run.json"


def _are_results(names: Collection[str]) -> bool:
    """Tell whether a folder holds the results of an audit."""
    return _RUN in names and any(name.startswith("documents-") for name in names)


def _stored(
    uri: str, out: str, unread: collections.Counter[str], kinds: FileKinds
) -> tuple[str, list[Source]]:
    """Return the shown path of a URI, and its files."""
    store, path = store_of(uri)
    files = store.files(path)
    if files is None:
        pattern = "; a URI is no pattern" if glob.has_magic(path) else ""
        raise InputError(f"{path}: got nothing there, expected a file or a folder{pattern}")
    if [file.path for file in files] != [path]:
        results = f"{store_of(out)[1]}/" if is_uri(out) else None
        files = sorted(_below(path, files, results, unread, kinds))
    return path, [
        Source(file.path, kinds.of(file.path) or "text", file.size, store, file.modified) for file in files
    ]


def _below(
    path: str,
    files: Sequence[Stored],
    results: str | None,
    unread: collections.Counter[str],
    kinds: FileKinds,
) -> Iterator[Stored]:
    """Yield the files of a store's folder to read, without hidden ones and results, as `_walk` does."""
    names = collections.defaultdict[str, set[str]](set)
    for file in files:
        folder, _, name = file.path.rpartition("/")
        names[folder].add(name)
    audits = tuple(f"{folder}/" for folder, members in names.items() if _are_results(members))
    for file in files:
        parts = file.path[len(path) :].split("/")
        if results and file.path.startswith(results):
            continue
        if file.path.startswith(audits):
            unread[RESULTS] += 1
        elif any(name.startswith(".") for name in parts):
            unread[HIDDEN] += 1
        elif kinds.of(parts[-1]) is not None:
            yield file
        else:
            unread[_suffix(parts[-1])] += 1


FOLDERS, LINKS, RESULTS = "folders", "links to folders", "results of an audit"
"""Keys of the counts of unread files that are no suffixes; `HIDDEN` is another one."""


def not_read_note(not_read: Mapping[str, int], *, advice: bool = True) -> str:
    """Return a sentence with the numbers of unread files of each kind, and how to convert them to text."""
    kinds = ", ".join(f"{kind or 'without a suffix'} {count}" for kind, count in not_read.items())
    count = sum(not_read.values())
    note = f"{count:,} {'file' if count == 1 else 'files'} not read: {kinds}"
    if not advice or {FOLDERS, HIDDEN, LINKS, RESULTS} >= not_read.keys():
        return note
    note += "; convert them to text first: pandoc --wrap=none -t plain FILE -o FILE.txt"
    if not_read.keys().isdisjoint(formats.SUFFIXES):
        return note
    return f"{note} (or install the extra documents: {', '.join(formats.SUFFIXES)})"


def _walk(
    folder: pathlib.Path, out: pathlib.Path, unread: collections.Counter[str], kinds: FileKinds
) -> Iterator[str]:
    for path, folders, files in walk(folder):
        links = sum(os.path.islink(os.path.join(path, name)) for name in folders if not name.startswith("."))
        unread.update({LINKS: links} if links else {})
        if _are_results(files):
            folders.clear()
            unread[RESULTS] += len(files)
            continue
        unread.update(take_hidden(path, folders, files, leave=out))
        folders[:] = [name for name in folders if (pathlib.Path(path) / name).resolve() != out]
        for name in files:
            is_read = kinds.of(name) is not None
            if is_read and os.path.isfile(os.path.join(path, name)):
                yield os.path.join(path, name)
            else:
                unread[_suffix(name) + (" (no file)" if is_read else "")] += 1


def _suffix(name: str) -> str:
    return shown_path(pathlib.PurePath(name).suffix.lower())[:20]


def _source(path: str, kinds: FileKinds) -> Source:
    kind = kinds.of(path) or "text"
    try:
        # Opening a pipe may block, and its content cannot be read twice.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InputError(f"{path}: got a pipe, socket or device, expected a file")
        with open(path, "rb") as file:
            return Source(path, kind, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def groups_of(sources: Sequence[Source], size: int) -> list[int]:
    """Return the group of each source: consecutive files of at most `size` bytes, or one larger file.

    No chunk crosses groups, so a file that changes does not affect the chunks of other groups.
    """
    groups, total = list[int](), 0
    for source in sources:
        total += source.size
        new = bool(groups) and total > size
        groups.append((groups[-1] if groups else 0) + new)
        total = source.size if new else total
    return groups
