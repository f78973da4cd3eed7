"""Invented logs for the tests of the paper's baselines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.paper.conversations.logs import Log, Setting, Turn


def setting(agents: int, joiner: str = "\n\n") -> Setting:
    return Setting("chain", agents, "none", "", 1.0, 1.0, joiner, 0)


def log_of(turns: Sequence[tuple[int, str]], agents: int, record: int = 0, joiner: str = "\n\n") -> Log:
    turns_ = tuple(Turn(agent, i // agents, (), text) for i, (agent, text) in enumerate(turns))
    return Log(setting(agents, joiner), record, turns_)


def words(rng: np.random.Generator, number: int, prefix: str) -> list[str]:
    """Words that begin with `prefix`, so that those of two prefixes are never the same; only letters."""
    letters = rng.choice(list("bcdfghklmnprstvz"), (number, 3))
    return [prefix + "a".join(row) for row in letters]


def prose(rng: np.random.Generator, vocabulary: Sequence[str], sentences: int, length: int = 8) -> str:
    """Sentences of `length` words out of a vocabulary."""
    drawn = rng.choice(list(vocabulary), (sentences, length))
    return " ".join(" ".join(row).capitalize() + "." for row in drawn)
