"""`AuditResult` as Arrow columns and rows. pyarrow comes with the extra `bulk`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

if TYPE_CHECKING:
    from iet.report.result import AuditResult

SEGMENT = pa.struct(
    [
        *((name, pa.int64()) for name in ("char_start", "char_end", "start", "end")),
        *((name, pa.string()) for name in ("agent", "best_guess", "session")),
        *(
            (name, pa.float64())
            for name in ("log_p", "posterior", "error", "share", "share_low", "share_high")
        ),
    ]
)
"""One segment, as in `iet.report.Segment`; `log_p` is a natural logarithm.
`session` is null for an auditor without `sessions`."""

DOCUMENT = pa.struct(
    [
        *(
            (name, pa.int64())
            for name in ("tokens", "scored", "repeated", "template", "published", "invisible")
        ),
        *((name, pa.float64()) for name in ("log_p", "coverage")),
        ("best_agent", pa.string()),
        ("found", pa.list_(pa.string())),
    ]
)
"""One document, as in `iet.report.Report`. `best_agent` has the lowest log p; it is null if none is below 0.
`found` holds the agents that are found at the auditor's level, lowest p first. `template` counts the scored
tokens that are evidence in another document: 0 without `templates`. `published` is 0 without an index."""

FOUND = pa.schema([*DOCUMENT, ("segments", pa.list_(SEGMENT))])
"""What `AuditResult.to_arrow` returns."""

SCHEMA = pa.schema([("problem", pa.string()), *FOUND])
"""What `audit_batch` returns. `problem` says what is wrong with a record, whose other columns are null."""


def nested(result: AuditResult) -> pa.RecordBatch:
    """Return a row of `FOUND` for each document, with its segments in a list."""
    segments = pa.StructArray.from_arrays(list(segment_columns(result).values()), fields=list(SEGMENT))
    lists = pa.ListArray.from_arrays(_offsets(result.segment_counts), segments)
    return pa.RecordBatch.from_arrays([*document_columns(result).values(), lists], schema=FOUND)


def document_columns(result: AuditResult) -> dict[str, pa.Array]:
    """Return the columns of `DOCUMENT` over the documents."""
    found = result.found
    columns = {
        **{name: pa.array(values) for name, values in result.documents.items()},
        "log_p": pa.array(result.log_p),
        "best_agent": _named(result.agents, result.best_agent),
        "found": pa.ListArray.from_arrays(
            _offsets([len(agents) for agents in found]),
            _named(result.agents, np.concatenate([np.zeros(0, np.int64), *found])),
        ),
    }
    return {field.name: columns[field.name] for field in DOCUMENT}


def segment_columns(result: AuditResult) -> dict[str, pa.Array]:
    """Return the columns of `SEGMENT` over the segments of all documents."""
    columns = {**result.segments, "best_guess": result.best_guess, "share": result.segments["posterior"]}
    names = {"agent": result.agents, "best_guess": result.agents, "session": result.session_ids}
    arrays = {}
    for field in SEGMENT:
        values = columns[field.name]
        if values is None:
            arrays[field.name] = pa.nulls(int(result.segment_counts.sum()), field.type)
        elif field.name in names:
            arrays[field.name] = _named(names[field.name], values)
        else:
            arrays[field.name] = pa.array(values, field.type)
    return arrays


def _named(names: Sequence[str], indices: NDArray[np.int64]) -> pa.Array:
    return pa.array(names, pa.string()).take(pa.array(np.maximum(indices, 0), pa.int64(), mask=indices < 0))


def _offsets(counts: Any) -> pa.Array:
    return pa.array(np.append(0, np.cumsum(counts, dtype=np.int64)), pa.int32())
