"""What a judge is asked in the three protocols of Who&When, in our own words.

The information is that of the public protocols: the problem, its right answer (always), and the log. It is
shown as lines "name: content" (all_at_once and binary_search: **without step numbers**, so a reader must
count turns whose contents have lines of their own) or "Step i - name: content" (step_by_step: the turns so
far). Names are those of the log that is shown: where IDs were removed, the generic ones; where a restored
turn is nobody's, "unknown".

*Logs that are longer than the judge's context* (`fitted`). Every turn keeps its name; contents longer than a
common number of characters lose their middle, for which " [...] " stands. The number is the largest with
which the question fits. The public programs send such a log as it is, and an endpoint refuses it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from benchmarks.paper.failure.trajectories import Trajectory, Turn

GAP = " [...] "
"""Stands for what was cut out of a content."""

_TASK = "Several agents worked on a problem together, and their answer was wrong."


@dataclasses.dataclass(frozen=True)
class Words:
    system: str
    user: str


Ask = Callable[[int | None], Words]
"""Longest content, in characters (None: as long as it is) -> the question."""


def shown_name(turn: Turn) -> str:
    """Return the name under which a judge sees who spoke.

    >>> shown_name(Turn("Coder", "x = 1")), shown_name(Turn("", "x = 1")), shown_name(Turn("", "Hi.", True))
    ('Coder', 'unknown', 'human')
    """
    return turn.name or ("human" if turn.human else "unknown")


def capped(content: str, longest: int | None) -> str:
    """Return a content without its middle where it is longer than `longest` and the gap.

    >>> capped("abcdefghijklmnopqrstuvwxyz", 4)
    'ab [...] yz'
    """
    if longest is None or len(content) <= longest + len(GAP):
        return content
    return content[: longest - longest // 2] + GAP + content[len(content) - longest // 2 :]


def all_at_once(log: Trajectory, longest: int | None = None) -> Words:
    """Ask about the whole log at once: which agent, and at which step."""
    return Words(
        "You read conversations between agents carefully and explain what happened in them.",
        f"{_TASK} Find the mistake that is to blame: whose it was, at which step, and why.\n\n"
        f"{_problem(log)}\n\nThe conversation, one step after another, each as the agent's name and what it"
        f" said:\n\n{_lines(log.turns, longest)}\n\n"
        "Tell three things.\n"
        "1. The agent whose mistake led to the wrong answer, by its name in the conversation. If no agent"
        " made a clear mistake, name the one that is most to blame.\n"
        "2. The step of its first mistake. Steps are counted from 0. If the conversation were\n"
        "   A: ...\n   B: ...\n   C: ...\n   A: ...\n"
        "then a mistake in what C said would be at step 2, and one in what A said last at step 3.\n"
        "3. The reason.\n\n"
        "Answer in exactly this form:\n"
        "Agent Name: the name\n"
        "Step Number: the number\n"
        "Reason for Mistake: the reason",
    )


def step_by_step(log: Trajectory, step: int, longest: int | None = None) -> Words:
    """Ask whether a step is a mistake, given all steps up to it."""
    history = "\n".join(
        f"Step {i} - {shown_name(turn)}: {capped(turn.content, longest)}"
        for i, turn in enumerate(log.turns[: step + 1])
    )
    name = shown_name(log.turns[step])
    return Words(
        "You judge the steps of a conversation between agents one by one, and precisely.",
        f"Several agents are working on a problem together.\n\n{_problem(log)}\n\n"
        f"The conversation up to now:\n\n{history}\n\n"
        f"The last step is step {step}, by {name}. Does it contain a mistake that may lead to a wrong answer"
        " or stand in the way of the right one? Do not be too strict: count only what clearly throws the"
        " work off its course.\n\n"
        "Answer in exactly this form, Yes or No first:\n"
        "1. Yes or No.\n"
        "2. Reason: the reason",
    )


def binary_search(log: Trajectory, start: int, end: int, longest: int | None = None) -> Words:
    """Ask which half of the steps `start` .. `end` (both shown) holds the mistake; see `middle`."""
    half = middle(start, end)
    return Words(
        "You find mistakes in parts of conversations between agents.",
        f"{_TASK} Find out which half of a part of their conversation holds the one step whose mistake"
        f" matters most.\n\n{_problem(log)}\n\n"
        f"The part, step {start} to step {end}:\n\n{_lines(log.turns[start : end + 1], longest)}\n\n"
        f"The upper half is step {start} to step {half}, the lower half step {half + 1} to step {end}. Is the"
        " mistake that led to the wrong answer in the upper or in the lower half? If no mistake is clear,"
        " choose the half with the step that you find most to blame.\n\n"
        "Answer with 'upper half' or 'lower half' and nothing else.",
    )


def middle(start: int, end: int) -> int:
    """Return the last step of the upper half of the steps `start` .. `end`.

    >>> middle(0, 9), middle(5, 6)
    (4, 5)
    """
    return start + (end - start) // 2


def fitted(ask: Ask, longest: int, fits: Callable[[Words], bool]) -> tuple[Words, bool] | None:
    """Return a question that fits, and whether contents were cut; None if it never does."""
    words = ask(None)
    if fits(words):
        return words, False
    low, high = 0, longest  # what fits, as far as is known, and what does not
    words = ask(0)
    if not fits(words):
        return None
    while high - low > 1:
        half = (low + high) // 2
        tried = ask(half)
        if fits(tried):
            low, words = half, tried
        else:
            high = half
    return words, True


def _problem(log: Trajectory) -> str:
    return f"The problem: {log.question}\nThe right answer: {log.answer}"


def _lines(turns: Sequence[Turn], longest: int | None) -> str:
    return "\n".join(f"{shown_name(turn)}: {capped(turn.content, longest)}" for turn in turns)
