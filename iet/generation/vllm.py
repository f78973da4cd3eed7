"""Marking in vLLM: one processor for both of its model runners, the agent named by each request.

    IET_REGISTRY=host.json vllm serve MODEL --logits-processors iet.generation.vllm:IETLogitsProcessor

docs/vllm.md is the recipe, and says what does not work. vLLM runs this class in two places: where requests
arrive (`validate_params` only) and next to the model. Both read the same environment, because vLLM hands its
configuration to the second one alone. Importing this module does not touch CUDA.

No entry point is registered. vLLM would load it for every server of the environment, marked or not, and its
V1 runner does not repair the placeholders in the token lists of a processor that comes as one.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from iet.errors import BackendUnavailable, IetError, InputError
from iet.generation.agents import AGENT_FIELD as AGENT
from iet.generation.agents import UNMARKED_FIELD as UNMARKED
from iet.generation.checks import check_before_sampling, check_model_vocabulary, switch
from iet.kernels import embed_, prepare
from iet.marks.keys import KeyTable
from iet.marks.registry import Registry
from iet.native.cuda import Refusals

try:
    import torch
except ImportError as error:
    raise BackendUnavailable(
        f'marking in vLLM: {error}; pip install "implicit-execution-tracing[vllm]"'
    ) from None

_interfaces: list[Any] = []
try:  # the V2 model runner; older releases have none
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as _V2Processor

    _interfaces.append(_V2Processor)
except ImportError:
    pass
try:  # the V1 model runner
    from vllm.v1.sample.logits_processor import LogitsProcessor as _V1Processor
    from vllm.v1.sample.logits_processor import MoveDirectionality

    _interfaces.append(_V1Processor)
except ImportError as error:
    if not _interfaces:
        raise BackendUnavailable(
            f'marking in vLLM: {error}; pip install "implicit-execution-tracing[vllm]"'
        ) from None

_GREEDY_BELOW = 1e-5  # vLLM's own limit: logits of such a request are divided by nothing

_PLACEHOLDER = (
    "a placeholder (-1) stands in the context of {where}, where a token should: vLLM's asynchronous"
    " scheduling leaves it to processors whose token lists it does not repair (vllm-project/vllm#52461), and"
    " hashing it would lose the mark. Pass the processor by --logits-processors"
    " iet.generation.vllm:IETLogitsProcessor (LLM(logits_processors=[...])), not as an entry point; or start"
    " vLLM with --no-async-scheduling"
)


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What the environment says, read once per process."""

    keys: KeyTable
    slots: Mapping[str, int]
    require_agent: bool
    default: int  # the slot of a request that names no agent; -1: it is not marked

    def slot_of(self, params: Any) -> int:
        """Return the slot of a request's agent, -1 for an unmarked one, or raise InputError."""
        given: Mapping[str, Any] = getattr(params, "extra_args", None) or {}
        unknown = [name for name in given if name.startswith("iet_") and name not in (AGENT, UNMARKED)]
        if unknown:
            raise InputError(f"{unknown[0]}: expected {AGENT} or {UNMARKED}, and nothing else of this prefix")
        agent, unmarked = given.get(AGENT), given.get(UNMARKED, False)
        # HTTP turns true into 1.
        if not isinstance(unmarked, (bool, int)) or unmarked not in (0, 1):
            raise InputError(f"{UNMARKED}: got {unmarked!r:.80}, expected true or false")
        if unmarked and agent is not None:
            raise InputError(f"{AGENT} and {UNMARKED}: got both, expected one of them")
        if agent is None:
            slot = -1 if unmarked else self.default
            if slot < 0 and self.require_agent:
                raise InputError(
                    f"{AGENT}: got {'an opt-out' if unmarked else 'none'}, but this server marks every text:"
                    f' expected the name of an agent, over HTTP as "vllm_xargs": {{"{AGENT}": NAME}}'
                )
            return slot
        # Whoever may ask need not know who else is served here, so no names are listed.
        if not isinstance(agent, str) or agent not in self.slots:
            raise InputError(
                f"{AGENT}: got {agent!r:.80}, expected the name of an agent in this server's registry"
            )
        return self.slots[agent]

    def temperature_of(self, params: Any) -> float:
        """Return what κ is multiplied by: the temperature that vLLM divides by after the processor."""
        if self.keys.profile.scheme.placement == "raw" or params.temperature < _GREEDY_BELOW:
            return 1.0
        return float(params.temperature)


def _settings() -> _Settings:
    path, profile, default = (
        os.environ.get(name) or None for name in ("IET_REGISTRY", "IET_PROFILE", "IET_DEFAULT_AGENT")
    )
    return _read_settings(path, switch("IET_SECRET_MOUNT"), profile, switch("IET_REQUIRE_AGENT"), default)


@functools.lru_cache(maxsize=1)
def _read_settings(
    path: str | None, secret_mount: bool, profile: str | None, require: bool, default: str | None
) -> _Settings:
    registry = Registry.load(path, secret_mount=secret_mount)
    keys = registry.marking_keys(profile)
    check_before_sampling(keys.profile.scheme, "vLLM runs processors", 'expected "fourier" or "square"')
    slots = {name: slot for slot, name in enumerate(registry.names(profile))}
    if default is not None and default not in slots:
        raise InputError(f"IET_DEFAULT_AGENT: got {default!r:.80}, expected one of {list(slots)}")
    return _Settings(keys, slots, require, -1 if default is None else slots[default])


class IETLogitsProcessor(*_interfaces):  # type: ignore[misc]  # those that the installed vLLM has
    """Mark each row with the key of the agent that its request names: `vllm serve --logits-processors`.

        logits[i, v] += κ·T_i·φ(P(k_π, v)),    k_π the hash of row i's context under the key of its agent

    vLLM divides by the request's temperature T_i afterwards, so κ counts in final logits; under greedy
    sampling it divides by nothing, and T_i is 1: a greedy text is marked too, where its first two candidates
    are less than 2κ apart. With a scheme of placement "raw", the paper's, T_i is 1 always. top-k, top-p and
    min-p come after the mark, and so do the penalties of the V1 runner.

    A request names its agent in `SamplingParams(extra_args={"iet_agent": "planner"})`, over HTTP in
    `"vllm_xargs": {"iet_agent": "planner"}`; `{"iet_unmarked": true}` in its place asks for unmarked text.

    Environment, read once per process (restart to take up rotated keys):
        IET_REGISTRY: the registry file, best an export with the agents of this host only.
        IET_PROFILE: id of the profile, where the registry has several.
        IET_DEFAULT_AGENT: whom a request that names nobody is marked for. Default: such text is unmarked.
        IET_REQUIRE_AGENT: 1 refuses requests that would be unmarked.
        IET_SECRET_MOUNT: 1 accepts a read-only mount of any file mode.

    Args:
        vllm_config: vLLM's configuration.
        where: the state of the V2 runner's requests; or the device of the V1 runner's logits.
        is_pin_memory: of the V1 runner: whether host memory can be pinned.

    Raises:
        RegistryError, SchemeMismatch: the registry cannot be read.
        InputError: a setting is out of range, the family is "gumbel", or the model is a diffusion model.
        ShapeError: the model's vocabulary is smaller than V.
        BackendUnavailable: the device is neither the CPU nor CUDA, or the CUDA module is missing.

    A step costs O(B·V) for marked rows, in one kernel. With the V2 runner the contexts are gathered on the
    device by torch's own, 15 small ones or with drafts 31, whatever B is; nothing is copied or waited for.
    Deterministic, and the same on every rank.
    """

    def __init__(self, vllm_config: Any, where: Any, is_pin_memory: bool = False) -> None:
        settings = _settings()
        model = vllm_config.model_config
        if getattr(model, "is_diffusion", False):
            raise InputError("model: got a diffusion model, expected one that writes from left to right")
        check_model_vocabulary(model.get_vocab_size(), settings.keys.profile.vocab_size)
        by_slot = hasattr(where, "all_token_ids")
        device = torch.device(where.device if by_slot else where)
        if device.type == "cuda":
            prepare(settings.keys, device)  # now, not in the first request
        elif device.type != "cpu":
            raise BackendUnavailable(f"device: got {device}, expected the CPU or CUDA")
        self._marker: Any = (
            _BySlot(settings, where, device) if by_slot else _ByRow(settings, device, is_pin_memory)
        )

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Check a request as it arrives.

        Args:
            sampling_params: its `SamplingParams`.

        Raises:
            InputError: a ValueError, which vLLM answers with HTTP 400: an agent that is not in the registry,
                an unknown argument, or no agent although `IET_REQUIRE_AGENT` is set.
        """
        try:
            _settings().slot_of(sampling_params)
        except ValueError:
            raise
        except IetError as error:  # the registry: vLLM tells a client only of a ValueError
            raise InputError(str(error)) from None

    def is_argmax_invariant(self) -> bool:
        """Return False: a mark may change which token is the likeliest."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow the V1 runner's batch: requests removed, added and moved since the last step.

        Args:
            batch_update: its `BatchUpdate`, or None.
        """
        self._marker.update(batch_update)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Take up a request of the V2 runner, in place of whichever had its slot before.

        Args:
            req_idx: the slot.
            sampling_params: of the request.

        Returns:
            Whether it is marked.
        """
        return bool(self._marker.add(req_idx, sampling_params))

    def apply_staged_writes(self) -> None:
        """Send new requests of the V2 runner to the device; raise what an earlier step refused there."""
        self._marker.flush()

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        """Mark the rows of a step in place, and return them.

        Args:
            logits: float32 [rows, >= V].
            ctx: the V2 runner's `LogitsContext`.

        Raises:
            InputError: a context holds a placeholder. On CUDA the V2 runner's are found on the device, the
                row stays unmarked, and a later step raises.
        """
        self._marker.apply(logits, ctx)
        return logits


class _ByRow:
    """The V1 runner: rows are places in its batch, and token lists are the host's."""

    def __init__(self, settings: _Settings, device: torch.device, pin: bool) -> None:
        self._settings = settings
        self._words = settings.keys.profile.scheme.n_gram - 1
        self._device = device
        self._pin = pin and device.type == "cuda"
        # row -> slot, temperature, the end of the prompt, the list that vLLM appends to
        self._requests: dict[int, tuple[int, float, list[int], Sequence[int]]] = {}

    def update(self, batch_update: Any) -> None:
        """Process removed, added and moved requests, in this order, as the interface demands."""
        if batch_update is None:
            return
        requests = self._requests
        for row in batch_update.removed:
            requests.pop(row, None)
        for row, params, prompt, output in batch_update.added:
            requests.pop(row, None)
            slot = self._settings.slot_of(params)
            if slot >= 0:
                end = list((prompt or ())[-self._words :])  # None where the prompt is given as embeddings
                requests[row] = slot, self._settings.temperature_of(params), end, output
        for source, target, direction in batch_update.moved:
            moved, replaced = requests.pop(source, None), requests.pop(target, None)
            if moved is not None:
                requests[target] = moved
            if replaced is not None and direction is MoveDirectionality.SWAP:
                requests[source] = replaced

    def apply(self, logits: torch.Tensor, ctx: Any) -> None:
        marked: list[list[int]] = []
        temperatures: list[float] = []
        for row, (slot, temperature, prompt, output) in self._requests.items():
            known = output if len(output) >= self._words else [*prompt, *output]
            context = known[-self._words :]
            if len(context) < self._words:
                continue
            if min(context) < 0:
                raise InputError(_PLACEHOLDER.format(where=f"row {row}"))
            marked.append([row, slot, *context])
            temperatures.append(temperature)
        if not marked:
            return
        rows = self._sent(marked, torch.int64)
        embed_(
            logits,
            rows[:, 2:],
            rows[:, 1],
            self._settings.keys,
            temperature=self._sent(temperatures, torch.float32),
            rows=rows[:, 0],
        )

    def _sent(self, values: Any, dtype: torch.dtype) -> torch.Tensor:
        # New pinned memory each step: torch reuses it only when the copy is done.
        return torch.tensor(values, dtype=dtype, pin_memory=self._pin).to(self._device, non_blocking=True)


class _BySlot:
    """The V2 runner: a request keeps its slot, and its tokens are on the device.

    `state` is vLLM's `LogitsProcRequestState`. Two arrays over its slots say whose key marks a request and
    at which temperature; they are sent when requests came, and everything else is read where it lies.
    """

    def __init__(self, settings: _Settings, state: Any, device: torch.device) -> None:
        self._settings = settings
        self._state = state
        self._key_slots = np.full(state.max_num_reqs, -1, dtype=np.int32)
        self._temperatures = np.ones(state.max_num_reqs, dtype=np.float32)
        self._changed = False
        self._refusals = Refusals()
        with torch.inference_mode(False):  # they are changed later, in whatever mode
            self._device_slots = torch.from_numpy(self._key_slots.copy()).to(device)
            self._device_temperatures = torch.from_numpy(self._temperatures.copy()).to(device)
            self._device = self._device_slots.device  # with its number
            self._back = torch.arange(1 - settings.keys.profile.scheme.n_gram, 0, device=device)

    def add(self, index: int, params: Any) -> bool:
        # vLLM's own warm-up requests name nobody, and were never validated.
        validated = bool(params.extra_args) or not self._settings.require_agent
        slot = self._settings.slot_of(params) if validated else self._settings.default
        self._key_slots[index] = slot
        self._temperatures[index] = self._settings.temperature_of(params)
        self._changed = True
        return slot >= 0

    def flush(self) -> None:
        try:
            self._refusals.check()
        except InputError as error:
            raise InputError(f"{_PLACEHOLDER.format(where='a row')} ({error})") from None
        if not self._changed:
            return
        self._changed = False
        for values, there in (
            (self._key_slots, self._device_slots),
            (self._temperatures, self._device_temperatures),
        ):
            # A copy: these arrays may change again before the device has read them.
            staged = torch.from_numpy(values)
            staged = staged.pin_memory() if self._device.type == "cuda" else staged.clone()
            there.copy_(staged, non_blocking=True)

    def apply(self, logits: torch.Tensor, ctx: Any) -> None:
        if not (self._key_slots[ctx.idx_mapping_np] >= 0).any():
            return
        slots = ctx.expanded_idx_mapping.to(torch.int64)
        requests = slots.clamp(min=0)  # padding rows have slot -1
        contexts, there = self._contexts(requests, ctx)
        keys = self._device_slots[requests].masked_fill(~there | (slots < 0), -1)
        try:
            embed_(
                logits, contexts, keys, self._settings.keys, temperature=self._device_temperatures[requests]
            )
        except InputError as error:
            if bool((contexts[keys >= 0] < 0).any()):
                raise InputError(f"{_PLACEHOLDER.format(where='a row')} ({error})") from None
            raise
        self._refusals.note(self._device)

    def _contexts(self, requests: torch.Tensor, ctx: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the contexts of rows [rows, n-1], and which rows have one [rows].

        Row j of a request (j > 0 only where drafts are verified) stands after its committed tokens and the
        first j drafts, which are the inputs of its rows 1 to j:

            position = total_len + j + (-(n-1) .. -1);   committed if below total_len, else a draft

        What stands in a draft's place where there is none (-1) ends in a row that vLLM rejects, so such a row
        is left alone; among committed tokens a -1 is an error, which embed_ finds.
        """
        tokens = self._state.all_token_ids.gpu
        ends = self._state.total_len.gpu[requests].to(torch.int64)[:, None]
        if ctx.expanded_idx_mapping.shape[0] == ctx.idx_mapping.shape[0]:  # one row each: no drafts
            positions = ends + self._back
            return tokens[requests[:, None], positions.clamp(min=0)], positions[:, 0] >= 0
        local = ctx.expanded_local_pos.to(torch.int64)[:, None]
        positions = ends + local + self._back
        committed = tokens[requests[:, None], positions.clamp(0, tokens.shape[1] - 1)]
        rows = torch.arange(requests.shape[0], device=self._device)[:, None]
        inputs = (rows - local + positions - ends + 1).clamp(0, requests.shape[0] - 1)
        drafts, is_draft = ctx.input_ids[inputs].to(committed.dtype), positions >= ends
        there = (positions[:, 0] >= 0) & ~(is_draft & (drafts < 0)).any(dim=1)
        return torch.where(is_draft, drafts, committed), there
