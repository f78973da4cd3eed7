"""An Arrow RecordBatch of documents in, one of results out.

pyarrow comes with `pip install "implicit-execution-tracing[bulk]"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from iet.audit.records import audit_records
from iet.errors import InputError, ShapeError
from iet.native.arrays import Int64s
from iet.report.arrow import FOUND, SCHEMA
from iet.report.result import AuditResult

if TYPE_CHECKING:
    from iet.audit.auditor import Auditor


def audit_batch(
    auditor: Auditor,
    batch: pa.RecordBatch,
    *,
    text_column: str | None = None,
    ids_column: str | None = None,
    elsewhere: Sequence[Int64s] | None = None,
) -> pa.RecordBatch:
    """Audit the documents of a batch, each as `Auditor.audit` does.

    Args:
        auditor: who audits.
        batch: with a column of strings (or of UTF-8 bytes), or of lists of integers.
        text_column: name of the texts' column. None: "text", if it exists and no `ids_column` is named.
        ids_column: name of the column of token ids, read in its place. None: "token_ids", if there is no
            "text".
        elsewhere: for each record the stretches [N, 2] that are no evidence in it, in characters or in ids,
            ascending. None: every token is evidence.

    Returns:
        RecordBatch of `SCHEMA`, a row for each of the batch, in its order. A record that cannot be read
        (null, not UTF-8, an id outside the vocabulary) has its reason in `problem`.

    Raises:
        InputError: the column does not exist, or both columns are named; or ids, with several profiles.
        ShapeError: the column holds something else.
        TokenizerMismatch: no tokenizer with the profile's digest.

    Deterministic. Memory is that of the batch's results; the work is cut in smaller parts.
    """
    if not isinstance(batch, pa.RecordBatch):
        raise InputError(f"batch: got {type(batch).__name__}, expected pyarrow.RecordBatch")
    name, ids = chosen_column(batch.schema.names, text_column, ids_column)
    check_type(batch.schema.field(name), ids)
    check_readable(auditor, ids)
    problems, parts = list[str | None](), list[AuditResult]()
    for reasons, results in audit_records(
        auditor, values_of(batch.column(name), ids), ids=ids, elsewhere=elsewhere
    ):
        problems += reasons
        parts.append(results)
    good = np.array([problem is None for problem in problems], np.bool_)
    # A null takes no row of the results.
    rows = pa.array(np.where(good, np.cumsum(good) - 1, 0), mask=~good)
    table_of_results = pa.concat_tables(
        [pa.Table.from_batches([part.to_arrow()]) for part in parts] or [FOUND.empty_table()]
    )
    table = table_of_results.combine_chunks().take(rows)
    table = table.add_column(0, SCHEMA.field("problem"), pa.array(problems, pa.string()))
    return pa.RecordBatch.from_arrays(
        [
            pa.array([], column.type) if not column.num_chunks else column.combine_chunks()
            for column in table.columns
        ],
        schema=SCHEMA,
    )


def chosen_column(names: Iterable[str], text_column: str | None, ids_column: str | None) -> tuple[str, bool]:
    """Return the name of the column to read, and whether it holds token ids."""
    columns = list(names)
    if text_column is not None and ids_column is not None:
        raise InputError(f"columns: got text {text_column!r} and ids {ids_column!r}, expected one of them")
    for name, ids in ((text_column, False), (ids_column, True)):
        if name is not None and name not in columns:
            raise InputError(f"columns: got {columns[:20]}, expected {name!r} among them")
        if name is not None:
            check_once(columns, name)
            return name, ids
    for name, ids in (("text", False), ("token_ids", True)):
        if name in columns:
            check_once(columns, name)
            return name, ids
    raise InputError(
        f"columns: got {columns[:20]}, expected 'text' or 'token_ids' among them (or name another column)"
    )


def check_once(names: Sequence[str], name: str) -> None:
    """Raise an InputError if a column that is read exists more than once."""
    if (count := names.count(name)) > 1:
        raise InputError(f"columns: got {name!r} {count} times, expected it once")


def check_type(field: pa.Field, ids: bool) -> None:
    """Raise ShapeError unless the column can hold what is read from it."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if pa.types.is_null(kind):
        return
    if ids and not (lists and pa.types.is_integer(kind.value_type)):
        raise ShapeError(f"column {field.name!r}", got=str(field.type), expected="lists of integers")
    if not ids and kind not in _TEXTS:
        raise ShapeError(f"column {field.name!r}", got=str(field.type), expected="strings")


_TEXTS = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())


def check_readable(auditor: Auditor, ids: bool) -> None:
    """Raise now what every record would raise: ids that no profile is named for, a missing tokenizer."""
    if auditor.plan.options.as_copied:
        raise InputError("as_copied: got it and many documents, expected one text (Auditor.audit)")
    if ids:
        auditor.audit(token_ids=np.zeros(0, np.int64))
    else:
        auditor.audit("")


def values_of(column: pa.Array, ids: bool) -> list[Any]:
    """Return the records of a column as `audit_records` takes them."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        return [None] * len(column)
    if not ids:
        try:
            values: list[Any] = column.to_pylist()
            return values
        except UnicodeDecodeError:  # Arrow's strings may hold any bytes
            wide = pa.large_binary() if column.type == pa.large_string() else pa.binary()
            return column.cast(wide).to_pylist()  # type: ignore[no-any-return]
    if column.flatten().null_count:
        return column.to_pylist()  # type: ignore[no-any-return]
    return [None if not row.is_valid else row.values.to_numpy(zero_copy_only=False) for row in column]
