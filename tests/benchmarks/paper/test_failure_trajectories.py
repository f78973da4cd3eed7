"""Logs of Who&When: how both subsets are read, and what is refused."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from benchmarks.paper.failure.trajectories import Turn, agent_of, all_agents, by_agent, load
from iet.errors import InputError
from tests.support.failure_logs import algorithm_generated, hand_crafted, write


def test_algorithm_generated_logs_identify_agents_by_name(tmp_path: pathlib.Path) -> None:
    logs = {"10.json": algorithm_generated(), "2.json": algorithm_generated(mistake_step="3")}
    logs_read = load(write(tmp_path, "Algorithm-Generated", logs), "Algorithm-Generated")
    assert [log.number for log in logs_read] == [2, 10]
    log = logs_read[1]
    assert log.turns[0] == Turn("Excel_Expert", "We count.\n\nFirst the file.")
    assert log.agents == all_agents(logs_read) == ("Excel_Expert", "Blu-Ray_Expert")
    assert [by_agent(turn) for turn in log.turns] == [True, False, True, True]
    # The label disagrees with who speaks at the step, and stays.
    assert (log.mistake_agent, log.mistake_step, log.turns[1].name) == (
        "Excel_Expert",
        1,
        "Computer_terminal",
    )
    assert log.system_prompts[0] == ("Excel_Expert", "You know tables.")
    assert (log.question, log.answer) == ("How many houses are even?", "8")


def test_hand_crafted_logs_identify_agents_by_role(tmp_path: pathlib.Path) -> None:
    (log,) = load(write(tmp_path, "Hand-Crafted", {"7.json": hand_crafted()}), "Hand-Crafted")
    assert [turn.human for turn in log.turns] == [True, False, False, False, False]
    assert log.turns[1].name == "Orchestrator (thought)"
    assert log.agents == ("Orchestrator", "WebSurfer")
    assert agent_of(log.turns[2].name) == "Orchestrator"
    assert log.mistake_agent == "Websurfer"
    assert log.system_prompts == ()


def test_spans_locate_contents_in_the_text(tmp_path: pathlib.Path) -> None:
    logs = {"1.json": algorithm_generated()}
    (log,) = load(write(tmp_path, "Algorithm-Generated", logs), "Algorithm-Generated")
    assert log.text == "We count.\n\nFirst the file.\n\nexitcode: 0\n\n\n\n\nFour."
    assert [log.text[start:end] for start, end in log.spans] == [turn.content for turn in log.turns]


def test_rejects_an_extract_in_place_of_the_dataset(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "Hand-Crafted", {"1.json": hand_crafted()})
    for folder in (tmp_path, tmp_path / "who_and_when"):
        assert len(load(folder, "Hand-Crafted")) == 1
    with pytest.raises(InputError, match="0 logs of 'Algorithm-Generated', expected some"):
        load(tmp_path, "Algorithm-Generated")
    with pytest.raises(InputError, match=r"subset: got 'Both'.*Hand-Crafted"):
        load(tmp_path, "Both")
    with pytest.raises(InputError, match="1 logs of 'Hand-Crafted', expected 58"):
        load(tmp_path, "Hand-Crafted", complete=True)


@pytest.mark.parametrize(
    "change",
    [
        {"mistake_step": "4"},
        {"mistake_step": "one"},
        {"mistake_agent": "Nobody"},
        {"history": []},
        {"question": 1},
    ],
)
def test_names_a_damaged_log(tmp_path: pathlib.Path, change: dict[str, Any]) -> None:
    data = write(tmp_path, "Algorithm-Generated", {"3.json": algorithm_generated(**change)})
    if change == {"question": 1}:
        path = data / "who_and_when" / "Algorithm-Generated" / "3.json"
        path.write_text("{")
    with pytest.raises(InputError, match=r"3\.json: "):
        load(data)
