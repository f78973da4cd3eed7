"""Continue prompts of one length under the keys of a registry, several times each, on one CPU core."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import iet
from benchmarks.writing import sampler
from benchmarks.writing.shared import steps
from iet.generation.free import FreeTokens, request_key
from iet.marks.keys import KeyTable


@dataclasses.dataclass(frozen=True)
class Drawn:
    ids: NDArray[np.int64]  # int64 [rows, tokens]
    # float64 [rows], mean nats of the model's distribution at the temperature, before the mark
    entropy: NDArray[np.float64]
    # The same of the distribution that a token is drawn from, given the key; 0 for a token that the key alone
    # decides
    marked_entropy: NDArray[np.float64]
    # bool [rows, tokens], tokens drawn without a mark although the row has a slot
    unmarked: NDArray[np.bool_]


@torch.inference_mode()
def sample(
    model: Any,
    prompts: NDArray[np.int64],
    slots: NDArray[np.int64],
    keys: KeyTable,
    *,
    tokens: int,
    temperature: float,
    barred: Sequence[int],
    seed: int,
    free: FreeTokens = FreeTokens(0, 0.0),  # noqa: B008  # frozen
) -> Drawn:
    """Continue every prompt [N, P] once per slot [N, A], all continuations in one batch.

    A slot is the key of a continuation, -1 for an unmarked one; rows come back in the order of `slots`. The
    model is in evaluation mode on the CPU; κ applies after the temperature. Draws are equal on one machine
    and version of torch. Family "gumbel": a token is the argmax after the noise. `free` tokens are drawn
    without a mark; each row is one request.
    """
    ids = torch.from_numpy(np.repeat(prompts, slots.shape[1], axis=0))
    start = prompts.shape[1]
    ids = torch.cat([ids, ids.new_zeros(len(ids), tokens)], dim=1)
    mark = _Mark(torch.from_numpy(slots.reshape(-1)), keys, seed, model.dtype, free)
    unmarked = torch.zeros(len(ids), tokens, dtype=torch.bool)
    entropy, marked_entropy = [], []
    for t, raw in enumerate(steps(model, ids, start, slots.shape[1])):
        logits = raw.float()
        logits[:, list(barred)] = -torch.inf
        logits /= temperature
        measure = t % sampler.ENTROPY_EVERY == 0
        if measure:
            entropy.append(sampler.entropies(logits))
        chosen, unmarked[:, t], entropy_left = mark.draw(ids[:, : start + t], logits, t, measure)
        ids[:, start + t] = chosen
        if entropy_left is not None:
            marked_entropy.append(entropy_left)
    means = (torch.stack(values).mean(0).numpy() for values in (entropy, marked_entropy))
    return Drawn(ids[:, start:].numpy(), next(means), next(means), unmarked.numpy())


class _Mark:
    """Draws under the keys of rows, with numbers drawn for what the keys leave to chance."""

    def __init__(
        self, slots: Tensor, keys: KeyTable, seed: int, dtype: torch.dtype, free: FreeTokens
    ) -> None:
        self._slots, self._keys, self._dtype, self._free_tokens = slots, keys, dtype, free
        self._requests = torch.tensor([request_key(seed, row) for row in range(len(slots))])
        self._generator = torch.Generator().manual_seed(seed)
        scheme = keys.profile.scheme
        self._context_length, self._gumbel = scheme.n_gram - 1, scheme.family == "gumbel"
        self._counted = scheme.counted

    def draw(
        self, ids: Tensor, logits: Tensor, position: int, measure: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the next id of each row, which rows of a family drew it without a mark, and, if asked, the
        entropy of what it was drawn from.
        """
        if self._gumbel:
            return self._draw_gumbel(ids, logits, position, measure)
        return self._draw_marked(ids, logits, measure)

    def _draw_marked(
        self, ids: Tensor, logits: Tensor, measure: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        iet.embed_(logits, ids[:, -self._context_length :], self._slots, self._keys, num_threads=1)
        none = torch.zeros(len(ids), dtype=torch.bool)
        return self._free(logits), none, sampler.entropies(logits) if measure else None

    def _draw_gumbel(
        self, ids: Tensor, logits: Tensor, position: int, measure: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        context, counts = ids[:, -self._context_length :], sampler.times_before(ids, self._context_length)
        free = self._slots < 0
        free |= self._free_tokens.are_free(self._requests, torch.full_like(self._requests, position))
        if not self._counted:
            free |= counts > 0
        free_entropy = torch.zeros(len(ids), dtype=torch.float64)
        if measure:
            free_entropy[free] = sampler.entropies(logits[free])
        drawn = self._free(logits[free])
        slots = torch.where(free, -1, self._slots)
        iet.embed_(
            logits, context, slots, self._keys, counts=counts if self._counted else None, num_threads=1
        )
        chosen = logits.max(-1).indices  # half the time of argmax
        chosen[free] = drawn
        return chosen, free, free_entropy if measure else None

    def _free(self, logits: Tensor) -> Tensor:
        u = torch.rand(2, len(logits), 1, generator=self._generator)
        return sampler.draw(logits.to(self._dtype), u.to(self._dtype))
