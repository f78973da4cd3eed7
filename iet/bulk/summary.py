"""What a run comes to: its output in numbers, from the files of its chunks."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from iet.audit.evidence import benjamini_hochberg
from iet.bulk.folder import Folder, name_of
from iet.bulk.sources import told_of


@dataclasses.dataclass(frozen=True)
class Summary:
    """The output of one shard in numbers.

    Attributes:
        documents, segments: number of rows.
        quarantined: number of records that could not be read.
        broken: number of files of which something, at the end or all, could not be read.
        tokens: number of tokens in all documents.
        attributed: number of documents in which some text is attributed.
        unattributed: number of documents in which some text is not.
        not_read: how many files of the folders given are of kinds that are not read, by the ends of names.
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
    broken: int = 0
    not_read: dict[str, int] = dataclasses.field(default_factory=dict)
    fdr: float | None = None
    fdr_log_p: float | None = None
    fdr_documents: int | None = None
    templates: int | None = None
    template_share: float | None = None

    def told_of_broken(self) -> str:
        """Return in words how many files are broken."""
        return f"{self.broken:,} files could not be read to their end: quarantine-*.jsonl says which"

    def lines(self) -> list[str]:
        """Return the summary in words."""
        told = [
            f"{self.documents:,} documents of {self.tokens:,} tokens, {self.segments:,} segments;"
            f" text is attributed in {self.attributed:,} documents",
        ]
        if self.quarantined:
            told.append(f"{self.quarantined:,} records could not be read: quarantine-*.jsonl says why")
        if self.broken:
            told.append(self.told_of_broken())
        if self.not_read:
            told.append(told_of(self.not_read))
        if self.templates is not None:
            told.append(
                f"{self.template_share:.1%} of the scored tokens are no evidence: their passages stand in"
                f" {self.templates} documents or more, and count in the first"
            )
        if self.fdr is not None:
            where = f", log_p <= {self.fdr_log_p:.6g}" if self.fdr_log_p is not None else ""
            told.append(f"at a false-discovery rate of {self.fdr:g}: {self.fdr_documents:,} documents{where}")
        return told


def summed_up(folder: Folder, found: list[int], fdr: float | None, templates: int | None) -> Summary:
    """Return the summary of a shard from the files of its chunks."""
    totals: dict[str, Any] = dict.fromkeys(
        ("documents", "segments", "quarantined", "tokens", "attributed", "unattributed", "broken"), 0
    )
    log_p, scored, shared = [np.zeros(0)], 0, 0
    for index in found:
        # Not pq.read_table, which imports pyarrow.dataset, at 0.2 s.
        with pq.ParquetFile(folder.table(name_of("documents", index))) as stored:
            table = stored.read(["segments", "tokens", "scored", "template", "coverage", "log_p"])
        columns = {name: table.column(name).to_numpy() for name in table.column_names}
        totals["documents"] += table.num_rows
        scored += int(columns["scored"].sum())
        shared += int(columns["template"].sum())
        totals["segments"] += int(columns["segments"].sum())
        totals["tokens"] += int(columns["tokens"].sum())
        totals["attributed"] += int((columns["coverage"] > 0).sum())
        totals["unattributed"] += int((columns["coverage"] < 1).sum())
        with contextlib.suppress(FileNotFoundError), folder.open(name_of("quarantine", index)) as file:
            for line in file:
                rest = json.loads(line).get("rest", False)
                totals["broken" if rest else "quarantined"] += 1
        if fdr is not None:
            log_p.append(columns["log_p"])
    told: dict[str, Any] = dict(totals)
    if templates is not None:
        told |= {"templates": templates, "template_share": shared / max(1, scored)}
    if fdr is None:
        return Summary(**told)
    every = np.concatenate(log_p)
    reported = every[benjamini_hochberg(every, fdr)]
    highest = float(reported.max()) if len(reported) else None
    return Summary(**told, fdr=fdr, fdr_log_p=highest, fdr_documents=len(reported))
