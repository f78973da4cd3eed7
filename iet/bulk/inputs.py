"""Read Parquet, JSON lines (plain, .gz, .zst) and text files as one stream of records."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from iet.audit.arrow import check_once, check_type, chosen_column, values_of
from iet.bulk.folder import GROUP
from iet.bulk.line_reader import Refused, check_of_the_file, digest_of, lines, rest_of_file, too_large
from iet.bulk.sources import Source
from iet.errors import InputError

ID = "id"
"""Default column of document names; files may lack it."""

_READ_ROWS, _READ_SIZE = 64, 1 << 24
_PEEK_LINES, _READ_SIZE_OF_TEXTS = 100, 1 << 20


@dataclasses.dataclass(frozen=True)
class InputSchema:
    """The columns to read: `name` holds texts, or token ids if `ids`; `id` holds names, if it exists."""

    name: str
    ids: bool
    id: str


@dataclasses.dataclass(frozen=True)
class Records:
    """Consecutive records of one source, before they are parsed.

    Attributes:
        source: index of the source.
        rows: row of each record in the source, from 0.
        values: documents or lines of JSON; `Refused` for a record that is not read.
        ids: name of each document, or None.
        position: number of bytes of the source that have been read.
    """

    source: int
    rows: Sequence[int]
    values: list[Any]
    ids: Sequence[str | None]
    position: int

    def cut(self, start: int, end: int) -> Records:
        """Return the records `[start, end)`."""
        return dataclasses.replace(
            self, rows=self.rows[start:end], values=self.values[start:end], ids=self.ids[start:end]
        )


def choose_columns(
    sources: Sequence[Source],
    text_column: str | None,
    ids_column: str | None,
    id_column: str | None,
    limit: int,
    *,
    nested: bool = False,
) -> InputSchema:
    """Return the columns to read from all files; broken files are skipped.

    Files may lack the column `ID`, but not one that `id_column` names. With `nested`, the column of texts may
    also hold lists and structures.

    Raises:
        InputError, ShapeError: a file lacks a column or has another type there, or all files are broken.
    """
    texts = [source for source in sources if source.kind == "text"]
    column = ids_column or id_column
    if texts and column is not None:
        raise InputError(f"{texts[0].path}: got a text, expected files with a column {column!r}")
    chosen: InputSchema | None = None
    broken = list[str]()
    for source in sources:
        try:
            fields = None if source.kind == "text" else _fields(source, limit)
        except Refused as refused:
            broken.append(f"{source.path}: {refused}")
            continue
        if fields is None:
            continue
        try:
            names, types = [name for name, _ in fields], dict(fields)
            chosen = chosen or InputSchema(*chosen_column(names, text_column, ids_column), id_column or ID)
            for name in filter(None, (chosen.name, id_column)):
                if name not in names:
                    raise InputError(f"columns: got {names[:20]}, expected {name!r} among them")
            for name in (chosen.name, chosen.id):
                check_once(names, name)
            if (field := types[chosen.name]) is not None and not (nested and pa.types.is_nested(field.type)):
                check_type(field, chosen.ids)
            if (field := types.get(chosen.id)) is not None:
                _check_fields(field)
        except InputError as error:
            raise InputError(f"{source.path}: {error}") from None
    if len(broken) == len(sources):
        raise InputError(broken[0])
    if texts and chosen is not None and chosen.ids:
        raise InputError(
            f"inputs: got texts and files with token ids ({chosen.name!r}), expected one of both"
        )
    name = ids_column or text_column or "text"
    return chosen or InputSchema(name, ids_column is not None, id_column or ID)


def _check_fields(column: pa.Field) -> None:
    """Raise an InputError if a nested type has two fields of the same name, which a dict cannot hold."""
    fields = [column.type.field(at) for at in range(column.type.num_fields)]
    names = [field.name for field in fields]
    for field in fields:
        if names.count(field.name) > 1:
            raise InputError(f"column {column.name!r}: got {column.type}, expected each of its fields once")
        _check_fields(field)


def _fields(source: Source, limit: int) -> list[tuple[str, pa.Field | None]] | None:
    """Return the names of a file's columns, with their types for Parquet; None if it has no record.

    Raises:
        Refused: the file is broken before its first record.
    """
    if source.kind == "parquet":
        with _parquet(source) as file:
            return [(field.name, field) for field in file.schema_arrow]
    names = dict[str, None]()
    for _, line, _ in itertools.islice(lines(source.path, source.size, limit, source.storage), _PEEK_LINES):
        if isinstance(line, Refused):
            if line.ends_file and not names:
                raise line
            continue
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line.decode("utf-8-sig"))
            names |= dict.fromkeys(record if isinstance(record, dict) else ())
    return [(name, None) for name in names] or None


def read(sources: Sequence[Source], columns: InputSchema, limit: int) -> Iterator[Records]:
    """Read all sources in order, a few records at a time.

    A record that is too large or broken becomes a `Refused`.

    Args:
        sources: the files.
        columns: the columns to read.
        limit: maximum size of a record: bytes of a text or of a line of JSON; in Parquet characters or ids.

    Raises:
        InputError: the system cannot read a file.
    """
    for index, source in enumerate(sources):
        if source.kind == "text":
            yield Records(index, [0], [_whole(source, limit)], [None], source.size)
        elif source.kind == "parquet":
            yield from _rows(index, source, columns, limit)
        else:
            stream = lines(source.path, source.size, limit, source.storage)
            while batch := list(itertools.islice(stream, _READ_ROWS)):
                rows, values, positions = zip(*batch, strict=True)
                yield Records(index, rows, list(values), [None] * len(rows), positions[-1])


def _whole(source: Source, limit: int) -> bytes | Refused:
    try:
        with source.storage.open(source.path) as file:
            data = file.read(limit + 1)
            if len(data) <= limit:
                return data
            digest = hashlib.blake2b(data, digest_size=16)
            size = len(data)
            while data := file.read(_READ_SIZE_OF_TEXTS):
                digest.update(data)
                size += len(data)
            return too_large(size, limit, "bytes", digest.digest())
    except OSError as error:
        raise InputError(f"{source.path}: cannot be read ({error.strerror})") from None


def _rows(index: int, source: Source, columns: InputSchema, limit: int) -> Iterator[Records]:
    row = 0
    try:
        with _parquet(source) as file:
            named = columns.id in file.schema_arrow.names
            names = [columns.name] + [columns.id] * named
            count = max(1, file.metadata.num_rows)
            size = _batch_rows(file, columns.name)
            for batch in file.iter_batches(size, columns=names, use_threads=False):
                values = values_of(batch.column(names[0]), columns.ids)
                if not columns.ids and pa.types.is_nested(batch.column(names[0]).type):
                    values = [value and json.dumps(value, default=str) for value in values]
                ids: list[str | None] = [None] * len(values)
                if named:
                    ids = _shown_ids(batch.column(columns.id))
                rows = range(row, row + len(values))
                row += len(values)
                unit = "ids" if columns.ids else "characters"
                checked = [
                    value
                    if value is None or len(value) <= limit
                    else too_large(len(value), limit, unit, digest_of(_content(value)))
                    for value in values
                ]
                yield Records(index, rows, checked, ids, source.size * row // count)
    except Refused as refused:
        yield Records(index, [row], [refused], [None], source.size)
    except (pa.ArrowException, OSError) as error:
        check_of_the_file(source.path, error)
        broken = rest_of_file(f"it cannot be read from row {row} on ({error})")
        yield Records(index, [row], [broken], [None], source.size)


def _shown_ids(column: pa.Array) -> list[str | None]:
    try:
        return [shown_id(value) for value in values_of(column, ids=False)]
    except (ValueError, OverflowError):  # a time that Python cannot represent
        return [_shown_time(value) for value in column]


def _shown_time(value: pa.Scalar) -> str | None:
    try:
        return shown_id(value.as_py())
    except (ValueError, OverflowError):
        return json.dumps(value.cast(pa.string()).as_py())


def shown_id(value: Any) -> str | None:
    """Return a document's name as a string."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()  # UTF-8 has no lone surrogates
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return json.dumps(value, default=str)


@contextlib.contextmanager
def _parquet(source: Source) -> Iterator[pq.ParquetFile]:
    try:
        file = pq.ParquetFile(source.storage.table(source.path))
    except (pa.ArrowException, OSError) as error:
        check_of_the_file(source.path, error)
        raise Refused(f"got no readable Parquet file ({error}), expected one", ends_file=True) from None
    with file:
        yield file


def _batch_rows(file: pq.ParquetFile, name: str) -> int:
    """Return how many rows to read at once, for about 16 MiB by the file's metadata."""
    column = file.schema_arrow.names.index(name)
    largest = 1.0
    for index in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(index)
        # Leaves of nested columns are numbered separately; for an estimate, any leaf will do.
        leaf = group.column(min(column, group.num_columns - 1))
        largest = max(largest, leaf.total_uncompressed_size / max(1, group.num_rows))
    return int(min(_READ_ROWS, max(1, _READ_SIZE // largest)))


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Records that are audited and committed together.

    `index` is `GROUP` times the group of its sources, plus the number of the chunk in the group, from 0.
    """

    index: int
    records: list[Records]

    def __len__(self) -> int:
        return sum(len(part.rows) for part in self.records)

    def singles(self) -> Iterator[Records]:
        """Yield each record by itself."""
        for part in self.records:
            yield from (part.cut(i, i + 1) for i in range(len(part.rows)))

    def refusing(self, number: int, reason: str) -> Chunk:
        """Return the chunk with one record refused, counted from 0; its digest stays the same."""
        singles = list(self.singles())
        value = singles[number].values[0]
        digest = value.digest if isinstance(value, Refused) else digest_of(_content(value))
        singles[number] = dataclasses.replace(singles[number], values=[Refused(reason, digest=digest)])
        return Chunk(self.index, singles)

    def digest(self) -> str:
        """Return a digest of all records with their sources, rows and ids, including refused records."""
        digest = hashlib.blake2b(digest_size=16)
        for part in self.records:
            for row, value, id in zip(part.rows, part.values, part.ids, strict=True):
                digest.update(f"{part.source} {row} {id!r} ".encode(errors="backslashreplace"))
                digest.update(value.digest if isinstance(value, Refused) else digest_of(_content(value)))
        return digest.hexdigest()


def _content(value: Any) -> bytes | memoryview:
    if isinstance(value, bytes):
        return value
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).data.cast("B") if value.size else b""
    return value.encode() if isinstance(value, str) else repr(value).encode()


def chunks(stream: Iterable[Records], groups: Sequence[int], rows: int, size: int) -> Iterator[Chunk]:
    """Cut records into chunks: between groups, or after `rows` records or `size` bytes, characters or ids."""
    group, number, chunk, count, total = 0, 0, list[Records](), 0, 0
    for records in stream:
        if groups[records.source] != group:
            if chunk:
                yield Chunk(GROUP * group + number, chunk)
            group, number, chunk, count, total = groups[records.source], 0, [], 0, 0
        start = 0
        for at, value in enumerate(records.values):
            count += 1
            if value is not None:
                total += value.size if isinstance(value, Refused) else len(value)
            if count == rows or total >= size:
                yield Chunk(GROUP * group + number, [*chunk, records.cut(start, at + 1)])
                number, chunk, count, total, start = number + 1, [], 0, 0, at + 1
        if start < len(records.values):
            chunk.append(records.cut(start, len(records.values)))
    if chunk:
        yield Chunk(GROUP * group + number, chunk)
