"""A model of transformers on this machine, asked as if it were an endpoint."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import transformers

from benchmarks.paper.asking.endpoints import Ask, Parameters, Refused, Sampling
from benchmarks.writing.models import Loaded


@dataclasses.dataclass(frozen=True, eq=False)
class LocalEndpoint:
    """A causal language model that is asked one question at a time.

    With a chat template it gets a system and a user message; without one the same texts, one after the other,
    which it continues. Draws come from the seed alone.
    """

    loaded: Loaded  # the model

    @property
    def model(self) -> str:
        return f"{self.loaded.name} {self.loaded.digest[:16]}"

    @property
    def address(self) -> None:
        return None

    def tokens(self, system: str, user: str) -> int:
        return len(self._ids(system, user))

    def connect(self) -> Ask:
        """Return what asks; it raises Refused where question and answer do not fit into the positions."""
        return self._answer

    def _ids(self, system: str, user: str) -> list[int]:
        if self.loaded.chat:
            return self.loaded.templated(system, user)
        return list(self.loaded.tokenizer(f"{system}\n\n{user}\n\n", verbose=False).input_ids)

    @torch.inference_mode()
    def _answer(self, system: str, user: str, parameters: Parameters) -> str:
        sampling = parameters if isinstance(parameters, Sampling) else Sampling(**vars(parameters))
        loaded, model = self.loaded, self.loaded.model
        ids = self._ids(system, user)
        if len(ids) + sampling.max_tokens > loaded.positions:
            raise Refused(
                f"{self.model}: got a question of {len(ids)} tokens, expected at most"
                f" {loaded.positions - sampling.max_tokens}: {loaded.positions} positions less the answer's"
            )
        draw: dict[str, Any] = {"do_sample": False}
        if sampling.temperature != 0:
            draw = {
                "do_sample": True,
                "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
                "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
                "top_k": 0,
            }
        new: Any = transformers.GenerationConfig
        config = new(
            max_new_tokens=sampling.max_tokens,
            eos_token_id=loaded.ends or None,
            pad_token_id=loaded.pad,
            **draw,
        )
        prompt = torch.tensor([ids], device=model.device)
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(sampling.seed)
            out = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
        return str(loaded.tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True))
