"""vLLM's V1 model runner: requests have rows in its batch, and token lists are on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from iet.errors import IetError
from iet.generation.contexts import SequenceContexts
from iet.generation.sampling import ContextIds, choose_and_force
from iet.generation.sessions import SessionRow, SessionRows
from iet.generation.vllm.sampler import NO_FILTERS, Penalties, filters_of, final_logits, force_eos_, penalise_
from iet.generation.vllm.settings import PLACEHOLDER, REFUSED, RequestKeys, Settings, report
from iet.kernels import embed_
from iet.marks.keys import KeyTable


@dataclasses.dataclass(frozen=True)
class _Request:
    """A request that is marked."""

    slot: int  # row of the key table
    temperature: float
    filters: tuple[float, float, int, float]
    penalties: Penalties
    contexts: SequenceContexts
    key: int = 0  # selects its free tokens
    session_row: SessionRow | None = None  # keeps the row of its session's key reserved


_ENDED = _Request(
    REFUSED, 1.0, NO_FILTERS, Penalties(1.0, 0.0, 0.0, (), ()), SequenceContexts(1, (), (), False)
)
"""Placeholder for a request whose text ends."""


class V1Marker:
    """Follows the runner's batch, and marks the rows of requests that name an agent."""

    def __init__(
        self, settings: Settings, request_keys: RequestKeys, device: torch.device, pin: bool, eos: int
    ) -> None:
        self._settings = settings
        self._request_keys = request_keys
        self._context_len = settings.keys.profile.scheme.n_gram - 1
        self._ids = ContextIds(settings.keys.profile)
        self._device = device
        self._eos = eos
        self._pin = pin and device.type == "cuda"
        self._requests: dict[int, _Request] = {}
        self._sessions = SessionRows(settings.registry, settings.keys)

    @property
    def keys(self) -> KeyTable:
        """The key table of marked rows."""
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
                report(f"a request that was admitted cannot be marked, and is ended: {error}")
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
        """Return the state of a marked request, None for an unmarked one."""
        slot = self._settings.marking_slot(params)
        if slot < 0:
            return _ENDED if slot == REFUSED else None
        key = self._request_keys.next(params.seed)
        prompt = prompt or ()  # None if the prompt is embeddings
        session = self._settings.session_of(params)
        session_row = None if session is None else self._sessions.take(slot, session)
        return _Request(
            slot if session_row is None else session_row.row,
            self._settings.temperature_of(params),
            filters_of(params),
            Penalties.of(params, prompt, output),
            SequenceContexts(self._context_len, prompt, output, self._settings.chooses),
            key,
            session_row,
        )

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Mark the rows of a step, and end what cannot be marked."""
        self._sessions.send(logits.device)
        try:
            logits = self._mark(logits)
            ended = [row for row, request in self._requests.items() if request is _ENDED]
        except IetError as error:
            report(f"a step cannot be marked, and its requests are ended: {error}")
            ended = list(self._requests)
        if ended:
            force_eos_(logits, torch.tensor(ended, device=logits.device), self._eos)
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
            if len(context) < self._context_len:
                continue
            if min(context) < 0:
                report(f"a request is ended: {PLACEHOLDER.format(where=f'row {row}')}")
                self._requests[row] = _ENDED
                continue
            count = request.contexts.times_before() if self._settings.chooses else 0
            marked.append([row, request.slot, count, *context])
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
        """Return the rows whose token in this step is free."""
        if not self._settings.chooses or not self._requests:
            return frozenset()
        rows = np.array(list(self._requests), np.int64)
        requests = self._requests.values()
        keys = np.array([request.key for request in requests], np.int64)
        positions = np.array([len(request.contexts.output) for request in requests], np.int64)
        return frozenset(rows[self._settings.free.are_free(keys, positions)].tolist())

    def _choose(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        slots: torch.Tensor,
        counts: torch.Tensor,
        contexts: torch.Tensor,
        requests: Sequence[_Request],
    ) -> torch.Tensor:
        """Choose the tokens of some rows, and force them."""
        raw, filters = logits.index_select(0, rows), [request.filters for request in requests]
        table = self._sent(filters, torch.float64)
        # The runner applies the penalties again to the result; they have no effect on a forced token.
        penalised = penalise_(raw.to(torch.float32, copy=True), [request.penalties for request in requests])
        final = final_logits(penalised, table, np.array(filters))
        slots = torch.where(self._ids.are_marked(contexts), slots, -1)
        forced = choose_and_force(final, raw, contexts, slots, self._sessions.keys, counts)
        return logits.index_copy_(0, rows, forced)

    def _sent(self, values: Any, dtype: torch.dtype) -> torch.Tensor:
        # New pinned memory each step: torch reuses it only after the copy has finished.
        return torch.tensor(values, dtype=dtype, pin_memory=self._pin).to(self._device, non_blocking=True)
