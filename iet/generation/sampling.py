"""Rows of a step whose contexts an engine has on the host, and how they are marked.

With family gumbel the token is chosen here, and its logit is raised far above the others, so that every
sampler draws it: its probability is 1 after temperature, softmax, top-k, top-p and min-p. With drafts,
rejection sampling accepts a draft exactly if it is the token.

A row is left to the engine's sampler if its token is free, or if its position is not scored: it has no
agent, or an unmarked id in its context. Seeds hold how often the context occurred earlier in the sequence,
with its prompt, so that the noise of a repeated context differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from iet.kernels import choose, embed_
from iet.marks.keys import KeyTable
from iet.native.filters import FILTER, NO_FILTER


class HostRows:
    """The rows of a step, in memory that is copied to a device at once.

    The memory is new in each step, because torch reuses pinned memory only after a copy has finished.

    Args:
        rows: of the logits.
        context_len: n-1.
        device: of the logits.
    """

    def __init__(self, rows: int, context_len: int, device: torch.device) -> None:
        self._shape, self._device = (rows, context_len), device
        on_cuda = device.type == "cuda"
        self._staged = torch.empty(rows * (context_len + 5), dtype=torch.int64, pin_memory=on_cuda)
        self._fields = self._fields_of(self._staged.numpy(), np.float32)
        _, slots, counts, temperatures, filters = self._fields
        slots[:], counts[:], temperatures[:] = -1, 0, 1.0
        self._filters = filters.view(FILTER)[:, 0]
        self._filters[:] = np.array(NO_FILTER, FILTER)
        self._is_filtered = False

    def _fields_of(self, memory: Any, float32: Any) -> tuple[Any, ...]:
        """Return contexts, slots, counts, temperatures and filters in an array or a tensor."""
        rows, context_len = self._shape
        filters, of_rows = memory[: 2 * rows], memory[2 * rows :]  # filters first: aligned to 16 bytes
        table = of_rows.reshape(rows, context_len + 3)
        temperatures = table.view(float32)[:, -2]  # the first half of the last word
        slots, counts = table[:, context_len], table[:, context_len + 1]
        return table[:, :context_len], slots, counts, temperatures, filters.reshape(rows, 2)

    def add(
        self,
        row: int,
        context: Sequence[int],
        slot: int,
        count: int,
        temperature: float,
        filter_: tuple[Any, ...] = NO_FILTER,
    ) -> None:
        """Add a row: its last n-1 ids, its key, how often these ids occurred before, and its sampling."""
        contexts, slots, counts, temperatures, _ = self._fields
        contexts[row] = context
        slots[row], counts[row], temperatures[row] = slot, count, temperature
        if filter_ != NO_FILTER:
            self._filters[row], self._is_filtered = filter_, True

    def mark_(self, logits: torch.Tensor, keys: KeyTable) -> torch.Tensor | None:
        """Mark the rows of logits [rows, >= V] in place; the other rows stay as they are.

        Returns:
            The tokens [rows] that were chosen, int64 on the device of the logits, -1 for other rows; None if
            the family adds to the logits.
        """
        fields, filters = self._fields, self._filters
        if self._device.type == "cuda":
            sent = self._staged.to(self._device, non_blocking=True)
            fields = self._fields_of(sent, torch.float32)
            filters = fields[-1].view(torch.int32)
        contexts, slots, counts, temperatures, _ = fields
        if not keys.profile.family.chooses:
            embed_(logits, contexts, slots, keys, temperature=temperatures)
            return None
        chosen = choose(
            logits,
            contexts,
            slots,
            keys,
            counts=counts,
            temperature=temperatures,
            filters=filters if self._is_filtered else None,
            force=True,
        )
        return torch.as_tensor(chosen)
