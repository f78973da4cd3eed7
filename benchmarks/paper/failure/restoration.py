"""O, Rec and Φ of the paper: corruption of a failure log, its restoration, and the quality of that.

O removes metadata (§ Failure Attribution Under Metadata Loss on Who&When, in the appendix).

*ID removal.* In Algorithm-Generated every turn with a name, tools included, gets the name "Agent". In
Hand-Crafted turns with role "human" stay, all others have the role "assistant". System prompts are removed,
since they name the agents. Contents stay, and with them the names inside contents.

*Boundary corruption.* Number, order and names of the turns stay. Their contents are joined by a blank line,
the text is cut at random positions, and the pieces become the contents of the turns. The paper's seed is
42; here each log draws from (seed, number of the log), so that cuts differ between logs.

ĝ is a list of spans `(start, end, name)` of the text, ascending, in characters; the name "" means
unattributed. Both corruptions leave `Trajectory.text` as it is.

Rec(O(Y), ĝ) takes from ĝ what O removed. After ID removal each turn gets the name of most of its characters.
After boundary corruption each span of ĝ is a turn. Since a mark identifies agents and not turns, adjacent
turns of one agent become one turn.

*Knowledge of the auditor.* Always the keys. After ID removal also the ends of turns and, in Hand-Crafted, the
human turns, because these metadata remain. After boundary corruption only the text. It never knows which
turns are a tool's; they carry no mark and should stay unattributed.
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
from iet.report import Report

SEED = 42
"""The paper's seed of the cut points."""

_GENERIC = {"Algorithm-Generated": "Agent", "Hand-Crafted": "assistant"}


def remove_ids(log: Trajectory) -> Trajectory:
    """Return the log without the fields that identify agents. The annotation stays, for scoring."""
    generic = _GENERIC[log.subset]
    turns = tuple(
        turn if turn.human else Turn(generic if turn.name else "", turn.content, not turn.name)
        for turn in log.turns
    )
    return dataclasses.replace(log, turns=turns, system_prompts=())


def corrupt_boundaries(log: Trajectory, seed: int = SEED) -> Trajectory:
    """Return the log with its text cut at N - 1 random positions, uniform and independent."""
    text = log.text
    cuts = np.random.default_rng([seed, log.number]).integers(0, len(text) + 1, len(log.turns) - 1)
    edges = [0, *np.sort(cuts).tolist(), len(text)]
    turns = tuple(
        dataclasses.replace(turn, content=text[start:end])
        for turn, (start, end) in zip(log.turns, itertools.pairwise(edges), strict=True)
    )
    return dataclasses.replace(log, turns=turns)


def cut_spans(corrupted: Trajectory) -> tuple[tuple[int, int], ...]:
    """Return the characters `[start, end)` of each turn of a log with corrupted boundaries."""
    ends = itertools.accumulate((len(turn.content) for turn in corrupted.turns), initial=0)
    return tuple(itertools.pairwise(ends))


Named = tuple[int, int, str]
"""Characters `[start, end)`, and their agent; "" if unattributed."""


def restore_names(corrupted: Trajectory, attributed: Sequence[Named]) -> Restored:
    """Return the log with the name of most characters of each turn in ĝ (after `remove_ids`).

    Human turns stay. Cost: O(N·M) for N turns and M spans.
    """
    names = majority(attributed, corrupted.spans)
    turns = tuple(
        turn if turn.human else Turn(name, turn.content)
        for turn, name in zip(corrupted.turns, names, strict=True)
    )
    return Restored(dataclasses.replace(corrupted, turns=turns), corrupted.spans)


def restore_boundaries(corrupted: Trajectory, attributed: Sequence[Named]) -> Restored:
    """Return the log whose turns are the spans of ĝ (after `corrupt_boundaries`).

    The spans cover the text, except for joiners. A joiner at the start of a span is not part of the turn.
    """
    text = "".join(turn.content for turn in corrupted.turns)
    turns, spans = list[Turn](), list[tuple[int, int]]()
    for start, end, name in attributed:
        if turns and spans[-1][1] == start and text.startswith(JOINER, start, end):
            start += len(JOINER)
        turns.append(Turn(name, text[start:end]))
        spans.append((start, end))
    return Restored(dataclasses.replace(corrupted, turns=tuple(turns)), tuple(spans))


def majority(attributed: Sequence[Named], spans: Sequence[tuple[int, int]]) -> list[str]:
    """Return the name of most characters of each span, the first of equals; "" if unattributed.

    An empty span gets the name of the equal span of ĝ.
    """
    names = list[str]()
    for low, high in spans:
        shares: dict[str, int] = {}
        for start, end, name in attributed:
            shared = min(end, high) - max(start, low)
            if shared > 0 or (start, end) == (low, high):
                shares[name] = shares.get(name, 0) + shared
        names.append(max(shares, key=shares.__getitem__) if shares else "")
    return names


def read_names(auditor: Auditor, corrupted: Trajectory) -> Report:
    """Audit a log without names: each turn is a piece; human turns and joiners are not read."""
    spans = [
        span
        for turn, span in zip(corrupted.turns, corrupted.spans, strict=True)
        if not turn.human and turn.content
    ]
    return auditor.audit(
        corrupted.text, spans=np.array(spans, np.int64).reshape(-1, 2), boundaries=np.zeros(0, np.int64)
    )


def read_boundaries(auditor: Auditor, corrupted: Trajectory) -> Report:
    """Audit the text of a log with corrupted boundaries."""
    return auditor.audit("".join(turn.content for turn in corrupted.turns))


def named(report: Report, guesses: bool = False) -> list[Named]:
    """Return ĝ of a report: its segments, where adjacent segments of one agent are joined.

    With `guesses` every segment gets the key that explains it best, as in forced choice.
    """
    spans, touching = list[Named](), False
    for segment in report.segments:
        if segment.left_out:
            touching = False
            continue
        assert segment.char_start is not None
        assert segment.char_end is not None
        name = (segment.best_guess if guesses else segment.agent) or ""
        if touching and spans[-1][2] == name:
            spans[-1] = spans[-1][0], segment.char_end, name
        else:
            spans.append((segment.char_start, segment.char_end, name))
        touching = True
    return spans


@dataclasses.dataclass(frozen=True)
class Corruption:
    title: str  # in tables
    corrupt: Callable[[Trajectory], Trajectory]  # O
    read: Callable[[Auditor, Trajectory], Report]  # (auditor, corrupted log) -> report of ĝ
    restore: Callable[[Trajectory, Sequence[Named]], Restored]  # Rec


CORRUPTIONS: Mapping[str, Corruption] = {
    "ids": Corruption("ID removal", remove_ids, read_names, restore_names),
    "boundaries": Corruption("boundary corruption", corrupt_boundaries, read_boundaries, restore_boundaries),
}
"""Name -> corruption."""


@dataclasses.dataclass(frozen=True)
class Identity:
    """The true and the attributed agent of a turn."""

    agent: str  # true agent; "" for a tool's turn
    attributed: str  # "" if unattributed
    guess: str  # attributed agent in forced choice


def identities(log: Trajectory, attributed: Sequence[Named], guesses: Sequence[Named]) -> list[Identity]:
    """Return the identity of each turn of the original that is neither empty nor a person's."""
    names, guessed = majority(attributed, log.spans), majority(guesses, log.spans)
    return [
        Identity(agent_of(turn.name) if by_agent(turn) else "", names[i], guessed[i])
        for i, turn in enumerate(log.turns)
        if turn.content and not turn.human
    ]


def token_figures(
    log: Trajectory, attributed: Sequence[Named], char_ends: npt.ArrayLike
) -> dict[str, float | None]:
    """Return how well the tokens of the original are attributed (definitions: `iet.audit.metrics`).

    A token of a tool or a person is right if it is unattributed. `coverage` is the share of agents' tokens
    that are attributed; `accuracy_where_attributed` is over all attributed tokens. `boundary_f1` includes
    changes to and from unattributed text.
    """
    names = list(dict.fromkeys([*log.agents, *(name for *_, name in attributed if name)]))
    whose = [agent_of(turn.name) if by_agent(turn) else "" for turn in log.turns]
    people = [span for turn, span in zip(log.turns, log.spans, strict=True) if turn.human]
    # Human turns outside ĝ are unattributed; a joiner outside ĝ belongs to the next turn.
    unread = [
        (low, high, "")
        for low, high in people
        if all(end <= low or high <= start for start, end, _ in attributed)
    ]
    truth, estimate = (
        token_labels(
            [(start, end, names.index(name) if name else -1) for start, end, name in spans], char_ends
        )
        for spans in (
            [(*span, name) for span, name in zip(log.spans, whose, strict=True)],
            sorted([*attributed, *unread]),
        )
    )
    ours, covered = truth >= 0, estimate >= 0
    return {
        "token_accuracy": token_accuracy(truth, estimate),
        "coverage": float(covered[ours].mean()) if ours.any() else None,
        "accuracy_where_attributed": (
            token_accuracy(truth[covered], estimate[covered]) if covered.any() else None
        ),
        "boundary_f1": boundary_f1(np.flatnonzero(np.diff(truth)) + 1, np.flatnonzero(np.diff(estimate)) + 1),
    }


def ideal_judge(original: Trajectory, restored: Restored) -> bool:
    """Return whether a judge who knows the decisive step names its agent (Φ).

    The judge reads the name of the restored turn that shares most characters with the original turn.
    """
    step = nearest(original.spans[original.mistake_step], restored.spans)
    return step is not None and agent_of(restored.trajectory.turns[step].name) in original.to_blame


def ideal_step(original: Trajectory, restored: Restored) -> bool:
    """Return whether the restored turn of the decisive step leads back to that step (Φ)."""
    step = nearest(original.spans[original.mistake_step], restored.spans)
    return step is not None and nearest(restored.spans[step], original.spans) == original.mistake_step


def nearest(span: tuple[int, int], spans: Sequence[tuple[int, int]]) -> int | None:
    """Return the index of the span that shares most characters with `span`; None if no span does."""
    shared = [min(span[1], end) - max(span[0], start) for start, end in spans]
    best = max(range(len(shared)), key=shared.__getitem__, default=None)
    return best if best is not None and shared[best] > 0 else None
