"""What several agents said, as it was generated, the text that survives, and the file that keeps both.

A file of logs is JSON lines. The first line names the format, its version and the setting; each other line is
the log of one record. Lines are only appended. A line that a kill cut short has no end, so it is known as
torn: reading names it, and writing drops it, after which that log is made again. No record stands in a file
twice.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper.jsonl import Lines, header, parsed
from iet.errors import InputError
from iet.marks.scheme import canonical_digest

FORMAT, VERSION = "iet paper logs", 1


class Made:
    """What a text was made with: its digest, and the name of its file."""

    mark: str
    strength: float | None
    temperature: float
    top_p: float
    seed: int

    @property
    def digest(self) -> str:
        """BLAKE2b-256, in hex, of all that changes a text."""
        fields: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        if fields.get("repetition_penalty") == 1:
            del fields["repetition_penalty"]  # younger than the first logs, whose digests stay as they are
        return canonical_digest({**fields, "model_name": ""})

    def file_name(self, prefix: str) -> str:
        """Return the name of its file: what tells settings apart, and eight digits of the digest."""
        strength = "" if self.strength is None else f"{self.strength:g}"
        return (
            f"{prefix}-{self.mark}{strength}-T{self.temperature:g}-p{self.top_p:g}-seed{self.seed}"
            f"-{self.digest[:8]}.jsonl"
        )


@dataclasses.dataclass(frozen=True)
class Setting(Made):
    topology: str  # a name of `iet.topology.TOPOLOGIES`
    agents: int  # n
    protocol: str  # "round-major" or "edge-walk"
    mark: str  # a key of `MARKS`
    model: str  # digest of the model's parameters and tokenizer
    temperature: float  # of the sampler; top_p likewise
    top_p: float
    joiner: str  # what stands between turns
    seed: int  # of everything that is drawn
    rounds: int = 3  # R, after the Genesis turn
    turn_tokens: tuple[int, int] = (1, 512)  # fewest and most tokens of a turn
    # Each turn has a number of tokens of its own, drawn evenly from that range. False: the model ends its
    # turns.
    drawn_lengths: bool = False
    prompt_tokens: int = 3072  # the most that a turn is written from; prompts are cut to it (see `prompts`)
    # κ of "fourier" and "raw", δ of "kgw" and "unigram", None where a mark has none
    strength: float | None = None
    profile: str = ""  # digest of what reading needs beside the keys (`marks.profile_digest`)
    model_name: str = ""  # path or id that the model was loaded from; a hint, no part of the digest
    early_stop: bool = True  # whether a conversation ends once the attacker has named every entity
    repetition_penalty: float = 1.0  # of the sampler

    @property
    def name(self) -> str:
        return self.file_name(f"{self.topology}_{self.agents}-{self.protocol}")


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
    ids: tuple[int, ...]  # tokens as they were sampled
    text: str  # as it stands in the log's text


@dataclasses.dataclass(frozen=True)
class Log:
    """The turns of one record, in the order in which the text has them."""

    setting: Setting  # what it was made with
    record: int  # row of the csv, from 0
    turns: tuple[Turn, ...]  # one after another
    # `[start, end)` and agent of each run of tokens of the text as it is tokenized again, by the model's own
    # tokenizer; a token belongs to the agent of its last character
    token_spans: tuple[tuple[int, int, int], ...] = ()
    # Mean nats of the distribution that tokens were drawn from (after temperature and top-p, before the
    # mark), over every eighth token; None: unknown
    entropy: float | None = None
    stopped: bool = False  # the attacker named every entity, and the rest was not said

    @property
    def text(self) -> str:
        """All that an auditor gets."""
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
        """The true adjacency matrix A* [n, n]: 1 where agent j speaks right after another agent i."""
        edges = np.zeros((self.setting.agents, self.setting.agents))
        for before, after in itertools.pairwise(self.turns):
            if before.agent != after.agent:
                edges[before.agent, after.agent] = 1.0
        return edges

    @property
    def joiners_inside(self) -> int:
        """How often the joiner occurs inside turns, where it tells nobody that a turn has ended."""
        return sum(turn.text.count(self.setting.joiner) for turn in self.turns) if self.setting.joiner else 0


@dataclasses.dataclass(frozen=True)
class Summary:
    logs: int  # how many there are, as of turns and tokens, which are counted as sampled
    turns: int
    tokens: int
    entropy: float  # mean nats per token, over logs that know theirs; NaN if none does
    joiners_inside: float  # occurrences of the joiner inside turns, per turn
    stopped: float  # share of logs that ended early

    def __str__(self) -> str:
        return (
            f"{self.logs} logs, {self.turns} turns, {self.tokens} tokens; mean entropy {self.entropy:.2f}"
            f" nats; the joiner occurs {self.joiners_inside:.2f} times inside a turn;"
            f" {self.stopped:.0%} stopped early"
        )


def summary(logs: Iterable[Log]) -> Summary:
    logs = list(logs)
    turns = sum(len(log.turns) for log in logs)
    entropies = [log.entropy for log in logs if log.entropy is not None]
    return Summary(
        len(logs),
        turns,
        sum(len(turn.ids) for log in logs for turn in log.turns),
        float(np.mean(entropies)) if entropies else math.nan,
        sum(log.joiners_inside for log in logs) / max(1, turns),
        float(np.mean([log.stopped for log in logs])) if logs else 0.0,
    )


# ---------------------------------------------------------------- files


def read(path: str | os.PathLike[str]) -> list[Log]:
    path = pathlib.Path(path)
    setting, logs, torn = _parse(path, _bytes(path))
    if torn or setting is None:
        line = len(logs) + (1 if setting is None else 2)
        raise InputError(
            f"{path}, line {line}: torn, expected a whole line: a run was killed while it wrote; start it"
            " again, which makes that log anew"
        )
    return logs


class Writer(Lines):
    """Append logs to a file, and go on where a killed run has left off.

    Used as a context: `with Writer(path, setting) as writer:`. What was written whole is kept, a torn last
    line is dropped. A second writer of the file is refused.
    """

    def __init__(self, path: str | os.PathLike[str], setting: Setting) -> None:
        super().__init__(path)
        self.setting = setting
        self.logs: list[Log] = []
        """What the file holds."""

    def take(self) -> None:
        found, self.logs, _ = _parse(self.path, self.data)
        if found is not None and found.digest != self.setting.digest:
            raise InputError(
                f"{self.path}, line 1: got a setting that differs in {_differences(found, self.setting)},"
                " expected the one that is being written"
            )
        self.drop_torn()
        if found is None:
            first = {"format": FORMAT, "version": VERSION, "setting": dataclasses.asdict(self.setting)}
            self.put([{**first, "digest": self.setting.digest}])

    @property
    def records(self) -> frozenset[int]:
        return frozenset(log.record for log in self.logs)

    def append(self, logs: Iterable[Log]) -> None:
        """Write some logs; when this returns they are on the disk."""
        there, new = set(self.records), list(logs)
        for log in new:
            if log.record in there:
                raise InputError(f"{self.path}: got record {log.record} twice, expected each once")
            if log.setting.digest != self.setting.digest:
                raise InputError(f"{self.path}: got a log of another setting, expected {self.setting.name}")
            there.add(log.record)
        self.put(_to_dict(log) for log in new)
        self.logs += new


def _bytes(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: no file of logs can be read there ({error.strerror})") from None


def _parse(path: pathlib.Path, data: bytes) -> tuple[Setting | None, list[Log], int]:
    """Return the setting (None: not even that line is whole), the logs, and the bytes of a torn last line."""
    lines = data.split(b"\n")
    torn = len(lines.pop())
    if not lines:
        return None, [], torn
    setting = _setting(path, header(path, lines[0], FORMAT, VERSION))
    logs, records = list[Log](), set[int]()
    for number, line in enumerate(lines[1:], 2):
        log = _from_dict(f"{path}, line {number}", parsed(path, number, line), setting)
        if log.record in records:
            raise InputError(f"{path}, line {number}: record {log.record} for the second time, expected once")
        records.add(log.record)
        logs.append(log)
    return setting, logs, torn


def _setting(path: pathlib.Path, found: Mapping[str, Any]) -> Setting:
    try:
        fields = dict(found["setting"])
        setting = Setting(**{**fields, "turn_tokens": tuple(fields["turn_tokens"])})
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}, line 1: its setting is damaged ({error})") from None
    if found.get("digest") != setting.digest:
        raise InputError(f"{path}, line 1: the digest is not that of its setting, which was altered")
    return setting


def _differences(one: Setting, other: Setting) -> str:
    pairs = ((field.name, getattr(one, field.name), getattr(other, field.name)) for field in _FIELDS)
    return ", ".join(f"{name} ({a!r}, {b!r})" for name, a, b in pairs if a != b and name != "model_name")


_FIELDS = dataclasses.fields(Setting)


def _to_dict(log: Log) -> dict[str, Any]:
    return {
        "record": log.record,
        "text": log.text,
        "turns": [dataclasses.asdict(turn) for turn in log.turns],
        "spans": log.spans,
        "token_spans": log.token_spans,
        "entropy": log.entropy,
        "joiners_inside": log.joiners_inside,
        "stopped": log.stopped,
    }


def _from_dict(where: str, line: Mapping[str, Any], setting: Setting) -> Log:
    expected = ["record", "text", "turns", "spans", "token_spans", "entropy", "joiners_inside", "stopped"]
    if sorted(line) != sorted(expected):
        raise InputError(f"{where}: fields {sorted(line)}, expected {sorted(expected)}")
    try:
        turns = tuple(Turn(**{**turn, "ids": tuple(turn["ids"])}) for turn in line["turns"])
        token_spans = tuple((start, end, agent) for start, end, agent in line["token_spans"])
        log = Log(setting, line["record"], turns, token_spans, line["entropy"], line["stopped"])
        text, spans = log.text, [list(span) for span in log.spans]
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise InputError(f"{where}: damaged ({type(error).__name__}: {error})") from None
    if type(log.record) is not int or log.record < 0:
        raise InputError(f"{where}: record {log.record!r}, expected a row from 0")
    if log.entropy is not None and type(log.entropy) not in (int, float):
        raise InputError(f"{where}: entropy {log.entropy!r}, expected a number or null")
    if type(log.stopped) is not bool:
        raise InputError(f"{where}: stopped {log.stopped!r}, expected true or false")
    if not turns:
        raise InputError(f"{where}: no turns, expected at least one")
    for turn in turns:
        ints = (turn.agent, turn.round, *turn.ids)
        if not all(type(i) is int and i >= 0 for i in ints) or turn.agent >= setting.agents:
            raise InputError(
                f"{where}: a turn of agent {turn.agent!r} in round {turn.round!r}, expected an agent below"
                f" {setting.agents}, and ids from 0"
            )
    if (text, spans, log.joiners_inside) != (line["text"], line["spans"], line["joiners_inside"]):
        raise InputError(
            f"{where}: text, spans and joiners_inside are not those of its turns: one of them was altered"
        )
    ends = [0, *(end for _, end, _ in token_spans)]
    if not all(type(i) is int for span in token_spans for i in span) or any(
        start != before or end <= start for (start, end, _), before in zip(token_spans, ends, strict=False)
    ):
        raise InputError(f"{where}: token_spans {token_spans}, expected runs one after another from 0")
    return log
