"""What the CUDA kernels are tested with, on the host and on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iet.marks.keys import KeyTable
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.native import reference

torch = pytest.importorskip("torch")

VOCAB_SIZES = (1, 2, 31, 32, 33, 255, 257, 32000, 32003, 128256)
DTYPES = ("float32", "float16", "bfloat16")
LAYOUTS = ("packed", "aligned", "misaligned", "strided", "transposed")


def team(vocab_size: int, agents: int = 3, unmarked_ids: tuple[int, ...] = (), **scheme: Any) -> KeyTable:
    rng = np.random.default_rng(vocab_size)
    registry = Registry.create(
        None, vocab_size=vocab_size, unmarked_ids=unmarked_ids, scheme=Scheme(**scheme)
    )
    for i in range(agents):
        registry.add(f"agent {i}", secret=rng.bytes(32))
    return registry.marking_keys()


def bits(values: Any) -> Any:
    """Return the bits of a tensor, every NaN as the same one: the device has its own."""
    unsigned = torch.int32 if values.dtype == torch.float32 else torch.int16
    return torch.where(values.isnan(), torch.full_like(values, float("nan")), values).view(unsigned)


def expected(logits: Any, contexts: Any, slots: Any, keys: KeyTable, kappas: Any) -> Any:
    result = logits.clone()
    array = result.view(torch.uint16).numpy() if result.dtype == torch.bfloat16 else result.numpy()
    reference.embed_(keys.marking, array, np.asarray(contexts), np.asarray(slots), kappas)
    return result


def random_logits(rng: np.random.Generator, rows: int, columns: int, dtype: str) -> Any:
    values = 8 * rng.standard_normal((rows, columns))
    values[0, 0], values[-1, columns // 2], values[rows // 2, -1] = np.nan, -np.inf, np.inf
    return torch.tensor(values).to(getattr(torch, dtype))


def laid_out(values: Any, layout: str, device: str = "cpu") -> tuple[Any, Any]:
    """Return a tensor with the same values, and the whole memory that it is a part of."""
    rows, columns = values.shape
    size = values.element_size()
    if layout == "packed":
        memory = torch.full((rows * columns + 32,), 7, dtype=values.dtype, device=device)
        view = memory[: rows * columns].view(rows, columns)
    elif layout == "aligned":  # every row starts at a multiple of 16 bytes
        width = -(-columns // 8) * 8 + 8
        memory = torch.full((rows * width + 16,), 7, dtype=values.dtype, device=device)
        start = -memory.data_ptr() % 16 // size
        view = memory[start : start + rows * width].view(rows, width)[:, :columns]
    elif layout == "misaligned":
        memory = torch.full((rows * (columns + 3) + 16,), 7, dtype=values.dtype, device=device)
        view = memory[1 : 1 + rows * (columns + 3)].view(rows, columns + 3)[:, :columns]
    elif layout == "strided":  # 12 bytes from one to the next, as in llama.cpp
        memory = torch.full((rows * columns * 3 + 16,), 7, dtype=values.dtype, device=device)
        view = memory[2 : 2 + rows * columns * 3].view(rows, columns * 3)[:, ::3]
    else:
        memory = torch.full((rows * columns + 16,), 7, dtype=values.dtype, device=device)
        view = memory[: rows * columns].view(columns, rows).t()
    view.copy_(values)
    return view, memory
