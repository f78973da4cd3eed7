"""Where documents come from: Parquet, JSON lines (plain, .gz, .zst) and text, as one stream of records."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import gzip
import hashlib
import io
import itertools
import json
import os
import pathlib
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from iet.audit.arrow import check_type, chosen_column, values_of
from iet.errors import InputError, missing

_LINES = re.compile(r"\.(jsonl|ndjson)(\.gz|\.zst)?$", re.IGNORECASE)
_READ_ROWS = 64
_PEEK_LINES, _EDGE = 100, 1 << 20


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


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns to read: `name` holds the documents, as token ids if `ids`; `id` holds their names."""

    name: str
    ids: bool
    id: str | None


@dataclasses.dataclass(frozen=True)
class Records:
    """Consecutive records of one source, as they were read.

    Attributes:
        source: index of the source.
        rows: the place of each record in it, from 0 on.
        values: a document each, or a line of JSON.
        ids: the name of each, or None.
        position: number of bytes of the source that have been read.
    """

    source: int
    rows: Sequence[int]
    values: list[Any]
    ids: Sequence[str | None]
    position: int

    def cut(self, start: int, end: int) -> Records:
        """Return the records `[start, end)` of it."""
        return dataclasses.replace(
            self, rows=self.rows[start:end], values=self.values[start:end], ids=self.ids[start:end]
        )


def expand(inputs: Iterable[str | os.PathLike[str]], out: pathlib.Path) -> list[Source]:
    """Return the files that paths, folders and patterns name; files of a folder are sorted by path.

    A folder stands for all .parquet, .jsonl, .ndjson (also .gz, .zst) and .txt files below it, without hidden
    ones and without `out`.

    Raises:
        InputError: nothing is there, or a file is named twice or cannot be read.
    """
    found = list[str]()
    for item in inputs:
        given = os.fspath(item)
        if os.path.isdir(given):
            files = sorted(_walk(pathlib.Path(given), out.resolve()))
        elif os.path.exists(given) or not glob.has_magic(given):
            files = [given]
        else:
            files = sorted(path for path in glob.glob(given, recursive=True) if os.path.isfile(path))
        if not files:
            raise InputError(f"{given}: got no .parquet, .jsonl or .txt file there, expected some")
        found += files
    seen = dict[str, str]()
    for path in found:
        real = os.path.realpath(path)
        if real in seen:
            raise InputError(f"{path}: got it twice (as {seen[real]}), expected each file once")
        seen[real] = path
    return [_source(path) for path in found]


def _walk(folder: pathlib.Path, out: pathlib.Path) -> Iterator[str]:
    for path, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and (pathlib.Path(path) / name).resolve() != out
        ]
        for name in files:
            readable = name.lower().endswith((".parquet", ".txt")) or _LINES.search(name)
            if readable and not name.startswith("."):
                yield os.path.join(path, name)


def _source(path: str) -> Source:
    kind = "parquet" if path.lower().endswith(".parquet") else "jsonl" if _LINES.search(path) else "text"
    if path.lower().endswith(".zst") and kind == "jsonl":
        try:
            import zstandard  # noqa: F401
        except ImportError:
            raise missing(f"{path}: needs zstandard", "bulk") from None
    try:
        with open(path, "rb") as file:
            return Source(path, kind, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def choose_columns(
    sources: Sequence[Source], text_column: str | None, ids_column: str | None, id_column: str | None
) -> Columns:
    """Return the columns to read, the same of all files.

    Raises:
        InputError, ShapeError: a file lacks a column, holds something else there, or is broken.
    """
    texts = [source for source in sources if source.kind == "text"]
    column = ids_column or id_column
    if texts and column is not None:
        raise InputError(f"{texts[0].path}: got a text, expected files with a column {column!r}")
    chosen: Columns | None = None
    for source in sources:
        fields = None if source.kind == "text" else _fields(source)
        if fields is None:
            continue
        try:
            chosen = chosen or Columns(*chosen_column(fields, text_column, ids_column), id_column)
            for name in filter(None, (chosen.name, id_column)):
                if name not in fields:
                    raise InputError(f"columns: got {list(fields)[:20]}, expected {name!r} among them")
            if fields[chosen.name] is not None:
                check_type(fields[chosen.name], chosen.ids)
        except InputError as error:
            raise InputError(f"{source.path}: {error}") from None
    if texts and chosen is not None and chosen.ids:
        raise InputError(
            f"inputs: got texts and files with token ids ({chosen.name!r}), expected one of both"
        )
    name = ids_column or text_column or "text"
    return chosen or Columns(name, ids_column is not None, id_column)


def _fields(source: Source) -> dict[str, pa.Field | None] | None:
    """Return the names of a file's columns, in Parquet with their types; None if it has no record."""
    if source.kind == "parquet":
        with _parquet(source) as file:
            return {field.name: field for field in file.schema_arrow}
    names = dict[str, None]()
    for _, line, _ in itertools.islice(_lines(source), _PEEK_LINES):
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            names |= dict.fromkeys(record if isinstance(record, dict) else ())
    return dict.fromkeys(names) or None


def read(sources: Sequence[Source], columns: Columns) -> Iterator[Records]:
    """Read all sources, one after another, a few records at a time.

    Raises:
        InputError: a file is broken, such as a compressed one that ends too early.
    """
    for index, source in enumerate(sources):
        if source.kind == "text":
            try:
                data = pathlib.Path(source.path).read_bytes()
            except OSError as error:
                raise InputError(f"{source.path}: cannot be read ({error.strerror})") from None
            yield Records(index, [0], [data], [None], source.size)
        elif source.kind == "parquet":
            yield from _rows(index, source, columns)
        else:
            lines = _lines(source)
            while some := list(itertools.islice(lines, _READ_ROWS)):
                rows, values, positions = zip(*some, strict=True)
                yield Records(index, rows, list(values), [None] * len(rows), positions[-1])


def _rows(index: int, source: Source, columns: Columns) -> Iterator[Records]:
    names = [columns.name] + [columns.id] * (columns.id is not None)
    with _parquet(source) as file:
        row, count = 0, max(1, file.metadata.num_rows)
        batches = file.iter_batches(_READ_ROWS, columns=names, use_threads=False)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as error:
                raise InputError(f"{source.path}: cannot be read from row {row} on ({error})") from None
            if batch is None:
                return
            values = values_of(batch.column(names[0]), columns.ids)
            ids: list[str | None] = [None] * len(values)
            if columns.id is not None:
                ids = [shown_id(value) for value in values_of(batch.column(columns.id), ids=False)]
            rows = range(row, row + len(values))
            row += len(values)
            yield Records(index, rows, values, ids, source.size * row // count)


def shown_id(value: Any) -> str | None:
    """Return a document's name as a string."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return json.dumps(value, default=str)


@contextlib.contextmanager
def _parquet(source: Source) -> Iterator[pq.ParquetFile]:
    try:
        file = pq.ParquetFile(source.path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{source.path}: got no readable Parquet file ({error}), expected one") from None
    with file:
        yield file


def _lines(source: Source) -> Iterator[tuple[int, bytes, int]]:
    """Yield the lines that are not blank: number from 0, bytes, and the bytes of the file read so far."""
    broken: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
    if source.path.lower().endswith(".zst"):
        import zstandard

        broken += (zstandard.ZstdError,)
    try:
        with open(source.path, "rb") as raw:
            for number, line in enumerate(_decompressed(source, raw)):
                if not line.isspace():
                    yield number, line, raw.tell()
    except broken as error:
        raise InputError(f"{source.path}: cannot be read to its end ({error})") from None


def _decompressed(source: Source, raw: BinaryIO) -> Iterable[bytes]:
    name = source.path.lower()
    if name.endswith(".gz"):
        return gzip.GzipFile(fileobj=raw)
    return io.BufferedReader(_Zstandard(raw), 1 << 17) if name.endswith(".zst") else raw


class _Zstandard(io.RawIOBase):
    """The content of all frames. A frame that ends too early raises, unlike in zstandard's own class."""

    def __init__(self, raw: BinaryIO) -> None:
        import zstandard

        self._raw = raw
        self._open = zstandard.ZstdDecompressor().decompressobj
        self._frame = self._open()
        self._begun = False
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._begun = self._open(), False
            data = data or self._raw.read(1 << 16)
            if not data:
                if self._begun:
                    raise EOFError("its last frame is not complete")
                return 0
            self._begun = True
            self._ready = memoryview(self._frame.decompress(data))
        some = self._ready[: len(buffer)]
        buffer[: len(some)], self._ready = some, self._ready[len(some) :]
        return len(some)


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Records that are audited and committed together; `index` counts the chunks of all inputs from 0."""

    index: int
    records: list[Records]

    def __len__(self) -> int:
        return sum(len(some.rows) for some in self.records)


def chunks(stream: Iterable[Records], rows: int, size: int) -> Iterator[Chunk]:
    """Cut the stream after `rows` records, or earlier after `size` bytes, characters or ids."""
    index, chunk, count, total = 0, list[Records](), 0, 0
    for records in stream:
        start = 0
        for at, value in enumerate(records.values):
            count += 1
            total += 0 if value is None else len(value)
            if count == rows or total >= size:
                yield Chunk(index, [*chunk, records.cut(start, at + 1)])
                index, chunk, count, total, start = index + 1, [], 0, 0, at + 1
        if start < len(records.values):
            chunk.append(records.cut(start, len(records.values)))
    if chunk:
        yield Chunk(index, chunk)
