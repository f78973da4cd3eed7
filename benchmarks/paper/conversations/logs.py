"""The generated turns of several agents, the text that an auditor gets, and the file that keeps both.

A file of logs is JSON lines: the first line holds the setting, each other line the log of one record.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper.results import JsonLines
from iet.errors import InputError
from iet.marks.scheme import canonical_digest


class Made:
    """Parameters that a text was generated with: their digest, and the name of the file."""

    mark: str
    strength: float | None
    temperature: float
    top_p: float
    seed: int

    @property
    def digest(self) -> str:
        """BLAKE2b-256, in hex, of all parameters that change a text."""
        fields: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return canonical_digest({**fields, "model_name": ""})

    def file_name(self, prefix: str) -> str:
        """Return the file name: the main parameters and eight digits of the digest."""
        strength = "" if self.strength is None else f"{self.strength:g}"
        return (
            f"{prefix}-{self.mark}{strength}-T{self.temperature:g}-p{self.top_p:g}-seed{self.seed}"
            f"-{self.digest[:8]}.jsonl"
        )


@dataclasses.dataclass(frozen=True)
class Setting(Made):
    topology: str  # a name of `iet.decoding.topology.TOPOLOGIES`
    agents: int  # n
    mark: str  # a key of `MARKS`
    model: str  # digest of the model's parameters and tokenizer
    temperature: float
    top_p: float
    joiner: str  # text between turns
    seed: int  # of all draws
    rounds: int = 3  # R, after the Genesis turn
    turn_tokens: tuple[int, int] = (1, 512)  # fewest and most tokens of a turn
    # True: the length of each turn is drawn uniformly from that range. False: the model ends its turns.
    drawn_lengths: bool = False
    prompt_tokens: int = 3072  # longest prompt (see `prompts`)
    # κ of "fourier" and "raw", δ of "kgw" and "unigram", None if the mark has no strength
    strength: float | None = None
    profile: str = ""  # digest of the reader's parameters other than keys (`marks.profile_digest`)
    model_name: str = ""  # path or id of the model; not part of the digest
    early_stop: bool = True  # whether a conversation ends when the attacker has named every entity
    repetition_penalty: float = 1.0

    @property
    def name(self) -> str:
        return self.file_name(f"{self.topology}_{self.agents}")


def check_sampling(temperature: float, top_p: float, repetition_penalty: float = 1.0) -> None:
    if not 0 < temperature < math.inf:
        raise InputError(f"temperature: got {temperature!r}, expected a finite number above 0")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p: got {top_p!r}, expected above 0 and up to 1")
    if not 0 < repetition_penalty < math.inf:
        raise InputError(f"repetition_penalty: got {repetition_penalty!r}, expected a finite number above 0")


@dataclasses.dataclass(frozen=True)
class Turn:
    agent: int  # 0 to n - 1
    round: int  # 0 for the Genesis turn
    ids: tuple[int, ...]  # sampled tokens
    text: str  # as in the text of the log


@dataclasses.dataclass(frozen=True)
class Log:
    """The turns of one record, in the order of the text."""

    setting: Setting
    record: int  # row of the csv, from 0
    turns: tuple[Turn, ...]
    # Mean entropy, in nats, of the distributions after temperature and top-p and before the mark, over every
    # eighth token; None: unknown
    entropy: float | None = None
    stopped: bool = False  # ended early, since the attacker named every entity

    @property
    def text(self) -> str:
        """The text that an auditor gets."""
        return self.setting.joiner.join(turn.text for turn in self.turns)

    @property
    def spans(self) -> tuple[tuple[int, int, int], ...]:
        """Characters `[start, end)` and agent of each turn; a joiner belongs to the turn after it."""
        lengths = [len(turn.text) for turn in self.turns]
        lengths[1:] = [length + len(self.setting.joiner) for length in lengths[1:]]
        bounds = [0, *itertools.accumulate(lengths)]
        return tuple(
            (start, end, turn.agent)
            for (start, end), turn in zip(itertools.pairwise(bounds), self.turns, strict=True)
        )

    @property
    def edges(self) -> NDArray[np.float64]:
        """The true adjacency matrix A* [n, n]: 1 if agent j speaks right after another agent i."""
        edges = np.zeros((self.setting.agents, self.setting.agents))
        for previous, following in itertools.pairwise(self.turns):
            if previous.agent != following.agent:
                edges[previous.agent, following.agent] = 1.0
        return edges


@dataclasses.dataclass(frozen=True)
class Summary:
    logs: int
    turns: int
    tokens: int  # as sampled
    entropy: float  # mean nats per token over logs with a known entropy; NaN without such logs
    joiners_inside: float  # occurrences of the joiner inside turns, per turn
    stopped: float  # share of logs that ended early

    def __str__(self) -> str:
        return (
            f"{self.logs} logs, {self.turns} turns, {self.tokens} tokens; mean entropy {self.entropy:.2f}"
            f" nats; the joiner occurs {self.joiners_inside:.2f} times inside a turn;"
            f" {self.stopped:.0%} stopped early"
        )


def summary(logs: Sequence[Log]) -> Summary:
    turns = [turn for log in logs for turn in log.turns]
    entropies = [log.entropy for log in logs if log.entropy is not None]
    joiner = logs[0].setting.joiner if logs else ""
    return Summary(
        len(logs),
        len(turns),
        sum(len(turn.ids) for turn in turns),
        float(np.mean(entropies)) if entropies else math.nan,
        sum(turn.text.count(joiner) for turn in turns) / len(turns) if joiner else 0.0,
        float(np.mean([log.stopped for log in logs])) if logs else 0.0,
    )


class LogFile:
    """The logs of a setting on disk; a new run adds the records that are missing."""

    def __init__(self, path: pathlib.Path, setting: Setting) -> None:
        self.setting = setting
        self._file = JsonLines(path)
        lines = self._file.check_setting(dataclasses.asdict(setting), setting.digest)
        self.logs = [_from_dict(line, setting) for line in lines]

    @property
    def records(self) -> frozenset[int]:
        return frozenset(log.record for log in self.logs)

    def append(self, logs: Iterable[Log]) -> None:
        """Append logs; they are on disk when this returns."""
        new = list(logs)
        self._file.append(_to_dict(log) for log in new)
        self.logs += new


def _to_dict(log: Log) -> dict[str, Any]:
    return {
        "record": log.record,
        "turns": [dataclasses.asdict(turn) for turn in log.turns],
        "entropy": log.entropy,
        "stopped": log.stopped,
    }


def _from_dict(line: Mapping[str, Any], setting: Setting) -> Log:
    turns = tuple(Turn(**{**turn, "ids": tuple(turn["ids"])}) for turn in line["turns"])
    return Log(setting, line["record"], turns, line["entropy"], line["stopped"])
