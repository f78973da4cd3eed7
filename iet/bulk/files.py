"""Audit files of any size in chunks that depend on the input alone; each is committed whole or not at all.

A folder `out` holds, for chunk N,

    segments-N.parquet     a row for each segment (`SEGMENTS`)
    quarantine-N.jsonl     a line for each record that could not be read, if there are any
    documents-N.parquet    a row for each document (`DOCUMENTS`)
    templates.npz          what many documents share, with `templates`

each written under another name, brought to disk, and renamed, in this order. So a chunk is done if and only
if its documents stand, and after a kill at any moment a run goes on with the chunks that are not done. Beside
them run.json says what was read and how; shard-I-of-N.json holds the summary, once all of a shard is done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from iet import __version__
from iet.audit.arrow import DOCUMENT, SEGMENT, check_readable, document_columns, segment_columns
from iet.audit.auditor import Auditor
from iet.audit.columns import Results
from iet.audit.evidence import discoveries
from iet.audit.records import audit_records
from iet.bulk.folder import as_json, chunks_done, claimed, commit, path_of, sweep
from iet.bulk.inputs import Chunk, Columns, Records, Source, choose_columns, chunks, expand, read, shown_id
from iet.bulk.templates import FRAGMENT_CHARACTERS, FRAGMENT_IDS, Templates, count, symbols_of
from iet.bulk.workers import audited
from iet.errors import InputError, check_number
from iet.native.arrays import Int64s, UInt64s

CHUNK_ROWS, CHUNK_SIZE = 4096, 1 << 24
"""Maximum number of records in a chunk, and its size in bytes (of JSON lines), characters or ids."""

PACKED, IDS_BYTES = 4, 2
"""Characters that a byte of Parquet or of a compressed file may hold, and the fewest bytes of an id."""

_NONE = np.zeros((0, 2), np.int64)

_WHERE = [("file", pa.string()), ("row", pa.int64()), ("id", pa.string())]

DOCUMENTS = pa.schema([*_WHERE, *DOCUMENT, ("segments", pa.int64())], {"iet.schema": "iet.documents/1"})
"""A row for each document: the file and row that it was read from (from 0; in JSON lines the line), its id,
its results, and its number of segments."""

SEGMENTS = pa.schema([*_WHERE, ("segment", pa.int64()), *SEGMENT], {"iet.schema": "iet.segments/1"})
"""A row for each segment, numbered from 0 in its document."""


@dataclasses.dataclass(frozen=True)
class Summary:
    """The output of one shard in numbers.

    Attributes:
        documents, segments: number of rows.
        quarantined: number of records that could not be read.
        tokens: number of tokens in all documents.
        attributed: number of documents in which some text is attributed.
        unattributed: number of documents in which some text is not.
        fdr: false-discovery rate over documents, None if none was asked for.
        fdr_log_p: documents with at most this log p are discoveries at that rate; None: there are none.
        fdr_documents: number of discoveries.
        templates: number of documents from which on a passage that they share is evidence in the first alone;
            None: in all.
        template_share: share of the scored tokens that are no evidence for that reason.
    """

    documents: int
    segments: int
    quarantined: int
    tokens: int
    attributed: int
    unattributed: int
    fdr: float | None = None
    fdr_log_p: float | None = None
    fdr_documents: int | None = None
    templates: int | None = None
    template_share: float | None = None

    def lines(self) -> list[str]:
        """Return the summary in words."""
        told = [
            f"{self.documents:,} documents of {self.tokens:,} tokens, {self.segments:,} segments;"
            f" text is attributed in {self.attributed:,} documents",
        ]
        if self.quarantined:
            told.append(f"{self.quarantined:,} records could not be read: quarantine-*.jsonl says why")
        if self.templates is not None:
            told.append(
                f"{self.template_share:.1%} of the scored tokens are no evidence: their passages stand in"
                f" {self.templates} documents or more, and count in the first"
            )
        if self.fdr is not None:
            where = f", log_p <= {self.fdr_log_p:.6g}" if self.fdr_log_p is not None else ""
            told.append(f"at a false-discovery rate of {self.fdr:g}: {self.fdr_documents:,} documents{where}")
        return told


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        documents: number of documents that this process audited.
        seconds: time since it began to audit.
        share: share of the input's bytes that have been read, 0 to 1.
        fresh: share of the input's bytes that this process audited.
    """

    documents: int
    seconds: float
    share: float
    fresh: float

    def __str__(self) -> str:
        rate = self.documents / max(self.seconds, 1e-9)
        left = (1 - self.share) * self.seconds / self.fresh if self.fresh else 0.0
        minutes, seconds = divmod(round(left), 60)
        hours, minutes = divmod(minutes, 60)
        return (
            f"{self.documents:,} documents, {rate:,.0f} a second, {self.share:.0%} read,"
            f" {hours}:{minutes:02}:{seconds:02} left"
        )


def audit_files(
    auditor: Auditor,
    inputs: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    text_column: str | None = None,
    ids_column: str | None = None,
    id_column: str | None = None,
    shard: tuple[int, int] = (1, 1),
    resume: bool = False,
    workers: int = 1,
    chunk_rows: int = CHUNK_ROWS,
    fdr: float | None = None,
    templates: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Audit all documents of some files into a folder, each as `Auditor.audit` does.

    Args:
        auditor: who audits. With several workers its registry must be a file.
        inputs: Parquet, JSON lines (.jsonl or .ndjson, also .gz and .zst) and text files (one document each),
            folders of such, and patterns.
        out: folder of the output, made if it is missing. It must be empty, unless `resume` is set or it holds
            other shards of the same run.
        text_column, ids_column: as in `iet.audit.arrow.audit_batch`, the same for all files.
        id_column: a column that names the documents. None: file and row name them.
        shard: (i, n), 1 <= i <= n: audit every n-th chunk from the i-th on. n runs, with i from 1 to n and
            all else equal, at any time and on any machine, do all the work once.
        resume: go on where a run with the same arguments was stopped.
        workers: number of processes that audit, with one thread each; 1: this process.
        chunk_rows: maximum number of records in a chunk, which is what a kill can cost; at least 1.
        fdr: also find the documents to report at this false-discovery rate (`iet.evidence.discoveries`), 0 to
            1. It is over all documents, so there must be one shard.
        templates: a passage that stands in so many documents, or more, is evidence in the first of them
            alone, at least 2 (`iet.bulk.templates`); None: in each. It takes a pass over all input before,
            and 168 MB at most.
        progress: called after every chunk.

    Returns:
        Summary of this shard.

    Raises:
        InputError: a parameter is out of range, an input is missing or broken, `out` is not empty or was
            begun in another way (the error names the difference), or another process is at work on the shard.
        IetError: a worker died.

    Deterministic: the files do not depend on workers, shards, or on when a run was killed. Memory is that of
    a chunk or two for each worker, and of the longest document.
    """
    index, count = _checked_shard(shard)
    check_number("workers", workers, 1)
    check_number("chunk_rows", chunk_rows, 1)
    if templates is not None:
        check_number("templates", templates, 2)
    if fdr is not None:
        try:
            discoveries([], fdr)
        except InputError:
            raise InputError(f"fdr: got {fdr!r}, expected a number between 0 and 1") from None
        if count > 1:
            raise InputError(f"fdr: got shard {index}/{count}, expected one shard, which has all documents")
    folder = pathlib.Path(out)
    sources = expand(inputs, folder)
    columns = choose_columns(sources, text_column, ids_column, id_column)
    check_readable(auditor, columns.ids)
    packed = pickle.dumps(auditor) if workers > 1 else b""
    configuration = {
        "schema": "iet.run/1",
        "iet": __version__,
        "auditor": auditor.configuration,
        "columns": dataclasses.asdict(columns),
        "chunk_rows": int(chunk_rows),
        "shards": count,
        "inputs": [source.describe() for source in sources],
    }
    if templates is not None:
        configuration["templates"] = int(templates)
    with claimed(folder, configuration, index, count, resume) as state:
        mine = range(index - 1, sys.maxsize, count)
        done = chunks_done(folder)
        sweep(folder, mine, state.name)
        job = _Job(folder, tuple(sources), columns)
        if templates is not None:
            job = dataclasses.replace(job, templates=job.shared(int(templates)))
        tracker = _Tracker(sources, progress)
        stream = chunks(read(sources, columns), chunk_rows, CHUNK_SIZE)
        wanted = tracker.skipping(stream, lambda chunk: chunk.index in mine and chunk.index not in done)
        with contextlib.closing(audited(auditor, packed, job, wanted, workers)) as finished:
            for chunk in finished:
                tracker.audited(chunk)
        summary = _summary(folder, mine, fdr, templates)
        commit(state, as_json({"complete": True, **dataclasses.asdict(summary)}))
    return summary


@dataclasses.dataclass(frozen=True)
class _Job:
    """The parameters of a run that every chunk needs."""

    folder: pathlib.Path
    sources: tuple[Source, ...]
    columns: Columns
    templates: Templates | None = None

    def shared(self, least: int) -> Templates:
        """Return what so many documents share; an earlier run or another shard may have left it."""
        path = self.folder / "templates.npz"
        if not path.exists():
            ids = self.columns.ids
            size = sum(source.size * (1 if source.plain else PACKED) for source in self.sources)
            found = count(
                self._documents(),
                least=least,
                size=size // (IDS_BYTES if ids else 1),
                fragment=FRAGMENT_IDS if ids else FRAGMENT_CHARACTERS,
            )
            commit(path, found.data())
        return Templates.load(path)

    def _documents(self) -> Iterator[tuple[int, UInt64s]]:
        for records in read(self.sources, self.columns):
            for number, (value, _) in zip(_numbers(records), self._values(records), strict=True):
                symbols = symbols_of(value, self.columns.ids)
                if symbols is not None:
                    yield number, symbols

    def _values(self, records: Records) -> Iterator[tuple[Any, str | None]]:
        """Yield each document, or what is wrong with it, and its id."""
        lines = self.sources[records.source].kind == "jsonl"
        for value, id in zip(records.values, records.ids, strict=True):
            yield _parsed(value, self.columns) if lines else (value, id)

    def audit(self, auditor: Auditor, chunk: Chunk, alive: Callable[[], bool] = lambda: True) -> None:
        """Audit one chunk and commit it, unless nobody waits for it any more."""
        places, values, elsewhere = list[_Place](), list[Any](), list[Int64s]()
        for records in chunk.records:
            path, found_ = self.sources[records.source].path, self._values(records)
            for row, number, (value, id) in zip(records.rows, _numbers(records), found_, strict=True):
                places.append(_Place(path, row, id))
                values.append(value)
                if self.templates is not None:
                    symbols = symbols_of(value, self.columns.ids)
                    elsewhere.append(_NONE if symbols is None else self.templates.elsewhere(number, symbols))
        documents, segments, bad = list[pa.Table](), list[pa.Table](), list[dict[str, Any]]()
        left = iter(places)
        for reasons, found in audit_records(
            auditor, values, ids=self.columns.ids, elsewhere=elsewhere or None
        ):
            good = list[_Place]()
            for reason, place in zip(reasons, left, strict=False):
                if reason is None:
                    good.append(place)
                else:
                    bad.append({**place._asdict(), "reason": reason})
            where = [pa.array([place[i] for place in good], kind) for i, (_, kind) in enumerate(_WHERE)]
            documents.append(_document_rows(where, found))
            segments.append(_segment_rows(where, found))
        if not alive():
            return
        self._commit("segments", chunk, segments)
        if bad:
            lines = "".join(json.dumps(record) + "\n" for record in bad)
            commit(path_of(self.folder, "quarantine", chunk.index), lines.encode())
        self._commit("documents", chunk, documents)

    def _commit(self, kind: str, chunk: Chunk, tables: list[pa.Table]) -> None:
        write = functools.partial(pq.write_table, pa.concat_tables(tables), compression="zstd")
        commit(path_of(self.folder, kind, chunk.index), write)


class _Place(NamedTuple):
    """The values of `_WHERE` of one record."""

    file: str
    row: int
    id: str | None


def _numbers(records: Records) -> Iterator[int]:
    """Yield a number for each document that ascends over all input."""
    return ((records.source << 40) + row for row in records.rows)


def _document_rows(where: list[pa.Array], found: Results) -> pa.Table:
    columns = [*where, *document_columns(found).values(), pa.array(found.segment_counts)]
    return pa.Table.from_arrays(columns, schema=DOCUMENTS)


def _segment_rows(where: list[pa.Array], found: Results) -> pa.Table:
    counts = found.segment_counts
    documents = np.repeat(np.arange(len(counts)), counts)
    numbers = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = [column.take(pa.array(documents)) for column in where]
    columns = [*places, pa.array(numbers), *segment_columns(found).values()]
    return pa.Table.from_arrays(columns, schema=SEGMENTS)


def _parsed(line: bytes, columns: Columns) -> tuple[Any, str | None]:
    """Return the document and the id of a line of JSON; in place of a bad document, the error."""
    id = None
    try:
        record = json.loads(line)
        if not isinstance(record, dict):
            raise InputError(f"got {type(record).__name__}, expected an object with {columns.name!r}")
        if columns.id is not None:
            id = shown_id(record.get(columns.id))
            (id or "").encode()
        if columns.name not in record:
            raise InputError(f"got {list(record)[:10]}, expected {columns.name!r} among them")
        return record[columns.name], id
    except InputError as error:
        return error, id
    except UnicodeEncodeError:
        return InputError(f"got an id that is no valid Unicode ({columns.id!r})"), None
    except (ValueError, RecursionError) as error:  # also what is not UTF-8
        return InputError(f"got no line of JSON ({error})"), id


class _Tracker:
    """Count what is read and audited, and report it."""

    def __init__(self, sources: Sequence[Source], report: Callable[[Progress], None] | None) -> None:
        sizes = [source.size for source in sources]
        self._before = np.cumsum([0, *sizes])
        self._total = max(1, sum(sizes))
        self._report = report
        self._started = time.monotonic()
        self._documents, self._read, self._fresh = 0, 0, 0
        self._bytes = dict[int, int]()

    def skipping(self, stream: Iterable[Chunk], wanted: Callable[[Chunk], bool]) -> Iterator[Chunk]:
        """Pass on the chunks that are wanted."""
        for chunk in stream:
            last = chunk.records[-1]
            read = int(self._before[last.source]) + last.position
            if wanted(chunk):
                self._bytes[chunk.index] = read - self._read
                self._read = read
                yield chunk
            self._read = read

    def audited(self, chunk: tuple[int, int]) -> None:
        """Count a chunk: its index and how many records it has."""
        index, records = chunk
        self._documents += records
        self._fresh += self._bytes.pop(index)
        if self._report is not None:
            seconds = time.monotonic() - self._started
            self._report(
                Progress(self._documents, seconds, self._read / self._total, self._fresh / self._total)
            )


def _checked_shard(shard: tuple[int, int]) -> tuple[int, int]:
    try:
        index, count = shard
        if 1 <= index <= count and isinstance(index, int) and isinstance(count, int):
            return index, count
    except (TypeError, ValueError):
        pass
    raise InputError(f"shard: got {shard!r}, expected (i, n) with 1 <= i <= n")


def _summary(folder: pathlib.Path, mine: range, fdr: float | None, templates: int | None) -> Summary:
    """Return the summary of a shard from its files."""
    found = sorted(index for index in chunks_done(folder) if index in mine)
    totals = dict.fromkeys(
        ("documents", "segments", "quarantined", "tokens", "attributed", "unattributed"), 0
    )
    log_p, scored, shared = [np.zeros(0)], 0, 0
    for index in found:
        # Not pq.read_table, which imports pyarrow.dataset, at 0.2 s.
        with pq.ParquetFile(path_of(folder, "documents", index)) as stored:
            table = stored.read(["segments", "tokens", "scored", "template", "coverage", "log_p"])
        columns = {name: table.column(name).to_numpy() for name in table.column_names}
        totals["documents"] += table.num_rows
        scored += int(columns["scored"].sum())
        shared += int(columns["template"].sum())
        totals["segments"] += int(columns["segments"].sum())
        totals["tokens"] += int(columns["tokens"].sum())
        totals["attributed"] += int((columns["coverage"] > 0).sum())
        totals["unattributed"] += int((columns["coverage"] < 1).sum())
        with contextlib.suppress(FileNotFoundError), open(path_of(folder, "quarantine", index), "rb") as file:
            totals["quarantined"] += sum(1 for _ in file)
        if fdr is not None:
            log_p.append(columns["log_p"])
    told: dict[str, Any] = dict(totals)
    if templates is not None:
        told |= {"templates": templates, "template_share": shared / max(1, scored)}
    if fdr is None:
        return Summary(**told)
    every = np.concatenate(log_p)
    reported = every[discoveries(every, fdr)]
    highest = float(reported.max()) if len(reported) else None
    return Summary(**told, fdr=fdr, fdr_log_p=highest, fdr_documents=len(reported))
