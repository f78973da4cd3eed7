"""The ops of csrc/cuda on tensors of the CPU, interpreted or compiled: all that knows what kernels take."""

from __future__ import annotations

from typing import Any

from iet.marks.keys import KeyTable
from iet.native import choices, cuda, cuda_scores, host
from tests.support.cuda_on_host import OnHost
from tests.support.ptx.device import Device

Kernels = Device | OnHost


def embed_(device: Kernels, logits: Any, contexts: Any, slots: Any, keys: KeyTable, **options: Any) -> None:
    """Call the CUDA path of `iet.embed_`."""
    options = {"temperature": 1.0, "rows": None, **options}
    with device.watching():
        described = host.describe_logits(logits, keys.profile.vocab_size)._replace(device=logits.device)
        cuda.embed_(device.module, keys.marking, described, contexts, slots, **options)


def choose(device: Kernels, logits: Any, contexts: Any, slots: Any, keys: KeyTable, **options: Any) -> Any:
    """Call the CUDA path of `iet.kernels.choose`."""
    options = {"counts": None, "temperature": 1.0, "filters": None, **options}
    with device.watching():
        described = host.describe_logits(logits, keys.profile.vocab_size)._replace(device=logits.device)
        return choices.choose(device.module, keys.marking, described, contexts, slots, **options)


def score_tokens(device: Kernels, keys: KeyTable, token_ids: Any) -> Any:
    """Call the CUDA path of `iet.score_tokens`."""
    with device.watching():
        return cuda_scores.score_tokens(device.module, keys.marking, token_ids)


def score_spans(device: Kernels, keys: KeyTable, token_ids: Any, boundaries: Any, counted: Any) -> Any:
    """Call the CUDA path of `iet.score_spans`."""
    with device.watching():
        return cuda_scores.score_spans(device.module, keys.marking, token_ids, boundaries, counted)


def permute(device: Kernels, token_ids: Any, seeds: Any, vocab_size: int, k_p: int = 1) -> Any:
    """Call `iet.kernels.permute_cuda`."""
    return cuda_scores.permute(device.module, token_ids, seeds, vocab_size, k_p)
