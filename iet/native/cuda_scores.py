"""The scoring ops on CUDA tensors, for `iet.kernels`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iet.errors import BackendUnavailable, ShapeError
from iet.native import cuda
from iet.native.host import checked_pairs, checked_spans, is_tensor
from iet.native.marking import KernelParams

if TYPE_CHECKING:
    import torch


def times_before(token_ids: torch.Tensor, n_gram: int) -> torch.Tensor:
    """Return `reference.times_before` of ids [T], int32 [T] on their device. Waits for the device."""
    import torch

    counts = torch.zeros(token_ids.shape[0], dtype=torch.int32, device=token_ids.device)
    if token_ids.shape[0] >= n_gram:
        contexts = token_ids[:-1].unfold(0, n_gram - 1, 1)
        numbers = torch.unique(contexts, dim=0, return_inverse=True)[1]
        # Sorted by context and then by place: a run of one context counts from 0.
        order = torch.sort(numbers, stable=True)
        offsets = torch.arange(len(numbers), device=numbers.device)
        first = torch.searchsorted(order.values, order.values)
        counts[n_gram - 1 :][order.indices] = (offsets - first).to(torch.int32)
    return counts


def score_tokens(module: Any, marking: KernelParams, token_ids: torch.Tensor) -> torch.Tensor:
    """Queue `score_tokens` on the current stream; return float32 [T, K] on the device of the ids.

    Waits for the device if the marking is `counted`.
    """
    import torch

    ids = _token_ids(token_ids)
    scores = torch.empty(ids.shape[0], len(marking), dtype=torch.float32, device=ids.device)
    on_device = cuda.table(module, marking, ids.device)
    counts = times_before(ids, marking.n_gram) if marking.counted else None
    with cuda.device_guard(ids.device):
        addresses = cuda.address(ids), 0 if counts is None else counts.data_ptr()
        on_device.marking.score(cuda.stream(ids.device), *addresses, ids.shape[0], scores.data_ptr())
    return scores


def score_spans(
    module: Any, marking: KernelParams, token_ids: torch.Tensor, boundaries: Any, counted: Any
) -> torch.Tensor:
    """Queue `score_spans`; return float64 [S, K] on the device of the ids. Waits, to check the boundaries."""
    import torch

    ids = _token_ids(token_ids)
    device, length = ids.device, ids.shape[0]
    if is_tensor(boundaries):
        cuts = cuda.on_device("boundaries", boundaries, device, (None,)).to(torch.int64)
        checked_spans(cuts.cpu(), None, length)
    else:
        cuts = torch.from_numpy(checked_spans(boundaries, None, length)[0].copy()).to(device)
    if counted is not None and (
        not is_tensor(counted)
        or counted.dtype != torch.bool
        or counted.device != device
        or tuple(counted.shape) != (length,)
    ):
        got = f"{counted.dtype} {list(counted.shape)}" if is_tensor(counted) else type(counted).__name__
        raise ShapeError("counted", got=got, expected=f"a bool tensor [{length}] on {device}")
    cuts, mask = cuts.contiguous(), None if counted is None else counted.contiguous()
    sums = torch.empty(cuts.shape[0] - 1, len(marking), dtype=torch.float64, device=device)
    counts = times_before(ids, marking.n_gram) if marking.counted else None
    on_device = cuda.table(module, marking, device)
    with cuda.device_guard(device):
        on_device.marking.score_spans(
            cuda.stream(device),
            cuda.address(ids),
            0 if counts is None else counts.data_ptr(),
            length,
            cuts.data_ptr(),
            cuts.shape[0] - 1,
            0 if mask is None else mask.data_ptr(),
            sums.data_ptr(),
        )
    return sums


def permute(
    module: Any, token_ids: ArrayLike, seeds: ArrayLike, vocab_size: int, k_p: int
) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """Return P(k_π, v) of pairs of ids and seeds, and the Fourier φ of it: `iet.kernels.permute_cuda`."""
    if module.device_count() == 0:
        raise BackendUnavailable(f"CUDA: the driver shows no device ({module.device_error()})")
    ids, seeds = checked_pairs(token_ids, seeds, vocab_size)
    ranks, phis = np.empty(len(ids), dtype=np.uint32), np.empty(len(ids), dtype=np.float32)
    if len(ids):
        inputs = seeds.ctypes.data, ids.ctypes.data, len(ids)
        module.permute(vocab_size, k_p, *inputs, ranks.ctypes.data, phis.ctypes.data)
    return ranks, phis


def _token_ids(values: Any) -> torch.Tensor:
    return cuda.on_device("token_ids", values, values.device, (None,)).contiguous()
