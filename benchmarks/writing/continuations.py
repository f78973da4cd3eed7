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
) -> Drawn:
    """Continue every prompt [N, P] once per slot [N, A], all continuations in one batch.

    A slot is the key of a continuation, -1 for an unmarked one; rows come back in the order of `slots`. The
    model is in float32 evaluation mode on the CPU; κ counts after the temperature; draws are equal on one
    machine and version of torch. Family "gumbel": a token is the argmax after the noise; where the n-1 ids
    before it stood in this prompt or continuation before, it is drawn without a mark in version 1.
    """
    mark = _Mark(torch.from_numpy(slots.reshape(-1)), keys, seed)
    found = sampler.sample(
        model,
        np.repeat(prompts, slots.shape[1], axis=0).tolist(),
        mark.uniforms,
        tokens=tokens,
        temperature=temperature,
        barred=barred,
        mark=mark,
    )
    unmarked = torch.stack(mark.unmarked, 1)
    return Drawn(*(x.numpy() for x in (found.ids, found.entropy, found.marked_entropy, unmarked)))


class _Mark:
    """Marks rows by their slots, and draws numbers for the rows that the keys leave to chance."""

    def __init__(self, slots: Tensor, keys: KeyTable, seed: int) -> None:
        self.slots, self.keys = slots, keys
        self.unmarked: list[Tensor] = []
        self._generator = torch.Generator().manual_seed(seed)
        scheme = keys.profile.scheme
        self._context_length, self._gumbel = scheme.n_gram - 1, scheme.family == "gumbel"
        self._chance = torch.ones(len(slots), dtype=torch.bool)

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        marked = logits.clone()
        slots, context = self.slots, ids[:, -self._context_length :]
        counts = None
        if self._gumbel:
            counts = self._times_before(ids)
            self._chance = slots < 0
            if not self.keys.profile.scheme.counted:
                self._chance, counts = self._chance | (counts > 0), None
            slots = torch.where(self._chance, -1, slots)
        iet.embed_(marked, context, slots, self.keys, counts=counts, num_threads=1)
        self.unmarked.append(self._chance & self._gumbel)
        if not self._gumbel:
            return marked
        chosen = marked.max(-1, keepdim=True).indices  # half the time of argmax
        marked.fill_(-torch.inf).scatter_(1, chosen, 0.0)
        return torch.where(self._chance[:, None], logits, marked)

    def uniforms(self, step: int) -> Tensor:
        u = torch.zeros(2, len(self.slots), 1)
        u[:, self._chance] = torch.rand(2, int(self._chance.sum()), 1, generator=self._generator)
        return u

    def _times_before(self, ids: Tensor) -> Tensor:
        """Return how often the last n-1 ids of each row stand earlier in it."""
        contexts = ids.unfold(1, self._context_length, 1)
        return (contexts[:, :-1] == contexts[:, -1:]).all(-1).sum(1)
