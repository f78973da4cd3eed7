"""O, Rec and Φ of the paper: what corrupts a failure log, what restores it, and how good that is.

O takes metadata away (§ Failure Attribution Under Metadata Loss on Who&When, in the appendix).

*ID removal.* In Algorithm-Generated a turn without a name is a person's (no file has any) and stays without;
every other turn, a tool's too, has the name "Agent". In Hand-Crafted turns of role "human" stay, all others
have the role "assistant". What agents were told (`system_prompt`) is removed, since it names them. Contents
are not touched, so names that stand inside them remain.

*Boundary corruption.* Number, order and names of the turns stay. Their contents are joined by a blank line,
that text is cut at random places, and the pieces are filled into the turns. The paper's seed is 42; here each
log draws from (seed, its number), so that logs of equally many turns are not cut at the same shares.

ĝ is a list of spans `(start, end, name)` of the text, ascending, in characters; the name "" is nobody. The
text of a log whose names were removed is `Trajectory.text`; that of a log whose boundaries were corrupted is
its contents one after another, which is the same text.

Rec(O(Y), ĝ) takes from ĝ what O took away. After ID removal the turns are there, and each gets the name that
most of its characters have. After boundary corruption each span of ĝ is a turn. A mark tells agents apart,
not turns: with the true ĝ two turns of one agent in a row come out as one, and an empty one not at all
(`merged`). Nobody's parts stay open: they are turns whose name is "".

*What the auditor knows.* The keys; after ID removal also where turns end and, in Hand-Crafted, which ones
people wrote, as these metadata are not removed. After boundary corruption it reads the text as a whole, and
the names that still stand at the wrong pieces are not used. It never knows which turns are a tool's: nothing
marks them, and they have to come out as nobody's.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.paper.failure.trajectories import JOINER, Restored, Trajectory, Turn, agent_of, by_agent
from iet.audit.auditor import Auditor
from iet.audit.metrics import boundary_f1, token_accuracy, token_labels
from iet.errors import InputError
from iet.report import Report

SEED = 42
"""The paper's, of the cut points."""

_GENERIC = {"Algorithm-Generated": "Agent", "Hand-Crafted": "assistant"}


def remove_ids(log: Trajectory) -> Trajectory:
    """Return the log without any field that tells agents apart.

    The annotation (`mistake_agent`) is not the log's and stays, to score against.
    """
    generic = _GENERIC[log.subset]
    turns = tuple(
        turn if turn.human else Turn(generic if turn.name else "", turn.content, not turn.name)
        for turn in log.turns
    )
    return dataclasses.replace(log, turns=turns, system_prompts=())


def corrupt_boundaries(log: Trajectory, seed: int = SEED) -> Trajectory:
    """Return the log with its text cut anew at random places; the pieces, joined by nothing, are `log.text`.

    N - 1 places are drawn from seed and the log's number, evenly over the text and independently.
    """
    text = log.text
    cuts = np.random.default_rng([seed, log.number]).integers(0, len(text) + 1, len(log.turns) - 1)
    edges = [0, *np.sort(cuts).tolist(), len(text)]
    turns = tuple(
        dataclasses.replace(turn, content=text[start:end])
        for turn, (start, end) in zip(log.turns, itertools.pairwise(edges), strict=True)
    )
    return dataclasses.replace(log, turns=turns)


def cut_spans(corrupted: Trajectory) -> tuple[tuple[int, int], ...]:
    """Return where the turns that `corrupt_boundaries` left stand in the text: characters `[start, end)`."""
    ends = itertools.accumulate((len(turn.content) for turn in corrupted.turns), initial=0)
    return tuple(itertools.pairwise(ends))


Named = tuple[int, int, str]
"""Characters `[start, end)`, and who wrote them; "" is nobody."""

LENGTHS = (32, 64, 100)
"""Bounds of the classes of turn lengths, in tokens."""


# ---------------------------------------------------------------- Rec


def restore_names(corrupted: Trajectory, attributed: Sequence[Named]) -> Restored:
    """Return the log with each turn under the name that most of its characters have in ĝ (after
    `remove_ids`).

    A turn of which most is nobody's has the name "". Human turns stay as they are. O(N·M) for N turns and M
    spans.
    """
    _check(attributed, len(corrupted.text))
    names = majority(attributed, corrupted.spans)
    turns = tuple(
        turn if turn.human else Turn(name, turn.content)
        for turn, name in zip(corrupted.turns, names, strict=True)
    )
    return Restored(dataclasses.replace(corrupted, turns=turns), corrupted.spans)


def restore_boundaries(corrupted: Trajectory, attributed: Sequence[Named]) -> Restored:
    """Return the log whose turns are the spans of ĝ (after `corrupt_boundaries`).

    Between two spans there is nothing or a blank line. A blank line with which a span begins right where the
    one before ends joined the two, and is no part of the turn.
    """
    text = "".join(turn.content for turn in corrupted.turns)
    _check(attributed, len(text))
    turns, spans, reached = list[Turn](), list[tuple[int, int]](), 0
    for start, end, name in attributed:
        if text[reached:start] not in ("", JOINER):
            raise InputError(f"attributed: leaves out characters {reached} to {start}, expected all of them")
        if reached == start and turns and text.startswith(JOINER, start, end):
            start += len(JOINER)
        turns.append(Turn(name, text[start:end]))
        spans.append((start, end))
        reached = end
    if reached < len(text):
        raise InputError(f"attributed: leaves out characters {reached} to {len(text)}, expected all of them")
    return Restored(dataclasses.replace(corrupted, turns=tuple(turns)), tuple(spans))


def merged(log: Trajectory) -> tuple[tuple[str, str], ...]:
    """Return agent and content of each turn, turns of one agent in a row joined, and then without empty ones.

    It is what the true ĝ alone can tell of a log, unless its first turn is empty.
    """
    found = list[tuple[str, str]]()
    for turn in log.turns:
        name = agent_of(turn.name)
        if found and found[-1][0] == name:
            found[-1] = name, found[-1][1] + JOINER + turn.content
        else:
            found.append((name, turn.content))
    return tuple((name, content) for name, content in found if content)


def majority(attributed: Sequence[Named], spans: Sequence[tuple[int, int]]) -> list[str]:
    """Return who wrote most characters of each span, the first of equals; "" where nobody did.

    An empty span has the name that ĝ has for just this one.
    """
    found = list[str]()
    for low, high in spans:
        shares: dict[str, int] = {}
        for start, end, name in attributed:
            shared = min(end, high) - max(start, low)
            if shared > 0 or (start, end) == (low, high):
                shares[name] = shares.get(name, 0) + shared
        found.append(max(shares, key=shares.__getitem__) if shares else "")
    return found


# ---------------------------------------------------------------- ĝ


def read_names(auditor: Auditor, corrupted: Trajectory) -> Report:
    """Audit a log whose names were removed: each turn is a piece, human ones and blank lines are left out."""
    spans = [
        span
        for turn, span in zip(corrupted.turns, corrupted.spans, strict=True)
        if not turn.human and turn.content
    ]
    return auditor.audit(
        corrupted.text, spans=np.array(spans, np.int64).reshape(-1, 2), boundaries=np.zeros(0, np.int64)
    )


def read_boundaries(auditor: Auditor, corrupted: Trajectory) -> Report:
    """Audit a log whose boundaries were corrupted: one text, of which nothing is known."""
    return auditor.audit("".join(turn.content for turn in corrupted.turns))


def named(report: Report, guesses: bool = False) -> list[Named]:
    """Return ĝ of a report: its segments, those of one agent in a row joined unless a part is left out.

    With `guesses` everything that was read is named after the key that explains it best, as in forced choice.
    """
    found, touching = list[Named](), False
    for segment in report.segments:
        if segment.left_out:
            touching = False
            continue
        assert segment.char_start is not None
        assert segment.char_end is not None
        name = (segment.best_guess if guesses else segment.agent) or ""
        if touching and found[-1][2] == name:
            found[-1] = found[-1][0], segment.char_end, name
        else:
            found.append((segment.char_start, segment.char_end, name))
        touching = True
    return found


# ---------------------------------------------------------------- how good it is


@dataclasses.dataclass(frozen=True)
class Corruption:
    title: str  # as tables call it
    corrupt: Callable[[Trajectory], Trajectory]  # O
    read: Callable[[Auditor, Trajectory], Report]  # (auditor, corrupted log) -> report, from which ĝ is taken
    restore: Callable[[Trajectory, Sequence[Named]], Restored]  # Rec


CORRUPTIONS: Mapping[str, Corruption] = {
    "ids": Corruption("ID removal", remove_ids, read_names, restore_names),
    "boundaries": Corruption("boundary corruption", corrupt_boundaries, read_boundaries, restore_boundaries),
}
"""Name -> O, Rec, and what ĝ is read from."""


@dataclasses.dataclass(frozen=True)
class Identity:
    """Whose turn it was, and whose it was found to be."""

    agent: str  # who wrote it; "" for a tool's output, and for what people said
    found: str  # who was found to have; "" where it stays open
    guess: str  # the same where nothing may stay open
    tokens: int  # of the turn


def identities(
    log: Trajectory, attributed: Sequence[Named], guesses: Sequence[Named], tokens: Sequence[int]
) -> list[Identity]:
    """Return who wrote each turn of the original and who was found to have: most of its characters count.

    Empty turns and people's turns are left out: nobody could tell, or nobody has to.
    """
    found, guessed = majority(attributed, log.spans), majority(guesses, log.spans)
    return [
        Identity(agent_of(turn.name) if by_agent(turn) else "", found[i], guessed[i], tokens[i])
        for i, turn in enumerate(log.turns)
        if turn.content and not turn.human
    ]


def length_class(tokens: int) -> int:
    """Return the number of the class of `LENGTHS` that a turn is in.

    >>> [length_class(tokens) for tokens in (31, 32, 99, 100)]
    [0, 1, 2, 3]
    """
    return int(np.searchsorted(LENGTHS, tokens, side="right"))


def token_figures(
    log: Trajectory, attributed: Sequence[Named], char_ends: npt.ArrayLike
) -> dict[str, float | None]:
    """Return how well the tokens of the original are attributed (`iet.metrics` has the definitions).

    `token_accuracy`: a tool's or a person's token is right if it is nobody's. `coverage`: of agents' tokens,
    None where there are none. `accuracy_where_attributed`: of all that is given to somebody, None if nothing
    is. `boundary_f1`: of the places where the agent changes, to and from nobody as well.
    """
    names = list(dict.fromkeys([*log.agents, *(name for *_, name in attributed if name)]))
    whose = [agent_of(turn.name) if by_agent(turn) else "" for turn in log.turns]
    people = [span for turn, span in zip(log.turns, log.spans, strict=True) if turn.human]
    # What people said is nobody's where ĝ leaves it out; a joiner that it leaves out is the next turn's.
    unread = [
        (low, high, "")
        for low, high in people
        if all(end <= low or high <= start for start, end, _ in attributed)
    ]
    truth, found = (
        token_labels(
            [(start, end, names.index(name) if name else -1) for start, end, name in spans], char_ends
        )
        for spans in (
            [(*span, name) for span, name in zip(log.spans, whose, strict=True)],
            sorted([*attributed, *unread]),
        )
    )
    ours, given = truth >= 0, found >= 0
    return {
        "token_accuracy": token_accuracy(truth, found),
        "coverage": float(given[ours].mean()) if ours.any() else None,
        "accuracy_where_attributed": token_accuracy(truth[given], found[given]) if given.any() else None,
        "boundary_f1": boundary_f1(np.flatnonzero(np.diff(truth)) + 1, np.flatnonzero(np.diff(found)) + 1),
    }


def ideal_judge(original: Trajectory, restored: Restored) -> bool:
    """Φ of a judge that knows the step: whether who is named at the decisive mistake is who made it.

    The turn of the restored log is the one that shares most characters with the original's.
    """
    step = nearest(original.spans[original.mistake_step], restored.spans)
    return step is not None and agent_of(restored.trajectory.turns[step].name) in original.to_blame


def ideal_step(original: Trajectory, restored: Restored) -> bool:
    """Φ likewise of the step: whether the restored turn of the decisive mistake leads back to that step."""
    step = nearest(original.spans[original.mistake_step], restored.spans)
    return step is not None and nearest(restored.spans[step], original.spans) == original.mistake_step


def nearest(span: tuple[int, int], spans: Sequence[tuple[int, int]]) -> int | None:
    """Return which of the spans shares most characters with one, the first of equals; None if none does."""
    shared = [min(span[1], end) - max(span[0], start) for start, end in spans]
    best = max(range(len(shared)), key=shared.__getitem__, default=None)
    return best if best is not None and shared[best] > 0 else None


def _check(attributed: Sequence[Named], length: int) -> None:
    reached = 0
    for start, end, _ in attributed:
        if not reached <= start <= end <= length:
            raise InputError(
                f"attributed: got characters {start} to {end}, expected ascending spans within {length}"
                f" characters that do not overlap"
            )
        reached = end
