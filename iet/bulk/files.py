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

import contextlib
import dataclasses
import datetime
import os
import pickle
from collections.abc import Callable, Iterable

from iet import __version__
from iet.audit.arrow import check_readable
from iet.audit.auditor import Auditor
from iet.audit.documents import check_encoding
from iet.audit.evidence import benjamini_hochberg
from iet.bulk.chunk_store import digest_in
from iet.bulk.folder import (
    Shard,
    as_json,
    chunks_done,
    chunks_in,
    claimed,
    folder_of,
    name_of,
    remove,
    sweep,
)
from iet.bulk.inputs import (
    Chunk,
    choose_columns,
    chunks,
    read,
)
from iet.bulk.job import DOCUMENTS, SEGMENTS, Job
from iet.bulk.pages import remove_shown, write_csv, write_pages
from iet.bulk.progress import Progress, Tracker
from iet.bulk.sources import expand, groups_of, not_read_note
from iet.bulk.summary import Summary, summarize
from iet.bulk.workers import audited
from iet.errors import InputError, check_number

CHUNK_ROWS, CHUNK_SIZE = 4096, 1 << 24
"""Maximum number of records in a chunk, and its size in bytes (of JSON lines), characters or ids."""

MAXIMUM_RECORD = 1 << 23
"""Maximum size of a record: bytes of a text or of a line of JSON; in Parquet characters or ids."""


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
    index, count = shard
    check_number("shard", count, 1)
    check_number("shard", index, 1, count)
    check_number("workers", workers, 1, 1024)
    check_number("chunk_rows", chunk_rows, 1)
    check_number("max_record", max_record, 1)
    if reread and not resume:
        raise InputError("reread: got True without resume, expected both: it goes on with a run")
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
    if (csv or pages or fdr is not None) and count > 1:
        raise InputError(
            f"csv, pages, fdr: got shard {index}/{count}, expected one shard, which has all documents"
        )
    target = folder_of(out)
    if (csv or pages) and not target.is_local:
        raise InputError(f"csv, pages: got results by URI ({target.path}), expected a folder of this machine")
    began = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    sources, not_read = expand(inputs, out)
    if strict and not_read:
        raise InputError(not_read_note(not_read))
    columns = choose_columns(sources, text_column, ids_column, id_column, max_record)
    check_readable(auditor, columns.ids)
    packed = pickle.dumps(auditor) if workers > 1 else b""
    groups = groups_of(sources, CHUNK_SIZE)
    configuration = {
        "schema": "iet.run/1",
        "iet": __version__,
        "auditor": auditor.configuration,
        "columns": dataclasses.asdict(columns),
        "chunk_rows": int(chunk_rows),
        "max_record": int(max_record),
        "encoding": encoding,
        "not_read": not_read,
        "shards": count,
        "inputs": [
            {**source.describe(), "group": group} for source, group in zip(sources, groups, strict=True)
        ],
    }
    if templates is not None:
        configuration["templates"] = int(templates)
    own_shard = Shard(index, count)
    with claimed(target, configuration, own_shard, resume=resume, reread=reread) as (folder, first):
        sweep(folder, own_shard)
        job = Job(folder, tuple(sources), columns, int(max_record), encoding)
        if templates is not None:
            job = dataclasses.replace(
                job, templates=job.shared(int(templates), auditor.profiles[0].vocab_size)
            )
        tracker, manifest = Tracker(sources, progress), ChunkManifest(job, own_shard, reread)
        groups = [file["group"] for file in first["inputs"]]
        stream = chunks(read(sources, columns, max_record), groups, chunk_rows, CHUNK_SIZE)
        wanted = tracker.skipping(stream, manifest.wants)
        with contextlib.closing(audited(auditor, packed, job, wanted, workers)) as events:
            for chunk, records in events:
                tracker.audited(chunk, records)
        done = manifest.all_done()
        summary = dataclasses.replace(summarize(folder, done, fdr, templates), not_read=not_read)
        about = [f"read {began} with {', '.join(auditor.registry_names)}", *summary.lines()]
        if csv:
            for kind, schema in (("documents", DOCUMENTS), ("segments", SEGMENTS)):
                write_csv(folder, kind, done, schema)
        if pages:
            reread_documents = job.documents(read(sources, columns, max_record))
            write_pages(folder, auditor, done, reread_documents, columns.ids, about)
        folder.commit(own_shard.state, as_json({"complete": True, **dataclasses.asdict(summary)}))
    if strict and summary.broken:
        raise InputError(f"{summary.broken_note()}; all other records are done")
    return summary


class ChunkManifest:
    """The chunks of a shard, and which of them are finished."""

    def __init__(self, job: Job, own_shard: Shard, reread: bool) -> None:
        self._job, self._shard, self._reread = job, own_shard, reread
        self._folder = job.folder
        self._done = chunks_done(job.folder)
        self._seen = set[int]()
        self._changed = False

    def wants(self, chunk: Chunk) -> bool:
        """Tell whether a chunk must be audited.

        Raises:
            InputError: it is finished, but its input has changed.
        """
        if chunk.index not in self._shard:
            return False
        self._seen.add(chunk.index)
        if chunk.index not in self._done:
            self._change()
            return True
        previous_digest = digest_in(self._folder, chunk.index)
        if previous_digest == chunk.digest():
            return False
        if previous_digest is not None and not self._reread:
            raise InputError(
                f"{self._job.location(chunk)}: not what was audited before; expected the files as they were,"
                " or --reread, which audits changed files again"
            )
        if previous_digest is not None:  # otherwise it is damaged, and the tables will not change
            self._change()
        remove(self._folder, chunk.index)
        return True

    def _change(self) -> None:
        if self._folder.is_local and not self._changed:
            remove_shown(self._folder)
            self._changed = True

    def all_done(self) -> list[int]:
        """Return the indices of the shard's chunks in order, and remove chunks that the input no longer has.

        Raises:
            InputError: some chunks are missing.
        """
        self._folder.check()
        missing = self._seen - chunks_done(self._folder)
        if missing:
            raise InputError(
                f"{self._folder.path}: {len(missing):,} of {len(self._seen):,} chunks are missing,"
                f" such as {name_of('documents', min(missing))}; expected all that were written (--resume"
                " does them again)"
            )
        for index in sorted(chunks_in(self._folder) - self._seen):
            if index in self._shard:
                self._change()
                remove(self._folder, index)
        return sorted(self._seen)
