"""Table 2 as a whole on a small extract, and what it compares."""

from __future__ import annotations

import csv
import itertools
import json

import numpy as np
import pytest

pytest.importorskip("openai")
pytest.importorskip("transformers")

from benchmarks.paper.__main__ import main
from benchmarks.paper.failure import table2
from benchmarks.paper.failure.judging import Seen
from benchmarks.paper.failure.trajectories import SUBSETS, Trajectory, Turn
from benchmarks.paper.quoted import TABLE2
from tests.support.chat_server import serving
from tests.support.failure_logs import algorithm_generated, knowing, problem_of, write

pytestmark = pytest.mark.usefixtures("any_key")

NAMES = ("Planner", "Coder", "Computer_terminal", "Checker")
STEPS = (1, 3)
"""Mistakes of the two logs."""


@pytest.fixture
def data(tmp_path):
    """Two logs with the schema of the data."""
    contents = (
        "We add.",
        "print(3 + 4) and then we look what it says",
        "7",
        "It says seven, so it is seven.",
    )
    history = [{"content": c, "role": "user", "name": name} for name, c in zip(NAMES, contents, strict=True)]
    logs = {
        f"{number}.json": algorithm_generated(
            question=f"What is problem {number}?",
            history=history,
            mistake_agent=NAMES[step],
            mistake_step=str(step),
        )
        for number, step in enumerate(STEPS, 1)
    }
    return write(tmp_path / "data", SUBSETS[0], logs)


def knows(body) -> str:
    """A judge who knows the annotation, whatever it is shown."""
    user, number = problem_of(body)
    return knowing(user, NAMES[STEPS[number - 1]], STEPS[number - 1])


def test_experiment_writes_every_cell_and_resumes(data, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["table2", "--data", str(data), "--out", str(out), "--extract", "--marks", "gumbel"]
    command += ["--judge-model", "tiny", "--seeds", "2", "--judge-tokens", "64"]
    with serving(lambda body, _: knows(body)) as server:
        assert main([*command, "--judge-url", server.url]) == 0
        num_requests = len(server.requests)
        assert set(server.asked.values()) == {1}
        first = json.loads((out / "table2.json").read_text())
        assert main([*command, "--judge-url", server.url]) == 0
        assert len(server.requests) == num_requests
        assert main([*command, "--judge-url", server.url, "--judge-model", "other"]) == 1
        assert "differs in judge; choose another --out" in capsys.readouterr().err
    content = json.loads((out / "table2.json").read_text())
    assert content["cells"] == first["cells"]
    conditions = [
        ("clean", "original"),
        ("clean", "rewritten, gumbel"),
        ("ID removal", "original"),
        ("ID removal", "rewritten, gumbel"),
        ("ID removal", "restored, gumbel"),
        ("boundary corruption", "original"),
        ("boundary corruption", "rewritten, gumbel"),
        ("boundary corruption", "restored, gumbel"),
    ]
    table = {(row["protocol"], row["corruption"], row["log"]): row for row in content["table"]}
    assert list(table) == [(protocol, *condition) for protocol in TABLE2 for condition in conditions]
    for protocol in TABLE2:
        for log in ("original", "rewritten, gumbel"):
            clean, bare, cut = (
                table[protocol, *condition] for condition in conditions if condition[1] == log
            )
            assert clean["AgentAcc %"][0] == clean["StepAcc %"][0] == cut["StepAcc by index %"][0] == 100
            # Only all_at_once can name an agent that the log does not name.
            assert (bare["StepAcc %"][0], bare["AgentAcc %"][0]) == (100, 100 * (protocol == "all_at_once"))
        assert table[protocol, "ID removal", "restored, gumbel"]["StepAcc %"][0] == 100
    with open(out / "table2.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    sides = {"original": "baseline", "rewritten, gumbel": "ours", "restored, gumbel": "ours"}
    names = {title: name for name, title in table2.TITLES.items()}
    for row, (protocol, title, log) in zip(rows, table, strict=True):
        printed = (row["paper AgentAcc %"], row["paper StepAcc %"])
        if title != "clean" and log == "rewritten, gumbel":
            assert printed == ("", "")
        else:
            assert printed == tuple(map(str, TABLE2[protocol][sides[log]][names[title]]))


def test_corrupted_logs_map_to_turns_by_characters():
    turns = tuple(Turn(name, name.lower() * 20) for name in NAMES)
    log = Trajectory(SUBSETS[0], 5, "q", "a", turns, "Coder", 1)
    seen = table2.not_restored(log, "boundaries")
    assert [turn.name for turn in seen.presented.turns] == list(NAMES)
    assert [turn.content for turn in seen.presented.turns] == [
        log.text[start:end] for start, end in seen.spans
    ]
    bare = table2.not_restored(log, "ids")
    assert (bare.spans, {turn.name for turn in bare.presented.turns}) == (None, {"Agent"})


def test_compares_with_the_baseline_and_the_corrupted_log():
    log = Trajectory(SUBSETS[0], 5, "q", "a", (Turn("A", "x"),), "A", 0)
    conditions = [
        table2.Condition(SUBSETS[0], corruption, mark, restored, (Seen(log, log),))
        for mark, corruption, restored in itertools.product((None, "gumbel"), table2.TITLES, (False, True))
        if not restored or (mark and corruption != "clean")
    ]
    tables = {
        ("all_at_once", i): dict.fromkeys(table2.SCORES, np.array([[float(i)]]))
        for i in range(len(conditions))
    }
    rows = table2._compared(conditions, ["all_at_once"], tables, 0)
    pairs = [(row[2], row[3].split(",")[0], row[4].split(",")[0]) for row in rows]
    assert pairs == [
        ("clean", "rewritten", "original"),
        ("ID removal", "restored", "original"),
        ("ID removal", "restored", "rewritten"),
        ("boundary corruption", "restored", "original"),
        ("boundary corruption", "restored", "rewritten"),
    ]
    assert rows[0][5].mean == 100.0 * [c.mark for c in conditions].index("gumbel")
