"""What the baselines read of a log, and what they give back."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper.conversations.logs import Log
from iet.audit.metrics import token_labels
from iet.errors import InputError
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
