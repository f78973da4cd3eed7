"""Check the agents that many recorded conversations name, in chunks as `iet.bulk.files` audits documents."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from iet.audit import traces
from iet.audit.arrow import check_readable
from iet.audit.auditor import Auditor
from iet.bulk.chunk_store import read_quarantine, read_table
from iet.bulk.folder import Folder
from iet.bulk.inputs import ID, InputSchema, choose_columns, shown_id
from iet.bulk.job import ORIGIN, Job
from iet.bulk.progress import Progress
from iet.bulk.run import CHUNK_ROWS, MAXIMUM_RECORD, Run
from iet.bulk.sources import conversations, expand, not_read_note
from iet.bulk.summary import RunSummary
from iet.errors import InputError
from iet.native.arrays import Int64s
from iet.report.claims import MEANINGS, ClaimReport, HandOvers

COLUMN = "messages"
"""Default column of Parquet files that holds the conversations."""

_VERDICTS = tuple(verdict.replace(" ", "_") for verdict in MEANINGS)

_HAND_OVERS = tuple(f"hand_overs_{field.name}" for field in dataclasses.fields(HandOvers))

CONVERSATIONS = pa.schema(
    [*ORIGIN, *((name, pa.int64()) for name in ("pieces", *_VERDICTS, "unreadable", *_HAND_OVERS))],
    {"iet.schema": "iet.conversations/1"},
)
"""A row for each conversation: its file, row and id, its number of pieces, and the number of each verdict.

The numbers of hand-overs are those of `iet.report.claims.HandOvers`, null if the record states none.
"""

_PIECE = {
    **dict.fromkeys(("claim", "verdict", "agent"), pa.string()),
    "log_p": pa.float64(),
    **dict.fromkeys(("characters", "tokens", "counted", "repeated"), pa.int64()),
    "note": pa.string(),
}

PIECES = pa.schema([*ORIGIN, ("piece", pa.int64()), *_PIECE.items()], {"iet.schema": "iet.pieces/1"})
"""A row for each piece of a conversation, as in `iet.report.claims.CheckedPiece`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClaimSummary(RunSummary):
    """The output of one shard of a check in numbers.

    Attributes:
        pieces: number of pieces in all conversations.
        verdicts: verdict -> number of pieces.
        contradicted: number of conversations with a contradicted piece.
    """

    pieces: int
    verdicts: dict[str, int]
    contradicted: int
    has_texts: ClassVar[bool] = False

    def lines(self) -> list[str]:
        """Return the summary in words."""
        counts = [f"{count:,} {name.replace('_', ' ')}" for name, count in self.verdicts.items() if count]
        return [
            f"{self.documents:,} conversations of {self.pieces:,} pieces: {', '.join(counts) or 'none'};"
            f" {self.contradicted:,} conversations have a contradicted piece",
            *self.lines_of_unread(),
        ]


@dataclasses.dataclass(frozen=True)
class CheckJob(Job):
    """Checks conversations in place of auditing documents. `names` are those of `Auditor.check_trace`."""

    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    schemas: ClassVar[tuple[pa.Schema, pa.Schema]] = (CONVERSATIONS, PIECES)

    def text(self, value: bytes, name: str) -> Any:
        """Return the content of a file that is one conversation."""
        return value

    def line(self, line: bytes) -> tuple[Any, str | None]:
        """Return the parsed conversation of a line, or an error, and its id."""
        try:
            record = traces.parse(line.strip())
        except InputError as error:
            return error, None
        return record, shown_id(record.get(self.columns.id)) if isinstance(record, dict) else None

    def results(
        self, auditor: Auditor, values: list[Any], elsewhere: list[Int64s] | None
    ) -> Iterator[tuple[list[str | None], list[ClaimReport]]]:
        """Yield what is wrong with a conversation (None: nothing), and its result unless it is bad."""
        for value in values:
            try:
                yield [None], [check_record(auditor, value, self.names)]
            except InputError as error:
                yield [str(error)], []
            except MemoryError:
                yield ["out of memory"], []

    def rows(self, origins: list[pa.Array], results: list[ClaimReport]) -> tuple[pa.Table, pa.Table]:
        """Return the rows of good conversations, and those of their pieces."""
        counts = [collections.Counter(piece.verdict for piece in report.pieces) for report in results]
        columns = [
            [len(report.pieces) for report in results],
            *([count[verdict] for count in counts] for verdict in MEANINGS),
            [sum(report.unreadable.values()) for report in results],
            *(
                [
                    None if report.hand_overs is None else len(getattr(report.hand_overs, field.name))
                    for report in results
                ]
                for field in dataclasses.fields(HandOvers)
            ),
        ]
        pieces = [piece for report in results for piece in report.pieces]
        documents = pa.array([d for d, report in enumerate(results) for _ in report.pieces], pa.int64())
        of_pieces = [[getattr(piece, name) for piece in pieces] for name in ("index", *_PIECE)]
        return (
            pa.table([*origins, *columns], schema=CONVERSATIONS),
            pa.table([*(column.take(documents) for column in origins), *of_pieces], schema=PIECES),
        )


def check_record(auditor: Auditor, record: Any, names: Mapping[str, str]) -> ClaimReport:
    """Check one record: JSON as bytes or text, or the parsed value.

    Raises:
        InputError: it is no record of a conversation.
    """
    if isinstance(record, InputError):
        raise record
    if isinstance(record, (str, bytes)):
        record = traces.parse(record.encode(errors="surrogatepass") if isinstance(record, str) else record)
    return auditor.check_trace(traces.read(record, agents=[*auditor.agents, *names]), names)


def check_files(
    auditor: Auditor,
    inputs: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    names: Mapping[str, str] | None = None,
    per_line: bool = False,
    column: str | None = None,
    id_column: str | None = None,
    shard: tuple[int, int] = (1, 1),
    resume: bool = False,
    workers: int = 1,
    chunk_rows: int = CHUNK_ROWS,
    max_record: int = MAXIMUM_RECORD,
    reread: bool = False,
    strict: bool = False,
    csv: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> ClaimSummary:
    """Check all conversations of files, each as `Auditor.check_trace` does, and write the results.

    The level holds for each conversation. A record that is no conversation is listed in the quarantine.

    Args:
        inputs: .json and .jsonl files, each one conversation, Parquet, and folders and patterns of them.
        names: {name in the records: agent}, for names that differ.
        per_line: a conversation is a line of .jsonl files (also .gz, .zst), and no file as a whole.
        column: Parquet's column of conversations, as JSON or as lists of structures. None: "messages".
        out: as in `audit_files`. documents-*.parquet has rows of `CONVERSATIONS`, segments-*.parquet of
            `PIECES`.
        auditor, id_column, shard, resume, workers, chunk_rows, max_record, reread, strict, csv, progress: as
            in `iet.bulk.files.audit_files`.

    Returns:
        Summary of this shard.

    Raises:
        InputError, IetError: as `audit_files` does.
    """
    run = Run(out, shard, resume, workers, chunk_rows, max_record, reread, csv, progress)
    if csv:
        run.check_complete("csv", local=True)
    sources, not_read = expand(inputs, out, conversations(per_line))
    if strict and not_read:
        raise InputError(not_read_note(not_read, advice=False))
    tables = [source for source in sources if source.kind == "parquet"]
    columns = InputSchema(column or COLUMN, False, id_column or ID)
    if tables:
        columns = choose_columns(tables, columns.name, None, id_column, max_record, nested=True)
    check_readable(auditor, False)
    names = dict(names or {})
    options = {"check": {"names": names, "per_line": per_line}, "not_read": not_read}

    def make_job(folder: Folder) -> CheckJob:
        return CheckJob(folder, tuple(sources), columns, int(max_record), None, names=names)

    def finish(job: Job, done: list[int]) -> ClaimSummary:
        return dataclasses.replace(_summarize(job.folder, done), not_read=not_read)

    summary: ClaimSummary = run.over(auditor, sources, columns, options, make_job, finish)
    if strict and summary.broken:
        raise InputError(f"{summary.broken_note()}; all other records are done")
    return summary


def _summarize(folder: Folder, chunks: list[int]) -> ClaimSummary:
    totals, contradicted, documents = collections.Counter[str](), 0, 0
    for index in chunks:
        table = read_table(folder, "documents", index, ["pieces", *_VERDICTS])
        documents += table.num_rows
        totals.update({name: pc.sum(table[name]).as_py() or 0 for name in table.column_names})
        contradicted += pc.sum(pc.greater(table["contradicted"], 0)).as_py() or 0
        for record in read_quarantine(folder, index):
            totals["broken" if record.get("rest", False) else "quarantined"] += 1
    return ClaimSummary(
        documents=documents,
        contradicted=contradicted,
        verdicts={name: totals[name] for name in _VERDICTS},
        pieces=totals["pieces"],
        quarantined=totals["quarantined"],
        broken=totals["broken"],
    )
