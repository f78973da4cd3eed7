"""The logits that vLLM samples from, after penalties, temperature, min-p, top-k and top-p; and forced ends.

Temperature and min-p are one line each in vLLM's Triton kernels, and the same line here. Top-k, top-p and the
penalties, which the V1 runner applies after its processors, are vLLM's own functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_ALL_TOKENS = (1 << 31) - 1

NO_FILTERS = (1.0, 0.0, _ALL_TOKENS, 1.0)
"""What `filters_of` returns for a request that samples from all tokens at temperature 1."""


def filters_of(params: Any) -> tuple[float, float, int, float]:
    """Return temperature, min-p, top-k and top-p of a request's `SamplingParams`."""
    top_k = params.top_k if params.top_k > 0 else _ALL_TOKENS
    return params.temperature, params.min_p, top_k, params.top_p


@dataclasses.dataclass(frozen=True)
class Penalties:
    """A request's penalties.

    Attributes:
        repetition: logits of ids in prompt or output are divided by it, or multiplied if negative.
        presence, frequency: subtracted from ids of the output, once, and for each occurrence.
        prompt, output: the ids, in vLLM's own lists.
    """

    repetition: float
    presence: float
    frequency: float
    prompt: Sequence[int]
    output: Sequence[int]

    @classmethod
    def of(cls, params: Any, prompt: Sequence[int], output: Sequence[int]) -> Penalties:
        """Return those of a request's `SamplingParams`."""
        values = params.repetition_penalty, params.presence_penalty, params.frequency_penalty
        return cls(*values, prompt, output)

    @property
    def active(self) -> bool:
        """Whether any penalty has an effect."""
        return (self.repetition, self.presence, self.frequency) != (1.0, 0.0, 0.0)


def penalise_(logits: torch.Tensor, penalties: Sequence[Penalties]) -> torch.Tensor:
    """Apply in place the penalties that the V1 runner would apply after its processors.

    Args:
        logits: float32 [B, V'].
        penalties: of each row.
    """
    if not any(penalty.active for penalty in penalties):
        return logits
    from vllm.model_executor.layers.utils import apply_penalties  # not at import, see `final_logits`

    def padded(rows: list[Sequence[int]]) -> torch.Tensor:
        longest, padding = max(map(len, rows)), logits.shape[1]
        filled = [[*ids, *[padding] * (longest - len(ids))] for ids in rows]
        return torch.tensor(filled, dtype=torch.int64).reshape(len(rows), longest).to(logits.device)

    def values(name: str) -> torch.Tensor:
        column = [getattr(penalty, name) for penalty in penalties]
        return torch.tensor(column, dtype=torch.float32).to(logits.device)

    penalised: torch.Tensor = apply_penalties(
        logits,
        padded([penalty.prompt for penalty in penalties]),
        padded([penalty.output for penalty in penalties]),
        values("presence"),
        values("frequency"),
        values("repetition"),
    )
    return penalised


def final_logits(logits: torch.Tensor, table: torch.Tensor, used: NDArray[np.float64]) -> torch.Tensor:
    """Return the logits that vLLM samples from: softmax of a row is the distribution of its token.

        ℓ / T,  -inf if ℓ / T < max + log(min_p),  then top-k, then top-p of the rest

    Args:
        logits: floating-point [B, V'], not changed.
        table: float64 [B, 4] on their device: `filters_of` each row.
        used: the rows of the table, on the host; steps that no request needs are skipped.

    Returns:
        float32 [B, V'], a new tensor. Nothing is copied to the host.
    """
    temperature, min_p, top_k, top_p = used.T
    columns = logits.shape[1]
    final = logits.to(torch.float32, copy=True)
    if (temperature != 1).any():
        final.div_(table[:, :1].float())
    if (min_p > 0).any():
        final.masked_fill_(final < final.amax(dim=1, keepdim=True) + table[:, 1:2].float().log(), -torch.inf)
    k = table[:, 2].clamp(max=columns).int() if (top_k < columns).any() else None
    p = table[:, 3].float() if (top_p < 1).any() else None
    if k is None and p is None:
        return final
    # Not at import, because the module queries the platform.
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    filtered: torch.Tensor = apply_top_k_top_p(final, k, p)
    return filtered


def end_of_text(vllm_config: Any) -> int:
    """Return the id that ends a text, 0 if the model's configuration names none."""
    model = vllm_config.model_config
    for name in ("hf_config", "hf_text_config"):  # models for images and text have the second one
        eos = getattr(getattr(model, name, None), "eos_token_id", None)
        eos = eos[0] if isinstance(eos, (list, tuple)) and eos else eos
        if isinstance(eos, int) and 0 <= eos < model.get_vocab_size():
            return eos
    return 0


def force_eos_(logits: torch.Tensor, rows: torch.Tensor, eos: int) -> torch.Tensor:
    """Force the end of the text in some rows, in place.

    An exception next to the model would end vLLM's engine with all its requests. So a request that cannot be
    marked after it was admitted ends this way, and the others continue.

    Args:
        logits: floating-point [B, V'].
        rows: bool [B], or their int64 indices.
        eos: the id that ends a text.
    """
    logits[rows] = -torch.inf
    logits[rows, eos] = 0.0
    return logits
