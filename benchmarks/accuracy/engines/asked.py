"""The sampling options of a request, and the interface of an engine."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from iet.generation.free import FreeTokens
from iet.marks.keys import KeyTable

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


NO_FREE = FreeTokens(0, 0.0)


def name_of(keys: KeyTable) -> str:
    """Return the name of an engine, which chooses its free tokens, from the keys that it marks with."""
    return str(keys.subkeys[0].tobytes().hex())


@dataclasses.dataclass(frozen=True)
class Asked:
    """Sampling options of all requests of a case; names and defaults are vLLM's."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    drafts: int = 0  # before the row that is counted

    @property
    def penalises(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    @functools.cache  # noqa: B019  # a few cases of some hundred rows
    def vllm(self, agent: str | None) -> Any:
        """Return the `SamplingParams`."""
        from vllm import SamplingParams

        values = {name: value for name, value in dataclasses.asdict(self).items() if name != "drafts"}
        return SamplingParams(**values, extra_args=None if agent is None else {"iet_agent": agent})


class Rows(Protocol):
    """Requests that run at once, each under a key of its own."""

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Return what our processor makes of logits [B, V], which are not kept."""

    def sample(self, masked: torch.Tensor) -> Ids:
        """Return a token of each row, drawn by the engine from what `apply` returned."""

    def append(self, tokens: Ids) -> None:
        """Take the tokens into the sequences."""


class Engine(Protocol):
    """An engine's processor and sampler."""

    packages: tuple[str, ...]

    def expected(self, logits: torch.Tensor, sampling: Asked, prompt: list[int], output: list[int]) -> Floats:
        """Return the probabilities [V] of the engine's own draws from logits [V]."""

    def rows(
        self, keys: KeyTable, prompts: Ids, outputs: Ids, sampling: Asked, free: FreeTokens = NO_FREE
    ) -> Rows:
        """Take up one request for each row of prompts [B, P] and outputs [B, O], under its key."""
