"""Table 2: what a judge sees, how it is scored, and the experiment as a whole on a small extract."""

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
from benchmarks.paper.failure.protocols import Outcome
from benchmarks.paper.failure.trajectories import SUBSETS, Trajectory, Turn, load
from benchmarks.paper.failure.verdicts import Prediction, Seen
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
    said = ("We add.", "print(3 + 4) and then we look what it says", "7", "It says seven, so it is seven.")
    history = [{"content": c, "role": "user", "name": name} for name, c in zip(NAMES, said, strict=True)]
    logs = {
        f"{number}.json": algorithm_generated(
            question=f"What is problem {number}?",
            ground_truth="17",
            history=history,
            mistake_agent=NAMES[step],
            mistake_step=str(step),
            system_prompt={"Coder": "You write code."},
        )
        for number, step in enumerate(STEPS, 1)
    }
    return write(tmp_path / "data", SUBSETS[0], logs)


def knows(body) -> str:
    """A judge that knows the annotation, whatever it is shown."""
    user, number = problem_of(body)
    return knowing(user, NAMES[STEPS[number - 1]], STEPS[number - 1])


def test_the_experiment_writes_every_cell_and_goes_on_where_it_was(data, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["table2", "--data", str(data), "--out", str(out), "--any-rows", "--marks", "gumbel"]
    command += ["--judge-model", "tiny", "--seeds", "2", "--judge-tokens", "64"]
    with serving(lambda body, _: knows(body)) as server:
        assert main([*command, "--judge-url", server.url]) == 0
        asked = len(server.requests)
        assert set(server.asked.values()) == {1}
        first = json.loads((out / "table2.json").read_text())
        assert main([*command, "--judge-url", server.url]) == 0
        assert len(server.requests) == asked
    content = json.loads((out / "table2.json").read_text())
    assert content["cells"] == first["cells"]
    assert content["digest"] == first["digest"]
    assert content["configuration"]["judge"] == "tiny"
    assert content["configuration"]["logs_measured"] == {SUBSETS[0]: [1, 2]}
    cells = {(cell["protocol"], cell["corruption"], cell["log"]): cell for cell in content["cells"]}
    shown = [
        ("clean", "original"),
        ("clean", "rewritten, gumbel"),
        ("ids", "original"),
        ("ids", "rewritten, gumbel"),
        ("ids", "restored, gumbel"),
        ("boundaries", "original"),
        ("boundaries", "rewritten, gumbel"),
        ("boundaries", "restored, gumbel"),
    ]
    assert list(cells) == [(protocol, *some) for protocol in TABLE2 for some in shown]
    for protocol in TABLE2:
        for log in ("original", "rewritten, gumbel"):
            assert set(cells[protocol, "clean", log]["figures"].values()) == {1.0}
            bare = cells[protocol, "ids", log]["figures"]
            assert (bare["step"], bare["legacy_step"]) == (1.0, 1.0)
            # Only all_at_once names an agent that the log does not.
            assert bare["agent"] == bare["legacy_agent"] == float(protocol == "all_at_once")
            cut = cells[protocol, "boundaries", log]["figures"]
            assert cut["index"] == cut["legacy_step"] == 1.0
        assert cells[protocol, "ids", "restored, gumbel"]["figures"]["step"] == 1.0
        for log in ("original", "rewritten, gumbel"):
            assert cells[protocol, "clean", log]["ideal"] == {"agent": 1.0, "step": 1.0}
            assert cells[protocol, "ids", log]["ideal"] == {"agent": 0.0, "step": 1.0}
        assert cells[protocol, "ids", "restored, gumbel"]["ideal"]["step"] == 1.0
    assert {cell["unanswered"] for cell in content["cells"]} == {0}
    assert cells["all_at_once", "clean", "original"]["predictions"] == {
        str(seed): {"1": "Coder @ 1 | Coder @ 1", "2": "Checker @ 3 | Checker @ 3"} for seed in (0, 1)
    }
    with open(out / "table2.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(cells)
    sides = {"original": "baseline", "rewritten, gumbel": "ours", "restored, gumbel": "ours"}
    for row, (protocol, corruption, log) in zip(rows, cells, strict=True):
        printed = (row["paper AgentAcc %"], row["paper StepAcc %"])
        if corruption != "clean" and log == "rewritten, gumbel":
            assert printed == ("", "")
        else:
            assert printed == tuple(map(str, TABLE2[protocol][sides[log]][corruption]))
    written = (out / "table2.md").read_text()
    assert "that of GPT-4o in Table 1 of Who&When" in written
    assert "0 did not fit" in written
    assert "StepAcc of the ideal judge" in written
    assert "mean nothing" not in written
    assert "measures nothing" not in written
    capsys.readouterr()


def test_the_shipped_model_as_judge_is_said_to_mean_nothing(data, tmp_path, capsys):
    command = ["table2", "--data", str(data), "--out", str(tmp_path / "out"), "--any-rows", "--quick"]
    command += ["--logs", "1", "--judge-tokens", "4", "--protocols", "all_at_once"]
    assert main(command) == 0
    assert "**The judge is the shipped model, whose answers mean nothing**" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--judge-url", "http://127.0.0.1:9"], "judge-model: got none"),
        (["--judge-model", "tiny", "--judge", "some"], "judge: got a model and an endpoint"),
        (["--judge-tokens", "5000"], "room, max_tokens: got None and 5000"),
        (["--seeds", "0"], "seeds: got 0"),
        (["--judge-workers", "0"], "judge-workers: got 0"),
        (["--judge-top-p", "0"], "judge-top-p: got 0.0"),
        (["--judge-model", "tiny", "--judge-url", "secret@nowhere"], "base_url: got no address"),
        (["--logs", "3"], "records: got 3, expected 1 to 2"),
    ],
)
def test_nonsense_is_refused(data, tmp_path, capsys, options, message):
    command = ["table2", "--data", str(data), "--out", str(tmp_path / "out"), "--any-rows"]
    assert main([*command, *options]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "logs").exists()


def test_a_judge_without_a_key_is_refused_before_anything_is_generated(data, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    command = ["table2", "--data", str(data), "--out", str(tmp_path / "out"), "--any-rows"]
    assert main([*command, "--judge-model", "tiny"]) == 1
    assert "OPENAI_API_KEY: got nothing from the environment" in capsys.readouterr().err
    assert not (tmp_path / "out" / "logs").exists()


def test_another_judges_table_is_not_overwritten(data, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["table2", "--data", str(data), "--out", str(out), "--any-rows", "--quick", "--logs", "1"]
    command += ["--protocols", "all_at_once"]
    with serving(lambda body, _: knows(body)) as server:
        command += ["--judge-url", server.url, "--judge-model"]
        assert main([*command, "tiny"]) == 0
        before, asked = (out / "table2.json").read_bytes(), len(server.requests)
        capsys.readouterr()
        assert main([*command, "other"]) == 1
        assert "they differ in judge; choose another --out, or --overwrite" in capsys.readouterr().err
        assert (out / "table2.json").read_bytes() == before
        assert len(server.requests) == asked
        assert main([*command, "other", "--overwrite"]) == 0
    configuration = json.loads((out / "table2.json").read_text())["configuration"]
    assert (configuration["judge"], configuration["judge_address"]) == ("other", server.url)


def test_a_judge_that_says_nothing_in_form_is_said_to_measure_nothing(data, tmp_path, capsys):
    command = ["table2", "--data", str(data), "--out", str(tmp_path / "out"), "--any-rows", "--quick"]
    command += ["--logs", "1", "--judge-model", "tiny", "--protocols", "step_by_step"]
    with serving(lambda *_: "Who knows?") as server:
        assert main([*command, "--judge-url", server.url]) == 0
    assert "**Only 0% of its runs end in a prediction**" in capsys.readouterr().out


# Parts


def outcome(strict: Prediction | None, legacy: Prediction | None) -> Outcome:
    return Outcome(strict, "", legacy, "", False, 1, 0)


def test_figures_are_per_seed_and_log(data):
    one, other = load(data)
    seen = [Seen(one, one), Seen(other, other)]
    right, wrong = Prediction("Coder", "1"), Prediction("Planner", "13")
    seeds = [
        [outcome(right, right), outcome(wrong, wrong)],
        [outcome(None, right), outcome(Prediction("Checker", "0"), None)],
    ]
    # The strict reader takes no step that is not there, so 13 is only read by the evaluator.
    seeds[0][1] = outcome(Prediction("Planner", "3"), wrong)
    found = table2.figures(seen, seeds)
    assert {name: table.tolist() for name, table in found.items()} == {
        "agent": [[1, 0], [0, 1]],
        "step": [[1, 1], [0, 0]],
        "index": [[1, 1], [0, 0]],
        "legacy_agent": [[1, 0], [1, 0]],
        "legacy_step": [[1, 1], [1, 0]],
    }


def test_a_log_whose_boundaries_are_corrupted_is_mapped_by_its_characters():
    turns = tuple(Turn(name, name.lower() * 20) for name in NAMES)
    log = Trajectory(SUBSETS[0], 5, "q", "a", turns, "Coder", 1)
    seen = table2._as_it_stands(log, "boundaries")
    assert [turn.name for turn in seen.shown.turns] == list(NAMES)
    assert [turn.content for turn in seen.shown.turns] == [log.text[start:end] for start, end in seen.spans]
    assert [end for _, end in seen.spans[:-1]] == [start for start, _ in seen.spans[1:]]
    bare = table2._as_it_stands(log, "ids")
    assert (bare.spans, {turn.name for turn in bare.shown.turns}) == (None, {"Agent"})


def test_only_what_the_paper_compares_is_compared():
    log = Trajectory(SUBSETS[0], 5, "q", "a", (Turn("A", "x"),), "A", 0)
    conditions = [
        table2.Condition(SUBSETS[0], corruption, mark, restored, (Seen(log, log),))
        for mark, corruption, restored in itertools.product(
            (None, "fourier", "gumbel"), table2.TITLES, (False, True)
        )
        if not restored or (mark and corruption != "clean")
    ]
    tables = {
        ("all_at_once", i): dict.fromkeys(table2.SCORES, np.array([[float(i)]]))
        for i in range(len(conditions))
    }
    rows = table2._compared(conditions, ["all_at_once"], tables, 0)
    pairs = [(row[2], row[3].split(",")[0], row[4].split(",")[0]) for row in rows]
    once = [
        ("clean", "rewritten", "original"),
        ("ID removal", "restored", "original"),
        ("ID removal", "restored", "rewritten"),
        ("boundary corruption", "restored", "original"),
        ("boundary corruption", "restored", "rewritten"),
    ]
    assert pairs == once * 2
    assert all(row[3].split(", ")[1:] == row[4].split(", ")[1:] for row in rows if "," in row[4])
    fourier = [c.mark for c in conditions].index("fourier")
    assert rows[0][5].mean == 100.0 * (fourier - 0)


def test_a_judge_of_temperature_zero_has_one_seed(data, tmp_path, capsys):
    command = ["table2", "--data", str(data), "--out", str(tmp_path / "out"), "--any-rows", "--logs", "1"]
    command += ["--marks", "gumbel", "--judge-model", "tiny", "--judge-temperature", "0"]
    with serving(lambda body, _: knows(body)) as server:
        assert main([*command, "--judge-url", server.url, "--protocols", "all_at_once"]) == 0
    assert {request["body"]["seed"] for request in server.requests} == {0}
    content = json.loads((tmp_path / "out" / "table2.json").read_text())
    assert content["configuration"]["judge_seeds"] == [0]
    capsys.readouterr()
