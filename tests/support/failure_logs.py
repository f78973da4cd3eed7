"""Small invented logs with the schema of Who&When, and the folders that hold them."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.paper.failure.trajectories import Trajectory, Turn


def algorithm_generated(**changes: Any) -> dict[str, Any]:
    """The content of a file of Algorithm-Generated."""
    log: dict[str, Any] = {
        "is_correct": False,
        "question": "How many houses are even?",
        "question_ID": "4d51",
        "level": "2",
        "ground_truth": "8",
        "history": [
            {"content": "We count.\n\nFirst the file.", "role": "assistant", "name": "Excel_Expert"},
            {"content": "exitcode: 0\n", "name": "Computer_terminal", "role": "user"},
            {"content": "", "name": "Blu-Ray_Expert", "role": "user"},
            {"content": "Four.", "name": "Excel_Expert", "role": "assistant"},
        ],
        "mistake_agent": "Excel_Expert",
        "mistake_step": "1",
        "mistake_reason": "It counted wrong.",
        "system_prompt": {"Excel_Expert": "You know tables.", "Blu-Ray_Expert": "You know discs."},
    }
    return {**log, **changes}


def hand_crafted(**changes: Any) -> dict[str, Any]:
    """The content of a file of Hand-Crafted."""
    log: dict[str, Any] = {
        "history": [
            {"content": "Where are classes?\n", "role": "human"},
            {"content": "Initial plan", "role": "Orchestrator (thought)"},
            {"content": "Please search.", "role": "Orchestrator (-> WebSurfer)"},
            {"content": "I typed it.", "role": "WebSurfer"},
            {"content": "exitcode: 1", "role": "ComputerTerminal"},
        ],
        "question": "Where are classes?\n",
        "ground_truth": "Wall Street",
        "is_corrected": False,
        "question_ID": "6e3b",
        "mistake_agent": "Websurfer",
        "mistake_step": "3",
        "mistake_reason": "A wrong link.",
    }
    return {**log, **changes}


def write(folder: pathlib.Path, subset: str, logs: Mapping[str, Any]) -> pathlib.Path:
    """Write files of a subset, name -> content, as the data have them; return the folder of the data."""
    (folder / "who_and_when" / subset).mkdir(parents=True)
    for name, log in logs.items():
        (folder / "who_and_when" / subset / name).write_text(json.dumps(log), encoding="utf-8")
    return folder


def problem_of(body: dict[str, Any]) -> tuple[str, int]:
    """The question of a request, and the number of the problem that it is about."""
    user = body["messages"][-1]["content"]
    match = re.search(r"problem (\d+)\?", user)
    assert match is not None
    return user, int(match[1])


def knowing(user: str, agent: str, step: int) -> str:
    """The answer of a judge that knows whose mistake it was, to a question in any protocol."""
    if "Agent Name:" in user:
        return f"Agent Name: {agent}\nStep Number: {step}\nReason for Mistake: so"
    half = re.search(r"upper half is step \d+ to step (\d+)", user)
    if half is not None:
        return "upper half" if step <= int(half[1]) else "lower half"
    return f"1. {'Yes' if f'The last step is step {step},' in user else 'No'}.\n2. Reason: so"


def trajectory(
    turns: Sequence[tuple[str, str]],
    *,
    subset: str = "Algorithm-Generated",
    number: int = 1,
    mistake: tuple[str, int] = ("A", 0),
) -> Trajectory:
    """A log of (name, content) pairs; "human" is a person in Hand-Crafted."""
    turns_ = tuple(
        Turn(name, content, subset == "Hand-Crafted" and name == "human") for name, content in turns
    )
    prompts = (("A", "You are A."),) if subset == "Algorithm-Generated" else ()
    return Trajectory(subset, number, "What?", "That.", turns_, *mistake, prompts)
