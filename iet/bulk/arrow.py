"""Add audit results to Arrow tables as new columns: `Annotator`, for datasets and Ray Data.

pyarrow comes with `pip install "implicit-execution-tracing[bulk]"`.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa

from iet.audit.arrow import audit_batch, check_type, chosen_column, values_of
from iet.audit.auditor import Auditor
from iet.bulk.templates import Templates, loaded, number_of, symbols_of
from iet.errors import InputError
from iet.marks.registry import Registry
from iet.native.arrays import Int64s
from iet.report.arrow import SCHEMA

__all__ = ["SCHEMA", "Annotator", "audit_batch"]


class Annotator:
    """Add the results of audits to Arrow tables of documents; for `map` of Ray Data, datasets and others.

    Args:
        registry: path of a registry file, or the registry.
        text_column, ids_column: as in `audit_batch`.
        prefix: of the names of the new columns.
        templates: result of `iet.bulk.templates.shared` over all documents, or the path of its file. Only the
            first document of a passage counts as evidence. The column `template` counts the scored tokens
            that do not count.
        id_column: name of the column with the document names of that pass, strings or integers.
        options: of `Auditor`.

    Raises:
        RegistryError, InputError: as `Auditor` does.
        InputError: `templates` has another type, or only one of `templates` and `id_column` is set.
    """

    def __init__(
        self,
        registry: Registry | str | os.PathLike[str],
        *,
        text_column: str | None = None,
        ids_column: str | None = None,
        prefix: str = "iet_",
        templates: Templates | str | os.PathLike[str] | None = None,
        id_column: str | None = None,
        **options: Any,
    ) -> None:
        self._auditor = Auditor(
            registry if isinstance(registry, Registry) else Registry.load(registry), **options
        )
        self._columns = {"text_column": text_column, "ids_column": ids_column}
        self._prefix = prefix
        self._templates, self._id_column = loaded(templates), id_column
        if (self._templates is None) != (id_column is None):
            name = "templates" if id_column is None else "id_column"
            raise InputError(
                f"{name}: got it alone, expected templates and id_column together: the first document of a"
                " passage is identified by its name"
            )

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the table with the columns of `SCHEMA`; they replace columns of the same names."""
        batches = [
            audit_batch(self._auditor, batch, **self._columns, elsewhere=self._elsewhere(batch))
            for batch in table.to_batches()
        ]
        results = pa.Table.from_batches(batches, SCHEMA)
        names = [self._prefix + name for name in SCHEMA.names]
        table = table.drop_columns([name for name in names if name in table.column_names])
        for name, column in zip(names, results.columns, strict=True):
            table = table.append_column(name, column)
        return table

    def _elsewhere(self, batch: pa.RecordBatch) -> list[Int64s] | None:
        """Return the spans of each document that count as evidence in another one."""
        if self._templates is None or self._id_column is None:
            return None
        if self._id_column not in batch.schema.names:
            raise InputError(
                f"columns: got {batch.schema.names[:20]}, expected {self._id_column!r} among them"
            )
        name, ids = chosen_column(batch.schema.names, **self._columns)
        check_type(batch.schema.field(name), ids)
        numbers = map(number_of, batch.column(self._id_column).to_pylist())
        documents = (symbols_of(value, ids) for value in values_of(batch.column(name), ids))
        nothing = np.zeros((0, 2), np.int64)
        return [
            nothing if symbols is None else self._templates.elsewhere(number, symbols)
            for number, symbols in zip(numbers, documents, strict=True)
        ]
