"""What a judge's answers say, whether it is right, and what guessing is worth.

Answers are read in two ways. `STRICT` takes those that keep to the form that was asked for; any other is no
prediction. `LEGACY` takes what the public programs take: an answer that starts with "1. yes" is a mistake and
any other is none; "upper half" anywhere in an answer is the upper half, and so is what names no half (as with
local models; through an endpoint the public program draws one, without a seed); name and step are what its
two patterns find, of which the name's stops at a hyphen. (What the public program prints after a binary
search by a local model the evaluator does not find at all; here it is read as through an endpoint.)

They are scored in two ways, too. Ours: the agent is right if it is the annotated one ('Orchestrator
(thought)' is 'Orchestrator', and where a label has another case than its speaker both are right); a step of a
log whose turns were corrupted or restored stands for the turn of the original that it shares the most
characters with. The public evaluator's (`legacy_score`): the annotated name and the annotated step are
**substrings** of the predicted ones, so 1 is right where 10 was predicted, and a step is a number, whatever
its turn holds. Where there is no prediction a log counts as wrong.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import numpy as np

from benchmarks.paper.asking.asker import AnswerError
from benchmarks.paper.failure.restoration import nearest
from benchmarks.paper.failure.trajectories import Trajectory, agent_of

Span = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Prediction:
    agent: str  # a name
    step: str  # digits as they were written; `index` is their number

    @property
    def index(self) -> int:
        return int(self.step)


@dataclasses.dataclass(frozen=True)
class Reading:
    """How answers are read; each of these raises AnswerError where an answer says nothing."""

    # (answer of all_at_once, number of turns) -> what it predicts
    prediction: Callable[[str, int], Prediction]
    mistaken: Callable[[str], bool]  # answer of step_by_step -> whether the step is a mistake
    upper: Callable[[str], bool]  # answer of binary_search -> whether the upper half holds it
    turn: Callable[[str, int], Prediction]  # (name, step) that a search has ended at -> what it predicts


# ---------------------------------------------------------------- strict

_AGENT = re.compile(r"^Agent Name:[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_STEP = re.compile(r"^Step Number:[ \t]*([0-9]+)[ \t]*$", re.MULTILINE)
_VERDICT = re.compile(r"1\. (Yes|No)\.?[ \t]*(\n|$)")


def _strict_prediction(answer: str, turns: int) -> Prediction:
    agents, steps = _AGENT.findall(answer), _STEP.findall(answer)
    for what, found in (("agent's name", agents), ("step number", steps)):
        if len(found) != 1:
            raise AnswerError(f"got {len(found)} lines with the {what}, expected one")
    if len(steps[0]) > 9 or int(steps[0]) >= turns:
        raise AnswerError(f"got step {steps[0][:20]}, expected one below {turns}")
    return Prediction(agents[0], steps[0])


def _strict_mistaken(answer: str) -> bool:
    found = _VERDICT.match(answer.strip())
    if found is None:
        raise AnswerError("the first line is neither '1. Yes' nor '1. No'")
    return found.group(1) == "Yes"


def _strict_upper(answer: str) -> bool:
    said = answer.strip().strip("'\".").lower()
    if said not in ("upper half", "lower half"):
        raise AnswerError("neither 'upper half' nor 'lower half' alone")
    return said == "upper half"


STRICT = Reading(
    _strict_prediction, _strict_mistaken, _strict_upper, lambda name, step: Prediction(name, str(step))
)
"""Answers that keep to the form."""


# ---------------------------------------------------------------- legacy

_LEGACY_AGENT = re.compile(r"Agent Name:\s*([\w_]+)", re.IGNORECASE)
_LEGACY_STEP = re.compile(r"Step Number:\s*(\d+)", re.IGNORECASE)


def _legacy_prediction(printed: str, turns: int = 0) -> Prediction:
    block = _there(printed).split("Prediction for")[0]  # there the evaluator takes the next log to begin
    agent, step = _LEGACY_AGENT.search(block), _LEGACY_STEP.search(block)
    if agent is None or step is None:
        raise AnswerError(f"the evaluator finds no {'agent' if agent is None else 'step'}")
    return Prediction(agent.group(1), step.group(1))


def _there(answer: str) -> str:
    if not answer.strip():
        raise AnswerError("an empty answer, at which the public programs give a log up")
    return answer


LEGACY = Reading(
    _legacy_prediction,
    lambda answer: _there(answer).lower().strip().startswith("1. yes"),
    lambda answer: "upper half" in _there(answer).lower() or "lower half" not in answer.lower(),
    lambda name, step: _legacy_prediction(f"Agent Name: {name}\nStep Number: {step}\n"),
)
"""Answers as the public programs and their evaluator read them."""


# ---------------------------------------------------------------- scores


@dataclasses.dataclass(frozen=True)
class Seen:
    original: Trajectory  # with the annotation
    shown: Trajectory  # to the judge
    # Characters of `original.text` that each shown turn holds; None if the turns are the original's
    spans: tuple[Span, ...] | None = None

    @property
    def steps(self) -> tuple[int | None, ...]:
        """The original turn that each shown turn stands for; None where it shares no character with any."""
        if self.spans is None:
            return tuple(range(len(self.shown.turns)))
        return tuple(nearest(span, self.original.spans) for span in self.spans)


@dataclasses.dataclass(frozen=True)
class Score:
    agent: bool = False  # its agent
    step: bool = False  # the original turn that its step stands for
    index: bool = False  # its step as a number, as if the turns were the original's


def score(prediction: Prediction | None, seen: Seen) -> Score:
    if prediction is None:
        return Score()
    truth = seen.original
    return Score(
        agent_of(prediction.agent) in truth.to_blame,
        seen.steps[prediction.index] == truth.mistake_step,
        prediction.index == truth.mistake_step,
    )


def legacy_score(prediction: Prediction | None, truth: Trajectory) -> tuple[bool, bool]:
    """Return whether agent and step are right for the public evaluator; None is wrong."""
    if prediction is None:
        return False, False
    return truth.mistake_agent in prediction.agent, str(truth.mistake_step) in prediction.step


# ---------------------------------------------------------------- chance

CHANCE = {
    "uniform_speaker": "AgentAcc of any speaker",
    "first_speaker": "AgentAcc of the first speaker",
    "turn_speaker": "AgentAcc of any turn's speaker",
    "uniform_step": "StepAcc of any step",
    "step_one": "StepAcc of step 1",
    "uniform_step_legacy": "StepAcc of any step, legacy",
}
"""Figures of `chance`, and how tables call them."""


def chance(seen: Seen) -> dict[str, float]:
    """Return what guessing is worth on what a judge sees of a log: the probability to be right.

    Names are those that are shown (so 0 where IDs were removed), agents with several names count once, and a
    turn of nobody has no speaker. Steps stand for original turns as in `score`.
    """
    truth, turns, steps = seen.original, seen.shown.turns, seen.steps
    speakers = {agent_of(turn.name) for turn in turns if turn.name}
    right = [agent_of(turn.name) in truth.to_blame for turn in turns]
    return {
        "uniform_speaker": len(speakers & truth.to_blame) / max(1, len(speakers)),
        "first_speaker": float(right[0]),
        "turn_speaker": float(np.mean(right)),
        "uniform_step": float(np.mean([step == truth.mistake_step for step in steps])),
        "step_one": float(len(steps) > 1 and steps[1] == truth.mistake_step),
        "uniform_step_legacy": float(np.mean([str(truth.mistake_step) in str(i) for i in range(len(turns))])),
    }
