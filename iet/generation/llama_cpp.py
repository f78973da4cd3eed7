"""Marking in llama.cpp, through llama-cpp-python.

    llm = llama_cpp.Llama("model.gguf", n_ctx=4096)
    marking = llama_cpp.LogitsProcessorList([LogitsProcessor(registry, "planner", 0.7, model=llm)])
    llm.create_completion(prompt, temperature=0.7, logits_processor=marking)

The engine calls processors from C, which prints exceptions and ignores them: the text would continue without
a mark. So all errors are raised when the processor is made. It cannot detect two problems (0.3.36): with
`logit_bias=` and `logits_processor=` together the engine drops both, and `llama_cpp.server` takes no
processors.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError, check_number
from iet.generation.checks import Floor, before_temperature, check_model_vocabulary, check_registry
from iet.generation.free import FreeTokens, check_seed, request_key
from iet.kernels import choose, embed_
from iet.marks.registry import Registry
from iet.native.reference import is_marked_id


class LogitsProcessor:
    """Mark one agent's tokens, before the engine's own samplers run.

        logits[v] += κ·T·φ(P(k_π, v)),    k_π the hash of the context under the agent's key

    With family "gumbel" it draws the token itself, from the distribution that the engine's chain would have
    with `top_k`, `top_p`, `min_p` and `temperature`, and masks all other tokens:

        argmax_v over kept tokens of ℓ(v) / T - log(-log u(k_π, v)),    the rest becomes -inf

    The engine's own `top_k` and similar options have no effect on such a token. Penalties and a grammar must
    not be used, because the engine applies them later. k_π holds how often the context occurred earlier in
    the ids, prompt included.

    The context consists of ids of prompt and answer. With a chat template's special token in its context, a
    token is not marked. With family "gumbel" the first tokens of an answer, and a small share of the others,
    are left to the engine's samplers (`FreeTokens`), so that the same prompt gets different answers. Ids
    that do not extend those of the last call by one token start a new request, so a processor serves many
    requests in sequence.

    Args:
        registry: holds the agent's key.
        agent: its name.
        temperature: as passed to the engine, at least 0.1; 1.0 if it does not divide (`temperature=0`, or
            mirostat). Required unless the placement is "raw".
        model: the `llama_cpp.Llama`.
        profile: id of a profile that the agent must belong to. Default: its own.
        top_k: for family "gumbel": number of tokens to keep, not 1; 0 or less: all. Default: the engine's.
        top_p: for family "gumbel": share of the probability to keep, 0.1 to 1.
        min_p: for family "gumbel": minimum probability relative to the likeliest token, 0 to 0.9.
        free: the free tokens of family "gumbel".
        seed: any integer; with the number of the request it selects the free tokens after the first ones.
            None: a random one.
        session: id of the session whose keys mark the text (`Registry.session`). None: the agent's own keys.

    Raises:
        RegistryError: the agent is unknown, or has another profile.
        InputError: the temperature is missing, or a value is out of range; or the values leave family
            "gumbel" no choice; or the model has a draft model: then the engine shows ids beyond the sampled
            position.
        ShapeError: the model's vocabulary is smaller than V.

    A call costs O(V), with family "gumbel" also O(T·n + top_k·log top_k). Deterministic.
    """

    def __init__(
        self,
        registry: Registry,
        agent: str,
        temperature: float | None = None,
        *,
        model: Any,
        profile: str | None = None,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        free: FreeTokens = FreeTokens(),  # noqa: B008  # frozen
        seed: int | None = None,
        session: str | None = None,
    ) -> None:
        check_registry(registry)
        registry = registry if session is None else registry.session(session)
        self._keys = registry.marking_keys(registry.profile_of(agent).id)
        self._key = registry.slot(agent, profile)
        scheme, vocab_size = self._keys.profile.scheme, self._keys.profile.vocab_size
        self._scale = before_temperature(scheme, temperature)
        self._context_len = scheme.n_gram - 1
        if isinstance(top_k, bool) or not isinstance(top_k, int):
            raise InputError(f"top_k: got {top_k!r:.80}, expected an int")
        if not 0 < top_p <= 1:
            raise InputError(f"top_p: got {top_p!r:.80}, expected a number above 0, at most 1")
        check_number("min_p", min_p, 0, 1, integer=False)
        if self._keys.profile.family.chooses:
            Floor().check(self._scale, top_k, top_p, min_p)
        elif self._scale < Floor.temperature:
            raise InputError(
                f"temperature: got {self._scale:g}, expected at least {Floor.temperature:g}, or 1.0 if the"
                " engine does not divide: below, the shift κ·T is too small to change a token"
            )
        if not isinstance(free, FreeTokens):
            raise InputError(f"free: got {type(free).__name__}, expected iet.FreeTokens")
        check_seed(seed)
        self._filters = top_k, top_p, min_p
        self._free, self._seed = free, secrets.token_hex(16) if seed is None else int(seed)
        self._last: NDArray[np.intc] = np.zeros(0, np.intc)  # ids of the last call
        self._requests = 0  # number of requests so far
        self._start = 0  # length of the last request's prompt
        if not callable(getattr(model, "n_vocab", None)):
            raise InputError(f"model: got {type(model).__name__}, expected llama_cpp.Llama")
        check_model_vocabulary(model.n_vocab(), vocab_size)
        if getattr(model, "draft_model", None) is not None:
            raise InputError(
                "model: got one with a draft_model, under which the ids that a processor is shown go beyond"
                " the position that is sampled; expected one without"
            )

    def __call__(self, input_ids: NDArray[np.intc], scores: NDArray[np.single]) -> NDArray[np.single]:
        """Mark `scores` in place and return them.

        Args:
            input_ids: integers [T], the prompt and the output so far.
            scores: float32 [>= V] with any stride, because it is one field of the engine's records.
        """
        chooses = self._keys.profile.family.chooses
        if chooses and self._is_free(input_ids):
            return scores
        if len(input_ids) < self._context_len:  # such a position is not scored
            return scores
        context = input_ids[len(input_ids) - self._context_len :]
        profile = self._keys.profile
        if not chooses:
            embed_(scores[None], context[None], [self._key], self._keys, temperature=self._scale)
            return scores
        if not is_marked_id(context, profile.vocab_size, profile.unmarked_ids).all():
            return scores
        earlier = np.lib.stride_tricks.sliding_window_view(input_ids, self._context_len)[:-1]
        count = int((earlier == context).all(axis=1).sum())
        final = _filtered(np.array(scores), *self._filters) / np.float32(self._scale)
        token = int(choose(final[None], context[None], [self._key], self._keys, counts=[count])[0])
        if token < 0:  # no token is left
            return scores
        logit = scores[token]
        scores[:] = -np.inf
        scores[token] = logit
        return scores

    def _is_free(self, input_ids: NDArray[np.intc]) -> bool:
        """Return whether the token after these ids is free."""
        last = self._last
        if len(input_ids) != len(last) + 1 or not np.array_equal(input_ids[:-1], last) or not self._requests:
            self._requests, self._start = self._requests + 1, len(input_ids)
        self._last = np.array(input_ids)
        name = request_key(self._seed, self._requests)
        position = np.array([len(input_ids) - self._start])
        return bool(self._free.are_free(np.array([name]), position)[0])


def _filtered(logits: NDArray[np.single], top_k: int, top_p: float, min_p: float) -> NDArray[np.single]:
    """Return logits [V] with -inf for tokens that the engine drops: by top-k, then by top-p, then by min-p.

    As in the engine, the temperature comes later.
    """
    order = np.arange(len(logits))
    if 0 < top_k < len(logits):
        order = np.argpartition(logits, -top_k)[-top_k:]
    order = order[np.argsort(-logits[order], kind="stable")]
    if top_p < 1:
        shares = np.exp(logits[order] - logits[order[0]])
        order = order[: 1 + int((np.cumsum(shares / shares.sum()) < top_p).sum())]
    if min_p > 0:
        order = order[logits[order] >= logits[order[0]] + np.log(np.float32(min_p))]
    filtered = np.full_like(logits, -np.inf)
    filtered[order] = logits[order]
    return filtered
