"""Strategies to solve a problem: alone, twice, by vote, by debate (Du et al. 2023, Table 1).

The paper takes over these definitions, with 3 agents and 2 rounds; it does not print its prompts, so these
are our own words:

* *Single*: one agent answers.
* *Reflection*: the same agent reads the problem and its own answer, looks for mistakes, and answers again.
* *Majority*: three agents answer independently; the most frequent answer counts.
* *Debate*: three agents answer (round 1); each reads the problem, its own answer and those of the other two,
  and answers again (round 2). The most frequent of the last answers counts.

All strategies start from the same first answers: Reflection reads that of agent 0, and Single is the mean
over the three. Each agent has its own key. A vote counts numbers; the first of equally
frequent ones wins. A gumbel mark gives the same text for the same prompt under the same key, so the prompts
of an agent that follow each other end in different numbers.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from benchmarks.paper.conversations.prompts import Part, Prompt
from benchmarks.paper.quality.tasks import Problem, answer_of

AGENTS = 3
ROUNDS = 2

_ROLE = "You are Agent_{agent}. You solve problems with numbers, step by step and with care."
_END = "End with a line of its own, 'Answer: ' and the number, with nothing else in it."


@dataclasses.dataclass(frozen=True)
class Call:
    problem: Problem
    agent: int
    number: int  # of earlier calls of the agent in this strategy
    prompt: Prompt
    branch: str = ""  # distinguishes calls of one agent and number with different prompts


Ask = Callable[[Sequence[Call]], list[str]]
"""Answers independent calls, in their order."""

First = Callable[[Problem, int], Prompt]
"""(problem, agent) -> prompt of the first answer."""

Strategy = Callable[[Sequence[Problem], Sequence[Sequence[str]], Ask], list[Fraction | None]]
"""(problems, their first answers agent by agent, ask) -> the answer to each problem."""


def first_prompt(problem: Problem, agent: int) -> Prompt:
    return _prompt(problem, agent, [], "Solve the problem. Write down your steps.", "Answer 1:")


def _prompt(
    problem: Problem, agent: int, parts: Sequence[tuple[str, str]], request: str, opening: str
) -> Prompt:
    role = _ROLE.format(agent=agent)
    problem_parts = tuple(Part(*part) for part in [("Problem:", problem.text), *parts])
    return Prompt(role, problem_parts, f"{request} {_END}", opening)


def first_calls(problems: Sequence[Problem], prompt: First = first_prompt) -> list[Call]:
    """Return the calls for the first answers, problem by problem."""
    return [Call(p, agent, 0, prompt(p, agent)) for p in problems for agent in range(AGENTS)]


def single(
    problems: Sequence[Problem], first_answers: Sequence[Sequence[str]], ask: Ask
) -> list[Fraction | None]:
    return [answer_of(texts[0]) for texts in first_answers]


def reflection(
    problems: Sequence[Problem], first_answers: Sequence[Sequence[str]], ask: Ask
) -> list[Fraction | None]:
    request = "Look for mistakes in your answer, correct them, and solve the problem again."
    calls = []
    for problem, texts in zip(problems, first_answers, strict=True):
        prompt = _prompt(problem, 0, [("Your answer so far:", texts[0])], request, "Answer 2:")
        calls.append(Call(problem, 0, 1, prompt, "reflection"))
    return [answer_of(text) for text in ask(calls)]


def majority(
    problems: Sequence[Problem], first_answers: Sequence[Sequence[str]], ask: Ask
) -> list[Fraction | None]:
    return [vote([answer_of(text) for text in texts]) for texts in first_answers]


def debate(
    problems: Sequence[Problem], first_answers: Sequence[Sequence[str]], ask: Ask
) -> list[Fraction | None]:
    texts = [list(answers) for answers in first_answers]
    for number in range(1, ROUNDS):
        calls = [
            Call(problem, agent, number, _reply(problem, agent, number, answers), "debate")
            for problem, answers in zip(problems, texts, strict=True)
            for agent in range(len(answers))
        ]
        answers = ask(calls)
        texts = [answers[start : start + AGENTS] for start in range(0, len(answers), AGENTS)]
    return majority(problems, texts, ask)


def _reply(problem: Problem, agent: int, number: int, texts: Sequence[str]) -> Prompt:
    other_answers = [
        (f"Agent_{agent_number}'s answer:", text)
        for agent_number, text in enumerate(texts)
        if agent_number != agent
    ]
    request = "Take the others' answers as advice, check them and your own, and solve the problem again."
    own_answer = ("Your answer so far:", texts[agent])
    return _prompt(problem, agent, [own_answer, *other_answers], request, f"Answer {number + 1}:")


def vote(answers: Sequence[Fraction | None]) -> Fraction | None:
    """Return the most frequent number, the first of equally frequent ones; None if there is no number.

    >>> vote([Fraction(1), Fraction(2), None, Fraction(2)])
    Fraction(2, 1)
    """
    counts = Counter(answer for answer in answers if answer is not None)
    return max(counts, key=counts.__getitem__) if counts else None


STRATEGIES: Mapping[str, Strategy] = {
    "Single": single,
    "Reflection": reflection,
    "Majority": majority,
    "Debate": debate,
}
WITHOUT_INSTRUCTIONS = ("Single", "Majority")
"""Strategies for a model that only continues a question."""
