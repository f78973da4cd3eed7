"""Answers to problems, clean and marked: under which conditions they are written, and what comes of them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.paper import marks
from benchmarks.paper.asking.asker import Answers
from benchmarks.paper.conversations.author import Generated, ModelAuthor, Row
from benchmarks.paper.conversations.logs import Setting, check_sampling
from benchmarks.paper.conversations.prompts import Prompt
from benchmarks.paper.marks import agent_name
from benchmarks.paper.quality import strategies
from benchmarks.paper.quality.strategies import AGENTS, STRATEGIES, Call
from benchmarks.paper.quality.tasks import COUNT, Problem
from benchmarks.writing.models import Loaded
from iet.errors import InputError
from iet.marks.scheme import canonical_digest

_AGAIN = 1 << 16  # added to the seed of the second clean run


@dataclasses.dataclass(frozen=True)
class Condition:
    mark: str  # a key of `MARKS`
    again: bool = False  # with other draws than the rest
    one_key: bool = False  # the key of the first seed in all seeds
    nonce: bool = False  # in the last tokens of the prompt, another one for every seed


CLEAN = "clean"
CONDITIONS: Mapping[str, Condition] = {
    CLEAN: Condition("none"),
    "clean, other draws": Condition("none", again=True),
    "fourier": Condition("fourier"),
    "gumbel": Condition("gumbel"),
}
"""Name -> condition, of answers and of texts."""

REPEATED: Mapping[str, Condition] = {
    "gumbel, one key": Condition("gumbel", one_key=True),
    "gumbel, one key, nonce": Condition("gumbel", one_key=True, nonce=True),
}
"""What texts alone are made with: the same prompt several times under one key."""


@dataclasses.dataclass(frozen=True)
class Options:
    problems: int = COUNT  # of each task
    seeds: int = 40  # runs over all problems of a model that ships here
    model_seeds: int = 3  # of an instruction model
    text_seeds: int = 4  # texts of each prompt where no task is solved
    seed: int = 0  # the first
    temperature: float = 1.0  # of the sampler; top_p likewise
    top_p: float = 1.0
    # Fewest and most tokens of an answer; of the arithmetic model it is `SHORT`
    turn_tokens: tuple[int, int] = (1, 512)
    prompt_tokens: int = 3072  # prompts are cut to so many
    batch: int = 128  # answers that are sampled together

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise InputError(f"seed: got {self.seed}, expected at least 0")
        for name in ("problems", "seeds", "model_seeds", "text_seeds", "prompt_tokens", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: got {getattr(self, name)}, expected at least 1")
        fewest, most = self.turn_tokens
        if not 1 <= fewest <= most:
            raise InputError(f"turn_tokens: got {fewest} and {most}, expected 1 <= fewest <= most")
        check_sampling(self.temperature, self.top_p)


SHORT: Mapping[str, Any] = {"turn_tokens": (1, 180), "prompt_tokens": 40}
"""Of the arithmetic model, whose longest solutions have some 130 characters."""
PLAIN: Mapping[str, Any] = {"turn_tokens": (1, 160), "prompt_tokens": 256}
"""Of the shipped model."""


def spoken(problem: Problem, agent: int) -> Prompt:
    """Return what the arithmetic model is asked with: a question in the language that it was trained on."""
    return Prompt(f"Q: {problem.expression}", (), "", "A:")


class Speaker:
    """Writes the answers of a model, and keeps them; what is kept is not written again.

    `limits` are `turn_tokens` and `prompt_tokens` where they are not those of the options.
    """

    def __init__(
        self, loaded: Loaded, options: Options, answers: Answers, limits: Mapping[str, Any] | None = None
    ) -> None:
        self.loaded, self.options, self._answers = loaded, options, answers
        usual = {"turn_tokens": options.turn_tokens, "prompt_tokens": options.prompt_tokens}
        self._limits: dict[str, Any] = {**usual, **(limits or {})}

    def setting(self, condition: Condition, number: int) -> Setting:
        """Return the setting of a run; `number` counts seeds from 0."""
        return Setting(
            topology="none",
            agents=AGENTS + 1,
            protocol="quality",
            temperature=self.options.temperature,
            top_p=self.options.top_p,
            joiner="",
            seed=self.options.seed + (0 if condition.one_key else number),
            rounds=strategies.ROUNDS,
            early_stop=False,
            **marks.made_by(self.loaded, condition.mark),
            **self._limits,
        )

    def say(self, calls: Sequence[Call], condition: Condition, number: int) -> list[Generated]:
        """Return one text per call, each under the key of its problem's agent."""
        setting = self.setting(condition, number)
        author = ModelAuthor(self.loaded, setting, batch=self.options.batch)
        seed = self.options.seed + number + (_AGAIN if condition.again else 0)
        found: list[Generated] = []
        for start in range(0, len(calls), self.options.batch):
            some = calls[start : start + self.options.batch]
            rows = [row(call, seed, setting) for call in some]
            names = [agent_name(call.problem.number, call.agent) for call in some]
            key = canonical_digest(
                {"setting": setting.digest, "rows": [dataclasses.asdict(row) for row in rows], "names": names}
            )
            kept = self._answers.of(key)
            if not kept:
                written = author.generate(rows, names)
                kept = [json.dumps([[list(one.ids), one.entropy] for one in written])]
                self._answers.add(key, self.loaded.name, kept[0], None)
            decode = self.loaded.reader.decode
            found += [Generated(tuple(ids), decode(ids).strip(), mean) for ids, mean in json.loads(kept[0])]
        return found


def row(call: Call, seed: int, setting: Setting) -> Row:
    text = f"{seed}/{call.problem.task}/{call.problem.number}/{call.agent}/{call.number}/{call.branch}"
    drawn = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    return Row(call.prompt, drawn, *setting.turn_tokens)


@dataclasses.dataclass
class Solved:
    """What came of a task: figures [seeds][problems] by condition and strategy."""

    # 1 where the answer is right; for Single the mean over the agents, each of which is one
    right: dict[tuple[str, str], list[list[float]]] = dataclasses.field(default_factory=dict)
    # 1 where there is none; for Single the mean, too
    none: dict[tuple[str, str], list[list[float]]] = dataclasses.field(default_factory=dict)
    # Condition -> agent 0's first answers, [seeds][problems]
    texts: dict[str, list[list[Generated]]] = dataclasses.field(default_factory=dict)
    # Condition -> share of pairs of first answers of two agents that are the same text
    alike: dict[str, float] = dataclasses.field(default_factory=dict)


def solve(
    speaker: Speaker,
    problems: Sequence[Problem],
    names: Sequence[str],
    seeds: int,
    first: strategies.First = strategies.first_prompt,
) -> Solved:
    """Let every strategy of these names solve all problems under all conditions, once per seed.

    `first` makes what agents are told before their first answers.
    """
    solved = Solved()
    for name, condition in CONDITIONS.items():
        same: list[bool] = []
        for number in range(seeds):
            ask = functools.partial(_texts, speaker, condition, number)
            written = speaker.say(strategies.first_calls(problems, first), condition, number)
            said = [[one.text for one in written[i : i + AGENTS]] for i in range(0, len(written), AGENTS)]
            solved.texts.setdefault(name, []).append(written[::AGENTS])
            same += [texts[i] == texts[j] for texts in said for i in range(AGENTS) for j in range(i)]
            for strategy in names:
                alone = [[[texts[agent]] for texts in said] for agent in range(AGENTS)]
                answers = [
                    STRATEGIES[strategy](problems, some, ask)
                    for some in (alone if strategy == "Single" else [said])
                ]
                right = [[a == p.answer for a, p in zip(row, problems, strict=True)] for row in answers]
                none = [[answer is None for answer in row] for row in answers]
                solved.right.setdefault((name, strategy), []).append(np.mean(right, axis=0).tolist())
                solved.none.setdefault((name, strategy), []).append(np.mean(none, axis=0).tolist())
        solved.alike[name] = float(np.mean(same))
    return solved


def _texts(speaker: Speaker, condition: Condition, number: int, calls: Sequence[Call]) -> list[str]:
    return [one.text for one in speaker.say(calls, condition, number)]
