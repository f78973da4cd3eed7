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

from iet.bulk.arrow import Annotator
from iet.bulk.templates import loaded
from iet.errors import check_number
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
        id_column = None if self.templates is None else "id"
        annotate = Annotator(
            self.registry, prefix=self.prefix, templates=self.templates, id_column=id_column, **self.options
        )
        names, documents = [self.prefix + name for name in SCHEMA.names], iter(data or ())
        while batch := list(itertools.islice(documents, self.batch_size)):
            with self.track_time("batch"):
                # As bytes, a lone surrogate is invalid UTF-8, which is reported as the record's problem.
                texts = [
                    d.text.encode("utf-8", "surrogatepass") if isinstance(d.text, str) else d.text
                    for d in batch
                ]
                names_of_documents = [str(d.id).encode(errors="backslashreplace").decode() for d in batch]
                columns = {"text": pa.array(texts, pa.binary()), "id": names_of_documents}
                rows = annotate(pa.table(columns)).select(names).to_pylist()
            for document, row in zip(batch, rows, strict=True):
                document.metadata |= row
                is_read = row[self.prefix + "problem"] is None
                self.stat_update("documents" if is_read else "problems")
                if self.templates is not None and is_read:
                    for name in ("template", "scored"):
                        self.stat_update(name, value=row[self.prefix + name])
                yield document
