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
from iet.marks.foreign.waterfall import WaterfallKeys, waterfall_permutation, waterfall_phi

try:
    import torch
    import transformers
except ImportError as error:
    raise missing(f"marking in transformers: {error}", "transformers") from None


class WaterfallLogitsProcessor(transformers.LogitsProcessor):
    """Mark logits as the Waterfall package marks them, to the bit: for `generate(logits_processor=[...])`.

        logits[i, v] += κ·φ(p[v]) for v in [0, V),    p = RandomState((id, *context)).permutation(V)

    The context of row i is its last n-1 ids; if an id of it is V or more, p is the identity. The first n-1
    generated tokens are not marked, because their contexts reach into the prompt.

    `generate` runs the processor before temperature, top-k and top-p. The package marks after them, as does
    `logits_processor=[TemperatureLogitsWarper(0.7), TopPLogitsWarper(0.9), this]` with `temperature=1.0,
    top_p=1.0, top_k=0` for `generate` itself.

    Args:
        keys: the agents and their integer ids.
        agents: one name per row of the prompt batch, None for an unmarked row; or one name for all rows.
            Rows that `generate` makes of one prompt (beams, num_return_sequences) share its agent.
        prompt_length: columns of `input_ids` before the first generated token, padding among them.
        kappa: κ, at least 0. The paper used 0.8; the package's defaults are 2 and 6.

    Raises:
        RegistryError: an agent is unknown.
        InputError: there are no agents, or a value is out of range.

    A call costs a shuffle of V entries on the CPU for each distinct pair of agent and context. For logits on
    another device the contexts are copied to the host and the perturbations [B, V] to the device, as in the
    package. It does not change `scores`. Deterministic.
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
        self._context_len = keys.profile.scheme.n_gram - 1
        self._first_marked = prompt_length + self._context_len
        self._prompt_length = prompt_length
        phi = waterfall_phi(keys.profile.vocab_size, keys.scheme.k_p)
        self._shift = torch.from_numpy(phi * kappa)
        self._rebuild = functools.partial(type(self), keys, agents, prompt_length=prompt_length, kappa=kappa)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._rebuild, ()

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return `scores` [B, >= V] with marks, for the position after `input_ids` [B, T].

        Raises:
            ShapeError: the rows are no multiple of the agents, a text is shorter than the prompt, or the
                logits are not floating-point numbers [B, >= V].
            InputError: the context of a marked row has a negative id.
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
        shifts: dict[tuple[int, ...], torch.Tensor] = {}
        for row, context in enumerate(input_ids[:, length - self._context_len :].tolist()):
            key = self._ids[row // repeats]
            if key is None:
                continue
            seed = (key, *context)
            if seed not in shifts:
                ranks = waterfall_permutation(key, context, vocab_size)
                shift = self._shift[torch.from_numpy(ranks.astype(np.int64))]
                shifts[seed] = shift.to(device=marked.device, dtype=marked.dtype)
            marked[row, :vocab_size] += shifts[seed]
        return marked
