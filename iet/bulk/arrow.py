"""Audits as new columns of Arrow tables: `Annotator`, for datasets and Ray Data.

pyarrow comes with `pip install "implicit-execution-tracing[bulk]"`.
"""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

from iet.audit.arrow import SCHEMA, audit_batch
from iet.audit.auditor import Auditor
from iet.marks.registry import Registry

__all__ = ["SCHEMA", "Annotator", "audit_batch"]


class Annotator:
    """Put the results of audits beside the documents of Arrow tables; Ray Data, datasets and others map it.

    Args:
        registry: path of a registry file, or the registry.
        text_column, ids_column: as in `audit_batch`.
        prefix: of the names of the new columns.
        options: of `Auditor`.

    Raises:
        RegistryError, InputError: as `Auditor` does.
    """

    def __init__(
        self,
        registry: Registry | str | os.PathLike[str],
        *,
        text_column: str | None = None,
        ids_column: str | None = None,
        prefix: str = "iet_",
        **options: Any,
    ) -> None:
        self._auditor = Auditor(
            registry if isinstance(registry, Registry) else Registry.load(registry), **options
        )
        self._columns = {"text_column": text_column, "ids_column": ids_column}
        self._prefix = prefix

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the table with the columns of `SCHEMA`; columns that have their names are replaced."""
        found = [self._auditor.audit_batch(batch, **self._columns) for batch in table.to_batches()]
        results = pa.Table.from_batches(found, SCHEMA)
        names = [self._prefix + name for name in SCHEMA.names]
        table = table.drop_columns([name for name in names if name in table.column_names])
        for name, column in zip(names, results.columns, strict=True):
            table = table.append_column(name, column)
        return table
