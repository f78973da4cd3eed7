"""The operator O of the paper: what takes the metadata of a failure log away (§ Failure Attribution Under
Metadata Loss on Who&When, in the appendix).

*ID removal.* In Algorithm-Generated a turn without a name is a person's (no file has any) and stays without;
every other turn, a tool's too, has the name "Agent". In Hand-Crafted turns of role "human" stay, all others
have the role "assistant". What agents were told (`system_prompt`) is removed, since it names them. Contents
are not touched, so names that stand inside them remain.

*Boundary corruption.* Number, order and names of the turns stay. Their contents are joined by a blank line,
that text is cut at random places, and the pieces are filled into the turns. The paper's seed is 42; here each
log draws from (seed, its number), so that logs of equally many turns are not cut at the same shares.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from benchmarks.paper.failure.trajectories import Trajectory, Turn

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
