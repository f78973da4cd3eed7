"""One run over files: its chunks are audited and committed, whatever a chunk's results are."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any

from iet import __version__
from iet.audit.auditor import Auditor
from iet.bulk.chunk_store import digest_in
from iet.bulk.folder import (
    Folder,
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
from iet.bulk.inputs import Chunk, InputSchema, chunks, read
from iet.bulk.job import Job
from iet.bulk.pages import remove_shown, write_csv
from iet.bulk.progress import Progress, Tracker
from iet.bulk.sources import Source, groups_of
from iet.bulk.workers import audited
from iet.errors import InputError, check_number

CHUNK_ROWS, CHUNK_SIZE = 4096, 1 << 24
"""Maximum number of records in a chunk, and its size in bytes (of JSON lines), characters or ids."""

MAXIMUM_RECORD = 1 << 23
"""Maximum size of a record: bytes of a text or of a line of JSON; in Parquet characters or ids."""


@dataclasses.dataclass(frozen=True)
class Run:
    """The parameters of a run that do not depend on what is read. See `iet.bulk.files.audit_files`.

    Raises:
        InputError: one is out of range.
    """

    out: str | os.PathLike[str]
    shard: tuple[int, int] = (1, 1)
    resume: bool = False
    workers: int = 1
    chunk_rows: int = CHUNK_ROWS
    max_record: int = MAXIMUM_RECORD
    reread: bool = False
    csv: bool = False
    progress: Callable[[Progress], None] | None = None

    def __post_init__(self) -> None:
        index, count = self.shard
        check_number("shard", count, 1)
        check_number("shard", index, 1, count)
        check_number("workers", self.workers, 1, 1024)
        check_number("chunk_rows", self.chunk_rows, 1)
        check_number("max_record", self.max_record, 1)
        if self.reread and not self.resume:
            raise InputError("reread: got True without resume, expected both: it goes on with a run")

    def check_complete(self, names: str, *, local: bool) -> None:
        """Raise an InputError, with the names of parameters, unless the run has all results.

        With `local`, its folder must also be on this machine.
        """
        index, count = self.shard
        if count > 1:
            raise InputError(
                f"{names}: got shard {index}/{count}, expected one shard, which has all documents"
            )
        target = folder_of(self.out)
        if local and not target.is_local:
            raise InputError(
                f"{names}: got results by URI ({target.path}), expected a folder of this machine"
            )

    def over(
        self,
        auditor: Auditor,
        sources: Sequence[Source],
        columns: InputSchema,
        options: dict[str, Any],
        make_job: Callable[[Folder], Job],
        finish: Callable[[Job, list[int]], Any],
    ) -> Any:
        """Audit the records of all sources, and return what `finish` returns.

        Args:
            auditor: with several workers it is pickled.
            sources, columns: what is read.
            options: the other options that a resumed run must not change, for run.json.
            make_job: (folder) -> what audits a chunk.
            finish: (job, indices of all chunks) -> the summary, a data class.

        Raises:
            InputError, IetError: as `audit_files` does.
        """
        packed = pickle.dumps(auditor) if self.workers > 1 else b""
        groups = groups_of(sources, CHUNK_SIZE)
        configuration = {
            "schema": "iet.run/1",
            "iet": __version__,
            "auditor": auditor.configuration,
            "columns": dataclasses.asdict(columns),
            "chunk_rows": int(self.chunk_rows),
            "max_record": int(self.max_record),
            **options,
            "shards": self.shard[1],
            "inputs": [
                {**source.describe(), "group": group} for source, group in zip(sources, groups, strict=True)
            ],
        }
        own_shard = Shard(*self.shard)
        with claimed(
            folder_of(self.out), configuration, own_shard, resume=self.resume, reread=self.reread
        ) as (folder, first):
            sweep(folder, own_shard)
            job = make_job(folder)
            tracker, manifest = Tracker(sources, self.progress), ChunkManifest(job, own_shard, self.reread)
            groups = [file["group"] for file in first["inputs"]]
            records = read(sources, columns, self.max_record)
            wanted = tracker.skipping(chunks(records, groups, self.chunk_rows, CHUNK_SIZE), manifest.wants)
            with contextlib.closing(audited(auditor, packed, job, wanted, self.workers)) as events:
                for chunk, count in events:
                    tracker.audited(chunk, count)
            done = manifest.all_done()
            if self.csv:
                for kind, schema in zip(("documents", "segments"), job.schemas, strict=True):
                    write_csv(folder, kind, done, schema)
            summary = finish(job, done)
            folder.commit(own_shard.state, as_json({"complete": True, **dataclasses.asdict(summary)}))
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
