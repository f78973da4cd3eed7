"""Logs of Who&When: what is read off both subsets, and what is refused with file, field and value."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from benchmarks.paper.failure.trajectories import Turn, agent_of, all_agents, by_agent, load
from iet.errors import InputError
from tests.support.failure_logs import algorithm_generated, hand_crafted, write


def test_names_are_the_identity_of_algorithm_generated_logs(tmp_path: pathlib.Path) -> None:
    logs = {"10.json": algorithm_generated(), "2.json": algorithm_generated(mistake_step="3")}
    found = load(write(tmp_path, "Algorithm-Generated", logs), "Algorithm-Generated")
    assert [log.number for log in found] == [2, 10]
    log = found[1]
    assert log.turns[0] == Turn("Excel_Expert", "We count.\n\nFirst the file.")
    assert log.speakers == ("Excel_Expert", "Computer_terminal", "Blu-Ray_Expert")
    assert log.agents == all_agents(found) == ("Excel_Expert", "Blu-Ray_Expert")
    assert [by_agent(turn) for turn in log.turns] == [True, False, True, True]
    # The label disagrees with who speaks at the step, and stays.
    assert (log.mistake_agent, log.mistake_step, log.turns[1].name) == (
        "Excel_Expert",
        1,
        "Computer_terminal",
    )
    assert log.system_prompts[0] == ("Excel_Expert", "You know tables.")
    assert (log.question, log.answer) == ("How many houses are even?", "8")


def test_roles_are_the_identity_of_hand_crafted_logs(tmp_path: pathlib.Path) -> None:
    (log,) = load(write(tmp_path, "Hand-Crafted", {"7.json": hand_crafted()}), "Hand-Crafted")
    assert [turn.human for turn in log.turns] == [True, False, False, False, False]
    assert log.turns[1].name == "Orchestrator (thought)"
    assert log.agents == ("Orchestrator", "WebSurfer")
    assert agent_of(log.turns[2].name) == "Orchestrator"
    assert log.mistake_agent == "Websurfer"
    assert log.system_prompts == ()


def test_spans_are_where_contents_stand_in_the_text(tmp_path: pathlib.Path) -> None:
    logs = {"1.json": algorithm_generated()}
    (log,) = load(write(tmp_path, "Algorithm-Generated", logs), "Algorithm-Generated")
    assert log.text == "We count.\n\nFirst the file.\n\nexitcode: 0\n\n\n\n\nFour."
    assert [log.text[start:end] for start, end in log.spans] == [turn.content for turn in log.turns]


def test_the_folder_may_be_any_that_leads_to_the_subset(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "Hand-Crafted", {"1.json": hand_crafted()})
    for folder in (tmp_path, tmp_path / "who_and_when", tmp_path / "who_and_when" / "Hand-Crafted"):
        assert len(load(folder, "Hand-Crafted")) == 1
    with pytest.raises(InputError, match="holds no folder 'Algorithm-Generated'"):
        load(tmp_path, "Algorithm-Generated")
    with pytest.raises(InputError, match=r"subset: got 'Both'.*Hand-Crafted"):
        load(tmp_path, "Both")
    with pytest.raises(InputError, match=r"holds 1 logs, expected 1.json to 58.json; missing: \[2, 3"):
        load(tmp_path, "Hand-Crafted", whole=True)


_AGENT = {"content": "a", "role": "user", "name": "Excel_Expert"}

BROKEN = [
    ({"history": []}, r"field 'history': got \[\], expected a list of turns"),
    ({"history": "a: b"}, "field 'history': got 'a: b'"),
    ({"history": [_AGENT, "b"]}, r"field 'history\[1\]': got 'b', expected an object"),
    ({"history": [_AGENT, {**_AGENT, "content": None}]}, r"field 'history\[1\].content': got None"),
    ({"history": [_AGENT, {**_AGENT, "name": " "}]}, r"field 'history\[1\].name': got ' ', expected text"),
    ({"history": [_AGENT, {"content": "", "role": "user"}]}, r"field 'history\[1\].name': missing"),
    ({"question": ""}, "field 'question': got ''"),
    ({"ground_truth": 8}, "field 'ground_truth': got 8"),
    ({"mistake_step": 1}, "field 'mistake_step': got 1"),
    ({"mistake_step": "-1"}, "field 'mistake_step': got '-1', expected a decimal below 4"),
    ({"mistake_step": "4"}, "field 'mistake_step': got '4', expected a decimal below 4"),
    ({"mistake_step": "²"}, "field 'mistake_step': got '²'"),
    ({"mistake_agent": "Nobody"}, r"field 'mistake_agent': got 'Nobody', expected a speaker, one of \['Blu"),
    ({"system_prompt": ["x"]}, r"field 'system_prompt': got \['x'\]"),
]


@pytest.mark.parametrize(("changes", "message"), BROKEN)
def test_a_broken_field_is_named(tmp_path: pathlib.Path, changes: dict[str, Any], message: str) -> None:
    write(tmp_path, "Algorithm-Generated", {"3.json": algorithm_generated(**changes)})
    with pytest.raises(InputError, match=r"3\.json, " + message):
        load(tmp_path, "Algorithm-Generated")


def test_a_broken_file_is_named(tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path, "Hand-Crafted", {"1.json": ["a"]}) / "who_and_when" / "Hand-Crafted"
    with pytest.raises(InputError, match=r"1.json: got \['a'\], expected an object"):
        load(tmp_path, "Hand-Crafted")
    (folder / "1.json").write_bytes(b'{"question": "\xff"}')
    with pytest.raises(InputError, match=r"1.json: no JSON in UTF-8"):
        load(tmp_path, "Hand-Crafted")
    (folder / "1.json").rename(folder / "01.json")
    with pytest.raises(InputError, match=r"01.json: expected a number"):
        load(tmp_path, "Hand-Crafted")
    (folder / "01.json").unlink()
    with pytest.raises(InputError, match="holds no log"):
        load(tmp_path, "Hand-Crafted")
