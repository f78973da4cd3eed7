"""Records of conversations as pieces: all supported formats, and rejected ones."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from iet.audit.traces import FORMATS, Format, parse, read
from iet.errors import InputError
from tests.support.traces import (
    EXPECTED,
    FORMS,
    attribute,
    conventions_of_today,
    dumped,
    langfuse,
    observation,
    openai,
    otlp,
    pieces_of,
    span,
    spoken,
)


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: Any) -> None:
    assert pieces_of(read(form())) == EXPECTED


@pytest.mark.parametrize("entry", FORMATS, ids=lambda entry: entry.name)
def test_every_format_has_a_row_in_the_guide(entry: Format) -> None:
    guide = (pathlib.Path(__file__).parents[2] / "docs" / "guides" / "audit_conversation.md").read_text()
    assert f"| {entry.name}" in guide, "add a row to the table of formats"


def test_containers_of_records() -> None:
    assert pieces_of(read({"messages": openai(), "model": "m"})) == EXPECTED
    assert pieces_of(read({"values": {"messages": dumped()}, "next": []})) == EXPECTED
    # JSON lines: of messages, of OTLP's exports, of traces.
    assert pieces_of(read([conventions_of_today(), otlp()])) == EXPECTED
    assert pieces_of(read([langfuse(), langfuse()])) == EXPECTED
    first, second = {"messages": openai()[:3]}, {"messages": openai()[3:]}
    assert pieces_of(read([first, second])) == EXPECTED


def test_messages_belong_to_the_named_agent_with_any_role() -> None:
    log = [
        {"role": "user", "name": "ann", "content": "Plan it."},
        {"role": "user", "name": "critic", "content": "No, that."},
        {"source": "writer", "type": "TextMessage", "content": "Done."},
    ]
    assert pieces_of(read(log, agents=("critic", "writer"))) == [
        ("Plan it.", None, False),
        ("No, that.", "critic", True),
        ("Done.", "writer", True),
    ]


def test_one_text_under_two_names_is_two_claims() -> None:
    log = [{"role": "assistant", "name": name, "content": "Done."} for name in ("a", "b", "a")]
    assert pieces_of(read(log)) == [("Done.", "a", True), ("Done.", "b", True)]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (3, "^got int, expected the record of a conversation: OpenTelemetry"),
        ({}, "^got an object with nothing in it, expected"),
        ([], "^got a list of 0, expected"),
        ({"text": "a"}, "^got an object with 'text', expected"),
        ([3, {"role": 4, "content": "a"}], "^item 1: got int, expected"),
        (
            [{"source": "wiki", "type": "article", "text": "a"}],
            "^item 1: got an object with 'source', 'type', 'text'; nearest to chat messages, whose",
        ),
        (
            {"traceId": "1", "parentObservationId": "2", "startTime": 3},
            "^got an object with 'traceId', 'parentObservationId', 'startTime'; nearest to calls in",
        ),
        ([{"role": "assistant", "content": None}], "got no text in it"),
        (otlp(span(1)), "got no text in it"),
        (
            {"resourceSpans": [None, {"scopeSpans": [{"spans": [3, {"attributes": 4, "events": {}}]}]}]},
            "no text",
        ),
    ],
)
def test_rejects_unknown_formats(document: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(document)


def test_cyclic_and_deep_records_are_handled() -> None:
    circle = [
        {
            **span(1, attribute("gen_ai.output.messages", [spoken("assistant", "a")])),
            "parentSpanId": f"{2:016x}",
        },
        {**span(2), "parentSpanId": f"{1:016x}"},
    ]
    assert pieces_of(read(otlp(*circle))) == [("a", None, True)]
    deep: Any = {"stringValue": "a"}
    for _ in range(500):
        deep = {"arrayValue": {"values": [deep]}}
    with pytest.raises(InputError, match="no text"):
        read(otlp(span(1, {"key": "gen_ai.output.messages", "value": deep})))
    round_and_round = [
        observation(1, output="a", parentObservationId="2"),
        observation(2, "SPAN", parentObservationId="1"),
    ]
    assert pieces_of(read(round_and_round)) == [("a", None, True)]


def test_ids_and_names_may_have_any_type() -> None:
    said_a = attribute("gen_ai.output.messages", [spoken("assistant", "a")])
    for value in ([1], {"a": 1}, float("inf"), None):
        fields = {"spanId": value, "parentSpanId": value, "endTimeUnixNano": value, "name": value}
        document = otlp({**span(1, said_a, events=[{"name": value, "attributes": value}]), **fields})
        assert pieces_of(read(document)) == [("a", None, True)]
        fields = {"id": value, "parentObservationId": value, "name": value, "endTime": value}
        assert pieces_of(read([observation(1, output="a", **fields)])) == [("a", None, True)]


def test_depth_of_plain_lists_and_objects() -> None:
    deep: Any = "a"
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(InputError, match=r"^item 1: got a list of 1, expected the record"):
        read(deep)
    deep = [{"content": "a"}]
    for _ in range(10_000):
        deep = {"messages": deep}
    with pytest.raises(InputError, match="too deeply nested"):
        read([observation(1, output=deep)])


def test_lines_of_json_end_at_line_feeds_alone() -> None:
    texts = ["a\u2028b\x85c", "e"]
    lines = [json.dumps({"role": "assistant", "content": text}, ensure_ascii=False) for text in texts]
    messages = read(parse("\r\n".join(lines).encode()))
    assert [piece.text for piece in messages.pieces] == texts


@pytest.mark.parametrize(
    ("data", "line"), [(b'{\n "a": 1,\n "b" 2\n}', 3), (b"{}\n{\n{}", 2), (b"{", 1), (b"\n\n{", 3), (b"", 1)]
)
def test_errors_name_their_location(data: bytes, line: int) -> None:
    with pytest.raises(InputError, match=f"^line {line}: .*; expected JSON or JSON lines"):
        parse(data)


def test_records_written_by_langchain_are_read() -> None:
    core = pytest.importorskip("langchain_core.messages")
    load = pytest.importorskip("langchain_core.load")
    messages = [
        core.SystemMessage("Be brief."),
        core.HumanMessage("Plan it."),
        core.AIMessage("First this.", name="planner"),
        core.AIMessage("No, that.", name="critic"),
        core.AIMessage("Done."),
    ]
    for document in (
        [message.model_dump() for message in messages],
        core.messages_to_dict(messages),
        load.dumpd(messages),
        json.loads(load.dumps({"messages": messages})),
    ):
        assert pieces_of(read(document)) == EXPECTED
