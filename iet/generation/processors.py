"""The processors that transformers calls in each step of `generate`, for `iet.generation.transformers`."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from iet.errors import InputError, ShapeError
from iet.generation.checks import rows_of_a_prompt
from iet.generation.free import FreeTokens, request_key
from iet.kernels import embed, prepare
from iet.marks.keys import KeyTable
from iet.native.cuda import Refusals
from iet.native.rows import ContextTables, FreeRows, SequenceRows


class Processor(transformers.LogitsProcessor):
    """Adds κ·temperature·φ to the rows of a batch."""

    def __init__(
        self,
        keys: KeyTable,
        slots: NDArray[np.int32],
        temperature: float,
        first_call_shows_prompts: bool,
        rows_of_each_prompt: int | None = None,
    ) -> None:
        self._keys = keys
        self._slots = slots
        self._temperature = temperature
        self._check_prompts = first_call_shows_prompts
        self._rows_of_each_prompt = rows_of_each_prompt
        # Slots and temperatures of a batch, and its slots on devices. The tuple is replaced as a whole, so
        # that threads that share a processor do not disturb each other.
        self._rows = slots[:0], np.empty(0, dtype=np.float32), dict[torch.device, torch.Tensor]()
        self._refusals = Refusals()

    @property
    def supports_continuous_batching(self) -> bool:  # type: ignore[override]
        """Raise an InputError: see `iet.generation.transformers`."""
        raise InputError(
            "generate_batch: continuous batching shows a processor the last id of each row, not the context"
            " that a mark is made from; use generate, or a server: iet.generation.vllm, iet.generation.sglang"
        )

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return `scores` [B, >= V] with marks, for the position after `input_ids` [B, T]."""
        repeats = self._rows_of_a_prompt(input_ids)
        rows, length = input_ids.shape
        context_len = self._keys.profile.scheme.n_gram - 1
        if length < context_len:  # no context yet: such a position is not scored
            return scores
        slots, temperatures = self._of_rows(rows, repeats, scores.device)
        self._refusals.check()  # raises an error of an earlier step; waiting for this one would be slow
        # A copy, as in transformers' own processors, because `generate` returns the argument as
        # `output_logits`.
        contexts = input_ids[:, length - context_len :]
        marked: torch.FloatTensor = embed(scores, contexts, slots, self._keys, temperature=temperatures)  # type: ignore[assignment]
        self._refusals.note(scores.device)
        return marked

    def _rows_of_a_prompt(self, input_ids: torch.Tensor) -> int:
        if input_ids.dim() != 2:
            raise ShapeError(
                "input_ids",
                got=f"shape {list(input_ids.shape)}",
                expected="[B, T]: continuous batching hides the context that a mark is made from",
            )
        same_prompt = self._same_prompt(input_ids) if self._check_prompts else None
        repeats = rows_of_a_prompt(len(input_ids), len(self._slots), same_prompt)
        self._check_prompts = False
        return repeats

    def _same_prompt(self, input_ids: torch.Tensor) -> Callable[[int], bool]:
        """Return a function of the size of groups of rows: whether the rows of each group share a prompt.

        `generate` knows the size. Otherwise the ids are compared, which embeddings and encoders make equal.
        """
        known = self._rows_of_each_prompt
        if known is not None:
            return lambda repeats: repeats == known
        return functools.partial(_rows_repeat, input_ids)

    def _of_rows(self, rows: int, repeats: int, device: torch.device) -> tuple[Any, Any]:
        """Return slots and temperatures [B] on the logits' device, copied there once."""
        # Nothing is computed again in later steps: the model evicts the CPU caches between them, so even
        # short code is slow.
        slots, temperatures, sent = self._rows
        if len(slots) != rows:
            slots = np.repeat(self._slots, repeats)
            temperatures, sent = np.full(rows, self._temperature, dtype=np.float32), {}
            self._rows = slots, temperatures, sent
        if device.type != "cuda":
            return slots, temperatures
        if device not in sent:
            sent[device] = torch.from_numpy(slots).to(device)
        return sent[device], self._temperature


class KeyedSampler(Processor):
    """Chooses the token of a row: argmax(logits - log(-log u)) over the tokens that the sampler keeps.

    Its logit is raised far above all others, so the sampler can only draw this token. A row is left to the
    sampler if its position is not scored (no agent, or an unmarked id in its context) or if its token is free
    (`FreeTokens`).

    Positions count from the length of the first `input_ids`, so one object serves one call of `generate`.
    """

    def __init__(
        self,
        keys: KeyTable,
        slots: NDArray[np.int32],
        first_call_shows_prompts: bool,
        free: FreeTokens,
        seed: int | None,
        rows_of_each_prompt: int | None = None,
    ) -> None:
        super().__init__(keys, slots, 1.0, first_call_shows_prompts, rows_of_each_prompt)
        self._free, self._seed = free, seed
        self._sequences: _Sequences | None = None

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return `scores` [B, >= V]; in the rows that are marked the chosen token has a raised logit."""
        repeats = self._rows_of_a_prompt(input_ids)
        rows, length = input_ids.shape
        if self._sequences is None:
            self._sequences = self._start(rows, length, scores.device)
        of_step = self._sequences
        if len(of_step.numbers) != rows:
            got, expected = f"{rows} rows", f"{len(of_step.numbers)}, as in the first call"
            raise ShapeError("input_ids", got=got, expected=expected)
        row_slots, _ = self._of_rows(rows, repeats, scores.device)
        self._refusals.check()
        of_step.tables.fit(of_step.numbers, np.full(rows, length))
        of_step.rows.read(
            input_ids.to(scores.device),
            torch.as_tensor(row_slots),
            tables=of_step.tables,
            free=of_step.free,
        )
        wide = scores.dtype == torch.float64
        raw = scores.float() if wide else scores
        chosen = torch.empty_like(raw)
        if chosen.stride() == raw.stride():
            of_step.rows.choose_(chosen, source=raw)
        else:
            of_step.rows.choose_(chosen.copy_(raw))
        self._refusals.note(scores.device)
        return chosen.to(scores.dtype)  # type: ignore[return-value]

    def _start(self, rows: int, length: int, device: torch.device) -> _Sequences:
        """Take the first call as the start of the answers: name the rows' requests."""
        seed: object = self._seed
        if seed is None:  # read, not drawn from, so that unmarked rows stay those of an unmarked run
            seed = hashlib.blake2b(_generator_state(device).numpy().tobytes()).hexdigest()
        keys = torch.tensor([request_key(seed, row) for row in range(rows)], dtype=torch.int64, device=device)
        starts = torch.tensor([length], dtype=torch.int64, device=device).expand(rows)
        if device.type == "cuda":
            prepare(self._keys, device)
        return _Sequences(
            np.arange(rows),
            SequenceRows(self._keys.marking, device, rows),
            ContextTables(rows, device),
            FreeRows(keys, starts, *self._free.threshold),
        )


class _Sequences(NamedTuple):
    """The rows of a call of `generate`."""

    numbers: NDArray[np.int64]
    rows: SequenceRows
    tables: ContextTables
    free: FreeRows


def _generator_state(device: torch.device) -> torch.Tensor:
    """Return the state of torch's generator for a device, a byte tensor on the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.mps.get_rng_state() if device.type == "mps" else torch.get_rng_state()


class Untouched(transformers.LogitsProcessor):
    """Returns the scores unchanged."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Return `scores`."""
        return scores


def _rows_repeat(input_ids: torch.Tensor, repeats: int) -> bool:
    """Return whether the rows of each group of `repeats` rows are equal, as rows of one prompt are."""
    rows, length = input_ids.shape  # length 0 if the prompt is embeddings
    groups = input_ids.reshape(rows // repeats, repeats, length)
    return repeats == 1 or bool((groups == groups[:, :1]).all())
