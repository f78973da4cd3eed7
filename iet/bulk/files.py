"""Audit files of any size in chunks that depend only on the input, and are committed whole or not at all.

The output folder has, for chunk N of file group G,

    segments-G-N.parquet     a row for each segment (`SEGMENTS`)
    quarantine-G-N.jsonl     a line for each record that could not be read
    documents-G-N.parquet    a row for each document (`DOCUMENTS`)
    templates.npz            passages that many documents share, with `templates`

Files are written in this order, each to a temporary name and then renamed (in a store, as an atomic object).
So a chunk is finished if and only if its documents file exists, and a killed run continues with the other
chunks. run.json has the run's inputs and options, and shard-I-of-N.json the summary of a finished shard.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
from collections.abc import Callable, Iterable
from typing import Any

from iet.audit.arrow import check_readable
from iet.audit.auditor import Auditor
from iet.audit.documents import check_encoding
from iet.audit.evidence import benjamini_hochberg
from iet.bulk.folder import Folder
from iet.bulk.inputs import choose_columns, read
from iet.bulk.job import Job
from iet.bulk.pages import write_pages
from iet.bulk.progress import Progress
from iet.bulk.run import CHUNK_ROWS, MAXIMUM_RECORD, Run
from iet.bulk.sources import documents, expand, not_read_note
from iet.bulk.summary import Summary, summarize
from iet.errors import InputError, check_number


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
    max_record: int = MAXIMUM_RECORD,
    reread: bool = False,
    encoding: str | None = None,
    strict: bool = False,
    csv: bool = False,
    pages: bool = False,
    fdr: float | None = None,
    templates: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Audit all documents of files, each as `Auditor.audit` does, and write the results to a folder.

    The unreadable rest of a broken file becomes one quarantined record with `rest` set. With several workers,
    a worker that dies is replaced, and a record at which two more die is quarantined.

    Deterministic: the results depend neither on workers and shards nor on kills, if memory suffices for all
    records. Memory: one or two chunks for each worker, and the longest document.

    Args:
        auditor: with several workers, its registry must be a file.
        inputs: Parquet, JSON lines (.jsonl or .ndjson, also .gz and .zst) and text files (one document each),
            folders, and patterns; files and folders also by URI (s3://, gs://, hdfs://).
        out: folder of the output, created if it is missing, or a URI (s3://, gs://). It must be empty, unless
            `resume` is set or it has other shards of the same run.
        text_column, ids_column: as in `iet.audit.arrow.audit_batch`, the same for all files.
        id_column: column of document names. None: "id", in files that have it.
        shard: (i, n), 1 <= i <= n: audit every n-th chunk from the i-th on. n runs with i from 1 to n and
            otherwise equal arguments, at any time and on any machine, audit everything once.
        resume: continue a run with the same arguments.
        workers: number of processes with one thread each, 1 to 1024; 1: this process does the work.
        chunk_rows: maximum number of records in a chunk, at least 1. A kill costs at most the current chunks.
        max_record: maximum size of a record, at least 1: bytes of a text or of a line of JSON; in Parquet
            characters or ids. Larger ones are quarantined. A resumed run may have another limit.
        reread: with `resume`, audit files again if they have changed, and keep the chunks of the others.
        encoding: of text files, as in `iet.audit.documents.text_of`. None: by byte order mark, else UTF-8.
        strict: raise an error if files are not read: before any work for other kinds of files in a folder, at
            the end for broken files.
        csv: also write the tables as documents.csv and segments.csv; only with one shard. If the tables
            change, those of an earlier run are removed, and its pages too.
        pages: also write index.html with the 10,000 most certain documents, and a page for each of the 1,000
            most certain with attributed text, which are read again; only with one shard.
        fdr: also report which documents are discoveries at this false-discovery rate, 0 to 1
            (`iet.evidence.benjamini_hochberg`); only with one shard.
        templates: if at least this many documents, 2 or more, share a passage, it counts as evidence only in
            the first (`iet.bulk.templates`). None: it counts in each. Takes a first pass over all input, and
            up to 168 MB.
        progress: called after some records, and at the end of every chunk.

    Returns:
        Summary of this shard.

    Raises:
        InputError: a parameter is out of range; an input is missing, or all are broken; `out` is not empty,
            has results of another run (the error names the difference), or is replaced during the run; an
            input has changed; or another process works on the shard.
        IetError: more than 20 workers died, or the registry has changed when one starts.
    """
    run = Run(out, shard, resume, workers, chunk_rows, max_record, reread, csv, progress)
    if templates is not None:
        check_number("templates", templates, 2)
        if reread or pages:
            raise InputError(
                "templates: got them with reread or pages, expected neither: what a document shares depends"
                " on all others, so that none is read again alone"
            )
    if fdr is not None:
        try:
            benjamini_hochberg([], fdr)
        except InputError:
            raise InputError(f"fdr: got {fdr!r}, expected a number between 0 and 1") from None
    check_encoding(encoding)
    if csv or pages or fdr is not None:
        run.check_complete("csv, pages" if fdr is None else "csv, pages, fdr", local=csv or pages)
    began = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    sources, not_read = expand(inputs, out, documents())
    if strict and not_read:
        raise InputError(not_read_note(not_read))
    columns = choose_columns(sources, text_column, ids_column, id_column, max_record)
    check_readable(auditor, columns.ids)
    options: dict[str, Any] = {"encoding": encoding, "not_read": not_read}
    if templates is not None:
        options["templates"] = int(templates)

    def make_job(folder: Folder) -> Job:
        job = Job(folder, tuple(sources), columns, int(max_record), encoding)
        if templates is None:
            return job
        shared = job.shared(int(templates), auditor.profiles[0].vocab_size)
        return dataclasses.replace(job, templates=shared)

    def finish(job: Job, done: list[int]) -> Summary:
        summary = dataclasses.replace(summarize(job.folder, done, fdr, templates), not_read=not_read)
        if pages:
            about = [f"read {began} with {', '.join(auditor.registry_names)}", *summary.lines()]
            reread_documents = job.documents(read(sources, columns, max_record))
            write_pages(job.folder, auditor, done, reread_documents, columns.ids, about)
        return summary

    summary: Summary = run.over(auditor, sources, columns, options, make_job, finish)
    if strict and summary.broken:
        raise InputError(f"{summary.broken_note()}; all other records are done")
    return summary
