"""The record of a team tells no token and no folder. What it records, tests/service tests."""

from __future__ import annotations

import pathlib

import pytest

from benchmarks.writing.serving_log import Log
from iet.errors import IetError

ROOT = pathlib.Path(__file__).parents[3]
TOKEN = "iet_" + "aB3-_" * 9


def test_names_stand_for_tokens_and_folders() -> None:
    log = Log({"$PLANNER": TOKEN, ".": "/tmp/home"})
    log.say(f"$ ask --token {TOKEN} /tmp/home/team.json", "two\nthree")
    assert log.checked() == "$ ask --token $PLANNER ./team.json\ntwo\nthree\n"


@pytest.mark.parametrize(
    "secret", [TOKEN, f"see {TOKEN}", "in /home/me/x", f"{'word ' * 20}/usr/{'x' * 100}"]
)
def test_what_is_left_of_them_is_no_log(secret: str) -> None:
    log = Log({})
    log.say("fine", secret)
    with pytest.raises(IetError, match="a folder of this machine, or a token"):
        log.checked()


def test_a_name_that_came_late_is_missed() -> None:
    log = Log({})
    log.say("the key is sk-123")
    log.names["$KEY"] = "sk-123"
    with pytest.raises(IetError, match=r"what \$KEY stands for is in it"):
        log.checked()


def test_the_record_is_one_of_a_team_that_was_named() -> None:
    log = Log({})
    log.text = (ROOT / "examples/serving/recording.txt").read_text()
    assert "planner, critic, planner, critic, planner, critic\n" in log.checked()
    assert log.text.count("-> 403") == 2
