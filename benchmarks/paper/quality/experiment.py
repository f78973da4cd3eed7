"""Cost of marking in answer quality (§ Will IET degrade general performance?).

Each strategy solves the same problems clean and marked (fourier κ = 0.8, gumbel), with several seeds; a seed
has its own draws and keys. The figure of a problem is the mean over seeds; differences are paired by
problems, with 95 % bootstrap intervals. A second clean run with other draws shows differences by chance.
The arithmetic model (`model/`) can only continue a question, so it takes part in Single and Majority. An
instruction model (`--model`) takes part in all strategies, and in GSM8K too.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import recording, statistics
from benchmarks.paper import marks, plots, results
from benchmarks.paper.asking import Answers
from benchmarks.paper.conversations.author import ModelAuthor, Row
from benchmarks.paper.conversations.generate import loaded_for
from benchmarks.paper.conversations.logs import Setting
from benchmarks.paper.conversations.prompts import Prompt
from benchmarks.paper.quality import strategies
from benchmarks.paper.quality.strategies import AGENTS, STRATEGIES, WITHOUT_INSTRUCTIONS, Call
from benchmarks.paper.quality.tasks import COUNT, Problem, arithmetic, gsm8k
from benchmarks.recording import Cell
from benchmarks.statistics import Interval
from benchmarks.writing.models import Loaded, load
from iet.marks.scheme import canonical_digest

ARITHMETIC_MODEL = pathlib.Path(__file__).with_name("model")

CLEAN = "clean"
CONDITIONS: Mapping[str, tuple[str, int]] = {
    CLEAN: ("none", 0),
    "clean, other draws": ("none", 1 << 16),
    "fourier": ("fourier", 0),
    "gumbel": ("gumbel", 0),
}
"""Condition -> mark, and a number that is added to the seeds of the draws."""

SHORT: Mapping[str, Any] = {"turn_tokens": (1, 180), "prompt_tokens": 40}
"""Lengths of the arithmetic model, whose longest solutions have about 130 characters."""


@dataclasses.dataclass(frozen=True)
class Options:
    problems: int = COUNT  # of each task
    seeds: int = 40  # runs over all problems
    seed: int = 0  # the first
    temperature: float = 1.0
    top_p: float = 1.0
    turn_tokens: tuple[int, int] = (1, 512)  # fewest and most tokens of an answer
    prompt_tokens: int = 3072
    batch: int = 128  # answers that are sampled together


def spoken(problem: Problem, agent: int) -> Prompt:
    """Return the question to the arithmetic model, in the language that it was trained on."""
    return Prompt(f"Q: {problem.expression}", (), "", "A:")


class Speaker:
    """Generates the answers of a model; answers on disk are not generated again."""

    def __init__(self, loaded: Loaded, options: Options, answers: Answers) -> None:
        self.loaded, self.options, self._answers = loaded, options, answers

    def setting(self, condition: str, number: int) -> Setting:
        """Return the setting of a run; `number` counts seeds from 0."""
        return Setting(
            topology="none",
            agents=AGENTS,
            temperature=self.options.temperature,
            top_p=self.options.top_p,
            joiner="",
            seed=self.options.seed + number,
            rounds=strategies.ROUNDS,
            early_stop=False,
            **marks.made_by(self.loaded, CONDITIONS[condition][0]),
            turn_tokens=self.options.turn_tokens,
            prompt_tokens=self.options.prompt_tokens,
        )

    def say(self, calls: Sequence[Call], condition: str, number: int) -> list[str]:
        """Return a text for each call, under the key of the agent of its problem."""
        setting = self.setting(condition, number)
        author = ModelAuthor(self.loaded, setting, batch=self.options.batch)
        seed = self.options.seed + number + CONDITIONS[condition][1]
        texts: list[str] = []
        for start in range(0, len(calls), self.options.batch):
            batch = calls[start : start + self.options.batch]
            rows = [row(call, seed, setting) for call in batch]
            names = [marks.agent_name(call.problem.number, call.agent) for call in batch]
            key = canonical_digest(
                {"setting": setting.digest, "rows": [dataclasses.asdict(row) for row in rows], "names": names}
            )
            if not self._answers.of(key):
                written = author.generate(rows, names)
                self._answers.add(key, self.loaded.name, json.dumps([text.text for text in written]))
            texts += json.loads(self._answers.of(key)[0])
        return texts


def row(call: Call, seed: int, setting: Setting) -> Row:
    text = f"{seed}/{call.problem.task}/{call.problem.number}/{call.agent}/{call.number}/{call.branch}"
    drawn = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    return Row(call.prompt, drawn, *setting.turn_tokens)


Figures = dict[tuple[str, str], list[list[float]]]
"""(condition, strategy) -> figures [seeds][problems]."""


def solve(
    speaker: Speaker,
    problems: Sequence[Problem],
    names: Sequence[str],
    seeds: int,
    first: strategies.First = strategies.first_prompt,
) -> tuple[Figures, Figures]:
    """Let every strategy solve all problems under all conditions, once for each seed.

    Returns 1 for right answers, and 1 for texts without an answer. For Single it is the mean over the agents,
    because each answers alone. `first` makes the prompts of the first answers.
    """
    right: Figures = {}
    missing: Figures = {}
    for condition in CONDITIONS:
        for number in range(seeds):
            ask = functools.partial(speaker.say, condition=condition, number=number)
            texts = ask(strategies.first_calls(problems, first))
            by_problem = [texts[i : i + AGENTS] for i in range(0, len(texts), AGENTS)]
            by_agent = [
                [[answers_of_agent[agent]] for answers_of_agent in by_problem] for agent in range(AGENTS)
            ]
            for strategy in names:
                answers = [
                    STRATEGIES[strategy](problems, answers_of_agent, ask)
                    for answers_of_agent in (by_agent if strategy == "Single" else [by_problem])
                ]
                correct = [
                    [a == p.answer for a, p in zip(answers_of_agent, problems, strict=True)]
                    for answers_of_agent in answers
                ]
                none = [[answer is None for answer in answers_of_agent] for answers_of_agent in answers]
                right.setdefault((condition, strategy), []).append(np.mean(correct, axis=0).tolist())
                missing.setdefault((condition, strategy), []).append(np.mean(none, axis=0).tolist())
    return right, missing


def run(
    options: Options,
    data: pathlib.Path,
    out: pathlib.Path,
    model: str | None = None,
    device: str = "cpu",
    *,
    overwrite: bool = False,
) -> None:
    """Measure accuracy with and without marks; write table and figure. Generated texts are in `out / "logs"`.

    `model` is an instruction model; None: the arithmetic model, which takes part in what it can do.
    """
    tasks: list[tuple[Problem, ...]] = [tuple(arithmetic(options.problems))]
    names: tuple[str, ...] = tuple(STRATEGIES)
    if model is None:
        loaded = dataclasses.replace(load(ARITHMETIC_MODEL), name="of arithmetic")
        names, first = WITHOUT_INSTRUCTIONS, spoken
        options = dataclasses.replace(options, **SHORT)
    else:
        loaded, first = loaded_for(model, device), strategies.first_prompt
        tasks.append(tuple(gsm8k(data, options.problems)))
    configuration: dict[str, Any] = {
        "experiment": "quality",
        **dataclasses.asdict(options),
        "model": loaded.name,
        "model_digest": loaded.digest,
        "device": device,
        "problems_measured": {p[0].task: [problem.number for problem in p] for p in tasks},
    }
    if not overwrite:
        results.check_overwrite(out / "quality.json", configuration)
    answers = Answers(out / "logs" / "quality.jsonl")
    header = ["task", "strategy", "condition", "accuracy", "accuracy - clean", "no answer"]
    cells: list[list[Cell]] = []
    rows: list[dict[str, Any]] = []
    panels: dict[str, dict[str, list[Interval | None]]] = {}
    speaker = Speaker(loaded, options, answers)
    for problems in tasks:
        right, missing = solve(speaker, problems, names, options.seeds, first)
        task, series = problems[0].task, panels.setdefault(problems[0].task, {})
        for strategy, condition in ((strategy, condition) for strategy in names for condition in CONDITIONS):
            correct, none, clean = (
                np.mean(figures[key, strategy], axis=0).tolist()
                for figures, key in ((right, condition), (missing, condition), (right, CLEAN))
            )
            difference: Cell = ""
            if condition != CLEAN:
                difference = interval = statistics.difference(correct, clean, options.seed)
                series.setdefault(condition, []).append(interval)
            cell = (task, strategy, condition)
            accuracy = statistics.interval(correct, options.seed)
            cells.append([*cell, accuracy, difference, float(np.mean(none))])
            for problem, r, n in zip(problems, correct, none, strict=True):
                rows.append(
                    {
                        **dict(zip(header, cell, strict=False)),
                        "problem": problem.number,
                        "right": r,
                        "none": n,
                    }
                )
    note = results.note(
        pathlib.Path(__file__).with_name("quality_note.md"),
        model=loaded.name,
        most=options.turn_tokens[1],
        **dataclasses.asdict(options),
    )
    recording.write_table(
        out / "quality", header, cells, results.content(configuration), rows=rows, note=note
    )
    strategies_of = {task: list(names) for task in panels}
    plots.error_bars(out / "quality", strategies_of, panels, ylabel="accuracy - clean")
