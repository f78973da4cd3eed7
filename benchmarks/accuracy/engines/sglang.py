"""SGLang: our processor, and its sampler out of the sources of its wheel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks import engine_wheels
from benchmarks.accuracy.engines.asked import NO_FREE, Asked, Floats, Ids, Rows, name_of
from iet.generation import sglang as adapter
from iet.generation.checks import Floor
from iet.generation.free import FreeTokens
from iet.generation.sessions import SessionRows
from iet.marks.keys import KeyTable

SOURCE = engine_wheels.FOLDER / "sglang" / "sglang" / "srt" / "layers" / "sampler.py"


class SGLang:
    """SGLang with its PyTorch backend."""

    packages: tuple[str, ...] = ("torch",)

    def __init__(self) -> None:
        name = "top_k_top_p_min_p_sampling_from_probs_torch"
        self._draw: Any = engine_wheels.definitions(SOURCE, [name], {"torch": torch})[name]

    def expected(self, logits: torch.Tensor, sampling: Asked, prompt: list[int], output: list[int]) -> Floats:
        weights, order = self.drawn(logits[None], sampling)[1:3]
        probabilities = torch.zeros_like(weights).scatter_(1, order.long(), weights)[0].double()
        return np.asarray(probabilities / probabilities.sum())

    def drawn(self, logits: torch.Tensor, sampling: Asked) -> Any:
        """Return tokens, weights and their ids, as SGLang's sampler makes them."""
        rows = len(logits)
        return self._draw(
            torch.softmax(logits / sampling.temperature, -1),
            torch.full((rows,), sampling.top_k or 1 << 30),
            torch.full((rows,), sampling.top_p),
            torch.full((rows,), sampling.min_p),
            sampling.min_p > 0,
            None,
            torch.zeros(rows),
            return_filtered_probs=True,
        )

    def rows(
        self, keys: KeyTable, prompts: Ids, outputs: Ids, sampling: Asked, free: FreeTokens = NO_FREE
    ) -> Rows:
        return SGLangRows(self, keys, prompts, outputs, sampling, free)


class SGLangRows:
    """A batch of SGLang's requests."""

    def __init__(
        self, engine: SGLang, keys: KeyTable, prompts: Ids, outputs: Ids, sampling: Asked, free: FreeTokens
    ) -> None:
        self._free = free
        self._engine, self._asked, self._sessions = engine, sampling, SessionRows(None, keys)
        self._processor = adapter.IETLogitsProcessor()
        values = {"temperature": sampling.temperature, "top_k": sampling.top_k or 1 << 30}
        params = SimpleNamespace(**values, top_p=sampling.top_p, min_p=sampling.min_p, sampling_seed=None)
        self._requests = [
            SimpleNamespace(
                rid=f"{name_of(keys)}/{row}",
                origin_input_ids=prompt,
                output_ids=output,
                sampling_params=params,
                return_logprob=False,
                to_finish=None,
                kv=SimpleNamespace(kv_committed_len=len(prompt) + len(output)),
            )
            for row, (prompt, output) in enumerate(zip(prompts.tolist(), outputs.tolist(), strict=True))
        ]
        self._arguments: list[dict[str, Any]] = [
            {"iet_agent": row, "__req__": request} for row, request in enumerate(self._requests)
        ]

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        # The function that a server asks for its backend is not in the file that is loaded.
        backend = mock.patch.object(adapter, "_samples_with_flashinfer", return_value=False)
        free = mock.patch.object(adapter, "_of_environment", return_value=(self._free, Floor()))
        with mock.patch.object(adapter, "_key", lambda row: (self._sessions, row)), backend, free:
            masked: torch.Tensor = self._processor(logits, self._arguments)
        refused = [request.to_finish for request in self._requests if request.to_finish is not None]
        assert not refused, refused[0]
        return masked

    def sample(self, masked: torch.Tensor) -> Ids:
        return np.asarray(self._engine.drawn(masked, self._asked)[0], dtype=np.int64)

    def append(self, tokens: Ids) -> None:
        for request, token in zip(self._requests, tokens.tolist(), strict=True):
            request.output_ids.append(token)
            request.kv.kv_committed_len += 1
