"""Write text that is marked by choosing chunks or tokens, many turns at once, on one CPU core."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from benchmarks.writing import sampler
from benchmarks.writing.models import as_said
from benchmarks.writing.shared import steps
from iet.generation.free import FreeTokens
from iet.generation.selection import TextChooser
from iet.marks.tokenizer import Tokenizer

TOP = 19
"""Tokens that `walk` chooses among."""

ROWS = 512
"""Drafts that are written at once."""


@dataclasses.dataclass(frozen=True)
class Method:
    """How text is written and marked.

    Attributes:
        temperature: of the model.
        mark: "select" chooses among chunks, "walk" among tokens.
        tokens: of a chunk.
        drafts: number of chunks to choose from.
    """

    temperature: float
    mark: str = "select"
    tokens: int = 1
    drafts: int = 1

    @property
    def name(self) -> str:
        return f"{self.mark} T={self.temperature:g} L={self.tokens} m={self.drafts}"


class Turn(NamedTuple):
    """A turn to be written; it is unmarked without a chooser."""

    prompt: list[int]
    tokens: int
    chooser: TextChooser | None


class Writer:
    """Writes turns that continue prompts of one length, all in batches.

    Args:
        model: of transformers, in float32 on the CPU.
        tokenizer: of the model.
        method: temperature and mark of all turns.
        seed: of the draws.

    Attributes:
        nats: entropies of the model's distribution at the temperature, one for every eighth step of a batch.
    """

    def __init__(self, model: Any, tokenizer: Tokenizer, method: Method, seed: int) -> None:
        self._model, self._method, self._tokenizer = model, method, tokenizer
        self._generator = torch.Generator().manual_seed(seed)
        self.nats: list[float] = []

    def write(self, turns: Sequence[Turn]) -> list[str]:
        """Return the text of each turn, stripped."""
        marked = [number for number, turn in enumerate(turns) if turn.chooser is not None]
        plain = [number for number, turn in enumerate(turns) if turn.chooser is None]
        written = [""] * len(turns)
        longest = max(turn.tokens for turn in turns)
        unmarked = dataclasses.replace(self._method, mark="select", tokens=longest, drafts=1)
        for numbers, method in ((marked, self._method), (plain, unmarked)):
            if numbers:
                write = self._walk if method.mark == "walk" else self._select
                rows = write([turns[number] for number in numbers], method)
                for number, row in zip(numbers, rows, strict=True):
                    written[number] = as_said(self._tokenizer, row)
        return written

    def _select(self, turns: Sequence[Turn], method: Method) -> list[list[int]]:
        """Return the ids of turns, each chunk chosen among drafts; the last chunk of a turn may be short."""
        ids, texts = [list[int]() for _ in turns], [""] * len(turns)
        for done in range(0, max(turn.tokens for turn in turns), method.tokens):
            unfinished = [number for number, turn in enumerate(turns) if turn.tokens > done]
            for group in _groups(unfinished, ROWS // method.drafts):
                prompts = [[*turns[number].prompt, *ids[number]] for number in group]
                for number, drafts in zip(group, self._drafts(prompts, method), strict=True):
                    turn = turns[number]
                    drafts = [draft[: turn.tokens - done] for draft in drafts]
                    options = [self._text([*ids[number], *draft])[len(texts[number]) :] for draft in drafts]
                    chosen = 0
                    if turn.chooser is not None:
                        chosen = turn.chooser.choose(texts[number], options, [1.0] * len(options)).index
                    ids[number] += drafts[chosen]
                    texts[number] += options[chosen]
        return ids

    def _drafts(self, prompts: Sequence[Sequence[int]], method: Method) -> list[list[list[int]]]:
        """Return the drafts of chunks that continue each prompt, all prompts of one length."""
        start = len(prompts[0])
        ids = torch.tensor(prompts).repeat_interleave(method.drafts, 0)
        ids = torch.cat([ids, ids.new_zeros(len(ids), method.tokens)], dim=1)
        for position, logits in self._logits(ids, start, method.drafts):
            ids[:, start + position] = self._draw(logits)
        drafts: list[list[list[int]]] = ids[:, start:].view(len(prompts), method.drafts, -1).tolist()
        return drafts

    @torch.inference_mode()
    def _logits(self, ids: torch.Tensor, start: int, copies: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield each position and its logits at the temperature; the caller writes the id into `ids`."""
        for position, raw in enumerate(steps(self._model, ids, start, copies)):
            raw[:, list(self._tokenizer.special_ids)] = -torch.inf
            raw /= self._method.temperature
            if position % sampler.ENTROPY_EVERY == 0:
                self.nats.append(float(sampler.entropies(raw).mean()))
            yield position, raw

    def _draw(self, logits: torch.Tensor) -> torch.Tensor:
        return sampler.draw(logits, torch.rand(2, len(logits), 1, generator=self._generator))

    def _walk(self, turns: Sequence[Turn], _: Method) -> list[list[int]]:
        """Return the ids of turns, each token chosen among the likeliest ones, as `iet.HostedModel` does.

        Free tokens, and tokens that are not among the likeliest ones, remain as they were drawn.
        """
        prompts = torch.tensor([turn.prompt for turn in turns])
        start, longest = prompts.shape[1], max(turn.tokens for turn in turns)
        ids = torch.cat([prompts, prompts.new_zeros(len(prompts), longest)], dim=1)
        free, requests, texts = FreeTokens(), torch.arange(len(turns)), [""] * len(turns)
        for position, logits in self._logits(ids, start, 1):
            drawn, top = self._draw(logits), logits.topk(TOP)
            is_free = free.are_free(requests, torch.full_like(requests, position)).tolist()
            for number, turn in enumerate(turns):
                if position >= turn.tokens:
                    continue
                token = int(drawn[number])
                if not is_free[number] and turn.chooser is not None:
                    token = self._agreed(turn.chooser, texts[number], token, top, number)
                ids[number, start + position] = token
                texts[number] = self._text(ids[number, start : start + position + 1].tolist())
        return [ids[number, start : start + turn.tokens].tolist() for number, turn in enumerate(turns)]

    def _agreed(self, chooser: TextChooser, text: str, token: int, top: Any, row: int) -> int:
        """Return the token that the key chooses, or the drawn one if that is not a likely piece of text."""
        shares = (top.values[row] - top.values[row, 0]).exp().tolist()
        weights: dict[int, float] = dict(zip(top.indices[row].tolist(), shares, strict=True))
        options = {likely: self._tokenizer.decode([likely]) for likely in weights}
        options = {likely: option for likely, option in options.items() if "\ufffd" not in option}
        if token not in options:
            return token
        chosen = chooser.choose(text, list(options.values()), [weights[likely] for likely in options])
        return list(options)[chosen.index]

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids)).rstrip("\ufffd")


def _groups(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for first in range(0, len(numbers), size):
        yield numbers[first : first + size]
