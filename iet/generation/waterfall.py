"""Marking in transformers' `generate` as the Waterfall package marks."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from iet.errors import InputError, ShapeError, missing
from iet.generation.checks import names_of_rows, rows_of_a_prompt
from iet.marks.foreign.keys import checked_integer
from iet.marks.foreign.waterfall import WaterfallKeys, waterfall_permutation
from iet.native import foreign

try:
    import torch
    import transformers
except ImportError as error:
    raise missing(f"marking in transformers: {error}", "transformers") from None


class WaterfallLogitsProcessor(transformers.LogitsProcessor):
    """Mark logits as the Waterfall package marks them, to the bit: for `generate(logits_processor=[...])`.

        logits[i, v] += κ·φ(p[v]) for v in [0, V),    p = RandomState((id, *context)).permutation(V)

    where the context of row i is its last n-1 ids; with an id at or above V in it, p is the identity. The
    first n-1 generated tokens are not marked: their contexts reach into the prompt.

    κ is added where the processor stands. `generate` puts it before temperature, top-k and top-p; the package
    puts it after them, as does `logits_processor=[TemperatureLogitsWarper(0.7), TopPLogitsWarper(0.9), this]`
    with `temperature=1.0, top_p=1.0, top_k=0` for `generate` itself.

    Args:
        keys: the agents and their integer ids.
        agents: one name per row of the prompt batch, None for an unmarked row; or one name for all rows.
            Rows that `generate` makes of one prompt (beams, num_return_sequences) share its agent.
        prompt_length: columns of `input_ids` before the first generated token, padding among them.
        kappa: κ, at least 0. The paper used 0.8; the package's defaults are 2 and 6.

    Raises:
        RegistryError: unknown agent.
        InputError: no agents, or a value out of range.

    A call costs a shuffle of V entries for each distinct pair of agent and context, on the CPU; for logits on
    another device the contexts are copied to the host and the perturbations [B, V] to the device, as in the
    package. It leaves `scores` as they are and is deterministic.
    """

    def __init__(
        self, keys: WaterfallKeys, agents: str | Sequence[str | None], *, prompt_length: int, kappa: float
    ) -> None:
        if not isinstance(keys, WaterfallKeys):
            raise InputError(f"keys: got {type(keys).__name__}, expected iet.WaterfallKeys")
        names = names_of_rows(agents)
        prompt_length = checked_integer("prompt_length", prompt_length, 0, sys.maxsize)
        numbers = (int, float, np.integer, np.floating)
        if isinstance(kappa, bool) or not isinstance(kappa, numbers) or not 0 <= kappa < float("inf"):
            raise InputError(f"kappa: got {kappa!r}, expected a finite number of at least 0")
        kappa = float(kappa)
        self._ids = [None if name is None else keys.key(name) for name in names]
        self._words = keys.profile.scheme.n_gram - 1
        self._first_marked = prompt_length + self._words
        self._prompt_length = prompt_length
        phi = foreign.waterfall_phi(keys.profile.vocab_size, keys.scheme.k_p)
        self._shift = torch.from_numpy(phi * kappa)
        self._rebuild = functools.partial(type(self), keys, agents, prompt_length=prompt_length, kappa=kappa)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._rebuild, ()

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return `scores` [B, >= V] with marks, for the position after `input_ids` [B, T].

        Raises:
            ShapeError: rows that are no multiple of the agents, a text shorter than the prompt, fewer than
                V logits, or logits that are no floating-point numbers.
            InputError: a negative id in the context of a marked row.
        """
        vocab_size = len(self._shift)
        if input_ids.dim() != 2 or input_ids.shape[1] < self._prompt_length:
            raise ShapeError(
                "input_ids", got=f"shape {list(input_ids.shape)}", expected=f"[B, >= {self._prompt_length}]"
            )
        if scores.dim() != 2 or scores.shape[1] < vocab_size or not scores.is_floating_point():
            raise ShapeError(
                "scores",
                got=f"{scores.dtype} {list(scores.shape)}",
                expected=f"floating-point numbers [B, >= {vocab_size}]",
            )
        rows, length = input_ids.shape
        repeats = rows_of_a_prompt(rows, len(self._ids))
        if length < self._first_marked:
            return scores
        marked: torch.FloatTensor = scores.clone()  # type: ignore[assignment]
        made: dict[tuple[int, ...], torch.Tensor] = {}
        for row, context in enumerate(input_ids[:, length - self._words :].tolist()):
            key = self._ids[row // repeats]
            if key is None:
                continue
            seed = (key, *context)
            if seed not in made:
                ranks = waterfall_permutation(key, context, vocab_size)
                shift = self._shift[torch.from_numpy(ranks.astype(np.int64))]
                made[seed] = shift.to(device=marked.device, dtype=marked.dtype)
            marked[row, :vocab_size] += made[seed]
        return marked
