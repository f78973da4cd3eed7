"""Marking in SGLang: a custom logit processor, and the keys of SGLang's own watermark for the gateway.

    IET_REGISTRY=team.json python -m sglang.launch_server --model-path MODEL \\
        --enable-custom-logit-processor --disable-overlap-schedule
    client.chat.completions.create(..., extra_body=iet.agents.body("planner", engine="sglang"))

**`--disable-overlap-schedule` is needed.** Under overlap scheduling SGLang samples a token before it has
written the one before it into the request, so the context would be stale and the mark lost. It is noticed
here: SGLang counts the positions of a request when it schedules them, so more of them than ids are there say
that one is missing.

**What is refused ends the request, not the server.** An exception in a sampler ends SGLang's scheduler, and
all requests with it. So a request that cannot be marked is aborted with the reason, as SGLang aborts requests
itself: the client gets HTTP 400 for an agent that is not in the registry, else 500.

Speculative decoding: the algorithms that show a processor their draft rows (DFLASH) are refused as above. The
others never call it (sgl-project/sglang#26330), which nobody here can notice: their text carries no mark.

With `--enable-watermark` instead, SGLang marks by itself, also on CUDA graphs, under overlap scheduling and
with drafts; the two exclude each other there. It takes a key with each request: see `native_watermark`.
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

from iet.errors import IetError, InputError, RegistryError
from iet.generation.agents import AGENT_FIELD, SESSION_FIELD, SGLANG_PROCESSOR, session_of_request
from iet.generation.checks import check_registry, shown, switch
from iet.generation.contexts import SequenceContexts
from iet.generation.free import FreeTokens, check_seed, free_of_environment, request_key
from iet.generation.sessions import HeldRow, SessionRows
from iet.kernels import embed_
from iet.marks.registry import Registry

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

MAX_CONTEXT_WINDOW = 64
"""The longest context that SGLang's own watermark takes."""

_MAX_TEMPERATURE = 1e6
_CONTEXTS, _HELD = "__iet_contexts__", "__iet_row__"


class IETLogitsProcessor:
    """Mark the rows of requests that name an agent, after penalties, before temperature.

        logits[i, v] += κ·T_i·φ(P(k_π, v)),    k_π the hash of row i's context under the key of its agent

    With family "gumbel" it chooses the token itself, from the distribution that SGLang would draw from, and
    leaves only that token in the row, so that SGLang draws it:

        argmax_v over kept tokens of ℓ_i(v) / T_i - log(-log u(k_π, v)),    the rest of the row becomes -inf

    A request may name a session under "iet_session" beside the agent: then the agent's keys in that session
    mark it (`Registry.session`).

    With family "gumbel" the first tokens of an answer, and a small share of the others, are left to SGLang's
    own sampler (`FreeTokens`; IET_FREE_FIRST and IET_FREE_RATE on the server), so that the same prompt gets
    different answers. A request chooses its own: by its `sampling_seed` if it has one, else by its id, which
    is the same on every rank.

    There k_π holds how often the context stands earlier in the sequence, prompt included. Refused are greedy
    requests, which draw nothing, and those that ask for log-probabilities, because SGLang takes them from the
    row that is left.

    SGLang makes an instance from the name that a request carries (`iet.agents.body`), so none holds a key:
    the registry is the one that IET_REGISTRY names on the server, read once per process; IET_SECRET_MOUNT=1
    accepts a read-only mount of any file mode. Restart the server after a rotation. No base class of SGLang's
    is needed, and importing this loads neither SGLang nor torch.
    """

    @classmethod
    def to_str(cls) -> str:
        """Return what stands for this class in a request, as SGLang's processors do."""
        return SGLANG_PROCESSOR

    def __call__(
        self, logits: torch.Tensor, custom_param_list: Sequence[dict[str, Any] | None] | None = None
    ) -> torch.Tensor:
        """Mark `logits` in place and return them.

        Args:
            logits: floating-point [B, >= V], one row per position that is sampled.
            custom_param_list: B dicts with the agent under "iet_agent" and SGLang's request under "__req__".

        A row whose request is not there is left unmarked with a warning; what else cannot be marked ends its
        request. Deterministic. O(B·V).
        """
        batches: dict[str, _Batch] = {}  # by profile
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
                scheme = keys.profile.scheme
                context = _context(request, scheme.n_gram - 1)
                if context is not None and not (chooses and _is_free(request)):
                    count = _times_before(arguments, request, len(context)) if chooses else 0
                    batch = batches.setdefault(keys.profile.id, _Batch(sessions, len(logits)))
                    key = _of_session(sessions, slot, arguments)
                    batch.add(row, request, context, count, key)
            except Exception as error:  # whatever a request holds, only its own text ends
                _abort(request, error)
            previous = arguments
        for batch in batches.values():
            batch.mark(logits)
        return logits


class _ServerError(IetError):
    """The server is not set up so that it can mark."""


class _Batch:
    """What embed_ takes for the agents of one profile; rows of nobody have slot -1, which costs nothing."""

    def __init__(self, sessions: SessionRows, rows: int) -> None:
        self.sessions, self.scheme = sessions, sessions.own.profile.scheme
        self.contexts = np.zeros((rows, self.scheme.n_gram - 1), dtype=np.int64)
        self.counts = np.zeros(rows, dtype=np.int64)
        self.slots = np.full(rows, -1, dtype=np.int32)
        self.temperatures = np.ones(rows, dtype=np.float32)
        self.requests: list[Any] = []

    def add(self, row: int, request: Any, context: list[int], count: int, slot: int) -> None:
        if self.scheme.placement != "raw":
            # What SGLang will divide by, which it sets to 1 where it samples greedily.
            temperature = request.sampling_params.temperature
            if not 0 < temperature <= _MAX_TEMPERATURE:  # embed_ would refuse the other rows with it
                raise InputError(f"temperature: got {temperature}, expected at most {_MAX_TEMPERATURE:g}")
            self.temperatures[row] = temperature
        self.contexts[row], self.counts[row], self.slots[row] = context, count, slot
        self.requests.append(request)

    def mark(self, logits: torch.Tensor) -> None:
        """Mark the rows in place; where that is refused, end their requests."""
        try:
            self.sessions.send(logits.device)
            if self.sessions.own.profile.family.chooses:
                self._choose(logits)
                return
            arrays: tuple[Any, Any, Any] = (self.contexts, self.slots, self.temperatures)
            if logits.device.type == "cuda":
                arrays = self.sent(logits.device)
            contexts, slots, temperatures = arrays
            embed_(logits, contexts, slots, self.sessions.keys, temperature=temperatures)
        except Exception as error:  # no CUDA module, another model's logits, memory: nothing was written
            for request in self.requests:
                _abort(request, _ServerError(str(error)))

    def sent(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return contexts, slots and temperatures on a device: one copy, for which nobody waits.

        The staging memory is new each step: torch gives pinned memory out again when its copy is done.
        """
        import torch

        rows, words = self.contexts.shape
        on_cuda = device.type == "cuda"
        staged = torch.empty(rows, words + 2, dtype=torch.int64, pin_memory=on_cuda)
        values = staged.numpy()
        values[:, :words], values[:, words], values[:, words + 1] = self.contexts, self.slots, 0
        values.view(np.float32)[:, -2] = self.temperatures  # the first half of the last column
        there = staged.to(device, non_blocking=True)
        return there[:, :words], there[:, words], there.view(torch.float32)[:, -2]

    def _choose(self, logits: torch.Tensor) -> None:
        """Leave one token in each of the rows."""
        import torch

        from iet.generation.sampling import ContextIds, leave_one

        places = np.flatnonzero(self.slots >= 0)  # in the order of the requests
        rows, contexts, counts, slots = (
            torch.from_numpy(array).to(logits.device)
            for array in (places, self.contexts[places], self.counts[places], self.slots[places])
        )
        shown, fresh = (
            logits.index_select(0, rows),
            ContextIds(self.sessions.own.profile).are_marked(contexts),
        )
        noisy = _final_logits(shown, [request.sampling_params for request in self.requests])
        embed_(noisy, contexts, slots.masked_fill(~fresh, -1), self.sessions.keys, counts=counts)
        logits.index_copy_(0, rows, leave_one(noisy, shown, fresh))


def _final_logits(logits: torch.Tensor, params: Sequence[Any]) -> torch.Tensor:
    """Return what SGLang samples from, as float32 [B, V']: softmax of a row is the distribution of its token.

        p = softmax(ℓ / T);  kept: the top_k likeliest;  the fewest likeliest with top_p of all probability
        (with min_p under FlashInfer: of what top_k kept);  p >= min_p·max p

    Under FlashInfer a request with min_p changes how the others' top_p is counted; here only its own.

    Args:
        logits: floating-point [B, V'], left as they are.
        params: SGLang's `SamplingParams` of each row.
    """
    import torch

    columns, device = logits.shape[1], logits.device

    def values(name: str) -> torch.Tensor:
        return torch.tensor([[float(getattr(each, name))] for each in params], device=device)

    final = logits.float() / values("temperature")
    if all(each.top_k >= columns and each.top_p == 1 and each.min_p == 0 for each in params):
        return final
    shares, order = final.softmax(dim=-1).sort(dim=-1, descending=True)
    min_p = values("min_p")
    kept = torch.arange(columns, device=device) < values("top_k")
    if _samples_with_flashinfer():
        left = shares.masked_fill(~kept, 0)
        shares = torch.where(min_p > 0, left / left.sum(dim=-1, keepdim=True), shares)
    kept &= shares.cumsum(dim=-1) - shares <= values("top_p")
    kept &= shares >= min_p * shares[:, :1]
    return final.masked_fill_(~torch.empty_like(kept).scatter_(1, order, kept), -torch.inf)


@functools.cache
def _samples_with_flashinfer() -> bool:
    kernel = importlib.import_module("sglang.srt.runtime_context").get_exec().kernel
    return kernel.sampling_backend in ("flashinfer", "intel_xpu")


def _is_free(request: Any) -> bool:
    """Tell whether SGLang's sampler draws the next token of a request without a mark."""
    seed = request.sampling_params.sampling_seed
    name = request_key(f"id {request.rid}" if seed is None else f"seed {seed}")
    position = np.array([len(request.output_ids)])
    return bool(_free().are_free(np.array([name]), position)[0])


@functools.cache
def _free() -> FreeTokens:
    """Return the free tokens that the server's environment asks for."""
    try:
        return free_of_environment()
    except InputError as error:  # not the client's
        raise _ServerError(str(error)) from None


@functools.cache
def _warn_of_limit(limit: int, first: int) -> None:
    """Write once to the log that answers of this length are not marked."""
    _log.warning(
        "requests with max_new_tokens %d are not marked: the first %d tokens of an answer are free; ask for"
        " more tokens, or start the server with fewer free tokens (IET_FREE_FIRST)",
        limit,
        first,
    )


def _of_session(sessions: SessionRows, row: int, arguments: dict[str, Any]) -> int:
    """Return the row that marks in the request's session, or the one that it would have without."""
    given = arguments.get(SESSION_FIELD)
    if given is None:
        return row
    session = session_of_request(given)
    held = arguments.get(_HELD)  # where the request's own arguments are, and as long
    if not isinstance(held, HeldRow) or not sessions.holds(held, row, session):
        held = arguments[_HELD] = sessions.take(row, session)
    return held.row


def _context(request: Any, words: int) -> list[int] | None:
    """Return the `words` ids before the position that is sampled, or None where there are fewer."""
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
            " known, so the mark would be lost. Overlap scheduling samples before the last id is there:"
            " launch the server with --disable-overlap-schedule"
        )
    tail = list(output[max(0, len(output) - words) :])
    if len(tail) < words:
        tail = list(prompt[max(0, len(prompt) - (words - len(tail))) :]) + tail
    if len(tail) < words:  # such a position is not scored either
        return None
    if min(tail) < 0:
        raise _ServerError(
            f"context: got {min(tail)}, a placeholder, expected the ids that were sampled: launch the server"
            " with --disable-overlap-schedule"
        )
    return tail


def _check_drawn(request: Any) -> None:
    """Refuse a request that family "gumbel" cannot mark, or whose answer it would change."""
    if request.sampling_params.top_k == 1:  # what SGLang makes of temperature 0, too
        raise InputError(
            'temperature: got 0, or top_k 1, expected sampling: family "gumbel" marks by the way in which'
            " tokens are drawn, and greedy decoding draws none"
        )
    params = request.sampling_params
    for name in ("temperature", "top_k", "top_p", "min_p"):  # one row's would stop those of all
        value = getattr(params, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e18:
            raise InputError(f"{name}: got {shown(value)}, expected a finite number")
    limit = getattr(params, "max_new_tokens", None)
    if isinstance(limit, int) and limit <= _free().first:
        _warn_of_limit(limit, _free().first)
    if request.return_logprob:
        raise InputError(
            'logprobs: got a request for them, expected none: with family "gumbel" SGLang would tell those of'
            " the one token that is left to draw"
        )


def _times_before(arguments: dict[str, Any], request: Any, words: int) -> int:
    """Return how often the context of the position that is sampled stands earlier in its sequence."""
    contexts = arguments.get(_CONTEXTS)  # where the request's own arguments are, and as long
    # A client may have put anything there.
    if not isinstance(contexts, SequenceContexts) or contexts.output is not request.output_ids:
        contexts = SequenceContexts(words, request.origin_input_ids, request.output_ids, True)
        arguments[_CONTEXTS] = contexts
    return contexts.times_before()


def _key(agent: object) -> tuple[SessionRows, int]:
    """Return the keys of the agent's profile and its slot."""
    if agent is None:
        raise InputError(f'custom_params: "{AGENT_FIELD}" is not there; expected the name of an agent')
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
    except InputError as error:  # not the client's
        raise RegistryError(str(error)) from None


def _abort(request: Any, error: Exception) -> None:
    """End a request with the reason; where keys lie is in the log, and no client's business."""
    told, status = str(error), HTTPStatus.INTERNAL_SERVER_ERROR
    if isinstance(error, InputError):
        status = HTTPStatus.BAD_REQUEST
    elif not isinstance(error, _ServerError):
        _log.error("a request cannot be marked, and is ended: %s: %s", type(error).__name__, error)
        told = f"this server cannot mark the text ({type(error).__name__}); its log says why"
    try:
        if request.to_finish is None:
            finish = importlib.import_module("sglang.srt.managers.schedule_batch").FINISH_ABORT
            request.to_finish = finish(f"iet: {told}", status, type(error).__name__)
    except ReferenceError:  # the request is gone
        pass


class _Key(str):
    __slots__ = ()

    def __repr__(self) -> str:  # what JSON writes is the text itself
        return "<key>"


def native_watermark(registry: Registry, agent: str, *, context_window: int = 4) -> dict[str, Any]:
    """Return the field `watermark` with which SGLang's own watermark marks a request as this agent.

        request["watermark"] = native_watermark(registry, agent)

    For the gateway that holds the registry, behind which the server (`--enable-watermark`) stands: the field
    holds a key, so no agent's request may. The key is derived from the agent's secret and opens nothing else.
    SGLang takes 64 bits and a hash that is no cryptographic one: see its README for what that means.

    Args:
        registry: holds the agent's key.
        agent: its name.
        context_window: ids that the mark hashes, 1 to 64, at most the server's.

    Returns:
        A new dict, which JSON can hold. Its repr shows no key; its JSON does.

    Raises:
        InputError: no registry, or `context_window` out of range.
        RegistryError: unknown agent.
    """
    check_registry(registry)
    if isinstance(context_window, bool) or not isinstance(context_window, int):
        raise InputError(f"context_window: got {context_window!r:.80}, expected an integer")
    if not 1 <= context_window <= MAX_CONTEXT_WINDOW:
        raise InputError(f"context_window: got {context_window}, expected 1 to {MAX_CONTEXT_WINDOW}")
    key = registry.engine_keys("sglang", agent=agent)[-1].key
    return {"enabled": True, "key": _Key(key.hex()), "context_window": context_window}
