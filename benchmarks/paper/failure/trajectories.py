"""The failure logs of Who&When: what was said in turn, and the annotation of who failed at which step.

The data are those of mingyin1/Agents_Failure_Attribution (MIT): a folder for each subset, in it a JSON file
for each log. Of a turn's fields one is its identity: `name` in Algorithm-Generated, whose `role` says nothing
about who spoke; `role` in Hand-Crafted, which has no names. Who speaks at `mistake_step` is not always
`mistake_agent`; both are kept as they were annotated.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from iet.errors import InputError

SUBSETS = ("Algorithm-Generated", "Hand-Crafted")
FILES: Mapping[str, int] = {"Algorithm-Generated": 126, "Hand-Crafted": 58}
"""Logs of the whole subsets."""

JOINER = "\n\n"
"""What stands between turns where they are read as one text."""

TOOLS = frozenset({"Computer_terminal", "ComputerTerminal"})
"""Names that stand for a program, whose output nobody generated."""

HUMAN = "human"
"""The role of a human turn in Hand-Crafted."""

_IDENTITY = {"Algorithm-Generated": "name", "Hand-Crafted": "role"}


@dataclasses.dataclass(frozen=True)
class Turn:
    name: str  # of who spoke, as it stands in the log (see `agent_of`); "" where a human has none
    content: str  # as it stands in the log; may be empty
    human: bool = False  # a person spoke


@dataclasses.dataclass(frozen=True)
class Trajectory:
    subset: str  # one of `SUBSETS`
    number: int  # of its file
    question: str  # what the agents were asked
    answer: str  # what is right
    turns: tuple[Turn, ...]  # in order; at least one
    mistake_agent: str  # who made the decisive mistake, as annotated
    mistake_step: int  # the turn of it, from 0, as annotated
    system_prompts: tuple[tuple[str, str], ...] = ()  # (agent, what it was told) of Algorithm-Generated

    @property
    def speakers(self) -> tuple[str, ...]:
        """The names of all turns, each once, in the order in which they first occur."""
        return tuple(dict.fromkeys(turn.name for turn in self.turns))

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that wrote turns, each once, likewise; neither tools nor people."""
        return tuple(dict.fromkeys(agent_of(turn.name) for turn in self.turns if by_agent(turn)))

    @property
    def to_blame(self) -> frozenset[str]:
        """The mistaken agent's names: as annotated, and as it speaks, where one label has another case."""
        spoken = {agent_of(turn.name) for turn in self.turns}
        return frozenset(
            {self.mistake_agent} | {n for n in spoken if n.casefold() == self.mistake_agent.casefold()}
        )

    @property
    def text(self) -> str:
        return JOINER.join(turn.content for turn in self.turns)

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Characters `[start, end)` of each turn's content in `text`; what joins them is in none."""
        ends = list(itertools.accumulate((len(turn.content) + len(JOINER) for turn in self.turns), initial=0))
        return tuple((end, end + len(turn.content)) for end, turn in zip(ends, self.turns, strict=False))


@dataclasses.dataclass(frozen=True)
class Restored:
    """A trajectory whose turns were restored from a corrupted one."""

    trajectory: Trajectory  # with the restored turns; a turn of which nobody knows who spoke has the name ""
    # Characters `[start, end)` of each of its turns in the text of the original (`Trajectory.text`), by which
    # a step of one is found in the other
    spans: tuple[tuple[int, int], ...]


def agent_of(name: str) -> str:
    """Return the agent behind a name: 'Orchestrator (thought)' and 'Orchestrator (-> WebSurfer)' are one.

    >>> agent_of("Orchestrator (-> WebSurfer)"), agent_of("Blu-Ray_Expert")
    ('Orchestrator', 'Blu-Ray_Expert')
    """
    return name.split(" (", 1)[0]


def by_agent(turn: Turn) -> bool:
    """Return whether a language model wrote the turn: not a person, and not a tool."""
    return not turn.human and turn.name not in TOOLS


def load(
    data: str | os.PathLike[str], subset: str = "Algorithm-Generated", *, whole: bool = False
) -> list[Trajectory]:
    """Read the logs of a subset, by number.

    `data` is the folder that holds `who_and_when/`, or the folders of the subsets, or the subset's own. An
    extract is refused where `whole` ones are asked for: 1.json to 126.json (Algorithm-Generated) or 58.json.
    """
    if subset not in SUBSETS:
        raise InputError(f"subset: got {subset!r}, expected one of {list(SUBSETS)}")
    folder = _find(pathlib.Path(data), subset)
    numbers = dict[int, pathlib.Path]()
    for path in folder.iterdir():
        if path.suffix != ".json":
            continue
        if not (path.stem.isascii() and path.stem.isdecimal() and path.stem == str(int(path.stem))):
            raise InputError(f"{path}: expected a number as the file's name, as in 1.json")
        numbers[int(path.stem)] = path
    if not numbers:
        raise InputError(f"{folder}: holds no log, expected 1.json and so on")
    if whole and sorted(numbers) != list(range(1, FILES[subset] + 1)):
        missing = sorted(set(range(1, FILES[subset] + 1)) - set(numbers))
        raise InputError(
            f"{folder}: holds {len(numbers)} logs, expected 1.json to {FILES[subset]}.json;"
            f" missing: {missing}"
        )
    return [_trajectory(numbers[number], subset, number) for number in sorted(numbers)]


def all_agents(trajectories: list[Trajectory]) -> tuple[str, ...]:
    """Return the agents of all logs, each once, in the order in which they first occur."""
    return tuple(dict.fromkeys(agent for log in trajectories for agent in log.agents))


def _find(path: pathlib.Path, subset: str) -> pathlib.Path:
    for candidate in (path / "who_and_when" / subset, path / subset, path):
        if candidate.is_dir() and candidate.name == subset:
            return candidate
    raise InputError(f"{path}: holds no folder {subset!r} of Who&When")


def _trajectory(path: pathlib.Path, subset: str, number: int) -> Trajectory:
    try:
        data = json.loads(path.read_bytes().decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: no JSON in UTF-8 can be read there ({error})") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: got {_shown(data)}, expected an object")
    question, answer, agent, step = (
        _string(path, data, field) for field in ("question", "ground_truth", "mistake_agent", "mistake_step")
    )
    history = _field(path, data, "history")
    if not isinstance(history, list) or not history:
        raise InputError(f"{path}, field 'history': got {_shown(history)}, expected a list of turns")
    turns = tuple(_turn(path, subset, i, turn) for i, turn in enumerate(history))
    if not (step.isascii() and step.isdecimal() and int(step) < len(turns)):
        raise InputError(
            f"{path}, field 'mistake_step': got {step!r}, expected a decimal below {len(turns)}, its turns"
        )
    speakers = sorted({agent_of(turn.name) for turn in turns if not turn.human})
    # One label of two logs is spelled in another case than its speaker.
    if agent.casefold() not in {name.casefold() for name in speakers}:
        raise InputError(
            f"{path}, field 'mistake_agent': got {agent!r}, expected a speaker, one of {speakers}"
        )
    prompts: Any = _field(path, data, "system_prompt") if subset == "Algorithm-Generated" else {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise InputError(f"{path}, field 'system_prompt': got {_shown(prompts)}, expected agent -> text")
    return Trajectory(subset, number, question, answer, turns, agent, int(step), tuple(prompts.items()))


def _turn(path: pathlib.Path, subset: str, i: int, turn: Any) -> Turn:
    where = f"history[{i}]"
    if not isinstance(turn, dict):
        raise InputError(f"{path}, field '{where}': got {_shown(turn)}, expected an object")
    content = _string(path, turn, "content", where, empty=True)
    name = _string(path, turn, _IDENTITY[subset], where)
    return Turn(name, content, subset == "Hand-Crafted" and name == HUMAN)


def _field(path: pathlib.Path, found: Mapping[str, Any], field: str, where: str = "") -> Any:
    if field not in found:
        raise InputError(f"{path}, field '{_named(where, field)}': missing; there are {sorted(found)}")
    return found[field]


def _string(
    path: pathlib.Path, found: Mapping[str, Any], field: str, where: str = "", *, empty: bool = False
) -> str:
    value = _field(path, found, field, where)
    if not isinstance(value, str) or not (empty or value.strip()):
        kind = "text" if empty else "text that is not empty"
        raise InputError(f"{path}, field '{_named(where, field)}': got {_shown(value)}, expected {kind}")
    return value


def _named(where: str, field: str) -> str:
    return f"{where}.{field}" if where else field


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."
