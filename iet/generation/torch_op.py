"""`iet.embed_` as an operator of PyTorch, for torch.compile: `torch.ops.iet.embed_`.

A compiled function cannot hold a registry, so the operator takes tensors and numbers only. `handle` returns a
number for the keys:

    import iet.generation.torch_op                                      # registers the operator
    keys = registry.marking_keys()                           # keep a reference: the handle has none
    number = iet.generation.torch_op.handle(keys)

    @torch.compile(fullgraph=True)
    def step(logits, contexts, slots):
        logits = logits / 0.7
        torch.ops.iet.embed_(logits, contexts, slots, number)
        return logits.softmax(-1)

Importing this module imports torch; `import iet` imports neither of them.
"""

from __future__ import annotations

import itertools
import weakref

from iet import kernels
from iet.errors import InputError, ShapeError, missing
from iet.marks.keys import KeyTable
from iet.marks.registry import Registry

try:
    import torch
except ImportError as error:
    raise missing(f"torch.ops.iet: {error}", "transformers") from None

_tables: weakref.WeakValueDictionary[int, KeyTable] = weakref.WeakValueDictionary()
_handles: weakref.WeakKeyDictionary[KeyTable, int] = weakref.WeakKeyDictionary()
_numbers = itertools.count(1)


def handle(registry: Registry | KeyTable) -> int:
    """Return the number of a key table for `torch.ops.iet.embed_`, equal for the same table.

    It is valid in this process as long as the table exists, so keep the registry or the table. After a
    rotation the registry has another table, which needs another handle.

    Args:
        registry: the registry, or a `KeyTable` of it: needed if it has several profiles.
    """
    keys = kernels.keys_to_mark_with(registry, None)
    if keys not in _handles:
        number = next(_numbers)
        _handles[keys] = number
        _tables[number] = keys
    return _handles[keys]


def _keys(number: int) -> KeyTable:
    keys = _tables.get(number)
    if keys is None:
        raise InputError(
            f"keys: {number} is no handle of an existing key table, expected what handle() returned"
            " (keep a reference to the table: the handle has none)"
        )
    return keys


@torch.library.custom_op("iet::embed_", mutates_args=("logits",))
def embed_(
    logits: torch.Tensor,
    contexts: torch.Tensor,
    slots: torch.Tensor,
    keys: int,
    temperature: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
) -> None:
    """Mark a batch of logits in place, as `iet.embed_` does; all tensors on one device.

    Args:
        logits: float32, float16 or bfloat16 [B, >= V], changed in place.
        contexts: int64 or int32 [B, n-1].
        slots: int64 or int32 [B], -1 for an unmarked row.
        keys: what `handle` returned.
        temperature: float32 [B] or [], factor of κ; None: 1.
        rows: int64 or int32 [M], the rows to mark (the other tensors are then [M, ..]); None: all.
        counts: int64 or int32 [B], as in `iet.embed_`.

    Raises:
        the errors of `iet.embed_`; InputError if `keys` is no handle.
    """
    scale = 1.0 if temperature is None else temperature
    kernels.embed_(logits, contexts, slots, _keys(keys), counts=counts, temperature=scale, rows=rows)


@embed_.register_fake
def _(
    logits: torch.Tensor,
    contexts: torch.Tensor,
    slots: torch.Tensor,
    keys: int,
    temperature: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
) -> None:
    if logits.dim() != 2 or contexts.dim() != 2 or slots.dim() != 1:
        raise ShapeError(
            "logits, contexts, slots",
            got=f"{logits.dim()}, {contexts.dim()} and {slots.dim()} dimensions",
            expected="[B, >= V], [B, n-1] and [B]",
        )
