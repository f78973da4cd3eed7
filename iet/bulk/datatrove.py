"""Audits as a step of a datatrove pipeline.

LocalPipelineExecutor([JsonlReader("logs/"), IETAudit("team.json", decoder="cusum"), JsonlWriter("out/")])
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from iet.audit.arrow import audit_batch
from iet.audit.auditor import Auditor
from iet.bulk.templates import loaded, stretches_elsewhere
from iet.errors import check_number
from iet.marks.registry import Registry
from iet.report.arrow import SCHEMA


class IETAudit(PipelineStep):  # type: ignore[misc, unused-ignore]
    """Put the results of `iet.audit.arrow.audit_batch` into the metadata of each document.

    Args:
        registry: path of a registry file, which every task loads.
        prefix: of the names in the metadata.
        batch_size: number of documents that are read together, at least 1.
        templates: path of the result of `iet.bulk.templates.shared` over all documents, named by their ids.
            Only the first document of a passage counts as evidence. The statistic `template` counts the
            scored tokens that do not count, and `scored` all scored tokens.
        options: of `Auditor`.
    """

    name = "🔎 iet audit"
    type = "🔍 - AUDIT"

    def __init__(
        self,
        registry: str | os.PathLike[str],
        prefix: str = "iet_",
        batch_size: int = 64,
        templates: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        check_number("batch_size", batch_size, 1)
        self.registry = os.fspath(registry)
        self.prefix = prefix
        self.batch_size = batch_size
        self.options = options
        loaded(templates)  # fails here rather than in every task
        self.templates = templates

    def run(self, data: Iterable[Document] | None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Audit the documents as they pass."""
        auditor, documents = Auditor(Registry.load(self.registry), **self.options), iter(data or ())
        templates = loaded(self.templates)
        while batch := list(itertools.islice(documents, self.batch_size)):
            with self.track_time("batch"):
                # As bytes, a lone surrogate is invalid UTF-8, which is reported as the record's problem.
                encoded = [
                    d.text.encode("utf-8", "surrogatepass") if isinstance(d.text, str) else d.text
                    for d in batch
                ]
                texts = pa.RecordBatch.from_pydict({"text": pa.array(encoded, pa.binary())})
                elsewhere = None
                if templates is not None:
                    named = ((document.id, document.text) for document in batch)
                    elsewhere = stretches_elsewhere(templates, named, ids=False)
                rows = audit_batch(auditor, texts, elsewhere=elsewhere).to_pylist()
            for document, row in zip(batch, rows, strict=True):
                document.metadata |= {self.prefix + name: row[name] for name in SCHEMA.names}
                self.stat_update("documents" if row["problem"] is None else "problems")
                if templates is not None and row["problem"] is None:
                    self.stat_update("template", value=row["template"])
                    self.stat_update("scored", value=row["scored"])
                yield document
