"""Test cases of the CUDA kernels, for the interpreter and for a device."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from iet.marks.families import FAMILIES
from iet.marks.keys import KeyTable
from iet.native import reference
from tests.support.keys import key_table

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

VOCAB_SIZES = (1, 2, 31, 32, 33, 255, 257, 32000, 32003, 128256)
DTYPES = ("float32", "float16", "bfloat16")
LAYOUTS = ("packed", "aligned", "misaligned", "strided", "transposed")


def bits(values: Any) -> Any:
    """Return the bits of a tensor, every NaN as the same one: the device has its own."""
    unsigned = torch.int32 if values.dtype == torch.float32 else torch.int16
    return torch.where(values.isnan(), torch.full_like(values, float("nan")), values).view(unsigned)


def expected(logits: Any, contexts: Any, slots: Any, keys: KeyTable, kappas: Any, counts: Any = None) -> Any:
    result = logits.clone()
    array = result.view(torch.uint16).numpy() if result.dtype == torch.bfloat16 else result.numpy()
    times = None if counts is None else np.asarray(counts)
    reference.embed_(keys.marking, array, np.asarray(contexts), np.asarray(slots), kappas, times)
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


@dataclasses.dataclass(frozen=True)
class _Case:
    """Six rows, and what the reference makes of them."""

    keys: KeyTable
    contexts: Any
    slots: Any
    counts: Any
    logits: list[tuple[str, str, Any, Any]]  # dtype, layout, values, expected ones


@functools.lru_cache(maxsize=1)  # tests run one after another on every device
def _case(vocab_size: int, family: str, layouts: tuple[str, ...]) -> _Case:
    rng = np.random.default_rng(vocab_size)
    n_gram = int(rng.integers(2, 6))
    few = min(3, vocab_size // 2)
    unmarked = (*range(few), *range(vocab_size - few, vocab_size)) if vocab_size > 255 else tuple(range(few))
    k_p = 1 if FAMILIES[family].chooses else max(1, min(7, (vocab_size - 1) // 2))
    keys = key_table(vocab_size, n_gram=n_gram, family=family, k_p=k_p, unmarked_ids=unmarked)
    marked = np.setdiff1d(np.arange(vocab_size), unmarked)
    contexts = torch.tensor(rng.choice(marked, (6, n_gram - 1)))
    contexts[3, 0] = vocab_size  # padding of the vocabulary: no mark
    if unmarked:
        contexts[4, -1] = unmarked[-1]
    slots = torch.tensor([2, -1, 0, 1, 1, 1])
    kappas = np.full(6, np.float32(keys.profile.scheme.kappa))
    counts = torch.tensor([3, 0, 0, 1, 2, 1 << 20]) if keys.marking.counted else None
    logits = []
    for dtype, layout in itertools.product(DTYPES, layouts):
        values = random_logits(rng, 6, vocab_size + 5, dtype)
        logits.append((dtype, layout, values, expected(values, contexts, slots, keys, kappas, counts)))
    return _Case(keys, contexts, slots, counts, logits)


def check_embed(
    mark: Callable[..., None], vocab_size: int, family: str, layouts: tuple[str, ...], device: str = "cpu"
) -> None:
    """Compare `mark(logits, contexts, slots, keys)` with the reference, and its memory with that before."""
    case = _case(vocab_size, family, layouts)
    options = {} if case.counts is None else {"counts": case.counts.to(device)}
    for dtype, layout, values, want in case.logits:
        logits, memory = laid_out(values, layout, device)
        original = memory.clone()
        mark(logits, case.contexts.to(device), case.slots.to(device), case.keys, **options)
        actual = logits.cpu()
        assert torch.equal(bits(actual), bits(want)), (dtype, layout)
        padding = torch.equal(bits(actual[:, vocab_size:]), bits(values[:, vocab_size:]))
        assert padding is not FAMILIES[family].chooses
        logits.copy_(values)
        assert torch.equal(bits(memory), bits(original)), "something beside the logits was written"


def check_many_rows(
    mark: Callable[..., None],
    rng: np.random.Generator,
    shapes: Sequence[
        tuple[int, int]
    ],  # V and rows: large enough that a block takes several chunks, up to eight
    device: str = "cpu",
) -> None:
    """Compare two marked rows among many unmarked ones with the reference; the last chunk is partial."""
    for vocab_size, rows in shapes:
        keys = key_table(vocab_size, unmarked_ids=(3, 9000))
        slots, chosen = torch.full((rows,), -1), rng.choice(rows, 2, replace=False)
        slots[chosen] = 1
        contexts = torch.tensor(rng.integers(10, 9000, (rows, 1)))
        for dtype in DTYPES:
            values = torch.zeros(
                rows, vocab_size + 8 - vocab_size % 8, dtype=getattr(torch, dtype), device=device
            )
            want = expected(
                values[chosen].cpu(), contexts[chosen], slots[chosen], keys, np.full(2, np.float32(0.8))
            )
            mark(values, contexts.to(device), slots.to(device), keys)
            assert torch.equal(values[chosen].cpu(), want), (vocab_size, dtype)
            values[chosen] = 0
            assert not values.any()


class QueuedOps(TorchDispatchMode):
    """Counts the operations that torch queues on a device."""

    count = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not op.is_view
        return op(*args, **(kwargs or {}))
