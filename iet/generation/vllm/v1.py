"""vLLM's V1 model runner: rows are places in its batch, and token lists are the host's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from iet.errors import IetError
from iet.generation.contexts import SequenceContexts
from iet.generation.sampling import ContextIds, leave_one
from iet.generation.sessions import HeldRow, SessionRows
from iet.generation.vllm.refusals import REFUSED, close_, tell
from iet.generation.vllm.sampler import Filters, Penalties, final_logits, penalise_
from iet.generation.vllm.settings import PLACEHOLDER, RequestKeys, Settings
from iet.kernels import embed_
from iet.marks.keys import KeyTable


@dataclasses.dataclass(frozen=True)
class _Request:
    """One that is marked."""

    key: int  # row of the table of keys
    temperature: float
    filters: Filters
    penalties: Penalties
    contexts: SequenceContexts
    name: int = 0  # by which it chooses free tokens
    held: HeldRow | None = None  # that of its session


_ENDED = _Request(
    REFUSED, 1.0, Filters(), Penalties(1.0, 0.0, 0.0, (), ()), SequenceContexts(1, (), (), False)
)
"""Stands for a request that is ended."""


class ByRow:
    """Follows the runner's batch, and marks the rows of requests that name an agent."""

    def __init__(
        self, settings: Settings, names: RequestKeys, device: torch.device, pin: bool, end: int
    ) -> None:
        self._settings = settings
        self._names = names
        self._words = settings.keys.profile.scheme.n_gram - 1
        self._ids = ContextIds(settings.keys.profile)
        self._device = device
        self._end = end
        self._pin = pin and device.type == "cuda"
        self._requests: dict[int, _Request] = {}
        self._sessions = SessionRows(settings.registry, settings.keys)

    @property
    def keys(self) -> KeyTable:
        """What rows are marked with."""
        return self._sessions.keys

    def update(self, batch_update: Any) -> None:
        """Process removed, added and moved requests, in this order, as the interface demands."""
        if batch_update is None:
            return
        requests = self._requests
        for row in batch_update.removed:
            requests.pop(row, None)
        for row, params, prompt, output in batch_update.added:
            requests.pop(row, None)
            try:
                request = self._request(params, prompt, output)
            except Exception as error:
                tell(f"a request that was admitted cannot be marked, and is ended: {error}")
                request = _ENDED
            if request is not None:
                requests[row] = request
        for source, target, direction in batch_update.moved:
            moved, replaced = requests.pop(source, None), requests.pop(target, None)
            if moved is not None:
                requests[target] = moved
            if replaced is not None and direction.name == "SWAP":
                requests[source] = replaced

    def _request(self, params: Any, prompt: Sequence[int] | None, output: Sequence[int]) -> _Request | None:
        """Return what marks a request, None where nothing does."""
        key = self._settings.marking_slot(params)
        if key < 0:
            return _ENDED if key == REFUSED else None
        name = self._names.next(params.seed)
        known = prompt or ()  # None where the prompt is given as embeddings
        session = self._settings.session_of(params)
        held = None if session is None else self._sessions.take(key, session)
        return _Request(
            key if held is None else held.row,
            self._settings.temperature_of(params),
            Filters.of(params),
            Penalties.of(params, known, output),
            SequenceContexts(self._words, known, output, self._settings.chooses),
            name,
            held,
        )

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Mark the rows of a step, and end what cannot be marked."""
        self._sessions.send(logits.device)
        try:
            logits = self._mark(logits)
            ended = [row for row, request in self._requests.items() if request is _ENDED]
        except IetError as error:
            tell(f"a step cannot be marked, and its requests are ended: {error}")
            ended = list(self._requests)
        if ended:
            close_(logits, torch.tensor(ended, device=logits.device), self._end)
        return logits

    def _mark(self, logits: torch.Tensor) -> torch.Tensor:
        """Mark the rows of requests."""
        marked: list[list[int]] = []
        requests: list[_Request] = []
        free = self._free_rows()
        for row, request in self._requests.items():
            if request is _ENDED or row in free:
                continue
            context = request.contexts.last()
            if len(context) < self._words:
                continue
            if min(context) < 0:
                tell(f"a request is ended: {PLACEHOLDER.format(where=f'row {row}')}")
                self._requests[row] = _ENDED
                continue
            count = request.contexts.times_before() if self._settings.chooses else 0
            marked.append([row, request.key, count, *context])
            requests.append(request)
        if not marked:
            return logits
        sent = self._sent(marked, torch.int64)
        rows, slots, counts, contexts = sent[:, 0], sent[:, 1], sent[:, 2], sent[:, 3:]
        if self._settings.chooses:
            return self._choose(logits, rows, slots, counts, contexts, requests)
        temperatures = self._sent([request.temperature for request in requests], torch.float32)
        embed_(logits, contexts, slots, self._sessions.keys, temperature=temperatures, rows=rows)
        return logits

    def _free_rows(self) -> frozenset[int]:
        """Return the rows that vLLM's sampler draws without a mark in this step."""
        if not self._settings.chooses or not self._requests:
            return frozenset()
        rows = np.array(list(self._requests), np.int64)
        requests = self._requests.values()
        names = np.array([request.name for request in requests], np.int64)
        positions = np.array([len(request.contexts.output) for request in requests], np.int64)
        return frozenset(rows[self._settings.free.are_free(names, positions)].tolist())

    def _choose(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        slots: torch.Tensor,
        counts: torch.Tensor,
        contexts: torch.Tensor,
        requests: Sequence[_Request],
    ) -> torch.Tensor:
        """Leave one token in each of the rows."""
        shown, filters = logits.index_select(0, rows), [request.filters for request in requests]
        table = self._sent([each.values(logits.shape[1]) for each in filters], torch.float64)
        # This runner applies them to what it gets back, where they change nothing any more.
        penalised = penalise_(shown.to(torch.float32, copy=True), [each.penalties for each in requests])
        noisy = final_logits(penalised, table, filters)
        fresh = self._ids.are_marked(contexts)
        embed_(noisy, contexts, torch.where(fresh, slots, -1), self._sessions.keys, counts=counts)
        return logits.index_copy_(0, rows, leave_one(noisy, shown, fresh))

    def _sent(self, values: Any, dtype: torch.dtype) -> torch.Tensor:
        # New pinned memory each step: torch reuses it only when the copy is done.
        return torch.tensor(values, dtype=dtype, pin_memory=self._pin).to(self._device, non_blocking=True)
