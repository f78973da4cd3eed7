"""Generation of agents' turns by a model of transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.paper.conversations.logs import Setting
from benchmarks.paper.conversations.prompts import Prompt, fitted
from benchmarks.paper.marks import Marker
from iet.errors import BackendUnavailable, InputError

try:
    import torch
    from torch import Tensor

    from benchmarks.writing import sampler
    from benchmarks.writing.models import Loaded, as_said
except ImportError as _error:
    raise BackendUnavailable(
        f'generating text: {_error}; pip install "implicit-execution-tracing[bench]"'
    ) from None


@dataclasses.dataclass(frozen=True)
class Row:
    prompt: Prompt
    seed: int  # of the draws of this row
    min_tokens: int
    max_tokens: int


@dataclasses.dataclass(frozen=True)
class Generated:
    ids: tuple[int, ...]  # sampled, without the end token; never empty
    text: str  # stripped text of the ids without special tokens; may be empty
    entropy: float = float("nan")  # mean nats of the distributions before the mark, over every eighth token


class ModelAuthor:
    """Samples turns with a model of transformers, by `benchmarks.writing.sampler`.

    Special tokens other than the end are never drawn, and the end only after `Row.min_tokens` tokens.
    """

    def __init__(
        self,
        loaded: Loaded,
        setting: Setting,
        *,
        batch: int = 128,
        on_logits: Callable[[Tensor, Tensor], object] | None = None,
    ) -> None:
        longest = setting.prompt_tokens + setting.turn_tokens[1]
        if longest > loaded.positions:
            raise InputError(
                f"prompt_tokens, turn_tokens: got {setting.prompt_tokens} and {setting.turn_tokens[1]},"
                f" expected at most {loaded.positions} together, the model's positions"
            )
        if batch < 1:
            raise InputError(f"batch: got {batch}, expected at least 1")
        self.loaded, self.setting, self.batch, self.on_logits = loaded, setting, batch, on_logits
        self.marker = Marker(setting, loaded.reader)

    def generate(self, rows: Sequence[Row], agents: Sequence[str | None]) -> list[Generated]:
        """Write a turn for each row; rows with prompts of similar length are sampled together.

        Deterministic on one machine and version of torch for the same batches.
        """
        prompts = [self.prompt_ids(row.prompt) for row in rows]
        order = sorted(range(len(rows)), key=lambda i: (-len(prompts[i]), i))
        turns: dict[int, Generated] = {}
        for start in range(0, len(order), self.batch):
            batch_indices = order[start : start + self.batch]
            written = self._sample(
                [prompts[i] for i in batch_indices],
                [rows[i] for i in batch_indices],
                [agents[i] for i in batch_indices],
            )
            turns.update(zip(batch_indices, written, strict=True))
        return [turns[i] for i in range(len(rows))]

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return the ids of a prompt, cut to the setting's budget."""
        loaded, reader = self.loaded, self.loaded.reader

        def count(text: str) -> int:
            return len(reader.backend.encode(text, add_special_tokens=False).ids)

        def last(text: str, tokens: int) -> str:
            encoding = reader.encode(text)
            if not tokens:
                return ""
            return text[int(encoding.characters([len(encoding.token_ids) - tokens])[0, 0]) :].lstrip()

        cut = fitted(prompt, self.setting.prompt_tokens, count, last, chat=loaded.chat)
        if loaded.chat:
            ids = loaded.templated(*(message["content"] for message in cut.messages))
        else:
            ids = list(loaded.tokenizer(cut.plain).input_ids)
        room = loaded.positions - self.setting.turn_tokens[1]
        return ids[max(0, len(ids) - room) :]

    def _sample(self, prompts: list[list[int]], rows: list[Row], agents: list[str | None]) -> list[Generated]:
        max_tokens = max(row.max_tokens for row in rows)
        drawn = np.stack([np.random.default_rng(row.seed).random((max_tokens, 2)) for row in rows])
        u = torch.from_numpy(drawn.astype(np.float32)).permute(1, 2, 0)[..., None]
        u.clamp_(max=1 - 2**-24)  # rounding to float32 can reach 1
        sampled = sampler.sample(
            self.loaded.model,
            prompts,
            u.__getitem__,
            tokens=max_tokens,
            temperature=self.setting.temperature,
            top_p=self.setting.top_p,
            repetition_penalty=self.setting.repetition_penalty,
            barred=self.loaded.barred,
            pad=self.loaded.pad,
            ends=sampler.Ends(
                self.loaded.ends,
                torch.tensor([row.min_tokens for row in rows]),
                torch.tensor([row.max_tokens for row in rows]),
            ),
            marking=lambda numbers: self.marker.processor(
                [agents[i] for i in numbers], [rows[i].seed for i in numbers], max(map(len, prompts))
            ),
            raw=self.marker.mark.raw,
            on_logits=self.on_logits,
        )
        ids, lengths, entropies = (x.tolist() for x in (sampled.ids, sampled.lengths, sampled.entropy))
        reader = self.loaded.reader
        return [
            Generated(tuple(row[:size]), as_said(reader, row[:size]), entropy)
            for row, size, entropy in zip(ids, lengths, entropies, strict=True)
        ]
