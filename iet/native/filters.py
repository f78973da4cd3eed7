"""Filters of a sampler (min-p, top-k, top-p) for `iet.kernels.choose`: one record for each row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.errors import ShapeError

FILTER = np.dtype([("log_min_p", "<f4"), ("top_p", "<f4"), ("top_k", "<i4"), ("share_of", "<i4")])
"""The logarithm of min-p; top-p; top-k, 0 for none; and `SHARE_OF`."""

SHARE_OF = {"all": 0, "top_k": 1, "min_p": 2, "kept": 3}
"""The tokens that top-p is a share of: all; those that top-k or min-p keeps; those that both keep."""

_MOST = (1 << 31) - 1

NO_FILTER = (-math.inf, 1.0, 0, 0)


def filter_of(
    min_p: float = 0.0, top_k: int = 0, top_p: float = 1.0, share_of: str = "kept"
) -> tuple[Any, ...]:
    """Return the fields of a record.

    Args:
        min_p: 0 to 1; tokens are kept if they are at least this times as probable as the likeliest one.
        top_k: number of the likeliest tokens that are kept, and of any that are as likely; below 1: all.
        top_p: above 0; tokens are kept while the probability of all likelier ones is below it.
        share_of: a name in `SHARE_OF`.
    """
    log_min_p = math.log(min_p) if min_p > 0 else -math.inf
    top_k = min(max(top_k, 0), _MOST)
    return log_min_p, min(top_p, 1.0), top_k, SHARE_OF[share_of] if top_p < 1 else 0


def checked_filters(filters: Any, rows: int) -> NDArray[Any] | None:
    """Return filters in one piece of memory.

    Raises:
        ShapeError: they are no array of `FILTER` [rows].
    """
    if filters is None:
        return None
    if not isinstance(filters, np.ndarray) or filters.dtype != FILTER or filters.shape != (rows,):
        got = f"{getattr(filters, 'dtype', type(filters).__name__)} {list(getattr(filters, 'shape', ()))}"
        raise ShapeError("filters", got=got, expected=f"records of iet.native.filters.FILTER [{rows}]")
    return np.ascontiguousarray(filters)
