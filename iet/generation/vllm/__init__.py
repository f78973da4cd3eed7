"""Marking in vLLM: one processor for both of its model runners, the agent named by each request.

    IET_REGISTRY=host.json vllm serve MODEL --logits-processors iet.generation.vllm:IETLogitsProcessor

docs/guides/vllm.md is the recipe, with its limits. vLLM runs this class in two processes: the frontend
(`validate_params` only) and the engine. Both read the same environment, because vLLM
hands its configuration to the second one alone. Importing this module does not touch CUDA.

The package registers no entry point: vLLM would load it for every server, and its V1 runner does not repair
the placeholders in the token lists of processors that are entry points.
"""

from __future__ import annotations

from typing import Any

from iet.errors import BackendUnavailable, IetError, InputError, missing
from iet.generation.checks import check_model_vocabulary, check_vllm_chooses_nothing, check_vllm_drafts
from iet.kernels import prepare

try:
    import torch
except ImportError as error:
    raise missing(f"marking in vLLM: {error}", "vllm") from None

from iet.generation.vllm.sampler import end_of_text
from iet.generation.vllm.settings import RequestKeys, preload, read_settings, report
from iet.generation.vllm.v1 import V1Marker
from iet.generation.vllm.v2 import V2Marker

_interfaces: list[Any] = []
try:  # the V2 model runner; older releases have none
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as _V2Processor

    _interfaces.append(_V2Processor)
except ImportError:
    pass
try:  # the V1 model runner
    from vllm.v1.sample.logits_processor import LogitsProcessor as _V1Processor

    _interfaces.append(_V1Processor)
except ImportError as error:
    if not _interfaces:
        raise missing(f"marking in vLLM: {error}", "vllm") from None


class IETLogitsProcessor(*_interfaces):  # type: ignore[misc]  # those that the installed vLLM has
    """Mark each row with the key of the agent that its request names: `vllm serve --logits-processors`.

        logits[i, v] += κ·T_i·φ(P(k_π, v)),    k_π the hash of row i's context under the key of its agent

    vLLM divides by the request's temperature T_i afterwards, so κ is in units of final logits. Under
    greedy sampling T_i is 1: a greedy text is marked too, if its first two candidates differ by less than 2κ.
    With placement "raw", as in the paper, T_i is always 1. top-k, top-p and
    min-p come after the mark, and so do the penalties of the V1 runner.

    With family "gumbel" it chooses the token itself, from the distribution that vLLM would draw from:

        argmax_v over kept tokens of ℓ_i(v) / T_i - log(-log u(k_π, v)),    its logit becomes the largest

    where temperature, min-p, top-k and top-p are the request's. vLLM then draws that token, with drafts as
    well: its rejection sampler accepts a draft exactly if it is the token. k_π holds how
    often the context occurred earlier in the sequence, prompt included. Greedy requests are refused, because
    they draw nothing. Penalties have their effect, also under the V1 runner, which applies them later.

    In family "gumbel" the first tokens of an answer, and a small share of the others, are left to vLLM's own
    sampler (`FreeTokens`), so that the same prompt gets different answers. Each request chooses its own, by
    its `seed` if it has one.

    A request names its agent in `SamplingParams(extra_args={"iet_agent": "planner"})`, over HTTP in
    `"vllm_xargs": {"iet_agent": "planner"}`; `{"iet_unmarked": true}` in its place asks for unmarked text.

    Beside the agent, `"iet_session": "run-7"` asks for the keys that the agent has in that session
    (`Registry.session`); they are derived when the request is taken up, and forgotten with it.

    If a request was admitted but cannot be marked, because frontend and engine read different files, its text
    ends, and the log says why. One request never stops the engine.

    Environment, read once per process, when it loads this class (restart to take up rotated keys):
        IET_REGISTRY: the registry file; an export with the agents of this host is best.
        IET_PROFILE: id of the profile, if the registry has several.
        IET_DEFAULT_AGENT: the agent of requests that name none. Default: their text is not marked.
        IET_REQUIRE_AGENT: 1 refuses requests that would be unmarked.
        IET_SECRET_MOUNT: 1 accepts a read-only mount of any file mode.
        IET_FREE_FIRST, IET_FREE_RATE: the free tokens of family "gumbel". Default: those of `FreeTokens`.
        IET_MIN_TEMPERATURE, IET_MIN_TOP_P: the least freedom of marked requests. Default: that of `Floor`.

    Args:
        vllm_config: vLLM's configuration.
        where: the state of the V2 runner's requests; or the device of the V1 runner's logits.
        is_pin_memory: of the V1 runner; not used.

    Raises:
        RegistryError, SchemeMismatch: the registry cannot be read.
        InputError: a setting is out of range, or the model is a diffusion model; with family "gumbel" also
            if vLLM's own watermark is on, or log-probabilities would be computed after the token is forced.
        ShapeError: the model's vocabulary is smaller than V.
        BackendUnavailable: the device is neither the CPU nor CUDA, or the CUDA module is missing.

    A step costs O(B·V) for marked rows. With the V2 runner on CUDA these are two kernels, in family "gumbel"
    three: one reads the contexts, the others mark; nothing is copied or waited for. Deterministic, and equal
    on every rank.
    """

    def __init__(self, vllm_config: Any, where: Any, is_pin_memory: bool = False) -> None:
        settings = read_settings()
        model = vllm_config.model_config
        if getattr(model, "is_diffusion", False):
            raise InputError("model: got a diffusion model, expected one that writes from left to right")
        check_model_vocabulary(model.get_vocab_size(), settings.keys.profile.vocab_size)
        if settings.chooses:
            check_vllm_chooses_nothing(
                getattr(vllm_config, "watermark_config", None), getattr(model, "logprobs_mode", None)
            )
        drafts = getattr(vllm_config, "speculative_config", None)
        check_vllm_drafts(getattr(drafts, "rejection_sample_method", None))
        is_v2 = hasattr(where, "all_token_ids")
        device = torch.device(where.device if is_v2 else where)
        if device.type not in ("cpu", "cuda"):
            raise BackendUnavailable(f"device: got {device}, expected the CPU or CUDA")
        request_keys = RequestKeys(getattr(vllm_config, "instance_id", None) or None)
        self._marker: Any = (
            V2Marker(settings, request_keys, where, device, end_of_text(vllm_config))
            if is_v2
            else V1Marker(settings, request_keys, device, end_of_text(vllm_config))
        )
        if device.type == "cuda":
            prepare(self._marker.keys, device)  # now, not in the first request

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Check a request as it arrives.

        Args:
            sampling_params: its `SamplingParams`.

        Raises:
            InputError: a ValueError, which vLLM answers with HTTP 400: an agent that is not in the registry,
                an unknown argument, no agent although `IET_REQUIRE_AGENT` is set, or sampling in a way that
                family "gumbel" cannot mark.
        """
        try:
            settings = read_settings()
        except IetError as error:
            # vLLM shows clients the text of a ValueError only, and this one must not name paths.
            report(f"no request can be marked: {error}")
            raise InputError(
                "this server cannot mark text: its registry or a setting of its environment cannot be read;"
                " its log says why"
            ) from None
        try:
            settings.check(sampling_params)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"the request cannot be read ({type(error).__name__})") from None

    def is_argmax_invariant(self) -> bool:
        """Return False: a mark may change which token is the likeliest."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Update the rows of the V1 runner's batch: requests removed, added and moved since the last step.

        Args:
            batch_update: its `BatchUpdate`, or None.
        """
        self._marker.update(batch_update)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Add a request of the V2 runner; it replaces the previous one in its slot.

        Args:
            req_idx: the slot.
            sampling_params: of the request.

        Returns:
            Whether it is marked.
        """
        return bool(self._marker.add(req_idx, sampling_params))

    def apply_staged_writes(self) -> None:
        """Copy the V2 runner's new requests to the device; raise an error that an earlier step found."""
        self._marker.flush()

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        """Mark the rows of a step in place, and return them.

        Args:
            logits: float32 [rows, >= V].
            ctx: the V2 runner's `LogitsContext`.

        If a step cannot be marked, its marked requests end (see `force_eos_`). If a context holds a
        placeholder, the V1 runner ends that request, and the V2 runner on a CPU the requests of the step. On
        CUDA the V2 runner leaves the row unmarked, and a later `apply_staged_writes` raises an error.
        """
        marked: torch.Tensor = self._marker.apply(logits, ctx)
        return marked


preload()
