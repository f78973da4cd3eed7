"""A judge names who failed at which step, in the three protocols of Who&When; scores and chance levels.

* `all_at_once`: one question about the whole log; the answer names agent and step.
* `step_by_step`: is this step a mistake? From the first step on, up to the first yes.
* `binary_search`: which half holds the mistake? Until one step is left.

The last two predict a step and its speaker. Without IDs no turn names its agent, so AgentAcc is 0 by
construction. The questions (`all_at_once.txt`, ...) have the information of the public protocols in our own
words: the problem, its right answer (always), and the log, as lines "name: content" (**without step
numbers**) or "Step i - name: content" (step_by_step). Names are those of the presented log.

An answer is sampled once for each question and seed, and kept on disk. An answer that is not in the requested
form ends the log without a prediction, which counts as wrong. The same holds if the endpoint refuses the
question, for example as too long; the next run asks these again.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.paper.asking import (
    AnswerError,
    Answers,
    Asker,
    OpenAIEndpoint,
    Question,
    Sampling,
    in_threads,
)
from benchmarks.paper.failure.restoration import nearest
from benchmarks.paper.failure.trajectories import Trajectory, Turn, agent_of

SAMPLING = Sampling(temperature=0.6, top_p=0.95, max_tokens=1024, seed=0)
"""Sampling of the public programs with local models."""


@dataclasses.dataclass(frozen=True)
class Judge:
    endpoint: OpenAIEndpoint
    workers: int = 1  # questions asked at once


@dataclasses.dataclass(frozen=True)
class Prediction:
    agent: str
    step: int


@dataclasses.dataclass(frozen=True)
class Outcome:
    prediction: Prediction | None
    reason: str  # why there is no prediction
    unanswered: bool  # a question was refused
    calls: int  # number of questions


def shown_name(turn: Turn) -> str:
    """Return the speaker's name as a judge sees it.

    >>> shown_name(Turn("Coder", "x = 1")), shown_name(Turn("", "x = 1")), shown_name(Turn("", "Hi.", True))
    ('Coder', 'unknown', 'human')
    """
    return turn.name or ("human" if turn.human else "unknown")


def question(protocol: str, log: Trajectory, start: int, end: int) -> tuple[str, str]:
    """Return the system and the user message about the steps `start` .. `end`, both included."""
    path = pathlib.Path(__file__).with_name(f"{protocol}.txt")
    system, _, user = path.read_text(encoding="utf-8").rstrip("\n").partition("\n\n")
    steps = range(start, end + 1)
    prefix = "Step {} - " if protocol == "step_by_step" else ""
    turns = "\n".join(prefix.format(i) + f"{shown_name(log.turns[i])}: {log.turns[i].content}" for i in steps)
    half = middle(start, end)
    fields = {"start": start, "end": end, "half": half, "after": half + 1, "step": end}
    return system, user.format(log=log, turns=turns, name=shown_name(log.turns[end]), **fields)


def middle(start: int, end: int) -> int:
    """Return the last step of the upper half of the steps `start` .. `end`.

    >>> middle(0, 9), middle(5, 6)
    (4, 5)
    """
    return start + (end - start) // 2


# Protocols. Each raises AnswerError if there is no prediction.

Asking = Callable[[str, str], str]
"""(system message, user message) -> answer."""

_AGENT = re.compile(r"^Agent Name:[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_STEP = re.compile(r"^Step Number:[ \t]*([0-9]{1,9})[ \t]*$", re.MULTILINE)
_VERDICT = re.compile(r"1\. (Yes|No)\.?[ \t]*(\n|$)")


def _all_at_once(log: Trajectory, ask: Asking) -> Prediction:
    answer = ask(*question("all_at_once", log, 0, len(log.turns) - 1))
    agents, steps = _AGENT.findall(answer), _STEP.findall(answer)
    if len(agents) != 1 or len(steps) != 1 or int(steps[0]) >= len(log.turns):
        raise AnswerError("expected one line with the agent's name and one with a step of the log")
    return Prediction(agents[0], int(steps[0]))


def _step_by_step(log: Trajectory, ask: Asking) -> Prediction:
    for step, turn in enumerate(log.turns):
        verdict = _VERDICT.match(ask(*question("step_by_step", log, 0, step)).strip())
        if verdict is None:
            raise AnswerError("the first line is neither '1. Yes' nor '1. No'")
        if verdict.group(1) == "Yes":
            return Prediction(shown_name(turn), step)
    raise AnswerError("no step is called a mistake")


def _binary_search(log: Trajectory, ask: Asking) -> Prediction:
    start, end = 0, len(log.turns) - 1
    while start < end:
        answer = ask(*question("binary_search", log, start, end)).strip().strip("'\".").lower()
        if answer not in ("upper half", "lower half"):
            raise AnswerError("neither 'upper half' nor 'lower half' alone")
        half = middle(start, end)
        start, end = (start, half) if answer == "upper half" else (half + 1, end)
    return Prediction(shown_name(log.turns[start]), start)


PROTOCOLS: Mapping[str, Callable[[Trajectory, Asking], Prediction]] = {
    "all_at_once": _all_at_once,
    "step_by_step": _step_by_step,
    "binary_search": _binary_search,
}


def judge_logs(
    logs: Sequence[Trajectory],
    judge: Judge,
    *,
    cache: pathlib.Path | None,
    protocols: Sequence[str] = tuple(PROTOCOLS),
    seeds: Sequence[int] = (0,),
    sampling: Sampling = SAMPLING,
) -> dict[tuple[str, int], list[Outcome]]:
    """Ask a judge about every log, in every protocol and with every seed; return the outcomes in order.

    `cache` is a file of answers, also of other judges and logs; None keeps nothing.
    """
    tasks = list(itertools.product(protocols, seeds, logs))
    asker = Asker(judge.endpoint, Answers(cache))

    def work(task: tuple[str, int, Trajectory]) -> Outcome:
        protocol, seed, log = task
        answers: list[str | None] = []

        def ask(system: str, user: str) -> str:
            answers.append(asker(Question(system, user, dataclasses.replace(sampling, seed=seed), str)))
            if answers[-1] is None:
                raise AnswerError("the endpoint refused the question")
            return answers[-1]

        prediction, reason = None, ""
        try:
            prediction = PROTOCOLS[protocol](log, ask)
        except AnswerError as error:
            reason = str(error)
        return Outcome(prediction, reason, None in answers, len(answers))

    outcomes = iter(in_threads(work, tasks, judge.workers, judge.endpoint.model))
    return {
        (protocol, seed): list(itertools.islice(outcomes, len(logs)))
        for protocol, seed in itertools.product(protocols, seeds)
    }


# Scores and chance levels


@dataclasses.dataclass(frozen=True)
class Seen:
    original: Trajectory  # with the annotation
    presented: Trajectory  # to the judge
    # Characters of `original.text` in each shown turn; None if the turns are the original's
    spans: tuple[tuple[int, int], ...] | None = None

    @property
    def steps(self) -> tuple[int | None, ...]:
        """The original turn that each shown turn shares most characters with, or None."""
        if self.spans is None:
            return tuple(range(len(self.presented.turns)))
        return tuple(nearest(span, self.original.spans) for span in self.spans)


def score(prediction: Prediction | None, seen: Seen) -> tuple[bool, bool, bool]:
    """Return whether agent, step, and step by index are right.

    A step of a corrupted or restored log is mapped to the original turn in `Seen.steps`; by index its
    number is compared, as the public evaluator does.
    """
    if prediction is None:
        return False, False, False
    truth = seen.original
    return (
        agent_of(prediction.agent) in truth.to_blame,
        seen.steps[prediction.step] == truth.mistake_step,
        prediction.step == truth.mistake_step,
    )


def chance(seen: Seen) -> dict[str, float]:
    """Return the probability that a guess about a shown log is right, for three ways of guessing."""
    truth, turns = seen.original, seen.presented.turns
    speakers = {agent_of(turn.name) for turn in turns if turn.name}
    return {
        "uniform_speaker": len(speakers & truth.to_blame) / max(1, len(speakers)),
        "turn_speaker": float(np.mean([agent_of(turn.name) in truth.to_blame for turn in turns])),
        "uniform_step": float(np.mean([step == truth.mistake_step for step in seen.steps])),
    }
