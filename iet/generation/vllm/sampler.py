"""What vLLM samples from: the logits that it shows a processor, after temperature, min-p, top-k and top-p.

Temperature and min-p are one line each in vLLM's Triton kernels, and the same line here; top-k, top-p and the
penalties, which the V1 runner applies after its processors, are vLLM's own functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch


@dataclasses.dataclass(frozen=True)
class Filters:
    """What a request asks of the sampler.

    Attributes:
        temperature: above 0.
        min_p: 0 to 1; 0: none.
        top_k: number of tokens; 0 or less: all.
        top_p: above 0, at most 1; 1: all.
    """

    temperature: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    @classmethod
    def of(cls, params: Any) -> Filters:
        """Return those of a request's `SamplingParams`."""
        return cls(params.temperature, params.min_p, params.top_k, params.top_p)

    def values(self, columns: int) -> tuple[float, float, float, float]:
        """Return temperature, min-p, top-k and top-p for rows of so many columns."""
        top_k = self.top_k if 0 < self.top_k <= columns else columns
        return self.temperature, self.min_p, top_k, self.top_p


@dataclasses.dataclass(frozen=True)
class Penalties:
    """What a request asks for against repetition.

    Attributes:
        repetition: by which logits of ids that stand in prompt or output are divided, or multiplied below 0.
        presence, frequency: taken off ids of the output, once, and for each time that they stand there.
        prompt, output: the ids, the lists that vLLM keeps.
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
    def asked(self) -> bool:
        """Whether there are any."""
        return (self.repetition, self.presence, self.frequency) != (1.0, 0.0, 0.0)


def penalise_(logits: torch.Tensor, penalties: Sequence[Penalties]) -> torch.Tensor:
    """Apply what the V1 runner would apply after its processors, in place.

    Args:
        logits: float32 [B, V'].
        penalties: of each row.
    """
    if not any(each.asked for each in penalties):
        return logits
    from vllm.model_executor.layers.utils import apply_penalties  # here as below

    def padded(rows: list[Sequence[int]]) -> torch.Tensor:
        longest, columns = max(map(len, rows)), logits.shape[1]  # the id that stands for none
        filled = [[*ids, *[columns] * (longest - len(ids))] for ids in rows]
        return torch.tensor(filled, dtype=torch.int64).reshape(len(rows), longest).to(logits.device)

    def values(name: str) -> torch.Tensor:
        return torch.tensor([getattr(each, name) for each in penalties], dtype=torch.float32).to(
            logits.device
        )

    changed: torch.Tensor = apply_penalties(
        logits,
        padded([each.prompt for each in penalties]),
        padded([each.output for each in penalties]),
        values("presence"),
        values("frequency"),
        values("repetition"),
    )
    return changed


def final_logits(logits: torch.Tensor, table: torch.Tensor, filters: Iterable[Filters]) -> torch.Tensor:
    """Return what vLLM samples from: softmax of a row is the distribution of its token.

        ℓ / T,  -inf where ℓ / T < max + log(min_p),  then top-k, then top-p of what is left

    Args:
        logits: floating-point [B, V'], left as they are.
        table: float64 [B, 4] on their device: `Filters.values` of each row.
        filters: those in the batch, by which steps that nobody asks for are left out.

    Returns:
        float32 [B, V'], a new tensor. Nothing is read back to the host.
    """
    asked = list(filters)
    final = logits.to(torch.float32, copy=True)
    if any(each.temperature != 1 for each in asked):
        final.div_(table[:, :1].float())
    if any(each.min_p > 0 for each in asked):
        final.masked_fill_(final < final.amax(dim=1, keepdim=True) + table[:, 1:2].float().log(), -torch.inf)
    top_k = table[:, 2].int() if any(0 < each.top_k < logits.shape[1] for each in asked) else None
    top_p = table[:, 3].float() if any(each.top_p < 1 for each in asked) else None
    if top_k is None and top_p is None:
        return final
    # Not at import: the module asks what the platform is.
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    filtered: torch.Tensor = apply_top_k_top_p(final, top_k, top_p)
    return filtered
