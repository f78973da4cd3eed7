"""vLLM's V1 model runner: requests have rows in its batch, and token lists are on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from iet.generation.contexts import SequenceContexts
from iet.generation.sampling import HostRows
from iet.generation.sessions import SessionRow, SessionRows
from iet.generation.vllm.sampler import Penalties, filter_of_request, force_eos_, penalise_
from iet.generation.vllm.settings import PLACEHOLDER, REFUSED, RequestKeys, Settings, report
from iet.marks.keys import KeyTable
from iet.native.filters import NO_FILTER


@dataclasses.dataclass(frozen=True)
class _Request:
    """A request that is marked."""

    slot: int  # row of the key table
    temperature: float
    filter_: tuple[Any, ...]
    penalties: Penalties
    contexts: SequenceContexts
    key: int = 0  # selects its free tokens
    session_row: SessionRow | None = None  # keeps the row of its session's key reserved


_ENDED = _Request(
    REFUSED, 1.0, NO_FILTER, Penalties(1.0, 0.0, 0.0, (), ()), SequenceContexts(1, (), (), False)
)
"""Placeholder for a request whose text ends."""


class V1Marker:
    """Follows the runner's batch, and marks the rows of requests that name an agent."""

    def __init__(self, settings: Settings, request_keys: RequestKeys, device: torch.device, eos: int) -> None:
        self._settings = settings
        self._request_keys = request_keys
        self._context_len = settings.keys.profile.scheme.n_gram - 1
        self._device = device
        self._eos = eos
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
            filter_of_request(params),
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
        except Exception as error:
            report(f"a step cannot be marked, and its requests are ended: {error}")
            ended = list(self._requests)
        if ended:
            force_eos_(logits, torch.tensor(ended, device=logits.device), self._eos)
        return logits

    def _mark(self, logits: torch.Tensor) -> torch.Tensor:
        """Mark the rows of requests, in place."""
        rows = HostRows(len(logits), self._context_len, logits.device)
        penalised: list[int] = []
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
            rows.add(row, context, request.slot, count, request.temperature, request.filter_)
            if self._settings.chooses and request.penalties.active:
                penalised.append(row)
        if not penalised:
            rows.mark_(logits, self._sessions.keys)
            return logits
        return self._mark_penalised(logits, rows, penalised)

    def _mark_penalised(self, logits: torch.Tensor, rows: HostRows, penalised: list[int]) -> torch.Tensor:
        """Mark the rows of a batch. Some have penalties, and the runner applies these again afterwards.

        A raised logit might not stay the largest then, so in these rows only the chosen token is left.
        """
        index = torch.tensor(penalised, device=logits.device)
        raw = logits[index]
        penalties = [self._requests[row].penalties for row in penalised]
        logits[index] = penalise_(raw.to(torch.float32, copy=True), penalties).to(logits.dtype)
        chosen = rows.mark_(logits, self._sessions.keys)
        assert chosen is not None
        tokens = chosen[index, None]
        at = tokens.clamp(min=0)
        only = torch.full_like(raw, -torch.inf).scatter_(1, at, raw.gather(1, at))
        logits[index] = torch.where(tokens >= 0, only, raw)
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
