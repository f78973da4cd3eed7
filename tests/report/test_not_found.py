"""A text read with keys of agents that did not write it: no form of the report names one of them."""

from __future__ import annotations

import json
import math

import pytest

from iet.report import Report
from tests.support.reports import report_of, validator
from tests.support.teams import team
from tests.support.texts import TEXT, reader

STRANGERS = ("drafter", "editor", "reviewer")


@pytest.fixture(scope="module")
def wrong() -> Report:
    """The report on a marked text, read with keys that did not mark it."""
    report = reader(team(STRANGERS)).audit(TEXT)
    assert report.found == ()
    assert [segment.agent for segment in report.segments] == [None] * len(report.segments)
    return report


def cards(report: Report) -> str:
    from iet.report import view

    shown = view.Page(report)
    return "\n".join(line for segment in shown.segments for line in shown.why(segment))


def test_prose_names_no_absent_agent(wrong: Report) -> None:
    explained = [str(event["gen_ai.evaluation.explanation"]) for event in wrong.evaluation_events()]
    assert "unattributed" in str(wrong)
    for prose in (cards(wrong), "\n".join(explained), str(wrong).split("agent ")[0]):
        assert not [name for name in STRANGERS if name in prose]
    assert "perhaps" not in str(wrong)
    assert "perhaps" not in wrong.to_html()
    assert "some key always fits best" in cards(wrong).lower()


def test_json_moves_guesses_to_not_found_in_text(wrong: Report) -> None:
    content = json.loads(wrong.to_json())
    validator().validate(content)
    assert {segment["best_guess"] for segment in content["segments"]} == {None}
    for segment_data, segment in zip(content["segments"], wrong.segments, strict=True):
        assert segment_data["posterior"] is segment_data["error"] is None
        expected = {"nearest_key": segment.best_guess, "posterior": segment.posterior, "error": segment.error}
        assert segment_data["not_found_in_text"] == expected


def test_guess_is_named_only_if_the_agent_is_found() -> None:
    report = report_of()
    critic = report.evidence["critic"]
    for level, named in ((2 * math.exp(critic), True), (0.5 * math.exp(critic), False)):
        at_level = report_of(level=level)
        assert ("perhaps critic" in str(at_level)) is named
        assert ("perhaps it was critic" in cards(at_level)) is named
        segment_data = at_level.to_dict()["segments"][1]
        validator().validate(json.loads(at_level.to_json()))
        assert (segment_data["best_guess"] == "critic") is named
        assert ("not_found_in_text" in segment_data) is not named


def test_forced_choice_always_names_an_agent() -> None:
    assert all(
        segment["best_guess"] == segment["agent"]
        for segment in reader(team(STRANGERS), allow_unattributed=False).audit(TEXT).to_dict()["segments"]
    )
