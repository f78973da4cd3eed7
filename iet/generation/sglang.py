"""Marking in SGLang: a custom logit processor, and the keys of SGLang's own watermark for the gateway.

    IET_REGISTRY=team.json python -m sglang.launch_server --model-path MODEL \\
        --enable-custom-logit-processor --disable-overlap-schedule
    client.chat.completions.create(..., extra_body=iet.agents.body("planner", engine="sglang"))

**`--disable-overlap-schedule` is required.** Under overlap scheduling SGLang samples a token before it has
written the previous one into the request, so the context would be stale and the mark lost. The processor
detects
this: SGLang counts the positions of a request when it schedules them, and then the count exceeds the ids.

**An error ends one request, not the server.** An exception in a sampler would end SGLang's scheduler with all
requests. So a request that cannot be marked is aborted with the reason, as SGLang aborts requests itself: the
client gets HTTP 400 for an agent that is not in the registry, else 500.

Speculative decoding: requests under algorithms that show a processor their draft rows (DFLASH) are aborted.
The other algorithms never call a processor (sgl-project/sglang#26330), so their text carries no mark.

With `--enable-watermark` instead, SGLang marks by itself, also on CUDA graphs, under overlap scheduling and
with drafts. It takes a key with each request: see `native_watermark`. SGLang does not combine the two.
"""

from __future__ import annotations

import functools
import importlib
import logging
import warnings
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import numpy as np

from iet.errors import IetError, InputError, RegistryError, check_number, shown
from iet.generation.agents import AGENT_FIELD, SESSION_FIELD, SGLANG_PROCESSOR, session_of_request
from iet.generation.checks import MAX_TEMPERATURE, Floor, check_registry, switch
from iet.generation.contexts import SequenceContexts
from iet.generation.free import FreeTokens, check_seed, free_of_environment, request_key, warn_of_limit
from iet.generation.sessions import SessionRow, SessionRows
from iet.marks.registry import Registry
from iet.native.filters import NO_FILTER, filter_of

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

MAX_CONTEXT_WINDOW = 64
"""The longest context that SGLang's own watermark takes."""

_CONTEXTS, _SESSION_ROW = "__iet_contexts__", "__iet_row__"


class IETLogitsProcessor:
    """Mark the rows of requests that name an agent, after penalties, before temperature.

        logits[i, v] += κ·T_i·φ(P(k_π, v)),    k_π the hash of row i's context under the key of its agent

    With family "gumbel" it chooses the token itself, from the distribution that SGLang would draw from:

        argmax_v over kept tokens of ℓ_i(v) / T_i - log(-log u(k_π, v)),    its logit becomes the largest

    A request may also name a session under "iet_session": then the agent's keys in that session mark it
    (`Registry.session`).

    With family "gumbel" the first tokens of an answer, and a small share of the others, are left to SGLang's
    own sampler (`FreeTokens`; IET_FREE_FIRST and IET_FREE_RATE on the server), so that the same prompt gets
    different answers. They depend on the request's `sampling_seed`, or else on its id, which is
    equal on every rank.

    In this family k_π holds how often the context occurred earlier in the sequence, prompt included. Greedy
    requests are refused, because they draw nothing. So are requests for log-probabilities, because SGLang
    would take them from the masked row.

    SGLang makes an instance from the name in a request (`iet.agents.body`), so instances hold no keys. The
    registry is the one that IET_REGISTRY names on the server, read once per process; IET_SECRET_MOUNT=1
    accepts a read-only mount of any file mode. Restart the server after a rotation. Importing this module
    loads neither SGLang nor torch.
    """

    @classmethod
    def to_str(cls) -> str:
        """Return the name of this class for a request, as SGLang's processors do."""
        return SGLANG_PROCESSOR

    def __call__(
        self, logits: torch.Tensor, custom_param_list: Sequence[dict[str, Any] | None] | None = None
    ) -> torch.Tensor:
        """Mark `logits` in place and return them.

        Args:
            logits: floating-point [B, >= V], one row per sampled position.
            custom_param_list: B dicts with the agent under "iet_agent" and SGLang's request under "__req__".

        A row without its request stays unmarked, with a warning; any other problem ends its request.
        Deterministic. O(B·V).
        """
        batches: dict[str, _Batch] = {}  # by id of the profile
        previous = None
        for row, arguments in enumerate(custom_param_list or ()):
            request = arguments.get("__req__") if isinstance(arguments, dict) else None
            if arguments is None or request is None:
                warnings.warn(
                    "a request carries iet's processor but no custom_params: it is not marked;"
                    ' iet.agents.body(agent, engine="sglang") gives both',
                    stacklevel=2,
                )
                continue
            try:
                if arguments is previous:
                    raise _ServerError(
                        "speculative decoding shows several positions of a request without their drafts, so"
                        " no context is known: serve without it, or use SGLang's own watermark"
                    )
                sessions, slot = _key(arguments.get(AGENT_FIELD))
                keys = sessions.own
                chooses = keys.profile.family.chooses
                check_seed(request.sampling_params.sampling_seed)
                if chooses:
                    _check_drawn(request)
                context_len = keys.profile.scheme.n_gram - 1
                contexts = _contexts(arguments, request, context_len, chooses)
                context = contexts.last()
                _check_context(request, context)
                # Without enough ids before it, a position is not scored.
                if len(context) == context_len and not (chooses and _is_free(request)):
                    count = contexts.times_before() if chooses else 0
                    batch = batches.setdefault(keys.profile.id, _Batch(sessions, logits))
                    key = _of_session(sessions, slot, arguments)
                    batch.add(row, request, context, count, key)
            except Exception as error:  # an error in a request's data ends only this request
                _abort(request, error)
            previous = arguments
        for batch in batches.values():
            batch.mark(logits)
        return logits


class _ServerError(IetError):
    """The server's configuration does not allow marking."""


class _Batch:
    """The rows of one profile; rows of other profiles have slot -1, without cost."""

    def __init__(self, sessions: SessionRows, logits: torch.Tensor) -> None:
        from iet.generation.sampling import HostRows

        self.sessions, self.scheme = sessions, sessions.own.profile.scheme
        self.rows = HostRows(len(logits), self.scheme.n_gram - 1, logits.device)
        self.requests: list[Any] = []

    def add(self, row: int, request: Any, context: Sequence[int], count: int, slot: int) -> None:
        temperature, filter_ = 1.0, NO_FILTER
        if self.scheme.placement != "raw":
            # SGLang will divide by this; it is 1 for greedy requests.
            temperature = request.sampling_params.temperature
            if not 0 < temperature <= MAX_TEMPERATURE:  # embed_ would refuse the other rows with it
                raise InputError(f"temperature: got {temperature}, expected at most {MAX_TEMPERATURE:g}")
            _of_environment()[1].check_shifted(temperature)
        if self.sessions.own.profile.family.chooses:
            filter_ = _filter_of(request.sampling_params)
        self.rows.add(row, context, slot, count, temperature, filter_)
        self.requests.append(request)

    def mark(self, logits: torch.Tensor) -> None:
        """Mark the rows in place, or end their requests if that fails."""
        try:
            self.sessions.send(logits.device)
            self.rows.mark_(logits, self.sessions.keys)
        except Exception as error:  # no CUDA module, wrong model, memory: the logits are unchanged
            for request in self.requests:
                _abort(request, _ServerError(str(error)))


def _filter_of(params: Any) -> tuple[Any, ...]:
    """Return the filter of SGLang's `SamplingParams`.

        p = softmax(ℓ / T);  keep the top_k likeliest tokens;  the fewest of them with probability top_p
        (with min_p under FlashInfer: top_p of the probability that top_k keeps);  p >= min_p·max p

    Under FlashInfer a request with min_p changes the top_p of the other requests; here only its own.
    """
    share_of = "top_k" if params.min_p > 0 and _samples_with_flashinfer() else "all"
    return filter_of(params.min_p, params.top_k, params.top_p, share_of)


@functools.cache
def _samples_with_flashinfer() -> bool:
    kernel = importlib.import_module("sglang.srt.runtime_context").get_exec().kernel
    return kernel.sampling_backend in ("flashinfer", "intel_xpu")


def _is_free(request: Any) -> bool:
    """Return whether the next token of a request is free."""
    seed = request.sampling_params.sampling_seed
    name = request_key(f"id {request.rid}" if seed is None else f"seed {seed}")
    position = np.array([len(request.output_ids)])
    return bool(_of_environment()[0].are_free(np.array([name]), position)[0])


@functools.cache
def _of_environment() -> tuple[FreeTokens, Floor]:
    """Return the free tokens and the floor of the server's environment."""
    try:
        return free_of_environment(), Floor.of_environment()
    except InputError as error:  # not the client's mistake
        raise _ServerError(str(error)) from None


def _of_session(sessions: SessionRows, row: int, arguments: dict[str, Any]) -> int:
    """Return the key row of the request's session, or `row` if it has none."""
    if arguments.get(SESSION_FIELD) is None:
        return row
    session = session_of_request(arguments[SESSION_FIELD])
    reserved = arguments.get(
        _SESSION_ROW
    )  # stored in the request's arguments, so that it ends with the request
    if not isinstance(reserved, SessionRow) or not sessions.is_reserved(reserved, row, session):
        reserved = arguments[_SESSION_ROW] = sessions.take(row, session)
    return reserved.row


def _check_context(request: Any, context: Sequence[int]) -> None:
    """Raise a _ServerError if the last ids of a request are stale, or one of them is a placeholder."""
    prompt, output = request.origin_input_ids, request.output_ids
    try:
        scheduled = request.kv.kv_committed_len
    except AttributeError:
        raise _ServerError(
            "this SGLang does not say how many positions of a request are scheduled, so that a stale context"
            " would not be noticed; expected 0.5.23, or a release that says it the same way"
        ) from None
    if scheduled > len(prompt) + len(output):
        raise _ServerError(
            f"stale context: {scheduled} positions are scheduled, but {len(prompt) + len(output)} ids are"
            " known, so the mark would be lost. Overlap scheduling samples before the last id is known:"
            " launch the server with --disable-overlap-schedule"
        )
    if min(context, default=0) < 0:
        raise _ServerError(
            f"context: got {min(context)}, a placeholder, expected the ids that were sampled: launch the"
            " server with --disable-overlap-schedule"
        )


def _check_drawn(request: Any) -> None:
    """Raise an InputError if family "gumbel" cannot mark a request, or would change its answer."""
    params = request.sampling_params
    for name in ("temperature", "top_k", "top_p", "min_p"):  # an invalid value would stop the whole batch
        value = getattr(params, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e18:
            raise InputError(f"{name}: got {shown(value)}, expected a finite number")
    free, floor = _of_environment()
    floor.check(params.temperature, params.top_k, params.top_p, params.min_p)
    limit = getattr(params, "max_new_tokens", None)
    if isinstance(limit, int) and limit <= free.first:
        warn_of_limit(_log, "max_new_tokens", limit, free.first)
    if request.return_logprob:
        raise InputError(
            'logprobs: got a request for them, expected none: with family "gumbel" SGLang would tell those of'
            " the one token that is left to draw"
        )


def _contexts(arguments: dict[str, Any], request: Any, context_len: int, counted: bool) -> SequenceContexts:
    """Return the contexts of a request, stored in its arguments, so that they end with it."""
    contexts = arguments.get(_CONTEXTS)
    # A client may have sent anything under this name.
    if not isinstance(contexts, SequenceContexts) or contexts.output is not request.output_ids:
        contexts = SequenceContexts(context_len, request.origin_input_ids, request.output_ids, counted)
        arguments[_CONTEXTS] = contexts
    return contexts


def _key(agent: object) -> tuple[SessionRows, int]:
    """Return the keys of the agent's profile and its slot."""
    if agent is None:
        raise InputError(f'custom_params: "{AGENT_FIELD}" is missing; expected the name of an agent')
    registry = _registry()
    if not isinstance(agent, str) or agent not in registry:
        raise InputError(f"{AGENT_FIELD}: got {shown(agent)}, which is no agent of this server's registry")
    profile = registry.profile_of(agent)
    return _sessions(registry, profile.id), registry.slot(agent)


@functools.cache
def _sessions(registry: Registry, profile: str) -> SessionRows:
    return SessionRows(registry, registry.marking_keys(profile))


@functools.cache
def _registry() -> Registry:
    try:
        return Registry.load(secret_mount=switch("IET_SECRET_MOUNT"))
    except InputError as error:  # not the client's mistake
        raise RegistryError(str(error)) from None


def _abort(request: Any, error: Exception) -> None:
    """End a request with the reason; paths appear in the log only, not in the client's message."""
    message, status = str(error), HTTPStatus.INTERNAL_SERVER_ERROR
    if isinstance(error, InputError):
        status = HTTPStatus.BAD_REQUEST
    elif not isinstance(error, _ServerError):
        _log.error("a request cannot be marked, and is ended: %s: %s", type(error).__name__, error)
        message = f"this server cannot mark the text ({type(error).__name__}); its log says why"
    try:
        if request.to_finish is None:
            finish = importlib.import_module("sglang.srt.managers.schedule_batch").FINISH_ABORT
            request.to_finish = finish(f"iet: {message}", status, type(error).__name__)
    except ReferenceError:  # the request is gone
        pass


class _Key(str):
    __slots__ = ()

    def __repr__(self) -> str:  # JSON still holds the key
        return "<key>"


def native_watermark(registry: Registry, agent: str, *, context_window: int = 4) -> dict[str, Any]:
    """Return the field `watermark` of a request, for SGLang's own watermark with this agent's key.

        request["watermark"] = native_watermark(registry, agent)

    For a gateway that holds the registry, in front of a server with `--enable-watermark`. The field holds a
    key, so only the gateway may add it to a request. The key is derived from the agent's secret and is of no
    other use. SGLang's keys have 64 bits, and its hash is not cryptographic: see its README for the
    consequences.

    Args:
        registry: holds the agent's key.
        agent: its name.
        context_window: number of ids that the mark hashes, 1 to 64, at most the server's.

    Returns:
        A new dict, which JSON can hold. Its repr shows no key; its JSON does.

    Raises:
        InputError: `registry` is not a registry, or `context_window` is out of range.
        RegistryError: the agent is unknown.
    """
    check_registry(registry)
    check_number("context_window", context_window, 1, MAX_CONTEXT_WINDOW)
    key = registry.engine_keys("sglang", agent=agent)[-1].key
    return {"enabled": True, "key": _Key(key.hex()), "context_window": context_window}
