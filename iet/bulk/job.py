"""Audit a chunk of records, and commit its results."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from iet.audit.auditor import Auditor
from iet.audit.documents import text_of
from iet.audit.records import audit_records
from iet.bulk.chunk_store import write_chunk
from iet.bulk.folder import Folder
from iet.bulk.inputs import Chunk, InputSchema, Records, read, shown_id
from iet.bulk.line_reader import Refused
from iet.bulk.pages import Location
from iet.bulk.sources import Source
from iet.bulk.templates import FRAGMENT_CHARACTERS, FRAGMENT_IDS, Templates, count, symbols_of
from iet.errors import InputError
from iet.native.arrays import Int64s, UInt64s
from iet.report.arrow import DOCUMENT, SEGMENT, document_columns, segment_columns
from iet.report.result import AuditResult

PACKED, IDS_BYTES = 4, 2
"""Estimates: characters per byte of Parquet or of a compressed file, and minimum bytes of an id."""

_TEMPLATES = "templates.npz"

_NONE = np.zeros((0, 2), np.int64)

ORIGIN = [("file", pa.string()), ("row", pa.int64()), ("id", pa.string())]

DOCUMENTS = pa.schema([*ORIGIN, *DOCUMENT, ("segments", pa.int64())], {"iet.schema": "iet.documents/1"})
"""A row for each document: its file and row (from 0; the line of JSON lines), its id, its results, and its
number of segments."""

SEGMENTS = pa.schema([*ORIGIN, ("segment", pa.int64()), *SEGMENT], {"iet.schema": "iet.segments/1"})
"""A row for each segment, numbered from 0 in its document."""


@dataclasses.dataclass(frozen=True)
class Job:
    """The parameters that all chunks of a run share. It is pickled for each worker."""

    folder: Folder
    sources: tuple[Source, ...]
    columns: InputSchema
    max_record: int
    encoding: str | None
    templates: Templates | None = None

    def shared(self, least: int, vocab_size: int) -> Templates:
        """Return the passages that `least` documents or more share, from an earlier run or shard if possible.

        Ids that are not below `vocab_size` are not audited.
        """
        if not self.folder.exists(_TEMPLATES):
            ids = self.columns.ids
            size = sum(source.size * (1 if source.plain else PACKED) for source in self.sources)
            passages = count(
                self._symbols(vocab_size),
                least=least,
                size=size // (IDS_BYTES if ids else 1),
                fragment=FRAGMENT_IDS if ids else FRAGMENT_CHARACTERS,
            )
            self.folder.commit(_TEMPLATES, passages.data())
        with self.folder.open(_TEMPLATES) as file:
            return Templates.load(file)

    def _symbols(self, vocab_size: int) -> Iterator[tuple[int, UInt64s]]:
        for records in read(self.sources, self.columns, self.max_record):
            for number, (value, _) in zip(_numbers(records), self._values(records), strict=True):
                symbols = symbols_of(value, self.columns.ids)
                if symbols is None or (self.columns.ids and np.any(symbols >= vocab_size)):
                    continue  # it will be quarantined, so its passages must not count here
                yield number, symbols

    def audit(self, auditor: Auditor, chunk: Chunk, *, singly: bool = False) -> Iterator[int]:
        """Audit one chunk and commit it.

        With `singly`, a record is read only after the one before it has been counted.

        Yields:
            The number of records audited since the last value; they are committed at the end.
        """
        tables, bad = list[tuple[pa.Table, pa.Table]](), list[dict[str, Any]]()
        for part in ([records] for records in chunk.singles()) if singly else [chunk.records]:
            for origins, results, refused in self._audited(auditor, part):
                columns = [pa.array([row[i] for row in origins], kind) for i, (_, kind) in enumerate(ORIGIN)]
                tables.append(self.rows(columns, results))
                bad += refused
                yield len(origins) + len(refused)
        documents, segments = (
            pa.concat_tables(parts).replace_schema_metadata(schema.metadata)
            for parts, schema in zip(zip(*tables, strict=True), self.schemas, strict=True)
        )
        write_chunk(
            self.folder,
            chunk.index,
            chunk.digest(),
            documents,
            segments,
            "".join(json.dumps(record) + "\n" for record in bad).encode(),
        )

    schemas: ClassVar[tuple[pa.Schema, pa.Schema]] = (DOCUMENTS, SEGMENTS)
    """The schemas of the rows of documents and of their segments."""

    def rows(self, origins: list[pa.Array], results: Any) -> tuple[pa.Table, pa.Table]:
        """Return the rows of good records: their documents, and all their segments.

        Args:
            origins: the columns of `ORIGIN`.
            results: of `results`.
        """
        return _document_rows(origins, results), _segment_rows(origins, results)

    def results(
        self, auditor: Auditor, values: list[Any], elsewhere: list[Int64s] | None
    ) -> Iterator[tuple[list[str | None], Any]]:
        """Yield what is wrong with each record (None: nothing), and the results of the good ones.

        A batch of records at a time, in order; parameters as in `audit_records`.
        """
        return audit_records(auditor, values, ids=self.columns.ids, elsewhere=elsewhere)

    def _audited(
        self, auditor: Auditor, part: list[Records]
    ) -> Iterator[tuple[list[_Origin], Any, list[dict[str, Any]]]]:
        """Yield the origins and results of good records, and the bad records, some records at a time."""
        origins, values, rests = list[_Origin](), list[Any](), list[bool]()
        elsewhere = list[Int64s]()
        for records in part:
            name = self.sources[records.source].name
            rows = zip(records.rows, _numbers(records), self._values(records), strict=True)
            for row, number, (value, id) in rows:
                origins.append(_Origin(name, row, id))
                values.append(value)
                rests.append(isinstance(value, Refused) and value.ends_file)
                if self.templates is not None:
                    symbols = symbols_of(value, self.columns.ids)
                    elsewhere.append(_NONE if symbols is None else self.templates.elsewhere(number, symbols))
        pending = iter(zip(origins, rests, strict=True))
        for reasons, results in self.results(auditor, values, elsewhere or None):
            good, bad = list[_Origin](), list[dict[str, Any]]()
            for reason, (origin, ends_file) in zip(reasons, pending, strict=False):
                if reason is None:
                    good.append(origin)
                else:
                    bad.append(
                        {**origin._asdict(), "reason": reason, **({"rest": True} if ends_file else {})}
                    )
            yield good, results, bad

    def _values(self, records: Records) -> Iterator[tuple[Any, str | None]]:
        """Yield each document, or an error if it is bad, and its id."""
        source = self.sources[records.source]
        for value, id in zip(records.values, records.ids, strict=True):
            if isinstance(value, Refused) or source.kind == "parquet":
                yield value, id
            elif source.kind == "jsonl":
                yield self.line(value)
            else:
                yield self.text(value, source.name), id

    def line(self, line: bytes) -> tuple[Any, str | None]:
        """Return the document and the id of a line of JSON, or the error and the id if it is bad."""
        return _parsed(line, self.columns)

    def text(self, value: bytes, name: str) -> Any:
        """Return the document of a file that holds one, or the error if it is bad."""
        try:
            return text_of(value, self.encoding, name=name)
        except InputError as error:
            return error

    def documents(self, stream: Iterable[Records]) -> Iterator[tuple[Location, Any]]:
        """Yield the location of each record, and its document, or an error if it is bad."""
        for records in stream:
            name = self.sources[records.source].name
            for row, (value, _) in zip(records.rows, self._values(records), strict=True):
                yield (name, row), value

    def location(self, chunk: Chunk) -> str:
        """Return the files and rows of a chunk, for messages."""
        first, last = chunk.records[0], chunk.records[-1]
        start, end = self.sources[first.source].name, self.sources[last.source].name
        last_file = f"{end}, " if end != start else ""
        return f"{start}, row {first.rows[0]}, to {last_file}row {last.rows[-1]}"


class _Origin(NamedTuple):
    """The values of `ORIGIN` of one record."""

    file: str
    row: int
    id: str | None


def _numbers(records: Records) -> Iterator[int]:
    """Yield a number for each document, in ascending order over all input."""
    return ((records.source << 40) + row for row in records.rows)


def _document_rows(origins: list[pa.Array], results: AuditResult) -> pa.Table:
    columns = [*origins, *document_columns(results).values(), pa.array(results.segment_counts)]
    return pa.Table.from_arrays(columns, schema=DOCUMENTS)


def _segment_rows(origins: list[pa.Array], results: AuditResult) -> pa.Table:
    counts = results.segment_counts
    documents = np.repeat(np.arange(len(counts)), counts)
    numbers = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    repeated = [column.take(pa.array(documents)) for column in origins]
    columns = [*repeated, pa.array(numbers), *segment_columns(results).values()]
    return pa.Table.from_arrays(columns, schema=SEGMENTS)


def _parsed(line: bytes, columns: InputSchema) -> tuple[Any, str | None]:
    """Return the document and the id of a line of JSON, or the error and the id if the document is bad."""
    id = None
    try:
        record = json.loads(line.decode("utf-8-sig"))  # from bytes, json.loads would also accept UTF-16
        if not isinstance(record, dict):
            raise InputError(f"got {type(record).__name__}, expected an object with {columns.name!r}")
        id = shown_id(record.get(columns.id))
        if columns.name not in record:
            raise InputError(f"got the fields {list(record)[:10]}, expected {columns.name!r} among them")
        return record[columns.name], id
    except InputError as error:
        return error, id
    except (ValueError, RecursionError) as error:  # including invalid UTF-8
        return InputError(f"not a line of JSON ({error})"), id
