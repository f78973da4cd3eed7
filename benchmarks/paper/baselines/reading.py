"""What the baselines read of a log, what they give back, and labels without a name mapped to agents.

The map is the best one-to-one assignment, with the truth's help:

    π = argmax_{π one-to-one} Σ_i |{t : label(t) = i, truth(t) = π(i)}|

(the assignment problem, solved by `scipy.optimize.linear_sum_assignment`). What is found this way is
"oracle-matched": the truth has told which label is which agent, and only the grouping of tokens is judged.

The paper does not say how a segment's index becomes an agent. For the segmentation methods there are three
readings: (1) segment s is speaker s mod n, in speaking order, and speakers are mapped to agents; (2) segments
are clustered into n speakers, which are mapped; (3) segments are mapped to turns, and each takes the agent of
its turn. **(3) is used here, because it favours the baseline most**: under (1) one missed boundary shifts all
speakers after it, and a walk along edges has no period; (2) adds the errors of a clustering to those of the
segmentation. Under (3) a segmentation with the true boundaries scores 1, and one without any content, such as
S equal parts, still scores far above chance. What is judged is where the boundaries are, never who speaks.

Beside it stands what "the target number of segments" says by itself, "in order": the s-th segment takes the
agent of the s-th turn (`ordered_segments`). One boundary too many or too few then shifts all that follow.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from benchmarks.paper.conversations.logs import Log
from iet.audit.metrics import token_labels
from iet.errors import InputError, ShapeError
from iet.marks.tokenizer import Tokenizer

UNIT_TOKENS = 64
"""Tokens of a unit (§ Baseline Details for MAMA)."""

Labels = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    labels: Labels  # int64 [T], the agent of each token of `tokenizer.encode(log.text)`, 0 to n - 1
    # Recovered adjacency matrix, float64 [n, n]; None where the paper has N/A
    edges: NDArray[np.float64] | None
    matched: bool  # unnamed labels were mapped to agents with the truth's help ("oracle-matched")
    # 1 if the method gave no answer and `labels` are what stands in for one, else 0. The sum over logs is the
    # number of logs without an answer.
    failures: int = 0
    attempts: int = 0  # how often a model was asked; 0 for methods without one


@dataclasses.dataclass(frozen=True, eq=False)
class Tokens:
    char_ends: Labels  # int64 [T], the character after each token
    turns: Labels  # int64 [T], the turn that each token belongs to (that of its last character)
    agents: Labels  # int64 [T], the agent of that turn: the truth

    def __len__(self) -> int:
        return len(self.turns)

    def labels(self, char_bounds: Sequence[int]) -> Labels:
        """Return the segment of each token, int64 [T], for segments between neighbours of `char_bounds`."""
        return token_labels(
            [(start, end, i) for i, (start, end) in enumerate(itertools.pairwise(char_bounds))],
            self.char_ends,
        )


def read_tokens(log: Log, tokenizer: Tokenizer) -> Tokens:
    """Return the tokens of a log's text, as every baseline and every metric counts them."""
    wrong = sorted({turn.agent for turn in log.turns} - set(range(log.setting.agents)))
    if wrong:
        raise InputError(
            f"record {log.record}: got a turn of agent {wrong[0]}, expected 0 to {log.setting.agents - 1}"
        )
    char_ends = tokenizer.encode(log.text).char_ends
    if not len(char_ends):
        raise InputError(f"record {log.record}: got a text without tokens, expected at least one")
    spans = [(start, end, turn) for turn, (start, end, _) in enumerate(log.spans)]
    turns = token_labels(spans, char_ends)
    return Tokens(char_ends, turns, np.array([turn.agent for turn in log.turns], np.int64)[turns])


def unit_bounds(tokens: Tokens, unit_tokens: int = UNIT_TOKENS) -> list[int]:
    """Return the bounds 0 .. T of the units: chunks of 64 tokens of a message, its last one may be shorter.

    `unit_mode = assistant_response`: no unit crosses the end of a turn. **So a reader of units is given the
    true ends of the turns among the unit bounds**; it must only find out which of them are hand-overs, and to
    whom. The prompt says so ("except the final chunk of a message which may be shorter").
    """
    if unit_tokens < 1:
        raise InputError(f"unit_tokens: got {unit_tokens}, expected at least 1")
    ends = [0, *(np.flatnonzero(np.diff(tokens.turns)) + 1).tolist(), len(tokens)]
    inner = [range(start, end, unit_tokens) for start, end in itertools.pairwise(ends)]
    return [*itertools.chain.from_iterable(inner), len(tokens)]


def unit_texts(log: Log, tokens: Tokens, bounds: Sequence[int]) -> list[str]:
    """Return the text of each unit; together they are the log's text, as far as its tokens reach."""
    chars = [0, *(int(tokens.char_ends[end - 1]) for end in bounds[1:])]
    return [log.text[start:end] for start, end in itertools.pairwise(chars)]


def best_one_to_one(labels: npt.ArrayLike, truth: npt.ArrayLike) -> dict[int, int]:
    """Return the one-to-one map from labels to true labels under which most tokens agree.

    There are at most as many different labels as true ones. Of equally good maps always the same is taken.

    >>> best_one_to_one([0, 0, 1, 1], [5, 5, 5, 3])
    {0: 5, 1: 3}
    """
    found, true = np.asarray(labels), np.asarray(truth)
    if found.ndim != 1 or found.shape != true.shape:
        raise ShapeError("labels", got=f"{list(found.shape)} and {list(true.shape)}", expected="[T] twice")
    lowest = min(found.min(initial=0), true.min(initial=0))
    if lowest < 0:
        raise InputError(f"labels: got {lowest}, expected at least 0")
    kinds, rows = np.unique(found, return_inverse=True)
    true_kinds, columns = np.unique(true, return_inverse=True)
    if len(kinds) > len(true_kinds):
        raise InputError(f"labels: got {len(kinds)} different ones, expected at most {len(true_kinds)}")
    overlap = np.zeros((len(kinds), len(true_kinds)), np.int64)
    np.add.at(overlap, (rows, columns), 1)
    return {
        int(kinds[i]): int(true_kinds[j])
        for i, j in zip(*linear_sum_assignment(overlap, maximize=True), strict=True)
    }


def match_labels(labels: Labels, truth: Labels) -> Labels:
    """Return the agent of each token [T]: speakers without a name are mapped to agents."""
    names = best_one_to_one(labels, truth)
    return np.array([names[label] for label in labels.tolist()], np.int64)


def match_segments(segments: Labels, turns: Labels, agents: Labels) -> Labels:
    """Return the agent of each token [T]: segments are mapped to turns, one to one, and take their agents."""
    first = dict(zip(*np.unique(turns, return_index=True), strict=True))
    speaker = {segment: agents[first[turn]] for segment, turn in best_one_to_one(segments, turns).items()}
    return np.array([speaker[segment] for segment in segments.tolist()], np.int64)


def ordered_segments(segments: Labels, turns: Labels, agents: Labels) -> Labels:
    """Return the agent of each token [T]: the s-th segment takes the agent of the s-th turn, in order.

    Nothing is matched: whoever is told the number of turns and their speakers in order can do this.
    """
    first = dict(zip(*np.unique(turns, return_index=True), strict=True))
    speakers = np.array([agents[first[turn]] for turn in sorted(first)], np.int64)
    return np.asarray(speakers[np.unique(segments, return_inverse=True)[1]], np.int64)
