"""A judge names who failed at which step, in the three protocols of Who&When; scores and chance levels.

* `all_at_once`: one question about the whole log; the answer names agent and step.
* `step_by_step`: is this step a mistake? From the first step on, up to the first yes.
* `binary_search`: which half holds the mistake? Until one step is left.

The last two predict a step and its speaker. Without IDs no turn names its agent, so AgentAcc is 0 by
construction.

An answer is sampled once for each question and seed, and kept on disk. An answer that is not in the requested
form ends the log without a prediction, which counts as wrong. The same holds if the endpoint refuses the
question, or if it does not fit into the judge's context even without contents; the next run asks these again.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.paper.asking import (
    AnswerError,
    Answers,
    Asker,
    Endpoint,
    Question,
    Sampling,
    in_threads,
)
from benchmarks.paper.failure import questions
from benchmarks.paper.failure.questions import Words, shown_name
from benchmarks.paper.failure.restoration import nearest
from benchmarks.paper.failure.trajectories import Trajectory, agent_of

SAMPLING = Sampling(temperature=0.6, top_p=0.95, max_tokens=1024, seed=0)
"""Sampling of the public programs with local models."""


@dataclasses.dataclass(frozen=True)
class Judge:
    endpoint: Endpoint
    room: int | None = None  # longest question, in characters; None: unlimited
    workers: int = 1  # questions asked at once


@dataclasses.dataclass(frozen=True)
class Prediction:
    agent: str
    step: int


@dataclasses.dataclass(frozen=True)
class Outcome:
    prediction: Prediction | None
    reason: str  # why there is no prediction
    unanswered: bool  # a question was refused or did not fit
    calls: int  # number of questions
    cut: int  # number of questions whose contents were cut to fit


# Protocols. Each raises AnswerError if there is no prediction.

Asking = Callable[[questions.Ask], str]

_AGENT = re.compile(r"^Agent Name:[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_STEP = re.compile(r"^Step Number:[ \t]*([0-9]{1,9})[ \t]*$", re.MULTILINE)
_VERDICT = re.compile(r"1\. (Yes|No)\.?[ \t]*(\n|$)")


def _all_at_once(log: Trajectory, ask: Asking) -> Prediction:
    answer = ask(functools.partial(questions.all_at_once, log))
    agents, steps = _AGENT.findall(answer), _STEP.findall(answer)
    if len(agents) != 1 or len(steps) != 1 or int(steps[0]) >= len(log.turns):
        raise AnswerError("expected one line with the agent's name and one with a step of the log")
    return Prediction(agents[0], int(steps[0]))


def _step_by_step(log: Trajectory, ask: Asking) -> Prediction:
    for step, turn in enumerate(log.turns):
        verdict = _VERDICT.match(ask(functools.partial(questions.step_by_step, log, step)).strip())
        if verdict is None:
            raise AnswerError("the first line is neither '1. Yes' nor '1. No'")
        if verdict.group(1) == "Yes":
            return Prediction(shown_name(turn), step)
    raise AnswerError("no step is called a mistake")


def _binary_search(log: Trajectory, ask: Asking) -> Prediction:
    start, end = 0, len(log.turns) - 1
    while start < end:
        answer = (
            ask(functools.partial(questions.binary_search, log, start, end)).strip().strip("'\".").lower()
        )
        if answer not in ("upper half", "lower half"):
            raise AnswerError("neither 'upper half' nor 'lower half' alone")
        half = questions.middle(start, end)
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
        return _Session(asker, judge, dataclasses.replace(sampling, seed=seed), log).outcome(protocol)

    outcomes = iter(in_threads(work, tasks, judge.workers, judge.endpoint.model))
    return {
        (protocol, seed): list(itertools.islice(outcomes, len(logs)))
        for protocol, seed in itertools.product(protocols, seeds)
    }


class _Session:
    """The questions about one log with one seed."""

    def __init__(self, asker: Asker, judge: Judge, sampling: Sampling, log: Trajectory) -> None:
        self.asker, self.judge, self.sampling, self.log = asker, judge, sampling, log
        self.longest = max(len(turn.content) for turn in log.turns)
        self.calls = self.cut = 0
        self.unanswered = False

    def outcome(self, protocol: str) -> Outcome:
        prediction, reason = None, ""
        try:
            prediction = PROTOCOLS[protocol](self.log, self._ask)
        except AnswerError as error:
            reason = str(error)
        return Outcome(prediction, reason, self.unanswered, self.calls, self.cut)

    def _ask(self, ask: questions.Ask) -> str:
        fitted = questions.fitted(ask, self.longest, self._fits)
        if fitted is None:
            self.unanswered = True
            raise AnswerError(f"longer than the judge's {self.judge.room} without any contents")
        words, cut = fitted
        self.calls, self.cut = self.calls + 1, self.cut + cut
        answer = self.asker(Question(words.system, words.user, self.sampling, str))
        if answer is None:
            self.unanswered = True
            raise AnswerError("the endpoint refused the question")
        return answer

    def _fits(self, words: Words) -> bool:
        return self.judge.room is None or len(words.system) + len(words.user) <= self.judge.room


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
