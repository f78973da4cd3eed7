"""Which files are read: paths, folders, patterns and URIs, what each is, and which of them share chunks."""

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
from iet.bulk.places import HERE, Place, Stored, is_uri, store_of
from iet.errors import InputError, missing
from iet.marks.files import HIDDEN, shown_path, take_hidden, walk

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
        place: where it lies, by `path`.
        modified: when it was written last, as its store says; None: it is a file of this machine.
    """

    path: str
    kind: str
    size: int
    place: Place = HERE
    modified: str | None = None

    @property
    def name(self) -> str:
        """The path in valid Unicode."""
        return shown_path(self.path)

    @property
    def plain(self) -> bool:
        """Whether its bytes are those of its documents."""
        return self.kind != "parquet" and not self.path.lower().endswith((".gz", ".zst"))

    def describe(self) -> dict[str, Any]:
        """Return that by which a run knows it again: path, size, and a digest of the first and the last MiB.

        Of a file of a store, its time stands in place of the digest, which would take two requests.
        """
        if self.modified is not None:
            return {"path": self.path, "bytes": self.size, "modified": self.modified}
        digest = hashlib.sha256()
        with open(self.path, "rb") as file:
            digest.update(file.read(_EDGE))
            file.seek(max(0, self.size - _EDGE))
            digest.update(file.read(_EDGE))
        return {"path": self.path, "bytes": self.size, "edges_sha256": digest.hexdigest()}


def expand(
    inputs: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str]
) -> tuple[list[Source], dict[str, int]]:
    """Return the files that paths, folders, patterns and URIs name; files of a folder are sorted by path.

    A folder stands for all .parquet, .jsonl, .ndjson (also .gz, .zst), .txt, .md and .markdown files below
    it, and documents that can be read here (`iet.audit.formats`), without hidden ones and without `out`. A
    pattern stands for the files that it names, without those of `out` and of other results.

    Returns:
        The files, and how many others lie in the folders, or are named by patterns, by the ends of their
        names ("": those without; with " (no file)" pipes, devices, and links that lead nowhere), and
        "hidden" in folders.

    Raises:
        InputError: nothing is there, or a file is named twice or cannot be read.
    """
    found, others = list[Source | str](), collections.Counter[str]()
    for item in inputs:
        given = os.fspath(item)
        if is_uri(given):
            given, stored = _stored(given, os.fspath(out), others)
            files: Sequence[Source | str] = stored
        else:
            files = _local(given, pathlib.Path(out), others)
        if not files:
            there = f" ({told_of(others)})" if others else ""
            raise InputError(
                f"{given}: got no .parquet, .jsonl, .txt or .md file there{there}, expected some"
            )
        found += files
    seen = dict[str, str]()
    for each in found:
        path, real = (each, os.path.realpath(each)) if isinstance(each, str) else (each.path, each.path)
        if real in seen:
            raise InputError(f"{path}: got it twice (as {seen[real]}), expected each file once")
        seen[real] = path
    sources = [_source(each) if isinstance(each, str) else each for each in found]
    return sources, dict(sorted(others.items()))


def _local(given: str, out: pathlib.Path, others: collections.Counter[str]) -> list[str]:
    """Return the files of this machine that a path, a folder or a pattern names."""
    if os.path.isdir(given):
        return sorted(_walk(pathlib.Path(given), out.resolve(), others))
    if os.path.exists(given) or not glob.has_magic(given):
        return [given]
    return list(_matched(given, out.resolve(), others))


def _matched(pattern: str, out: pathlib.Path, others: collections.Counter[str]) -> Iterator[str]:
    """Yield the files that a pattern names, sorted, without `out` and results of other audits."""
    root = pathlib.PurePath(os.path.dirname(re.split(r"[*?[]", pattern, maxsplit=1)[0]))

    @functools.cache
    def lies_in(folder: pathlib.PurePath) -> str | pathlib.Path | None:
        if folder != root and pathlib.Path(folder).resolve() == out:
            return out
        if os.path.exists(folder / _RUN) and _are_results(os.listdir(folder)):
            return RESULTS
        return None if folder in (root, folder.parent) else lies_in(folder.parent)

    for path in sorted(glob.glob(pattern, recursive=True)):
        place = pathlib.PurePath(path)
        inside = lies_in(place if os.path.isdir(path) else place.parent)
        if inside == RESULTS:
            others[RESULTS] += 1
        elif inside is None and os.path.isfile(path):
            yield path
        elif inside is None and not os.path.isdir(path):
            others[f"{_end(place.name)} (no file)"] += 1
        elif inside is None and "**" not in pattern:  # which names what lies in a folder, too
            others[LINKS if os.path.islink(path) else FOLDERS] += 1


_RUN = "run.json"


def _are_results(names: Collection[str]) -> bool:
    """Tell whether what lies in a folder is what an audit wrote."""
    return _RUN in names and any(name.startswith("documents-") for name in names)


def _stored(given: str, out: str, others: collections.Counter[str]) -> tuple[str, list[Source]]:
    """Return the path of a URI, as it is shown, and the files of a store that it names."""
    store, path = store_of(given)
    found = store.there(path)
    if found is None:
        pattern = "; a URI is no pattern" if glob.has_magic(path) else ""
        raise InputError(f"{path}: got nothing there, expected a file or a folder{pattern}")
    if [each.path for each in found] != [path]:
        results = f"{store_of(out)[1]}/" if is_uri(out) else None
        found = sorted(_below(path, found, results, others))
    return path, [Source(each.path, _kind(each.path), each.size, store, each.modified) for each in found]


def _below(
    path: str, found: Sequence[Stored], results: str | None, others: collections.Counter[str]
) -> Iterator[Stored]:
    """Yield the files below a path that are read: as `_walk` does, no hidden ones and no results."""
    ends, names = _ends(), collections.defaultdict[str, set[str]](set)
    for each in found:
        folder, _, name = each.path.rpartition("/")
        names[folder].add(name)
    audits = tuple(f"{folder}/" for folder, some in names.items() if _are_results(some))
    for each in found:
        inside = each.path[len(path) :].split("/")
        if results and each.path.startswith(results):
            continue
        if each.path.startswith(audits):
            others[RESULTS] += 1
            continue
        if any(name.startswith(".") for name in inside):
            others[HIDDEN] += 1
            continue
        if _is_read(inside[-1], ends):
            yield each
        else:
            others[_end(inside[-1])] += 1


FOLDERS, LINKS, RESULTS = "folders", "links to folders", "results of an audit"
"""What is not read, beside HIDDEN, among the ends of names, and is not to be converted."""


def told_of(not_read: Mapping[str, int]) -> str:
    """Return in words how many files of which kinds are not read."""
    kinds = ", ".join(f"{end or 'without an end of the name'} {count}" for end, count in not_read.items())
    count = sum(not_read.values())
    said = f"{count:,} {'file' if count == 1 else 'files'} not read: {kinds}"
    if {FOLDERS, HIDDEN, LINKS, RESULTS} >= not_read.keys():
        return said
    return (
        f"{said}; convert them to text first: pandoc --wrap=none -t plain FILE -o FILE.txt (or install the"
        " extra documents: .docx, .pdf, .html)"
    )


def _walk(folder: pathlib.Path, out: pathlib.Path, others: collections.Counter[str]) -> Iterator[str]:
    ends = _ends()
    for path, folders, files in walk(folder):
        links = sum(os.path.islink(os.path.join(path, name)) for name in folders if not name.startswith("."))
        others.update({LINKS: links} if links else {})
        if _are_results(files):
            folders.clear()
            others[RESULTS] += len(files)
            continue
        others.update(take_hidden(path, folders, files, leave=out))
        folders[:] = [name for name in folders if (pathlib.Path(path) / name).resolve() != out]
        for name in files:
            read = _is_read(name, ends)
            if read and os.path.isfile(os.path.join(path, name)):
                yield os.path.join(path, name)
            else:
                end = _end(name)
                others[f"{end} (no file)" if read else end] += 1


def _ends() -> tuple[str, ...]:
    return (".parquet", *_TEXTS, *filter(formats.readable, formats.SUFFIXES))


def _is_read(name: str, ends: tuple[str, ...]) -> bool:
    return name.lower().endswith(ends) or _LINES.search(name) is not None


def _end(name: str) -> str:
    return shown_path(pathlib.PurePath(name).suffix.lower())[:20]


def _kind(path: str) -> str:
    kind = "parquet" if path.lower().endswith(".parquet") else "jsonl" if _LINES.search(path) else "text"
    if path.lower().endswith(".zst") and kind == "jsonl":
        try:
            import zstandard  # noqa: F401
        except ImportError:
            raise missing(f"{path}: needs zstandard", "bulk") from None
    return kind


def _source(path: str) -> Source:
    kind = _kind(path)
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
