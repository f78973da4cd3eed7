"""llama.cpp: our processor, and its chain of samplers."""

from __future__ import annotations

import copy
import importlib
import pathlib
import tempfile
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.accuracy.engines.asked import NO_FREE, Asked, Floats, Ids, Rows, name_of
from iet.generation.free import FreeTokens
from iet.generation.llama_cpp import LogitsProcessor
from iet.marks.keys import KeyTable
from iet.marks.registry import Registry


class LlamaCpp:
    """llama.cpp with the chain of llama-cpp-python: top-k, top-p, min-p, temperature."""

    packages: tuple[str, ...] = ("llama-cpp-python",)

    def expected(self, logits: torch.Tensor, sampling: Asked, prompt: list[int], output: list[int]) -> Floats:
        candidates = self.chained(logits.numpy(), sampling)
        final = np.full(len(logits), -np.inf)
        for at in range(candidates.size):
            final[candidates.data[at].id] = candidates.data[at].logit
        shares = np.exp(final - final.max())
        return np.asarray(shares / shares.sum())

    @staticmethod
    def chained(logits: NDArray[np.float32], sampling: Asked, seed: int | None = None) -> Any:
        """Return llama.cpp's candidates after its chain, which draws one of them if there is a seed."""
        llama_cpp = importlib.import_module("llama_cpp")
        chain = importlib.import_module("llama_cpp._internals").LlamaSampler()
        chain.add_top_k(sampling.top_k)
        chain.add_top_p(sampling.top_p, 1)
        chain.add_min_p(sampling.min_p, 1)
        chain.add_temp(sampling.temperature)
        if seed is not None:
            chain.add_dist(seed)
        records = (llama_cpp.llama_token_data * len(logits))()
        view = np.ctypeslib.as_array(records)
        view["id"], view["logit"] = np.arange(len(logits)), logits
        candidates = llama_cpp.llama_token_data_array(records, len(logits), -1, False)
        llama_cpp.llama_sampler_apply(chain.sampler, candidates)
        return candidates

    def rows(
        self, keys: KeyTable, prompts: Ids, outputs: Ids, sampling: Asked, free: FreeTokens = NO_FREE
    ) -> Rows:
        return LlamaCppRows(self, keys, np.concatenate([prompts, outputs], axis=1), sampling, free)


class LlamaCppRows:
    """One processor a row: llama.cpp calls it for one sequence."""

    def __init__(
        self, engine: LlamaCpp, keys: KeyTable, sequences: Ids, sampling: Asked, free: FreeTokens
    ) -> None:
        self._engine, self._asked = engine, sampling
        self._ids = sequences.astype(np.intc)
        profile = keys.profile
        with tempfile.TemporaryDirectory() as folder:  # made for a registry, it is then given the keys
            path = pathlib.Path(folder) / "keys.json"
            registry = Registry.create(path, vocab_size=profile.vocab_size, scheme=profile.scheme)
            registry.add("0")
            model = SimpleNamespace(n_vocab=lambda: profile.vocab_size)
            filters: dict[str, Any] = {
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
            }
            options: dict[str, Any] = {"model": model, "free": free, **filters}
            made: Any = LogitsProcessor(registry, "0", sampling.temperature, **options)
        made._keys = keys
        self._processors: list[Any] = [copy.copy(made) for _ in sequences]
        for row, processor in enumerate(self._processors):
            processor._key, processor._seed = row, f"{name_of(keys)}/{row}"

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, (ids, scores) in enumerate(zip(self._ids, logits.numpy(), strict=True)):
            self._processors[row](ids, scores)  # in place
        return logits

    def sample(self, masked: torch.Tensor) -> Ids:
        tokens = []
        seeds = torch.randint(1 << 32, (len(masked),)).tolist()
        for scores, seed in zip(masked.numpy(), seeds, strict=True):
            candidates = self._engine.chained(scores, self._asked, seed)
            tokens.append(candidates.data[candidates.selected].id)
        return np.array(tokens, dtype=np.int64)

    def append(self, tokens: Ids) -> None:
        self._ids = np.concatenate([self._ids, tokens[:, None].astype(np.intc)], axis=1)
