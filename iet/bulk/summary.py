"""Totals of a run's output, from the files of its chunks."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from iet.audit.evidence import benjamini_hochberg
from iet.bulk.chunk_store import read_quarantine, read_table
from iet.bulk.folder import Folder
from iet.bulk.sources import not_read_note


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Numbers of records that a run read, and of those that it could not read.

    Attributes:
        documents: number of documents or conversations.
        quarantined: number of records that could not be read.
        broken: number of files that could not be read to their end.
        not_read: number of files in the input folders that are not read, by the suffix of their names.
    """

    documents: int
    quarantined: int
    broken: int = 0
    not_read: dict[str, int] = dataclasses.field(default_factory=dict)
    has_texts: ClassVar[bool] = True
    """Whether files of other formats can be read as text."""

    def broken_note(self) -> str:
        """Return a sentence about the broken files."""
        return f"{self.broken:,} files could not be read to their end: quarantine-*.jsonl says which"

    def lines_of_unread(self) -> list[str]:
        """Return what could not be read, in words."""
        lines = []
        if self.quarantined:
            records = "record" if self.quarantined == 1 else "records"
            lines.append(f"{self.quarantined:,} {records} could not be read: quarantine-*.jsonl says why")
        if self.broken:
            lines.append(self.broken_note())
        if self.not_read:
            lines.append(not_read_note(self.not_read, advice=self.has_texts))
        return lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary(RunSummary):
    """The output of one shard of an audit in numbers.

    Attributes:
        segments: number of rows of segments.
        tokens: number of tokens in all documents.
        attributed: number of documents with attributed text.
        unattributed: number of documents with unattributed text.
        fdr: false-discovery rate over documents, or None if none was requested.
        fdr_log_p: highest log p of the documents that are discoveries at that rate, or None.
        fdr_documents: number of discoveries.
        templates: minimum number of documents whose shared passages count only in the first; None: in all.
        template_share: share of the scored tokens that do not count for that reason.
    """

    segments: int
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
        lines = [
            f"{self.documents:,} documents of {self.tokens:,} tokens, {self.segments:,} segments;"
            f" text is attributed in {self.attributed:,} documents",
        ]
        lines += self.lines_of_unread()
        if self.templates is not None:
            lines.append(
                f"{self.template_share:.1%} of the scored tokens are no evidence: their passages stand in"
                f" {self.templates} documents or more, and count in the first"
            )
        if self.fdr is not None:
            condition = f", log_p <= {self.fdr_log_p:.6g}" if self.fdr_log_p is not None else ""
            lines.append(
                f"at a false-discovery rate of {self.fdr:g}: {self.fdr_documents:,} documents{condition}"
            )
        return lines


def summarize(folder: Folder, chunks: list[int], fdr: float | None, templates: int | None) -> Summary:
    """Return the summary of a shard from the files of its chunks."""
    totals: dict[str, Any] = dict.fromkeys(
        ("documents", "segments", "quarantined", "tokens", "attributed", "unattributed", "broken"), 0
    )
    log_p, scored, shared = [np.zeros(0)], 0, 0
    for index in chunks:
        names = ["segments", "tokens", "scored", "template", "coverage", "log_p"]
        table = read_table(folder, "documents", index, names)
        columns = {name: table.column(name).to_numpy() for name in table.column_names}
        totals["documents"] += table.num_rows
        scored += int(columns["scored"].sum())
        shared += int(columns["template"].sum())
        totals["segments"] += int(columns["segments"].sum())
        totals["tokens"] += int(columns["tokens"].sum())
        totals["attributed"] += int((columns["coverage"] > 0).sum())
        totals["unattributed"] += int((columns["coverage"] < 1).sum())
        for record in read_quarantine(folder, index):
            totals["broken" if record.get("rest", False) else "quarantined"] += 1
        if fdr is not None:
            log_p.append(columns["log_p"])
    if templates is not None:
        totals |= {"templates": templates, "template_share": shared / max(1, scored)}
    if fdr is None:
        return Summary(**totals)
    all_log_p = np.concatenate(log_p)
    reported = all_log_p[benjamini_hochberg(all_log_p, fdr)]
    highest = float(reported.max()) if len(reported) else None
    return Summary(**totals, fdr=fdr, fdr_log_p=highest, fdr_documents=len(reported))
