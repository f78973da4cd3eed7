"""The questions to a judge in the three protocols of Who&When, in our own words (`all_at_once.txt`, ...).

They contain the information of the public protocols: the problem, its right answer (always), and the log. The
log is shown as lines "name: content" (all_at_once and binary_search, **without step numbers**) or "Step i -
name: content" (step_by_step, the turns so far). Names are those of the shown log: generic ones without IDs,
"unknown" for an unattributed turn.

*Logs that are longer than the judge's context* (`fitted`). Every turn keeps its name. Contents longer than a
common number of characters lose their middle, which " [...] " replaces; it is the largest number that
makes the question fit.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

from benchmarks.paper.failure.trajectories import Trajectory, Turn

GAP = " [...] "
"""Replaces the part that was cut out of a content."""


@dataclasses.dataclass(frozen=True)
class Words:
    system: str
    user: str


Ask = Callable[[int | None], Words]
"""Longest content in characters (None: unlimited) -> the question."""


def shown_name(turn: Turn) -> str:
    """Return the speaker's name as a judge sees it.

    >>> shown_name(Turn("Coder", "x = 1")), shown_name(Turn("", "x = 1")), shown_name(Turn("", "Hi.", True))
    ('Coder', 'unknown', 'human')
    """
    return turn.name or ("human" if turn.human else "unknown")


def capped(content: str, longest: int | None) -> str:
    """Return a content without its middle if it is longer than `longest` and the gap.

    >>> capped("abcdefghijklmnopqrstuvwxyz", 4)
    'ab [...] yz'
    """
    if longest is None or len(content) <= longest + len(GAP):
        return content
    return content[: longest - longest // 2] + GAP + content[len(content) - longest // 2 :]


def all_at_once(log: Trajectory, longest: int | None = None) -> Words:
    """Ask about the whole log at once: which agent, and at which step."""
    return _asked("all_at_once", log=log, turns=_lines(log.turns, longest))


def step_by_step(log: Trajectory, step: int, longest: int | None = None) -> Words:
    """Ask whether a step is a mistake, given all steps up to it."""
    history = "\n".join(
        f"Step {i} - {shown_name(turn)}: {capped(turn.content, longest)}"
        for i, turn in enumerate(log.turns[: step + 1])
    )
    return _asked("step_by_step", log=log, turns=history, step=step, name=shown_name(log.turns[step]))


def binary_search(log: Trajectory, start: int, end: int, longest: int | None = None) -> Words:
    """Ask which half of the steps `start` .. `end` (both shown) holds the mistake; see `middle`."""
    half, turns = middle(start, end), _lines(log.turns[start : end + 1], longest)
    return _asked("binary_search", log=log, turns=turns, start=start, end=end, half=half, after=half + 1)


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
    low, high = 0, longest  # `low` fits, `high` does not
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


def _asked(protocol: str, **fields: object) -> Words:
    path = pathlib.Path(__file__).with_name(f"{protocol}.txt")
    system, _, user = path.read_text(encoding="utf-8").rstrip("\n").partition("\n\n")
    return Words(system, user.format(**fields))


def _lines(turns: Sequence[Turn], longest: int | None) -> str:
    return "\n".join(f"{shown_name(turn)}: {capped(turn.content, longest)}" for turn in turns)
