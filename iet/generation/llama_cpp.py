"""Marking in llama.cpp, through llama-cpp-python.

    llm = llama_cpp.Llama("model.gguf", n_ctx=4096)
    marking = llama_cpp.LogitsProcessorList([LogitsProcessor(registry, "planner", 0.7, model=llm)])
    llm.create_completion(prompt, temperature=0.7, logits_processor=marking)

The engine calls it from C, where an exception is printed and then ignored: the text would go on without a
mark. So whatever can be refused is refused when the processor is made. Two things it cannot see (0.3.36):
`logit_bias=` beside `logits_processor=` makes the engine drop both, and `llama_cpp.server` takes no
processors at all.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError
from iet.generation.checks import before_temperature, check_model_vocabulary, check_registry
from iet.generation.free import FreeTokens, check_seed, request_key
from iet.kernels import embed_
from iet.marks.registry import Registry
from iet.native.reference import is_marked_id


class LogitsProcessor:
    """Mark one agent's tokens, before the engine's own samplers.

        logits[v] += κ·T·φ(P(k_π, v)),    k_π the hash of the context under the agent's key

    With family "gumbel" it draws the token itself, as the engine's chain would from `top_k`, `top_p`, `min_p`
    and `temperature`, and leaves only that token, so that the engine draws it:

        argmax_v over kept tokens of ℓ(v) / T - log(-log u(k_π, v)),    the rest becomes -inf

    What is passed to the engine itself has no effect on such a token: not `top_k` and the like, and neither
    penalties nor a grammar, which the engine applies later, and which must not be used then. k_π
    holds how often the context stands earlier in the ids, prompt included.

    The context is read from the ids, prompt included. A chat template's special tokens count among them, and
    a context that holds one is not marked. With family "gumbel" the first tokens of an answer, and a small
    share of the others, are left to the engine's samplers (`FreeTokens`), so that the same prompt gets
    different answers. Ids that do not extend those of the last call by one token start a new request, so one
    processor serves many requests, one after the other.

    Args:
        registry: holds the agent's key.
        agent: its name.
        temperature: the one passed to the engine, > 0; 1.0 where it divides by none (`temperature=0`, or
            mirostat). Needed unless the placement is "raw".
        model: the `llama_cpp.Llama` that it is for.
        profile: id of a profile that the agent must belong to. Default: its own.
        top_k: of family "gumbel": number of tokens that are kept, 0 or less: all. Default: the engine's.
        top_p: likewise: share of the probability that is kept, above 0, at most 1.
        min_p: likewise: kept tokens have at least this share of the likeliest one's, 0 to 1.
        free: likewise: the free tokens.
        seed: likewise: any integer; it and the number of the request choose the free tokens after the first
            ones. None: drawn from the operating system.
        session: id of the session under whose keys the text is marked (`Registry.session`). None: the
            agent's own.

    Raises:
        RegistryError: unknown agent, or it has another profile.
        InputError: no temperature, or a value out of range; or a model with a draft model, under which the
            engine shows ids beyond the position that is sampled.
        ShapeError: the model's vocabulary is smaller than V.

    A call costs O(V), with family "gumbel" also O(T·n + top_k·log top_k), and is deterministic.
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
        self._words = scheme.n_gram - 1
        if isinstance(top_k, bool) or not isinstance(top_k, int):
            raise InputError(f"top_k: got {top_k!r:.80}, expected an int")
        if not 0 < top_p <= 1:
            raise InputError(f"top_p: got {top_p!r:.80}, expected a number above 0, at most 1")
        if not 0 <= min_p <= 1:
            raise InputError(f"min_p: got {min_p!r:.80}, expected a number from 0 to 1")
        if not isinstance(free, FreeTokens):
            raise InputError(f"free: got {type(free).__name__}, expected iet.FreeTokens")
        check_seed(seed)
        self._filters = top_k, top_p, min_p
        self._free, self._seed = free, secrets.token_hex(16) if seed is None else int(seed)
        self._last: NDArray[np.intc] = np.zeros(0, np.intc)  # the ids of the last call
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
            input_ids: integers [T], prompt and output, the last one before the position that is sampled.
            scores: float32 [>= V] with any stride: the engine shows one field of its records.
        """
        chooses = self._keys.profile.family.chooses
        if chooses and self._is_free(input_ids):
            return scores
        if len(input_ids) < self._words:  # such a position is not scored either
            return scores
        context = input_ids[len(input_ids) - self._words :]
        profile = self._keys.profile
        if not chooses:
            embed_(scores[None], context[None], [self._key], self._keys, temperature=self._scale)
            return scores
        if not is_marked_id(context, profile.vocab_size, profile.unmarked_ids).all():
            return scores
        before = np.lib.stride_tricks.sliding_window_view(input_ids, self._words)[:-1]
        count = int((before == context).all(axis=1).sum())
        final = _kept(np.array(scores), *self._filters) / np.float32(self._scale)
        embed_(final[None], context[None], [self._key], self._keys, counts=[count])
        token = int(final.argmax())
        logit = scores[token]
        scores[:] = -np.inf
        scores[token] = logit
        return scores

    def _is_free(self, input_ids: NDArray[np.intc]) -> bool:
        """Tell whether the engine draws the token after these ids without a mark."""
        last = self._last
        if len(input_ids) != len(last) + 1 or not np.array_equal(input_ids[:-1], last) or not self._requests:
            self._requests, self._start = self._requests + 1, len(input_ids)
        self._last = np.array(input_ids)
        name = request_key(self._seed, self._requests)
        position = np.array([len(input_ids) - self._start])
        return bool(self._free.are_free(np.array([name]), position)[0])


def _kept(logits: NDArray[np.single], top_k: int, top_p: float, min_p: float) -> NDArray[np.single]:
    """Return logits [V] with -inf for what the engine drops: by top-k, then by top-p, then by min-p.

    All three come before the temperature there.
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
    kept = np.full_like(logits, -np.inf)
    kept[order] = logits[order]
    return kept
