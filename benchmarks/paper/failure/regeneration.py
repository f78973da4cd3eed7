"""Marked failure logs: each agent turn written again by a model, under the key of that agent.

The logs of Who&When are another model's text and carry no mark; the paper does not say how its marked ones
were made. Here every turn of an agent is rewritten in its order: the model gets the conversation so far (as
it was rewritten), the turn as it was, and who speaks, and writes the turn again in other words, with as many
tokens as the turn had, or up to 10 % more or fewer. Tool output and what people said stay as they are,
unmarked, and so do empty turns. Every agent has one key in all logs.

*Long turns* are written in parts of at most `Rewriting.part_tokens` tokens, of equal size. A part is written
from its own part of the original, and goes on right behind the last 48 tokens that were written.

*How prompts are cut* (`prompts.fitted`): of the conversation and of the original's part the last tokens are
kept, in equal shares of what the budget `Rewriting.prompt_tokens` leaves; who speaks and what is asked for
stay whole. The shipped model gets 256 tokens, others 6144.

*Length.* The shipped model writes until it is stopped, so it is stopped after as many tokens as the original
had. Other models end their turns between 90 and 110 % of it. Tokens are counted as they are sampled; read
again from the text they may be a few more or fewer.

*Batches.* In each round the next part of every log is written: those of like length are one batch. What is
drawn follows from seed, subset, log, turn and part, not from the batch. (Sums in another order, as in a batch
of another shape, change single draws.) Turns are kept in a file of JSON lines as soon as they are whole; a
run that was killed goes on with the turns that were not.
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
from benchmarks.paper.conversations.author import Author, Generated, Row
from benchmarks.paper.conversations.prompts import Part, Prompt
from benchmarks.paper.conversations.protocol import ATTEMPTS, NO_ANSWER, drawn_seed
from benchmarks.paper.failure.trajectories import JOINER, SUBSETS, Trajectory, Turn, agent_of, by_agent
from benchmarks.paper.jsonl import Lines, header, parsed
from benchmarks.writing.models import Loaded, as_said
from iet.errors import InputError
from iet.marks.tokenizer import Tokenizer

FORMAT, VERSION = "iet rewritten trajectories", 1
SHORT = {"part_tokens": 256, "prompt_tokens": 256}
LONG = {"part_tokens": 1024, "prompt_tokens": 6144}
"""Tokens of a part and of a prompt: of the shipped model, and of others."""

TOLERANCE = 0.1
"""Share by which a turn may be longer or shorter than it was."""

_TAIL = 48  # tokens of what was written that a further part goes on behind


@dataclasses.dataclass(frozen=True)
class Rewriting(logs.Made):
    subset: str  # one of `SUBSETS`
    mark: str  # a key of `MARKS`
    model: str  # digest of the model's parameters and tokenizer
    temperature: float = 1.0  # of the sampler; top_p likewise
    top_p: float = 1.0
    seed: int = 0  # of the keys and of everything that is drawn
    part_tokens: int = LONG["part_tokens"]  # the most that is written at once
    prompt_tokens: int = LONG["prompt_tokens"]  # the most that it is written from
    exact: bool = False  # turns have just as many tokens as the original
    strength: float | None = None  # κ of "fourier" and "raw", else None
    profile: str = ""  # digest of what reading needs beside the keys
    model_name: str = ""  # path or id that the model was loaded from; a hint, no part of the digest

    @property
    def name(self) -> str:
        return self.file_name(self.subset)

    @property
    def sampling(self) -> logs.Setting:
        """The same for an author and a `Marker`; of what else a `Setting` says nothing is read."""
        shared = ("mark", "model", "temperature", "top_p", "seed", "prompt_tokens", "strength", "profile")
        more = {name: getattr(self, name) for name in shared}
        lengths = (1, self.part_tokens)
        return logs.Setting("", 0, "", joiner=JOINER, turn_tokens=lengths, **more)

    def lengths(self, tokens: int) -> tuple[int, int]:
        """Return the fewest and most tokens of a turn that had so many."""
        if self.exact:
            return tokens, tokens
        fewest, most = math.ceil(tokens * (1 - TOLERANCE)), math.floor(tokens * (1 + TOLERANCE))
        return max(1, min(fewest, tokens)), max(1, most)


def rewriting_of(
    loaded: Loaded,
    subset: str,
    *,
    mark: str = "gumbel",
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    strength: float | None = None,
    part_tokens: int | None = None,
    prompt_tokens: int | None = None,
) -> Rewriting:
    if subset not in SUBSETS:
        raise InputError(f"subset: got {subset!r}, expected one of {list(SUBSETS)}")
    if marks.mark_of(mark).scheme is None:
        raise InputError(f"mark: got {mark!r}, expected one that an Auditor reads")
    logs.check_sampling(temperature, top_p)
    made = marks.made_by(loaded, mark, strength)
    shipped = loaded.name == "iet:demo"
    sizes: dict[str, Any] = dict(SHORT if shipped else LONG)
    for name, value in (("part_tokens", part_tokens), ("prompt_tokens", prompt_tokens)):
        if value is not None and value < 1:
            raise InputError(f"{name}: got {value}, expected at least 1")
        sizes[name] = sizes[name] if value is None else value
    return Rewriting(subset, temperature=temperature, top_p=top_p, seed=seed, exact=shipped, **made, **sizes)


def regenerate(
    trajectories: Sequence[Trajectory],
    rewriting: Rewriting,
    author: Author,
    loaded: Loaded,
    out: pathlib.Path,
    *,
    progress: bool = True,
) -> list[Trajectory]:
    """Return the logs with every agent turn rewritten, generating those that are not in the file yet.

    The file is `out / rewriting.name`; other logs in it stay there. `author` is made with
    `rewriting.sampling`, and not called where nothing is missing. A turn of which a model four times writes
    only blanks is "...", which carries no mark.
    """
    from tqdm import tqdm

    for log in trajectories:
        if log.subset != rewriting.subset:
            raise InputError(
                f"trajectories: got log {log.number} of {log.subset}, expected {rewriting.subset}"
            )
    with Lines(out / rewriting.name) as file:
        there = _read(file, rewriting)
        talks = [_Talk(log, rewriting, loaded.reader, there) for log in trajectories]
        going = [talk for talk in talks if not talk.done]
        total = sum(talk.left for talk in going)
        with tqdm(total=total, desc=rewriting.name, unit="token", disable=not progress or not total) as bar:
            while going:
                for some in _alike(going):
                    rows = [talk.row() for talk in some]
                    before = sum(talk.left for talk in some)
                    found = author.generate(rows, [talk.agent for talk in some])
                    lines = [talk.take(part) for talk, part in zip(some, found, strict=True)]
                    file.put(line for line in lines if line is not None)
                    bar.update(before - sum(talk.left for talk in some))
                going = [talk for talk in going if not talk.done]
    return [talk.rewritten for talk in talks]


def mean_entropy(path: pathlib.Path, trajectories: Sequence[Trajectory]) -> float:
    """Return the mean nats per token of the distributions that the turns of some logs were drawn from, before
    the mark, out of the file that `regenerate` has written; NaN if none is known.
    """
    numbers = {log.number for log in trajectories}
    lines = [parsed(path, i, line) for i, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1)][1:]
    known = [line for line in lines if line["log"] in numbers and line["entropy"] is not None]
    total = sum(line["entropy"] * len(line["ids"]) for line in known)
    return float(total / sum(len(line["ids"]) for line in known)) if known else math.nan


class _Talk:
    def __init__(
        self,
        log: Trajectory,
        rewriting: Rewriting,
        tokenizer: Tokenizer,
        there: Mapping[tuple[int, int], Mapping[str, Any]],
    ) -> None:
        self.log, self.rewriting, self.tokenizer = log, rewriting, tokenizer
        self.turns: list[Turn] = []
        self.encodings = {
            i: tokenizer.encode(turn.content)
            for i, turn in enumerate(log.turns)
            if by_agent(turn) and turn.content
        }
        self.ids: list[int] = []  # of the turn that is being written
        self.entropies: list[float] = []
        self.part = self.attempt = 0
        self._pass_over()
        while not self.done and (log.number, len(self.turns)) in there:
            line = there[log.number, len(self.turns)]
            if line["original"] != _mark_of(self.turn):
                raise InputError(
                    f"log {log.number}, turn {len(self.turns)}: rewritten from another text, expected the one"
                    " that was given; remove the file of rewritten logs"
                )
            self._say(line["text"])

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
    def rewritten(self) -> Trajectory:
        return dataclasses.replace(self.log, turns=tuple(self.turns))

    @property
    def left(self) -> int:
        """Tokens that are still to be written, about."""
        sizes = (len(e.token_ids) for i, e in self.encodings.items() if i >= len(self.turns))
        return max(0, sum(sizes) - len(self.ids))

    @property
    def parts(self) -> int:
        return -(-self._lengths[1] // self.rewriting.part_tokens)

    @property
    def _lengths(self) -> tuple[int, int]:
        fewest, most = self.rewriting.lengths(len(self.encodings[len(self.turns)].token_ids))
        # A turn that came out blank is tried again a little longer: a mark may fix all of its draws.
        return fewest + self.attempt, most + self.attempt

    def row(self) -> Row:
        number, parts, part = len(self.turns), self.parts, self.part
        encoding, content = self.encodings[number], self.turn.content
        total = len(encoding.token_ids)
        low, high = part * total // parts, (part + 1) * total // parts
        characters = encoding.characters(list(range(low, max(low + 1, high)))[: total - low])
        original = content[int(characters[0, 0]) : int(characters[-1, 1])]
        fewest, most = self._lengths
        if part + 1 < parts:
            size = total + self.attempt
            fewest = most = size * (part + 1) // parts - size * part // parts
        else:
            fewest, most = max(1, fewest - len(self.ids)), max(1, most - len(self.ids))
        seed = drawn_seed(
            "rewrite", self.rewriting.seed, self.log.subset, self.log.number, number, part, self.attempt
        )
        return Row(self._prompt(original), seed, fewest, min(most, self.rewriting.part_tokens))

    def _prompt(self, original: str) -> Prompt:
        number, name = len(self.turns), self.turn.name
        written = self.tokenizer.decode(self.ids[-_TAIL:])
        so_far = JOINER.join(f"{turn.name}: {turn.content}" for turn in self.turns)
        request = (
            "Write this turn again in other words: the same facts, the same decisions, the same code where"
            f" there is code, in about {self._lengths[1] // self.parts} tokens. Write the turn and"
            " nothing else."
        )
        if written:
            request += f" Its beginning is written already; go on right behind these words: {written}"
        return Prompt(
            f"You are {name}, one of several agents that work on one task.",
            (Part("The conversation so far:", so_far), Part("Your turn as it was:", original)),
            request,
            # The number makes each turn's first context new.
            f"{name}\n\nTurn {number + 1}:" + (f" {written}" if written else ""),
        )

    def take(self, found: Generated) -> dict[str, Any] | None:
        """Take up a part; return the line of the turn if it was the last one."""
        self.ids += found.ids
        self.entropies.append(found.entropy)
        self.part += 1
        if self.part < self.parts:
            return None
        text = as_said(self.tokenizer, self.ids)
        if not text and self.attempt < ATTEMPTS:
            self.attempt += 1
            self.ids, self.entropies, self.part = [], [], 0
            return None
        known = [entropy for entropy in self.entropies if entropy == entropy]
        line = {
            "log": self.log.number,
            "turn": len(self.turns),
            "name": self.turn.name,
            "original": _mark_of(self.turn),
            "ids": self.ids,
            "text": text or NO_ANSWER,
            "entropy": float(np.mean(known)) if known else None,
        }
        self._say(text or NO_ANSWER)
        return line

    def _say(self, text: str) -> None:
        self.turns.append(dataclasses.replace(self.turn, content=text))
        self.ids, self.entropies, self.part, self.attempt = [], [], 0, 0
        self._pass_over()

    def _pass_over(self) -> None:
        while not self.done and len(self.turns) not in self.encodings:
            self.turns.append(self.turn)


def _alike(talks: Sequence[_Talk]) -> Iterator[list[_Talk]]:
    """Yield talks whose next parts are of like length: a row that has ended waits for all of its batch."""
    sizes = {id(talk): talk.row().most for talk in talks}
    some = list[_Talk]()
    for talk in sorted(talks, key=lambda talk: sizes[id(talk)]):
        if some and sizes[id(talk)] > max(32, 1.4 * sizes[id(some[0])]):
            yield some
            some = []
        some.append(talk)
    yield some


def _mark_of(turn: Turn) -> str:
    """Return what tells a turn of the original apart."""
    return hashlib.blake2b(f"{turn.name}\n{turn.content}".encode(), digest_size=8).hexdigest()


_FIELDS = {"log": int, "turn": int, "name": str, "original": str, "ids": list, "text": str}


def _read(file: Lines, rewriting: Rewriting) -> dict[tuple[int, int], dict[str, Any]]:
    lines = file.whole
    if lines:
        found = header(file.path, lines[0], FORMAT, VERSION)
        if found.get("digest") != rewriting.digest:
            raise InputError(
                f"{file.path}, line 1: got a setting with digest {found.get('digest')!r}, expected"
                f" {rewriting.digest!r}, that of what is being written"
            )
    there: dict[tuple[int, int], dict[str, Any]] = {}
    for number, line in enumerate(lines[1:], 2):
        content = parsed(file.path, number, line)
        for field, kind in _FIELDS.items():
            if type(content.get(field)) is not kind:
                raise InputError(
                    f"{file.path}, line {number}, field {field!r}: got {content.get(field)!r:.60}, expected"
                    f" {kind.__name__}"
                )
        place = content["log"], content["turn"]
        if place in there:
            raise InputError(
                f"{file.path}, line {number}: turn {place[1]} of log {place[0]} for the second time"
            )
        there[place] = content
    file.drop_torn()
    if not lines:
        first = {"format": FORMAT, "version": VERSION, "setting": dataclasses.asdict(rewriting)}
        file.put([{**first, "digest": rewriting.digest}])
    return there
