"""Filters and penalties of vLLM, which come between a processor and its sampler; and forced ends of texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from iet.native.filters import filter_of


def filter_of_request(params: Any) -> tuple[Any, ...]:
    """Return the filter of a request's `SamplingParams`.

    vLLM drops tokens by min-p, then by top-k, then by top-p of the probability that is left:

        p < min_p·max p;    p below that of the top_k-th token;    the others from a probability of top_p on
    """
    return filter_of(params.min_p, params.top_k, params.top_p, "kept")


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
    # Not at import, because the module queries the platform.
    from vllm.model_executor.layers.utils import apply_penalties

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
