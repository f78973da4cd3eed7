"""Tokens and units of a log, and the mapping of unnamed labels to agents.

The mapping is the best one-to-one assignment, computed with the truth ("oracle-matched"):

    π = argmax_{π one-to-one} Σ_i |{t : label(t) = i, truth(t) = π(i)}|

so only the grouping of tokens is judged. The paper does not say how the index of a segment becomes an agent.
For the segmentation methods there are three readings: (1) segment s is speaker s mod n; (2) segments are
clustered into n speakers; (3) segments are mapped to turns, and take the agent of their turn. **(3) is used,
because it favours the baseline most**: a segmentation with the true boundaries scores 1, and equal parts
without any content still score far above chance.
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
from iet.errors import InputError
from iet.marks.tokenizer import Tokenizer

UNIT_TOKENS = 64
"""Tokens of a unit (§ Baseline Details for MAMA)."""

Labels = NDArray[np.int64]


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
    """Return the tokens of the text of a log, as all baselines and metrics count them."""
    char_ends = tokenizer.encode(log.text).char_ends
    if not len(char_ends):
        raise InputError(f"record {log.record}: the text has no tokens")
    spans = [(start, end, turn) for turn, (start, end, _) in enumerate(log.spans)]
    turns = token_labels(spans, char_ends)
    return Tokens(char_ends, turns, np.array([turn.agent for turn in log.turns], np.int64)[turns])


def unit_bounds(tokens: Tokens, unit_tokens: int = UNIT_TOKENS) -> list[int]:
    """Return the bounds 0 .. T of the units: chunks of 64 tokens of a turn, the last one may be shorter.

    With `unit_mode = assistant_response` no unit crosses the end of a turn. **So a method that reads units
    gets the true ends of the turns among the unit bounds.**
    """
    ends = [0, *(np.flatnonzero(np.diff(tokens.turns)) + 1).tolist(), len(tokens)]
    inner = [range(start, end, unit_tokens) for start, end in itertools.pairwise(ends)]
    return [*itertools.chain.from_iterable(inner), len(tokens)]


def unit_texts(log: Log, tokens: Tokens, bounds: Sequence[int]) -> list[str]:
    """Return the text of each unit."""
    chars = [0, *(int(tokens.char_ends[end - 1]) for end in bounds[1:])]
    return [log.text[start:end] for start, end in itertools.pairwise(chars)]


def best_one_to_one(labels: npt.ArrayLike, truth: npt.ArrayLike) -> dict[int, int]:
    """Return the one-to-one map from labels to true labels with the most agreeing tokens.

    There must be at most as many labels as true ones.

    >>> best_one_to_one([0, 0, 1, 1], [5, 5, 5, 3])
    {0: 5, 1: 3}
    """
    kinds, rows = np.unique(labels, return_inverse=True)
    true_kinds, columns = np.unique(truth, return_inverse=True)
    overlap = np.zeros((len(kinds), len(true_kinds)), np.int64)
    np.add.at(overlap, (rows, columns), 1)
    matched_rows, matched_columns = linear_sum_assignment(overlap, maximize=True)
    return dict(zip(kinds[matched_rows].tolist(), true_kinds[matched_columns].tolist(), strict=True))


def match_labels(labels: Labels, truth: Labels) -> Labels:
    """Return the agent of each token [T] by the best assignment of labels to agents."""
    agents = best_one_to_one(labels, truth)
    return np.array([agents[label] for label in labels.tolist()], np.int64)


def match_segments(segments: Labels, turns: Labels, agents: Labels) -> Labels:
    """Return the agent of each token [T] by the best assignment of segments to turns."""
    first = dict(zip(*np.unique(turns, return_index=True), strict=True))
    speaker = {segment: agents[first[turn]] for segment, turn in best_one_to_one(segments, turns).items()}
    return np.array([speaker[segment] for segment in segments.tolist()], np.int64)


def ordered_segments(segments: Labels, turns: Labels, agents: Labels) -> Labels:
    """Return the agent of each token [T]: the s-th segment takes the agent of the s-th turn.

    This needs the number of turns and their speakers in order; nothing is matched.
    """
    _, first = np.unique(turns, return_index=True)
    return np.asarray(agents[first][np.unique(segments, return_inverse=True)[1]], np.int64)
