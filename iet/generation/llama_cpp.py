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

from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError
from iet.generation.checks import before_temperature, check_model_vocabulary, check_registry
from iet.kernels import embed_
from iet.marks.registry import Registry


class LogitsProcessor:
    """Add κ·temperature·φ to the logits of one agent's tokens, before the engine's own samplers.

    Stateless: the context is read off the ids, prompt included, so one processor serves many calls. A chat
    template's special tokens count among them, and a context that holds one is not marked.

    Args:
        registry: holds the agent's key.
        agent: its name.
        temperature: the one passed to the engine, > 0; 1.0 where it divides by none (`temperature=0`, or
            mirostat). Needed unless the placement is "raw".
        model: the `llama_cpp.Llama` that it is for.
        profile: id of a profile that the agent must belong to. Default: its own.

    Raises:
        RegistryError: unknown agent, or it has another profile.
        InputError: no temperature, or one out of range; a scheme of family "gumbel"; or a model with a draft
            model, under which the engine shows ids beyond the position that is sampled.
        ShapeError: the model's vocabulary is smaller than V.

    A call costs O(V) and is deterministic.
    """

    def __init__(
        self,
        registry: Registry,
        agent: str,
        temperature: float | None = None,
        *,
        model: Any,
        profile: str | None = None,
    ) -> None:
        check_registry(registry)
        self._slot = registry.slot(agent, profile)
        self._keys = registry.marking_keys(registry.profile_of(agent).id)
        scheme, vocab_size = self._keys.profile.scheme, self._keys.profile.vocab_size
        self._scale = before_temperature(scheme, temperature, "use another family with llama.cpp")
        self._words = scheme.n_gram - 1
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
        if len(input_ids) >= self._words:  # else such a position is not scored either
            context = input_ids[len(input_ids) - self._words :]
            embed_(scores[None], context[None], [self._slot], self._keys, temperature=self._scale)
        return scores
