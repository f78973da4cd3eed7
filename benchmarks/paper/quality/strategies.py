"""How agents come to an answer: alone, twice, by vote, by debate (Du et al. 2023, Table 1).

The paper takes over the definitions, with 3 agents and 2 rounds, and announces prompts that it does not
print. These are our own words, with the information that the definitions give to each call:

* *Single*: one agent answers.
* *Reflection*: the same agent reads the problem and its own answer, looks for mistakes, and answers again.
* *Majority*: three agents answer on their own; the most frequent answer counts.
* *Debate*: three agents answer (round 1); each reads the problem, its own answer and those of the other two,
  and answers again (round 2). The most frequent of the last answers counts.
* *Debate, judge*: the same debate; a fourth agent reads the problem and the last answers and decides.

All strategies go out from the same first answers: agent 0's is what Reflection reads, and each of the three
is Single's, whose figure is the mean over them. Each agent has a key of its own, the judge too. A vote counts
answers that are numbers; of equally frequent ones the one that was given first, in the order of agents,
counts. Where nobody gave a number there is no answer.

A gumbel mark gives the same text again for the same prompt under the same key. Nothing here asks twice so:
agents differ in their keys, and prompts of one agent that follow each other end in another number.
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
JUDGE = AGENTS
"""Number of the judge, behind the agents."""

_ROLE = "You are Agent_{agent}. You solve problems with numbers, step by step and with care."
_JUDGE = "You are Agent_{agent}, the judge. You decide which of several answers to a problem is right."
_END = "End with a line of its own, 'Answer: ' and the number, with nothing else in it."


@dataclasses.dataclass(frozen=True)
class Call:
    problem: Problem  # that it is to
    agent: int  # who gives it; `JUDGE` is the judge
    number: int  # of the agent's earlier calls in this strategy
    prompt: Prompt  # what the agent is told
    branch: str = ""  # tells apart calls of one agent and number with different prompts


Ask = Callable[[Sequence[Call]], list[str]]
"""Answers many calls at once, each on its own, in their order."""

First = Callable[[Problem, int], Prompt]
"""(problem, agent) -> what an agent is told before its first answer."""

Strategy = Callable[[Sequence[Problem], Sequence[Sequence[str]], Ask], list[Fraction | None]]
"""(problems, their first answers agent by agent, ask) -> the answer to each problem."""


def first_prompt(problem: Problem, agent: int) -> Prompt:
    return _prompt(problem, agent, [], "Solve the problem. Write down your steps.", "Answer 1:")


def _prompt(
    problem: Problem, agent: int, parts: Sequence[tuple[str, str]], request: str, opening: str
) -> Prompt:
    role = (_JUDGE if agent == JUDGE else _ROLE).format(agent=agent)
    known = tuple(Part(*part) for part in [("Problem:", problem.text), *parts])
    return Prompt(role, known, f"{request} {_END}", opening)


def first_calls(problems: Sequence[Problem], prompt: First = first_prompt) -> list[Call]:
    """Return what asks for the first answers that all strategies go out from, problem by problem."""
    return [Call(p, agent, 0, prompt(p, agent)) for p in problems for agent in range(AGENTS)]


def single(problems: Sequence[Problem], said: Sequence[Sequence[str]], ask: Ask) -> list[Fraction | None]:
    return [answer_of(texts[0]) for texts in said]


def reflection(problems: Sequence[Problem], said: Sequence[Sequence[str]], ask: Ask) -> list[Fraction | None]:
    request = "Look for mistakes in your answer, correct them, and solve the problem again."
    calls = []
    for problem, texts in zip(problems, said, strict=True):
        prompt = _prompt(problem, 0, [("Your answer so far:", texts[0])], request, "Answer 2:")
        calls.append(Call(problem, 0, 1, prompt, "reflection"))
    return [answer_of(text) for text in ask(calls)]


def majority(problems: Sequence[Problem], said: Sequence[Sequence[str]], ask: Ask) -> list[Fraction | None]:
    return [vote([answer_of(text) for text in texts]) for texts in said]


def debate(problems: Sequence[Problem], said: Sequence[Sequence[str]], ask: Ask) -> list[Fraction | None]:
    return majority(problems, _debated(problems, said, ask), ask)


def judged(problems: Sequence[Problem], said: Sequence[Sequence[str]], ask: Ask) -> list[Fraction | None]:
    calls = []
    for problem, texts in zip(problems, _debated(problems, said, ask), strict=True):
        parts = [(f"Agent_{agent}:", text) for agent, text in enumerate(texts)]
        request = "Compare the answers, check their steps, and decide."
        calls.append(Call(problem, JUDGE, 0, _prompt(problem, JUDGE, parts, request, "Verdict 1:")))
    return [answer_of(text) for text in ask(calls)]


def _debated(problems: Sequence[Problem], said: Sequence[Sequence[str]], ask: Ask) -> list[list[str]]:
    last = [list(texts) for texts in said]
    for number in range(1, ROUNDS):
        calls = [
            Call(problem, agent, number, _reply(problem, agent, number, texts), "debate")
            for problem, texts in zip(problems, last, strict=True)
            for agent in range(len(texts))
        ]
        said = ask(calls)
        last = [said[start : start + AGENTS] for start in range(0, len(said), AGENTS)]
    return last


def _reply(problem: Problem, agent: int, number: int, texts: Sequence[str]) -> Prompt:
    others = [(f"Agent_{other}'s answer:", text) for other, text in enumerate(texts) if other != agent]
    request = "Take the others' answers as advice, check them and your own, and solve the problem again."
    own = ("Your answer so far:", texts[agent])
    return _prompt(problem, agent, [own, *others], request, f"Answer {number + 1}:")


def vote(answers: Sequence[Fraction | None]) -> Fraction | None:
    """Return the most frequent number; of equally frequent ones the first; None where there is none.

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
    "Debate, judge": judged,
}
"""Name -> strategy."""

WITHOUT_INSTRUCTIONS = ("Single", "Majority")
"""Those that a model can take part in which only continues a question."""
