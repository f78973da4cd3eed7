"""vLLM's V2 model runner: a request keeps its slot, and its tokens are on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from iet.errors import IetError, InputError
from iet.generation.sampling import ContextIds, leave_one, times_before
from iet.generation.sessions import SessionRows
from iet.generation.vllm.refusals import REFUSED, close_, tell
from iet.generation.vllm.sampler import Filters, final_logits
from iet.generation.vllm.settings import PLACEHOLDER, RequestKeys, Settings
from iet.kernels import embed_
from iet.marks.keys import KeyTable
from iet.native.cuda import Refusals
from iet.native.rows import SequenceRows

_NO_FILTERS = Filters()


class BySlot:
    """Marks the rows of requests whose slots hold an agent's key.

    `state` is vLLM's `LogitsProcRequestState`. Two arrays over its slots say whose key marks a request and
    what its sampler does; they are sent when requests came, and everything else is read where it lies.
    """

    def __init__(
        self, settings: Settings, names: RequestKeys, state: Any, device: torch.device, end: int = 0
    ) -> None:
        self._settings = settings
        self._names = names
        self._state = state
        self._end = end
        self._ended = np.zeros(state.max_num_reqs, dtype=np.bool_)
        self._key_slots = np.full(state.max_num_reqs, -1, dtype=np.int32)
        self._temperatures = np.ones(state.max_num_reqs, dtype=np.float32)
        self._requests = np.zeros(state.max_num_reqs, dtype=np.int64)
        self._filters = [_NO_FILTERS] * state.max_num_reqs
        self._filter_values = np.tile(_NO_FILTERS.values(state.vocab_size), (state.max_num_reqs, 1))
        self._changed = False
        self._refusals = Refusals()
        self._ids = ContextIds(settings.keys.profile)
        with torch.inference_mode(False):  # they are changed later, in whatever mode
            self._device_slots = torch.from_numpy(self._key_slots.copy()).to(device)
            self._device_temperatures = torch.from_numpy(self._temperatures.copy()).to(device)
            self._device_requests = torch.from_numpy(self._requests.copy()).to(device)
            self._device_filters = torch.from_numpy(self._filter_values.copy()).to(device)
            self._device = self._device_slots.device  # with its number
            self._back = torch.arange(1 - settings.keys.profile.scheme.n_gram, 0, device=device)
        # A row for each slot, so that a request's session has one.
        self._sessions = SessionRows(settings.registry, settings.keys, state.max_num_reqs)
        # On CUDA one kernel reads contexts where they lie; on the CPU torch gathers them.
        on_cuda = self._device.type == "cuda"
        self._rows = SequenceRows(self._sessions.keys.marking, self._device) if on_cuda else None

    @property
    def keys(self) -> KeyTable:
        """What rows are marked with."""
        return self._sessions.keys

    def add(self, index: int, params: Any) -> bool:
        """Take up a request, and tell whether its row is changed."""
        key, temperature, filters = -1, 1.0, _NO_FILTERS
        try:
            key = self._settings.marking_slot(params)
            if key >= 0:
                self._requests[index] = self._names.next(params.seed)
            if key >= 0 and (session := self._settings.session_of(params)) is not None:
                key = self._sessions.put(index, key, session)
            if key >= 0:
                filters, temperature = Filters.of(params), self._settings.temperature_of(params)
            values = filters.values(self._state.vocab_size)
        except Exception as error:
            tell(f"a request that was admitted cannot be marked, and is ended: {error}")
            key, filters = REFUSED, _NO_FILTERS
            values = filters.values(self._state.vocab_size)
        self._ended[index] = key == REFUSED
        self._key_slots[index] = max(key, -1)
        self._temperatures[index] = temperature
        self._filters[index] = filters
        self._filter_values[index] = values
        self._changed = True
        return key != -1

    def flush(self) -> None:
        """Send what came, and raise what an earlier step refused on the device."""
        try:
            self._refusals.check()
        except InputError as error:
            raise InputError(f"{PLACEHOLDER.format(where='a row')} ({error})") from None
        self._sessions.send(self._device)
        if not self._changed:
            return
        self._changed = False
        for values, there in (
            (self._key_slots, self._device_slots),
            (self._temperatures, self._device_temperatures),
            (self._requests, self._device_requests),
            (self._filter_values, self._device_filters),
        ):
            # A copy: these arrays may change again before the device has read them.
            staged = torch.from_numpy(values)
            staged = staged.pin_memory() if self._device.type == "cuda" else staged.clone()
            there.copy_(staged, non_blocking=True)

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Mark the rows of a step, and end what cannot be marked."""
        ended = self._ended[ctx.idx_mapping_np]
        try:
            logits = self._mark(logits, ctx)
        except IetError as error:
            tell(f"a step cannot be marked, and its requests are ended: {error}")
            ended = ended | (self._key_slots[ctx.idx_mapping_np] >= 0)
        if ended.any():
            slots = ctx.expanded_idx_mapping
            which = torch.as_tensor(ctx.idx_mapping_np[ended], dtype=slots.dtype, device=slots.device)
            close_(logits, torch.isin(slots, which), self._end)
        return logits

    def _mark(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Mark the rows of requests."""
        if not (self._key_slots[ctx.idx_mapping_np] >= 0).any():
            return logits
        if self._rows is not None:
            return self._apply_on_cuda(self._rows, logits, ctx)
        slots = ctx.expanded_idx_mapping.to(torch.int64)
        requests = slots.clamp(min=0)  # padding rows have slot -1
        contexts, there = self._contexts(requests, ctx)
        unmarked = ~there | (slots < 0)
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
            marked = leave_one(noisy, logits, rows.are_marked())
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
        """Return the logits with one token left in rows that are marked."""
        counts = times_before(*self._sequences(requests, ctx), contexts)
        fresh = (keys >= 0) & self._ids.are_marked(contexts)
        noisy = self._final_logits(logits, requests, ctx)
        embed_(noisy, contexts, torch.where(fresh, keys, -1), self._sessions.keys, counts=counts)
        return leave_one(noisy, logits, fresh)

    def _final_logits(self, logits: torch.Tensor, requests: torch.Tensor, ctx: Any) -> torch.Tensor:
        filters = [self._filters[index] for index in ctx.idx_mapping_np.tolist()]
        return final_logits(logits, self._device_filters[requests], filters)

    def _are_free(self, requests: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Tell which rows [rows] hold a token that vLLM's sampler draws without a mark.

        The prompt of a request that was preempted ends where it did before, `prompt_len`; `prefill_len` would
        count its answer.
        """
        _, ends = self._ends(requests, ctx)
        positions = ends[:, 0] - self._state.prompt_len.gpu[requests].to(torch.int64)
        return self._settings.free.are_free(self._device_requests[requests], positions)  # type: ignore[no-any-return]

    def _contexts(self, requests: torch.Tensor, ctx: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the contexts of rows [rows, n-1], and which rows have one [rows].

        Row j of a request (j > 0 only where drafts are verified) stands after its committed tokens and the
        first j drafts, which are the inputs of its rows 1 to j:

            position = total_len + j + (-(n-1) .. -1);   committed if below total_len, else a draft

        What stands in a draft's place where there is none (-1) ends in a row that vLLM rejects, so such a row
        is left alone; among committed tokens a -1 is an error, which embed_ finds.
        """
        committed, ends = self._ends(requests, ctx)
        positions = ends + self._back
        ids, is_draft = self._ids_at(positions, requests, committed, ends, ctx)
        there = positions[:, 0] >= 0
        return ids, there if is_draft is None else there & ~(is_draft & (ids < 0)).any(dim=1)

    def _sequences(self, requests: torch.Tensor, ctx: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ids before each row [rows, T], drafts included, and how many they are [rows]."""
        committed, ends = self._ends(requests, ctx)
        # The longest sequence of the step, as far as the host knows: to ask the device would be to wait.
        longest = min(int(ctx.seq_lens_upper_bound_np.max()), self._state.all_token_ids.gpu.shape[1])
        positions = torch.arange(longest, device=self._device).expand(len(requests), -1)
        ids, _ = self._ids_at(positions, requests, committed, ends, ctx)
        return ids, ends[:, 0]

    def _ends(self, requests: torch.Tensor, ctx: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return how many ids of a row's sequence are committed, and how many stand before it."""
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
        """Return the ids at positions [rows, P] of the sequences, and which are drafts; None: none is."""
        tokens = self._state.all_token_ids.gpu
        ids = tokens[requests[:, None], positions.clamp(0, tokens.shape[1] - 1)]
        if not self._has_drafts(ctx):
            return ids, None
        rows = torch.arange(requests.shape[0], device=self._device)[:, None]
        inputs = (rows + positions - ends + 1).clamp(0, requests.shape[0] - 1)
        is_draft = positions >= committed
        return torch.where(is_draft, ctx.input_ids[inputs].to(ids.dtype), ids), is_draft
