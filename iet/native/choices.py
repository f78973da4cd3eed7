"""Tokens that family `gumbel` chooses on a CUDA device: three kernels, without a copy of the logits.

The first reads contexts and makes records of rows (iet/native/cuda.py, iet/native/rows.py). The second reads
the logits once, and adds keyed noise to those that can win with it. The third takes the best token of each
row that its filter keeps, and forces it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iet.errors import ShapeError
from iet.native import cuda
from iet.native.host import Logits, is_tensor
from iet.native.marking import KernelParams

if TYPE_CHECKING:
    import torch


def choose(
    module: Any,
    marking: KernelParams,
    logits: Logits,
    contexts: Any,
    slots: Any,
    counts: Any,
    temperature: Any,
    filters: Any,
) -> torch.Tensor:
    """Queue `iet.kernels.choose` on the current stream of the device of the logits; the tokens are forced."""
    import torch

    of_rows = cuda.DeviceRows.of(marking, logits, contexts, slots, temperature, None, counts)
    check_filters(filters, of_rows.rows, logits.device)
    chosen = torch.empty(of_rows.rows, dtype=torch.int64, device=logits.device)
    if of_rows.rows == 0:
        return chosen
    native = cuda.table(module, marking, logits.device).marking
    with cuda.device_guard(logits.device), cuda.launching:
        words = cuda.RECORD * of_rows.rows
        records = cuda.scratch(logits.device, words + scratch_words(module, logits)).data_ptr()
        of_rows.queue(native, logits, marking, records)
        native.choose(
            cuda.stream(logits.device),
            *logits.layout,
            logits.layout[0],
            of_rows.rows,
            cuda.NOWHERE,
            records,
            cuda.NOWHERE,
            0 if filters is None else filters.data_ptr(),
            records + 8 * words,
            chosen.data_ptr(),
        )
    return chosen


def scratch_words(module: Any, logits: Logits) -> int:
    """Return the size of the memory, in words of 8 bytes, that `choose` needs in addition to the records."""
    return -(-int(module.choose_scratch(logits.rows, logits.layout[3])) // 8)


def check_filters(filters: Any, rows: int, device: torch.device) -> None:
    """Raise a ShapeError unless these are None, or records of filters on a device, int32 [rows, 4]."""
    if filters is None:
        return
    if (
        not is_tensor(filters)
        or filters.device != device
        or str(filters.dtype) != "torch.int32"
        or tuple(filters.shape) != (rows, 4)
        or not filters.is_contiguous()
        or filters.data_ptr() % 16
    ):
        got = [getattr(filters, name, None) for name in ("dtype", "shape", "device")]
        raise ShapeError(
            "filters",
            got=f"{type(filters).__name__} of {got}",
            expected=f"int32 [{rows}, 4] on {device}, aligned to 16 bytes: bits of iet.native.filters.FILTER",
        )
