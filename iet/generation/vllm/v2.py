"""vLLM's V2 model runner: a request has a fixed slot, and its tokens are on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from iet.errors import InputError
from iet.generation.sessions import SessionRows
from iet.generation.vllm.sampler import filter_of_request, force_eos_
from iet.generation.vllm.settings import PLACEHOLDER, REFUSED, RequestKeys, Settings, report
from iet.marks.keys import KeyTable
from iet.native.cuda import Refusals
from iet.native.filters import FILTER, NO_FILTER
from iet.native.rows import ContextTables, FreeRows, SequenceRows


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
        slots = state.max_num_reqs
        self._ended = np.zeros(slots, dtype=np.bool_)
        self._key_slots = np.full(slots, -1, dtype=np.int32)
        self._temperatures = np.ones(slots, dtype=np.float32)
        self._requests = np.zeros(slots, dtype=np.int64)
        self._filters = np.array([NO_FILTER] * slots, FILTER)
        self._is_filtered = np.zeros(slots, dtype=np.bool_)
        self._changed = False
        self._refusals = Refusals()
        with torch.inference_mode(False):  # they are changed later, in any mode
            self._device_slots = torch.from_numpy(self._key_slots.copy()).to(device)
            self._device_temperatures = torch.from_numpy(self._temperatures.copy()).to(device)
            self._device_requests = torch.from_numpy(self._requests.copy()).to(device)
            self._device_filters = torch.from_numpy(self._filter_bits.copy()).to(device)
            self._device = self._device_slots.device  # with its index
        self._tables = ContextTables(slots, self._device)
        # A row of keys for each slot, for the request's session.
        self._sessions = SessionRows(settings.registry, settings.keys, slots)
        self._rows = SequenceRows(self._sessions.keys.marking, self._device)

    @property
    def _filter_bits(self) -> np.ndarray[Any, Any]:
        return self._filters.view(np.int32).reshape(-1, 4)

    @property
    def keys(self) -> KeyTable:
        """The key table of marked rows."""
        return self._sessions.keys

    def add(self, index: int, params: Any) -> bool:
        """Add a request, and return whether its rows are changed."""
        key, temperature, filter_ = -1, 1.0, NO_FILTER
        try:
            key = self._settings.marking_slot(params)
            if key >= 0:
                self._requests[index] = self._request_keys.next(params.seed)
            if key >= 0 and (session := self._settings.session_of(params)) is not None:
                key = self._sessions.put(index, key, session)
            if key >= 0:
                filter_, temperature = filter_of_request(params), self._settings.temperature_of(params)
            self._filters[index] = filter_
        except Exception as error:
            report(f"a request that was admitted cannot be marked, and is ended: {error}")
            key, self._filters[index] = REFUSED, NO_FILTER
        self._tables.forget(index)
        self._ended[index] = key == REFUSED
        self._key_slots[index] = max(key, -1)
        self._temperatures[index] = temperature
        self._is_filtered[index] = self._filters[index].item() != NO_FILTER
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
            (self._filter_bits, self._device_filters),
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
        except Exception as error:
            report(f"a step cannot be marked, and its requests are ended: {error}")
            ended = ended | (self._key_slots[ctx.idx_mapping_np] >= 0)
        if ended.any():
            slots = ctx.expanded_idx_mapping
            which = torch.as_tensor(ctx.idx_mapping_np[ended], dtype=slots.dtype, device=slots.device)
            force_eos_(logits, torch.isin(slots, which), self._eos)
        return logits

    def _mark(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Mark the rows of requests, in place."""
        slots, chooses = ctx.idx_mapping_np, self._settings.chooses
        marked = self._key_slots[slots] >= 0
        if not marked.any():
            return logits
        if chooses:
            # vLLM pads the bounds, and they count no more than a chunk of a prompt.
            lengths = np.maximum(ctx.seq_lens_upper_bound_np[: len(slots)], self._state.prefill_len.np[slots])
            self._tables.fit(slots[marked], lengths[marked])
        has_drafts = ctx.expanded_idx_mapping.shape[0] != slots.shape[0]  # else one row each
        try:
            self._rows.read(
                self._state.all_token_ids.gpu,
                self._device_slots,
                requests=ctx.expanded_idx_mapping,
                lengths=self._state.total_len.gpu,
                temperatures=self._device_temperatures,
                places=ctx.expanded_local_pos if has_drafts else None,
                drafts=ctx.input_ids if has_drafts else None,
                tables=self._tables if chooses else None,
                free=self._free if chooses else None,
            )
            if chooses:
                filtered = self._is_filtered[slots].any()
                self._rows.choose_(logits, self._device_filters if filtered else None)
            else:
                self._rows.embed_(logits)
        except InputError as error:  # found on the CPU; on CUDA, `flush` raises
            if str(error).startswith("contexts"):
                raise InputError(f"{PLACEHOLDER.format(where='a row')} ({error})") from None
            raise
        self._refusals.note(self._device)
        return logits

    @property
    def _free(self) -> FreeRows:
        """The free tokens. Answers start at `prompt_len`; a resumed one is a part of `prefill_len`."""
        prompts = self._state.prompt_len.gpu
        return FreeRows(self._device_requests, prompts, *self._settings.free.threshold)
