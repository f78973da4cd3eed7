"""Marked failure logs: each agent turn is rewritten by a model under the key of its agent.

The logs of Who&When are another model's text and carry no mark; the paper does not say how its marked logs
were made. Here the turns are rewritten in order: the model gets the rewritten conversation so far, the
original turn and the name of the agent, and writes the turn in other words. With `continues` it does not get
the original turn, and goes on by itself. Tool output, human turns and empty turns stay as they are, unmarked.
Every agent has one key in all logs.

*Length.* The shipped model is stopped after as many tokens as the original has. Other models end their turns
between 90 and 110 % of it. A long turn is written in parts of at most `Rewriting.part_tokens` tokens; a part
gets its part of the original and continues after the last 48 tokens that were written. Prompts are cut by
`prompts.fitted` to 256 tokens for the shipped model and 6144 for others.

In each round the next part of every log is written, and parts of similar length form a batch. Draws follow
from seed, subset, log, turn and part. Finished turns are on disk, so a killed run continues with the rest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.paper import marks
from benchmarks.paper.conversations import logs
from benchmarks.paper.conversations.author import Generated, ModelAuthor, Row
from benchmarks.paper.conversations.prompts import Part, Prompt
from benchmarks.paper.conversations.protocol import ATTEMPTS, NO_ANSWER, drawn_seed
from benchmarks.paper.failure.trajectories import JOINER, Trajectory, Turn, agent_of, by_agent
from benchmarks.paper.results import JsonLines
from benchmarks.writing.models import Loaded, as_said
from iet.errors import InputError
from iet.marks.tokenizer import Tokenizer

SHORT = {"part_tokens": 256, "prompt_tokens": 256}
LONG = {"part_tokens": 1024, "prompt_tokens": 6144}
"""Tokens of a part and of a prompt: of the shipped model, and of others."""

TOLERANCE = 0.1
"""Share by which a turn may be longer or shorter than the original."""

_TAIL = 48  # tokens of the written text in the prompt of a further part


@dataclasses.dataclass(frozen=True)
class Rewriting(logs.Made):
    subset: str  # one of `SUBSETS`
    mark: str  # a key of `MARKS`
    model: str  # digest of the model's parameters and tokenizer
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0  # of the keys and of all draws
    part_tokens: int = LONG["part_tokens"]
    prompt_tokens: int = LONG["prompt_tokens"]
    exact: bool = False  # turns have as many tokens as the original
    continues: bool = False  # the model does not see the original turn
    strength: float | None = None  # κ of "fourier" and "raw", else None
    profile: str = ""  # digest of the reader's parameters other than keys
    model_name: str = ""  # path or id of the model; not part of the digest

    @property
    def name(self) -> str:
        return self.file_name(self.subset)

    @property
    def sampling(self) -> logs.Setting:
        """The setting of an author and a `Marker` with the same parameters."""
        shared = ("mark", "model", "temperature", "top_p", "seed", "prompt_tokens", "strength", "profile")
        fields = {name: getattr(self, name) for name in shared}
        return logs.Setting("", 0, joiner=JOINER, turn_tokens=(1, self.part_tokens), **fields)

    def lengths(self, tokens: int) -> tuple[int, int]:
        """Return the fewest and most tokens of a turn whose original has `tokens`."""
        if self.exact:
            return tokens, tokens
        min_tokens, max_tokens = math.ceil(tokens * (1 - TOLERANCE)), math.floor(tokens * (1 + TOLERANCE))
        return max(1, min(min_tokens, tokens)), max(1, max_tokens)


def rewriting_of(
    loaded: Loaded, subset: str, *, mark: str = "gumbel", prompt_tokens: int | None = None, **fields: Any
) -> Rewriting:
    """Return the rewriting of a subset by a model; `fields` are those of `Rewriting`."""
    shipped = loaded.name == "iet:demo"
    sizes: dict[str, Any] = dict(SHORT if shipped else LONG)
    if prompt_tokens is not None:
        sizes["prompt_tokens"] = prompt_tokens
    made = marks.made_by(loaded, mark)
    rewriting = Rewriting(subset, exact=shipped, **{**made, **sizes, **fields})
    logs.check_sampling(rewriting.temperature, rewriting.top_p)
    return rewriting


def regenerate(
    trajectories: Sequence[Trajectory],
    rewriting: Rewriting,
    author: ModelAuthor,
    loaded: Loaded,
    out: pathlib.Path,
) -> list[Trajectory]:
    """Return the logs with every agent turn rewritten; generate those that are not in `out / rewriting.name`.

    `author` is made with `rewriting.sampling`. A turn that is blank in all attempts is "...", without a mark.
    """
    from tqdm import tqdm

    file = JsonLines(out / rewriting.name)
    lines = file.check_setting(dataclasses.asdict(rewriting), rewriting.digest)
    rewritten_turns = {(line["log"], line["turn"]): line for line in lines}
    drafts = [_Draft(log, rewriting, loaded.reader, rewritten_turns) for log in trajectories]
    going = [draft for draft in drafts if not draft.done]
    total = sum(draft.remaining for draft in going)
    with tqdm(total=total, desc=rewriting.name, unit="token", disable=not total) as bar:
        while going:
            for batch in _batches(going):
                remaining_before = sum(draft.remaining for draft in batch)
                parts = author.generate([draft.row() for draft in batch], [draft.agent for draft in batch])
                finished = [draft.add(part) for draft, part in zip(batch, parts, strict=True)]
                file.append(line for line in finished if line is not None)
                bar.update(remaining_before - sum(draft.remaining for draft in batch))
            going = [draft for draft in going if not draft.done]
    return [dataclasses.replace(draft.log, turns=tuple(draft.turns)) for draft in drafts]


class _Draft:
    """A log whose turns are being rewritten."""

    def __init__(
        self,
        log: Trajectory,
        rewriting: Rewriting,
        tokenizer: Tokenizer,
        rewritten_turns: Mapping[tuple[int, int], Mapping[str, Any]],
    ) -> None:
        self.log, self.rewriting, self.tokenizer = log, rewriting, tokenizer
        self.turns: list[Turn] = []
        self.encodings = {
            i: tokenizer.encode(turn.content)
            for i, turn in enumerate(log.turns)
            if by_agent(turn) and turn.content
        }
        self.ids: list[int] = []  # of the turn in progress
        self.entropies: list[float] = []
        self.part = self.attempt = 0
        self._copy_unmarked()
        while not self.done and (log.number, len(self.turns)) in rewritten_turns:
            line = rewritten_turns[log.number, len(self.turns)]
            if line["original"] != _digest(self.turn):
                raise InputError(f"log {log.number}: rewritten from another text; remove the rewritten logs")
            self._finish(line["text"])

    @property
    def done(self) -> bool:
        return len(self.turns) == len(self.log.turns)

    @property
    def turn(self) -> Turn:
        return self.log.turns[len(self.turns)]

    @property
    def agent(self) -> str:
        return agent_of(self.turn.name)

    @property
    def remaining(self) -> int:
        """Approximate number of tokens that are still to be written."""
        sizes = (len(e.token_ids) for i, e in self.encodings.items() if i >= len(self.turns))
        return max(0, sum(sizes) - len(self.ids))

    @property
    def parts(self) -> int:
        return -(-self._lengths[1] // self.rewriting.part_tokens)

    @property
    def _lengths(self) -> tuple[int, int]:
        min_tokens, max_tokens = self.rewriting.lengths(len(self.encodings[len(self.turns)].token_ids))
        # A blank turn is tried again with more tokens, since a mark may determine all of its draws.
        return min_tokens + self.attempt, max_tokens + self.attempt

    def row(self) -> Row:
        number, parts, part = len(self.turns), self.parts, self.part
        encoding = self.encodings[number]
        total = len(encoding.token_ids)
        low, high = part * total // parts, (part + 1) * total // parts
        characters = encoding.characters(list(range(low, max(low + 1, high)))[: total - low])
        original = self.turn.content[int(characters[0, 0]) : int(characters[-1, 1])]
        min_tokens, max_tokens = self._lengths
        if part + 1 < parts:
            size = total + self.attempt
            min_tokens = max_tokens = size * (part + 1) // parts - size * part // parts
        else:
            min_tokens, max_tokens = max(1, min_tokens - len(self.ids)), max(1, max_tokens - len(self.ids))
        seed = drawn_seed(
            "rewrite", self.rewriting.seed, self.log.subset, self.log.number, number, part, self.attempt
        )
        return Row(self._prompt(original), seed, min_tokens, min(max_tokens, self.rewriting.part_tokens))

    def _prompt(self, original: str) -> Prompt:
        number, name = len(self.turns), self.turn.name
        written = self.tokenizer.decode(self.ids[-_TAIL:])
        so_far = JOINER.join(f"{turn.name}: {turn.content}" for turn in self.turns)
        size, parts = self._lengths[1] // self.parts, [Part("The conversation so far:", so_far)]
        if self.rewriting.continues:
            request = f"Write your next turn, in about {size} tokens. Write the turn and nothing else."
        else:
            parts.append(Part("Your turn as it was:", original))
            request = (
                "Write this turn again in other words: the same facts, the same decisions, the same code"
                f" where there is code, in about {size} tokens. Write the turn and nothing else."
            )
        if written:
            request += f" Its beginning is written already; go on right behind these words: {written}"
        return Prompt(
            f"You are {name}, one of several agents that work on one task.",
            tuple(parts),
            request,
            # The number gives each turn a new first context.
            f"{name}\n\nTurn {number + 1}:" + (f" {written}" if written else ""),
        )

    def add(self, part: Generated) -> dict[str, Any] | None:
        """Add a part; return the line of the turn if it is finished."""
        self.ids += part.ids
        self.entropies.append(part.entropy)
        self.part += 1
        if self.part < self.parts:
            return None
        text = as_said(self.tokenizer, self.ids)
        if not text and self.attempt < ATTEMPTS:
            self.attempt += 1
            self.ids, self.entropies, self.part = [], [], 0
            return None
        entropies = [entropy for entropy in self.entropies if entropy == entropy]
        line = {
            "log": self.log.number,
            "turn": len(self.turns),
            "original": _digest(self.turn),
            "ids": self.ids,
            "text": text or NO_ANSWER,
            "entropy": float(np.mean(entropies)) if entropies else None,
        }
        self._finish(text or NO_ANSWER)
        return line

    def _finish(self, text: str) -> None:
        self.turns.append(dataclasses.replace(self.turn, content=text))
        self.ids, self.entropies, self.part, self.attempt = [], [], 0, 0
        self._copy_unmarked()

    def _copy_unmarked(self) -> None:
        while not self.done and len(self.turns) not in self.encodings:
            self.turns.append(self.turn)


def _batches(drafts: Sequence[_Draft]) -> Iterator[list[_Draft]]:
    """Yield drafts whose next parts have similar lengths, since a finished row waits for its batch."""
    sizes = {id(draft): draft.row().max_tokens for draft in drafts}
    batch = list[_Draft]()
    for draft in sorted(drafts, key=lambda draft: sizes[id(draft)]):
        if batch and sizes[id(draft)] > max(32, 1.4 * sizes[id(batch[0])]):
            yield batch
            batch = []
        batch.append(draft)
    yield batch


def _digest(turn: Turn) -> str:
    return hashlib.blake2b(f"{turn.name}\n{turn.content}".encode(), digest_size=8).hexdigest()
