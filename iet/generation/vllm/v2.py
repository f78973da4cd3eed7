"""vLLM's V2 model runner: a request has a fixed slot, and its tokens are on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from iet.errors import IetError, InputError
from iet.generation.sampling import ContextIds, choose_and_force, force_token, times_before
from iet.generation.sessions import SessionRows
from iet.generation.vllm.sampler import NO_FILTERS, filters_of, final_logits, force_eos_
from iet.generation.vllm.settings import PLACEHOLDER, REFUSED, RequestKeys, Settings, report
from iet.kernels import embed_
from iet.marks.keys import KeyTable
from iet.native.cuda import Refusals
from iet.native.rows import SequenceRows


class V2Marker:
    """Marks the rows of requests that name an agent.

    `state` is vLLM's `LogitsProcRequestState`. Arrays over its slots hold each request's key row and sampling
    parameters. They are copied to the device after requests arrive; all other data is on the device already.
    """

    def __init__(
        self, settings: Settings, request_keys: RequestKeys, state: Any, device: torch.device, eos: int = 0
    ) -> None:
        self._settings = settings
        self._request_keys = request_keys
        self._state = state
        self._eos = eos
        self._ended = np.zeros(state.max_num_reqs, dtype=np.bool_)
        self._key_slots = np.full(state.max_num_reqs, -1, dtype=np.int32)
        self._temperatures = np.ones(state.max_num_reqs, dtype=np.float32)
        self._requests = np.zeros(state.max_num_reqs, dtype=np.int64)
        self._filters = np.tile(NO_FILTERS, (state.max_num_reqs, 1))
        self._changed = False
        self._refusals = Refusals()
        self._ids = ContextIds(settings.keys.profile)
        with torch.inference_mode(False):  # they are changed later, in any mode
            self._device_slots = torch.from_numpy(self._key_slots.copy()).to(device)
            self._device_temperatures = torch.from_numpy(self._temperatures.copy()).to(device)
            self._device_requests = torch.from_numpy(self._requests.copy()).to(device)
            self._device_filters = torch.from_numpy(self._filters.copy()).to(device)
            self._device = self._device_slots.device  # with its index
            self._back = torch.arange(1 - settings.keys.profile.scheme.n_gram, 0, device=device)
        # A row of keys for each slot, for the request's session.
        self._sessions = SessionRows(settings.registry, settings.keys, state.max_num_reqs)
        # On CUDA one kernel reads the contexts from vLLM's arrays; on the CPU torch gathers them.
        on_cuda = self._device.type == "cuda"
        self._rows = SequenceRows(self._sessions.keys.marking, self._device) if on_cuda else None

    @property
    def keys(self) -> KeyTable:
        """The key table of marked rows."""
        return self._sessions.keys

    def add(self, index: int, params: Any) -> bool:
        """Add a request, and return whether its rows are changed."""
        key, temperature, filters = -1, 1.0, NO_FILTERS
        try:
            key = self._settings.marking_slot(params)
            if key >= 0:
                self._requests[index] = self._request_keys.next(params.seed)
            if key >= 0 and (session := self._settings.session_of(params)) is not None:
                key = self._sessions.put(index, key, session)
            if key >= 0:
                filters, temperature = filters_of(params), self._settings.temperature_of(params)
            self._filters[index] = filters
        except Exception as error:
            report(f"a request that was admitted cannot be marked, and is ended: {error}")
            key, self._filters[index] = REFUSED, NO_FILTERS
        self._ended[index] = key == REFUSED
        self._key_slots[index] = max(key, -1)
        self._temperatures[index] = temperature
        self._changed = True
        return key != -1

    def flush(self) -> None:
        """Copy new requests to the device, and raise an error that an earlier step found there."""
        try:
            self._refusals.check()
        except InputError as error:
            raise InputError(f"{PLACEHOLDER.format(where='a row')} ({error})") from None
        self._sessions.send(self._device)
        if not self._changed:
            return
        self._changed = False
        for values, on_device in (
            (self._key_slots, self._device_slots),
            (self._temperatures, self._device_temperatures),
            (self._requests, self._device_requests),
            (self._filters, self._device_filters),
        ):
            # A copy, because the arrays may change again before the device has read them.
            staged = torch.from_numpy(values)
            staged = staged.pin_memory() if self._device.type == "cuda" else staged.clone()
            on_device.copy_(staged, non_blocking=True)

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Mark the rows of a step, and end the requests that cannot be marked."""
        ended = self._ended[ctx.idx_mapping_np]
        try:
            logits = self._mark(logits, ctx)
        except IetError as error:
            report(f"a step cannot be marked, and its requests are ended: {error}")
            ended = ended | (self._key_slots[ctx.idx_mapping_np] >= 0)
        if ended.any():
            slots = ctx.expanded_idx_mapping
            which = torch.as_tensor(ctx.idx_mapping_np[ended], dtype=slots.dtype, device=slots.device)
            force_eos_(logits, torch.isin(slots, which), self._eos)
        return logits

    def _mark(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Mark the rows of requests."""
        if not (self._key_slots[ctx.idx_mapping_np] >= 0).any():
            return logits
        if self._rows is not None:
            return self._apply_on_cuda(self._rows, logits, ctx)
        slots = ctx.expanded_idx_mapping.to(torch.int64)
        requests = slots.clamp(min=0)  # padding rows have slot -1
        contexts, complete = self._contexts(requests, ctx)
        unmarked = ~complete | (slots < 0)
        if self._settings.chooses:
            unmarked = unmarked | self._are_free(requests, ctx)
        keys = self._device_slots[requests].masked_fill(unmarked, -1)
        try:
            if self._settings.chooses:
                return self._choose(logits, requests, contexts, keys, ctx)
            temperatures = self._device_temperatures[requests]
            embed_(logits, contexts, keys, self._sessions.keys, temperature=temperatures)
        except InputError as error:
            if bool((contexts[keys >= 0] < 0).any()):
                raise InputError(f"{PLACEHOLDER.format(where='a row')} ({error})") from None
            raise
        return logits

    def _apply_on_cuda(self, rows: SequenceRows, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Mark the rows of a step: contexts are read, checked, counted and hashed by one kernel."""
        drafts = self._has_drafts(ctx)
        slots = ctx.expanded_idx_mapping
        if self._settings.chooses:
            slots = slots.masked_fill(self._are_free(slots.clamp(min=0).to(torch.int64), ctx), -1)
        rows.read(
            slots,
            self._state.all_token_ids.gpu,
            self._state.total_len.gpu,
            self._device_slots,
            self._device_temperatures,
            ctx.expanded_local_pos if drafts else None,
            ctx.input_ids if drafts else None,
            counted=self._settings.chooses,
        )
        marked = logits
        if self._settings.chooses:
            noisy = self._final_logits(logits, ctx.expanded_idx_mapping.clamp(min=0), ctx)
            rows.embed_(noisy)
            tokens = noisy.max(dim=-1, keepdim=True).indices
            marked = force_token(noisy, tokens, logits, rows.are_marked())
        else:
            rows.embed_(logits)
        self._refusals.note(self._device)
        return marked

    def _choose(
        self,
        logits: torch.Tensor,
        requests: torch.Tensor,
        contexts: torch.Tensor,
        keys: torch.Tensor,
        ctx: Any,
    ) -> torch.Tensor:
        """Choose the tokens of marked rows, and force them."""
        counts = times_before(*self._sequences(requests, ctx), contexts)
        marked = (keys >= 0) & self._ids.are_marked(contexts)
        final, keys = self._final_logits(logits, requests, ctx), torch.where(marked, keys, -1)
        return choose_and_force(final, logits, contexts, keys, self._sessions.keys, counts)

    def _final_logits(self, logits: torch.Tensor, requests: torch.Tensor, ctx: Any) -> torch.Tensor:
        return final_logits(logits, self._device_filters[requests], self._filters[ctx.idx_mapping_np])

    def _are_free(self, requests: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return which rows [rows] have a free token.

        The answer of a preempted request still starts at `prompt_len`; `prefill_len` includes its answer.
        """
        _, ends = self._ends(requests, ctx)
        positions = ends[:, 0] - self._state.prompt_len.gpu[requests].to(torch.int64)
        return self._settings.free.are_free(self._device_requests[requests], positions)  # type: ignore[no-any-return]

    def _contexts(self, requests: torch.Tensor, ctx: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the contexts of rows [rows, n-1], and which rows have one [rows].

        Row j of a request (j > 0 only if drafts are verified) follows its committed tokens and the first j
        drafts, which are the inputs of its rows 1 to j:

            position = total_len + j + (-(n-1) .. -1);   committed if below total_len, else a draft

        A missing draft (-1) leads to a row that vLLM rejects, so such a row is not marked. A -1 among
        committed tokens is an error, which embed_ reports.
        """
        committed, ends = self._ends(requests, ctx)
        positions = ends + self._back
        ids, is_draft = self._ids_at(positions, requests, committed, ends, ctx)
        complete = positions[:, 0] >= 0
        return ids, complete if is_draft is None else complete & ~(is_draft & (ids < 0)).any(dim=1)

    def _sequences(self, requests: torch.Tensor, ctx: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ids before each row [rows, T], with drafts, and their number [rows]."""
        committed, ends = self._ends(requests, ctx)
        # An upper bound of the longest sequence; the exact length is on the device, and reading it would
        # wait.
        longest = min(int(ctx.seq_lens_upper_bound_np.max()), self._state.all_token_ids.gpu.shape[1])
        positions = torch.arange(longest, device=self._device).expand(len(requests), -1)
        ids, _ = self._ids_at(positions, requests, committed, ends, ctx)
        return ids, ends[:, 0]

    def _ends(self, requests: torch.Tensor, ctx: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the number of committed ids of each row's sequence, and of all ids before the row."""
        committed = self._state.total_len.gpu[requests].to(torch.int64)[:, None]
        if not self._has_drafts(ctx):
            return committed, committed
        return committed, committed + ctx.expanded_local_pos.to(torch.int64)[:, None]

    @staticmethod
    def _has_drafts(ctx: Any) -> bool:
        return bool(ctx.expanded_idx_mapping.shape[0] != ctx.idx_mapping.shape[0])  # else one row each

    def _ids_at(
        self,
        positions: torch.Tensor,
        requests: torch.Tensor,
        committed: torch.Tensor,
        ends: torch.Tensor,
        ctx: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the ids at positions [rows, P] of the sequences, and which of them are drafts or None."""
        tokens = self._state.all_token_ids.gpu
        ids = tokens[requests[:, None], positions.clamp(0, tokens.shape[1] - 1)]
        if not self._has_drafts(ctx):
            return ids, None
        rows = torch.arange(requests.shape[0], device=self._device)[:, None]
        inputs = (rows + positions - ends + 1).clamp(0, requests.shape[0] - 1)
        is_draft = positions >= committed
        return torch.where(is_draft, ctx.input_ids[inputs].to(ids.dtype), ids), is_draft
