"""What people open of a run: its tables as CSV, and a page that leads to a page for each finding."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from iet.audit.auditor import Auditor
from iet.bulk.folder import LocalFolder, name_of
from iet.errors import IetError
from iet.report.index import Row, index

MAXIMUM_ROWS, MAXIMUM_PAGES = 10_000, 1_000
"""Number of documents on the index, and of pages of findings; the surest come first."""

_PAGE = re.compile(r"\d{6}\.html|\.\d{6}\.html\.[0-9a-f]+\.tmp")
"""What this writes into the folder of pages, and what is left of it where it is killed."""

Place = tuple[str, int]
"""The file and row of a document."""


def write_csv(folder: LocalFolder, kind: str, chunks: Sequence[int], schema: pa.Schema) -> None:
    """Write the documents or segments of a run as one CSV file, in their order.

    Lists are joined by ";", and texts that a spreadsheet would take for formulas begin with an apostrophe.
    """
    flat = pa.schema([_flat(field) for field in schema])

    def write(file: BinaryIO) -> None:
        with pyarrow.csv.CSVWriter(file, flat) as writer:
            for index in chunks:
                with pq.ParquetFile(folder.table(name_of(kind, index))) as stored:
                    table = stored.read()
                columns = [_plain(column) for column in table.columns]
                writer.write_table(pa.Table.from_arrays(columns, schema=flat))

    folder.commit(f"{kind}.csv", write)


def _flat(field: pa.Field) -> pa.Field:
    return pa.field(field.name, pa.string()) if pa.types.is_list(field.type) else field


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_list(column.type):
        column = pc.binary_join(column, ";")
    if pa.types.is_string(column.type):
        column = pc.replace_substring_regex(column, r"^([=+\-@\t\r\n])", r"'\1")  # as `to_csv` of reports
    return column


def write_pages(
    folder: LocalFolder,
    auditor: Auditor,
    chunks: Sequence[int],
    documents: Iterable[tuple[Place, Any]],
    ids: bool,
    about: Sequence[str],
) -> None:
    """Write index.html, and in `pages` a page for each document in which somebody is found.

    Args:
        folder: of the run.
        auditor: reads the findings once more, because a page shows the text.
        chunks: of the run.
        documents: the place and the text or ids of each record, read again; an error stands for a bad one.
        ids: whether documents are token ids.
        about: lines for the head of the index, and of each page behind the name of its document.
    """
    shown, total = _surest(folder, chunks)
    found = [place for place, row in shown if row.found][:MAXIMUM_PAGES]
    links = {place: f"pages/{number:06d}.html" for number, place in enumerate(found, 1)}
    _remove_pages(folder)
    (folder.path / "pages").mkdir(exist_ok=True)
    for place, value in documents if links else ():
        if place in links and not isinstance(value, IetError):
            report = auditor.audit(token_ids=value) if ids else auditor.audit(_text(value))
            page = report.to_html(about=[f"{place[0]}, row {place[1]}", *about])
            folder.commit(links[place], page.encode())
    left = [] if total == len(shown) else [f"{total - len(shown):,} more documents are in the tables."]
    made = [dataclasses.replace(row, link=links.get(place)) for place, row in shown]
    folder.commit("index.html", index(made, [*about, f"{total:,} documents", *left]).encode())


def remove_shown(folder: LocalFolder) -> None:
    """Remove what people open of a run, because its tables change: it would tell of other ones."""
    for name in ("documents.csv", "segments.csv", "index.html"):
        folder.drop(name)
    _remove_pages(folder)
    with contextlib.suppress(OSError):  # it holds what is not ours, or is not there
        (folder.path / "pages").rmdir()


def _remove_pages(folder: LocalFolder) -> None:
    pages = folder.path / "pages"
    for old in pages.iterdir() if pages.is_dir() else ():
        if _PAGE.fullmatch(old.name):
            old.unlink()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _surest(folder: LocalFolder, chunks: Sequence[int]) -> tuple[list[tuple[Place, Row]], int]:
    """Return the documents that are shown and how many there are: findings first, then what was not read."""
    total = 0

    def rows() -> Iterator[tuple[tuple[int, float, int], Place, Row]]:
        nonlocal total
        for chunk in chunks:
            with pq.ParquetFile(folder.table(name_of("documents", chunk))) as stored:
                for row in stored.read().to_pylist():
                    name = f"{row['file']}, row {row['row']}" + (f" ({row['id']})" if row["id"] else "")
                    shown = Row(name, row["found"], row["coverage"], row["log_p"], row["tokens"])
                    total += 1
                    yield (0 if row["found"] else 2, row["log_p"], total), (row["file"], row["row"]), shown
            with (
                contextlib.suppress(FileNotFoundError),
                folder.open(name_of("quarantine", chunk)) as file,
            ):
                for line in file:
                    bad = json.loads(line)
                    total += 1
                    shown = Row(f"{bad['file']}, row {bad['row']}", problem=bad["reason"])
                    yield (1, 0.0, total), (bad["file"], bad["row"]), shown

    kept = heapq.nsmallest(MAXIMUM_ROWS, rows(), key=lambda item: item[0])
    return [(place, row) for _, place, row in kept], total
