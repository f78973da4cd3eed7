"""Write a run's tables as CSV, and its findings as HTML pages with an index."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from iet.audit.auditor import Auditor
from iet.bulk.chunk_store import read_quarantine, read_table
from iet.bulk.folder import Folder
from iet.errors import IetError
from iet.report.index import Row, index

MAXIMUM_ROWS, MAXIMUM_PAGES = 10_000, 1_000
"""Maximum number of documents on the index and of pages, those with the lowest p-values first."""

_PAGE = re.compile(r"\d{6}\.html|\.\d{6}\.html\.[0-9a-f]+\.tmp")
"""Names of pages and of their temporary files."""

Location = tuple[str, int]
"""The file and row of a document."""


def write_csv(folder: Folder, kind: str, chunks: Sequence[int], schema: pa.Schema) -> None:
    """Write the documents or segments of a run as one CSV file, in their order.

    Lists are joined by ";". An apostrophe is put before texts that a spreadsheet would read as formulas.
    """
    flat = pa.schema([_flat(field) for field in schema])

    def write(file: BinaryIO) -> None:
        with pyarrow.csv.CSVWriter(file, flat) as writer:
            for index in chunks:
                columns = [_plain(column) for column in read_table(folder, kind, index).columns]
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
    folder: Folder,
    auditor: Auditor,
    chunks: Sequence[int],
    documents: Iterable[tuple[Location, Any]],
    ids: bool,
    about: Sequence[str],
) -> None:
    """Write index.html, and in `pages` a page for each document with attributed text.

    Args:
        folder: of the run.
        auditor: audits these documents again, because a page shows the text.
        chunks: indices of the run's chunks.
        documents: location and text or ids of each record, or an error for a bad one.
        ids: whether documents are token ids.
        about: lines for the top of the index and of each page.
    """
    listed, total = _most_certain(folder, chunks)
    attributed = [location for location, row in listed if row.found][:MAXIMUM_PAGES]
    links = {location: f"pages/{number:06d}.html" for number, location in enumerate(attributed, 1)}
    _remove_pages(folder)
    pathlib.Path(folder.file("pages")).mkdir(exist_ok=True)
    for location, value in documents if links else ():
        if location in links and not isinstance(value, IetError):
            report = auditor.audit(token_ids=value) if ids else auditor.audit(_text(value))
            page = report.to_html(about=[f"{location[0]}, row {location[1]}", *about])
            folder.commit(links[location], page.encode())
    more = [] if total == len(listed) else [f"{total - len(listed):,} more documents are in the tables."]
    rows = [dataclasses.replace(row, link=links.get(location)) for location, row in listed]
    folder.commit(
        "index.html",
        index(rows, [*about, f"{total:,} records: findings first, the surest on top", *more]).encode(),
    )


def remove_shown(folder: Folder) -> None:
    """Remove the CSV files and pages of a run, because its tables change."""
    for name in ("documents.csv", "segments.csv", "index.html"):
        folder.drop(name)
    _remove_pages(folder)
    with contextlib.suppress(OSError):  # it is missing, or has other files
        pathlib.Path(folder.file("pages")).rmdir()


def _remove_pages(folder: Folder) -> None:
    pages = pathlib.Path(folder.file("pages"))
    for old in pages.iterdir() if pages.is_dir() else ():
        if _PAGE.fullmatch(old.name):
            old.unlink()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _most_certain(folder: Folder, chunks: Sequence[int]) -> tuple[list[tuple[Location, Row]], int]:
    """Return the documents to show, and the number of all: findings first, then those that were not read."""
    total = 0

    def rows() -> Iterator[tuple[tuple[int, float, int], Location, Row]]:
        nonlocal total
        for chunk in chunks:
            for row in read_table(folder, "documents", chunk).to_pylist():
                name = f"{row['file']}, row {row['row']}" + (f" ({row['id']})" if row["id"] else "")
                listed = Row(name, row["found"], row["coverage"], row["log_p"], row["tokens"])
                total += 1
                yield (0 if row["found"] else 2, row["log_p"], total), (row["file"], row["row"]), listed
            for bad in read_quarantine(folder, chunk):
                total += 1
                listed = Row(f"{bad['file']}, row {bad['row']}", problem=bad["reason"])
                yield (1, 0.0, total), (bad["file"], bad["row"]), listed

    first = heapq.nsmallest(MAXIMUM_ROWS, rows(), key=lambda item: item[0])
    return [(location, row) for _, location, row in first], total
