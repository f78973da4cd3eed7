"""Verdicts on records with marked text whose names are not always right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import iet
from iet.audit.traces import read
from iet.report.claims import ClaimReport
from tests.support import record_cases
from tests.support.record_cases import CASES, event, outcome
from tests.support.traces import FORMS


@pytest.fixture(scope="module")
def auditor() -> iet.Auditor:
    return iet.Auditor(record_cases.registry(), tokenizer=record_cases.text_tokenizer())


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return record_cases.texts(record_cases.registry())


def checked(auditor: iet.Auditor, document: Any, **names: str) -> ClaimReport:
    return auditor.check_trace(read(document, agents=[*auditor.agents, *names]), names)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_records_get_the_right_verdict(
    case: record_cases.Case, auditor: iet.Auditor, texts: dict[str, str]
) -> None:
    assert outcome(checked(auditor, case.make(texts)).to_dict()) == case.right


def with_texts(document: Any, texts: dict[str, str]) -> Any:
    """A fixture of `FORMS` with other texts, which hold nothing that JSON escapes."""
    written = json.dumps(document)
    for old, new in texts.items():
        written = written.replace(old, new)
    return json.loads(written)


def pairs(report: ClaimReport) -> Iterator[tuple[str | None, str]]:
    return ((piece.claim, piece.verdict) for piece in report.pieces if piece.reason is None)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_with_marked_text(form: Any, auditor: iet.Auditor, texts: dict[str, str]) -> None:
    """True claims are confirmed, false ones contradicted, and pieces without a name are attributed."""
    true = {"First this.": texts["planner"], "No, that.": texts["critic"], "Done.": texts["writer"]}
    report = checked(auditor, with_texts(form(), true))
    assert list(pairs(report)) == [("planner", "confirmed"), ("critic", "confirmed"), (None, "named")]
    assert report.pieces[-1].agent == "writer"
    false = {"First this.": texts["critic"], "No, that.": texts["writer"], "Done.": "w1 w2"}
    report = checked(auditor, with_texts(form(), false))
    assert list(pairs(report)) == [("planner", "contradicted"), ("critic", "contradicted"), (None, "open")]


def test_unknown_names_are_mapped_by_the_option_in_the_message(
    auditor: iet.Auditor, texts: dict[str, str]
) -> None:
    log = [{"role": "assistant", "name": "The planner", "content": texts["planner"]}]
    (piece,) = checked(auditor, log).pieces
    assert (piece.verdict, piece.agent, piece.nearest) == ("unknown name", "planner", "planner")
    assert piece.note == "the nearest name is planner: iet check --agent 'The planner=planner'"
    (piece,) = checked(auditor, log, **{"The planner": "planner"}).pieces
    assert (piece.verdict, piece.claim) == ("confirmed", "planner")
    log[0]["name"] = "x"
    assert checked(auditor, log).pieces[0].note == "no registered name is similar"


def test_a_role_is_mapped_like_a_name(auditor: iet.Auditor, texts: dict[str, str]) -> None:
    log = [{"role": "Orchestrator (thought)", "content": texts["planner"]}]
    assert checked(auditor, log).pieces[0].verdict == "skipped"
    report = checked(auditor, log, **{"Orchestrator (thought)": "planner"})
    assert [(piece.claim, piece.verdict) for piece in report.pieces] == [("planner", "confirmed")]


def test_repeated_tool_output_is_no_evidence(auditor: iet.Auditor, texts: dict[str, str]) -> None:
    log = [
        event("ToolCallExecutionEvent", [{"content": texts["critic"], "name": "read", "call_id": "1"}]),
        event("TextMessage", texts["critic"] + " w1"),
    ]
    assert [piece.verdict for piece in checked(auditor, log).pieces] == ["skipped", "open"]


def test_an_event_of_an_unknown_type_is_skipped_and_reported(
    auditor: iet.Auditor, texts: dict[str, str]
) -> None:
    log = [event("RecallEvent", texts["critic"]), event("StructuredMessage[Plan]", texts["planner"])]
    report = checked(auditor, log)
    assert [piece.verdict for piece in report.pieces] == ["skipped", "confirmed"]
    assert report.counts == "judged: 1; skipped: 1 (event of type 'RecallEvent' 1); unreadable: 0"


def test_every_message_is_counted(auditor: iet.Auditor, texts: dict[str, str]) -> None:
    message = {"role": "assistant", "name": "planner", "content": texts["planner"]}
    other_messages: list[Any] = [
        {"role": "user", "content": "w1"},
        {"role": "user", "name": "ann", "content": "w2"},
        {"role": "assistant", "content": None, "tool_calls": []},
        7,
    ]
    report = checked(auditor, [message, message, *other_messages])
    assert report.counts == (
        "judged: 1;"
        " skipped: 3 (user message 1, user message under the name 'ann' 1, repeats another message 1);"
        " unreadable: 2 (no text 1, no message: type 'int' 1)"
    )
    for form in (report.text(), report.to_html()):
        assert "unreadable: 2" in form
    many = [{"role": f"role {i}", "content": f"w{i}"} for i in range(20)]
    assert checked(auditor, many).counts.endswith("other reasons 12); unreadable: 0")


def test_lines_of_an_unknown_kind_are_skipped(auditor: iet.Auditor, texts: dict[str, str]) -> None:
    message = {"role": "assistant", "name": "planner", "content": texts["planner"]}
    report = checked(auditor, [{"messages": [message]}, {"resourceMetrics": []}])
    assert list(pairs(report)) == [("planner", "confirmed")]
    assert report.unreadable == {"metrics": 1}


def hand_off(target: str, identity: str) -> dict[str, Any]:
    call = {"id": identity, "function": {"name": f"transfer_to_{target}", "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def test_stated_hand_overs_are_compared_with_the_marks(auditor: iet.Auditor, texts: dict[str, str]) -> None:
    log = [
        {"role": "assistant", "name": "planner", "content": texts["planner"]},
        hand_off("critic", "1"),
        {"role": "tool", "name": "transfer_to_critic", "tool_call_id": "1", "content": "done"},
        {"role": "assistant", "name": "critic", "content": texts["critic"]},
        hand_off("writer", "2"),
        {"role": "assistant", "name": "planner", "content": texts["russian"]},
    ]
    report = checked(auditor, log)
    assert [piece.agent for piece in report.pieces if piece.verdict != "skipped"] == [
        "planner",
        "critic",
        "planner",
    ]
    expected = {
        "found": (("planner", "critic"),),
        "missing": (("critic", "writer"),),
        "unclaimed": (("critic", "planner"),),
    }
    assert report.to_dict()["hand_overs"] == expected
    line = (
        "hand-overs claimed and found: 1 (planner to critic); claimed and not found: 1 (critic to writer);"
        " found and not claimed: 1 (critic to planner)"
    )
    assert line in report.text()
    assert line in report.to_html()


def test_a_hand_over_is_not_shown_across_a_piece_without_a_mark(
    auditor: iet.Auditor, texts: dict[str, str]
) -> None:
    log = [
        {"role": "assistant", "name": "planner", "content": texts["planner"]},
        hand_off("critic", "1"),
        {"role": "assistant", "content": "Too short."},
        {"role": "assistant", "name": "critic", "content": texts["critic"]},
    ]
    report = checked(auditor, log)
    assert report.hand_overs is not None
    assert (report.hand_overs.found, report.hand_overs.missing) == ((), (("planner", "critic"),))


def test_a_record_that_states_no_hand_over_gets_no_comparison(
    auditor: iet.Auditor, texts: dict[str, str]
) -> None:
    log = [{"role": "assistant", "name": "planner", "content": texts["planner"]}]
    assert checked(auditor, log).hand_overs is None
    assert "hand_overs" not in checked(auditor, log).to_dict()


def test_every_unknown_name_is_reported(auditor: iet.Auditor) -> None:
    log = [{"role": "assistant", "name": f"plannr {i}" * 50, "content": f"w{i}"} for i in range(300)]
    assert len(checked(auditor, log).of("unknown name")) == 300


@pytest.mark.parametrize(
    "text",
    [
        '"a quotation"',
        "[1, 2]",
        '{"answer": 1}',
        '{"role": "tool"}',
        '[{"type": "step", "text": "a"}]',
        '["a\\n"]',
    ],
)
def test_json_that_an_agent_wrote_is_text(text: str) -> None:
    (piece,) = read([{"role": "assistant", "name": "planner", "content": text}]).pieces
    assert piece.text == text


@pytest.mark.parametrize("layers", range(6))
def test_json_is_decoded_to_a_depth(layers: int) -> None:
    text = "привет"
    for _ in range(layers):
        text = json.dumps(text)
    (piece,) = read([{"role": "assistant", "name": "planner", "content": text}]).pieces
    assert (piece.text == "привет") == (layers <= 4)
