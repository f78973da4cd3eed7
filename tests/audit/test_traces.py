"""Records of conversations as pieces: every shape that is read, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from iet.audit.traces import Piece, parse, read
from iet.errors import InputError

Shown = list[tuple[str, str | None, bool]]


def shown(pieces: list[Piece]) -> Shown:
    return [(piece.text, piece.claim, piece.agents) for piece in pieces]


EXPECTED: Shown = [
    ("Be brief.", None, False),
    ("Plan it.", None, False),
    ("First this.", "planner", True),
    ("No, that.", "critic", True),
    ("Done.", None, True),
]


def openai() -> Any:
    return [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Plan it."}, {"type": "image_url", "image_url": {}}],
        },
        {"role": "assistant", "name": "planner", "content": "First this."},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "assistant", "name": "critic", "content": "No, that."},
        {"role": "assistant", "content": "Done."},
    ]


def langchain() -> Any:
    return [
        {"type": "system", "content": "Be brief."},
        {"type": "human", "content": "Plan it.", "additional_kwargs": {}},
        {"type": "ai", "content": "First this.", "name": "planner", "response_metadata": {}},
        {"type": "ai", "content": [{"type": "text", "text": "No, that."}], "name": "critic"},
        {"type": "ai", "content": "Done.", "name": None},
    ]


def wrapped() -> Any:
    return [{"type": m["type"], "data": {k: v for k, v in m.items() if k != "type"}} for m in langchain()]


def dumped() -> Any:
    kinds = {"system": "SystemMessage", "human": "HumanMessage", "ai": "AIMessage"}
    return [
        {"lc": 1, "type": "constructor", "id": ["langchain", "schema", kinds[m["type"]]],
         "kwargs": {k: v for k, v in m.items() if k != "type"}}
        for m in langchain()
    ]  # fmt: skip


def attribute(key: str, value: Any) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)}}


def native(value: Any) -> dict[str, Any]:
    """A value as OTLP has it where attributes may be structured."""
    if isinstance(value, list):
        return {"arrayValue": {"values": [native(each) for each in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": k, "value": native(v)} for k, v in value.items()]}}
    return {"stringValue": value}


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def span(number: int, *attributes: Any, parent: str = "", events: Any = ()) -> dict[str, Any]:
    return {
        "traceId": "0" * 32,
        "spanId": f"{number:016x}",
        "parentSpanId": parent,
        "name": f"chat {number}",
        "startTimeUnixNano": str(10 * number),
        "endTimeUnixNano": str(10 * number + 5),
        "attributes": list(attributes),
        "events": list(events),
    }


def otlp(*spans: Any) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


def conventions_of_today() -> Any:
    task = [said("user", "Plan it.")]
    around = {
        **span(9, attribute("gen_ai.agent.name", "critic")),
        "spanId": "a" * 16,
        "endTimeUnixNano": "999",
    }
    around["attributes"].append(attribute("gen_ai.output.messages", [said("assistant", "No, that.")]))
    return otlp(  # not in the order of time; the agent's name is on the span, or on the one around it
        span(
            2,
            attribute("gen_ai.input.messages", [*task, said("assistant", "First this.")]),
            {"key": "gen_ai.output.messages", "value": native([said("assistant", "No, that.")])},
            parent="a" * 16,
        ),
        around,
        span(
            1,
            attribute("gen_ai.system_instructions", [{"type": "text", "content": "Be brief."}]),
            attribute("gen_ai.agent.name", "planner"),
            attribute("gen_ai.input.messages", task),
            attribute("gen_ai.output.messages", [said("assistant", "First this.")]),
        ),
        span(3, attribute("gen_ai.output.messages", [said("assistant", "Done.")])),
    )


def conventions_of_events() -> Any:
    def event(name: str, **attributes: Any) -> dict[str, Any]:
        return {"name": name, "attributes": [attribute(k, v) for k, v in attributes.items()]}

    final = {"role": "assistant", "content": "Done."}
    return otlp(
        span(
            1,
            attribute("gen_ai.agent.id", "planner"),
            events=[
                event("gen_ai.system.message", content="Be brief."),
                event("gen_ai.user.message", content="Plan it."),
                event("gen_ai.choice", index="0", message={"role": "assistant", "content": "First this."}),
            ],
        ),
        span(
            2,
            attribute("gen_ai.agent.name", "critic"),
            events=[
                {
                    "name": "gen_ai.client.inference.operation.details",
                    "attributes": [attribute("gen_ai.output.messages", [said("assistant", "No, that.")])],
                }
            ],
        ),
        span(3, events=[event("gen_ai.content.completion", **{"gen_ai.completion": [final]})]),
    )


def numbered_attributes() -> Any:
    return otlp(
        span(
            1,
            attribute("gen_ai.agent.name", "planner"),
            attribute("gen_ai.prompt.0.role", "system"),
            attribute("gen_ai.prompt.0.content", "Be brief."),
            attribute("gen_ai.prompt.1.role", "user"),
            attribute("gen_ai.prompt.1.content", "Plan it."),
            attribute("gen_ai.completion.0.role", "assistant"),
            attribute("gen_ai.completion.0.content", "First this."),
        ),
        span(
            2,
            attribute("graph.node.id", "critic"),
            attribute("llm.input_messages.0.message.role", "user"),
            attribute("llm.input_messages.0.message.content", "Plan it."),
            attribute("llm.output_messages.0.message.role", "assistant"),
            attribute("llm.output_messages.0.message.content", "No, that."),
        ),
        span(3, attribute("llm.output_messages.0.message.content", "Done.")),
    )


def observation(number: int, kind: str = "GENERATION", **fields: Any) -> dict[str, Any]:
    time = f"2026-11-01T10:00:{number:02d}.000Z"
    return {
        "id": str(number),
        "traceId": "t",
        "type": kind,
        "name": "ChatOpenAI",
        "startTime": time,
        "endTime": time,
    } | fields


def langfuse() -> Any:
    task = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Plan it."}]
    return {
        "id": "t",
        "observations": [
            observation(5, input=task, output={"role": "assistant", "content": "Done."}),
            observation(3, input=task, output="No, that.", parentObservationId="2"),
            observation(2, "AGENT", name="critic", endTime="2026-11-01T10:00:04.000Z", output="No, that."),
            observation(1, input=task, output={"role": "assistant", "content": "First this."},
                        metadata={"langgraph_node": "planner"}),
        ],
    }  # fmt: skip


def langfuse_list() -> Any:
    found = langfuse()["observations"]
    found[3]["metadata"] = json.dumps({"attributes": {"gen_ai.agent.name": "planner"}})
    found[3]["output"] = {"choices": [{"message": {"role": "assistant", "content": "First this."}}]}
    found[1]["output"] = {"messages": [{"type": "ai", "content": "No, that."}]}
    return {"data": found, "meta": {}}


FORMS = (
    *(openai, langchain, wrapped, dumped),
    *(conventions_of_today, conventions_of_events, numbered_attributes),
    *(langfuse, langfuse_list),
)


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: Any) -> None:
    assert shown(read(form())) == EXPECTED


def test_what_they_come_in() -> None:
    assert shown(read({"messages": openai(), "model": "m"})) == EXPECTED
    assert shown(read({"values": {"messages": dumped()}, "next": []})) == EXPECTED
    # JSON lines: of messages, of OTLP's exports, of traces.
    assert shown(read([conventions_of_today(), otlp()])) == EXPECTED
    assert shown(read([langfuse(), langfuse()])) == EXPECTED
    first, second = {"messages": openai()[:3]}, {"messages": openai()[3:]}
    assert shown(read([first, second])) == EXPECTED


def test_messages_of_named_agents_are_theirs_whatever_the_role() -> None:
    log = [
        {"role": "user", "name": "ann", "content": "Plan it."},
        {"role": "user", "name": "critic", "content": "No, that."},
        {"source": "writer", "type": "TextMessage", "content": "Done."},
    ]
    assert shown(read(log, agents=("critic", "writer"))) == [
        ("Plan it.", None, False),
        ("No, that.", "critic", True),
        ("Done.", "writer", True),
    ]


def test_one_text_under_two_names_is_two_claims() -> None:
    log = [{"role": "assistant", "name": name, "content": "Done."} for name in ("a", "b", "a")]
    assert shown(read(log)) == [("Done.", "a", True), ("Done.", "b", True)]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (3, "got int, expected chat messages"),
        ({}, "got an object with nothing in it"),
        ([], "got a list of 0"),
        ({"text": "a"}, "got an object with 'text'"),
        ([{"role": "user", "content": "a"}, 3], "got a list of 2, first an object with 'role', 'content'"),
        ([{"role": "assistant", "content": None}], "got no text in it"),
        (otlp(span(1)), "got no text in it"),
        (
            {"resourceSpans": [None, {"scopeSpans": [{"spans": [3, {"attributes": 4, "events": {}}]}]}]},
            "no text",
        ),
    ],
)
def test_what_is_none_of_them_is_refused(document: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(document)


def test_circles_and_depth_are_no_trap() -> None:
    circle = [
        {
            **span(1, attribute("gen_ai.output.messages", [said("assistant", "a")])),
            "parentSpanId": f"{2:016x}",
        },
        {**span(2), "parentSpanId": f"{1:016x}"},
    ]
    assert shown(read(otlp(*circle))) == [("a", None, True)]
    deep: Any = {"stringValue": "a"}
    for _ in range(500):
        deep = {"arrayValue": {"values": [deep]}}
    with pytest.raises(InputError, match="no text"):
        read(otlp(span(1, {"key": "gen_ai.output.messages", "value": deep})))
    round_and_round = [
        observation(1, output="a", parentObservationId="2"),
        observation(2, "SPAN", parentObservationId="1"),
    ]
    assert shown(read(round_and_round)) == [("a", None, True)]


def test_values_of_any_type_stand_where_ids_and_names_do() -> None:
    said_a = attribute("gen_ai.output.messages", [said("assistant", "a")])
    for value in ([1], {"a": 1}, float("inf"), None):
        fields = {"spanId": value, "parentSpanId": value, "endTimeUnixNano": value, "name": value}
        document = otlp({**span(1, said_a, events=[{"name": value, "attributes": value}]), **fields})
        assert shown(read(document)) == [("a", None, True)]
        fields = {"id": value, "parentObservationId": value, "name": value, "endTime": value}
        assert shown(read([observation(1, output="a", **fields)])) == [("a", None, True)]


def test_depth_of_plain_lists_and_objects() -> None:
    deep: Any = "a"
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(InputError, match="got a list of 1, first a list of 1, expected chat"):
        read(deep)
    deep = [{"content": "a"}]
    for _ in range(10_000):
        deep = {"messages": deep}
    with pytest.raises(InputError, match="lists in lists"):
        read([observation(1, output=deep)])


def test_lines_of_json_end_at_line_feeds_alone() -> None:
    texts = ["a\u2028b\x85c", "e"]
    lines = [json.dumps({"role": "assistant", "content": text}, ensure_ascii=False) for text in texts]
    found = read(parse("\r\n".join(lines).encode()))
    assert [piece.text for piece in found] == texts


@pytest.mark.parametrize(
    ("data", "line"), [(b'{\n "a": 1,\n "b" 2\n}', 3), (b"{}\n{\n{}", 2), (b"{", 1), (b"\n\n{", 3), (b"", 1)]
)
def test_an_error_is_told_where_it_is(data: bytes, line: int) -> None:
    with pytest.raises(InputError, match=f"^line {line}: .*; expected JSON or JSON lines"):
        parse(data)


def test_langchain_itself_writes_what_is_read() -> None:
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
        assert shown(read(document)) == EXPECTED
