"""One conversation in every form of record that is read."""

from __future__ import annotations

import json
from typing import Any

from iet.audit.traces import Trace

Pieces = list[tuple[str, str | None, bool]]


def pieces_of(trace: Trace) -> Pieces:
    """Text, claimed name and whether it is judged, of each piece."""
    return [(piece.text, piece.claim, piece.skipped is None) for piece in trace.pieces]


EXPECTED: Pieces = [
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
        return {"arrayValue": {"values": [native(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": k, "value": native(v)} for k, v in value.items()]}}
    return {"stringValue": value}


def spoken(role: str, text: str) -> dict[str, Any]:
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
    task = [spoken("user", "Plan it.")]
    around = {
        **span(9, attribute("gen_ai.agent.name", "critic")),
        "spanId": "a" * 16,
        "endTimeUnixNano": "999",
    }
    around["attributes"].append(attribute("gen_ai.output.messages", [spoken("assistant", "No, that.")]))
    return otlp(  # not in the order of time; the agent's name is on the span, or on the one around it
        span(
            2,
            attribute("gen_ai.input.messages", [*task, spoken("assistant", "First this.")]),
            {"key": "gen_ai.output.messages", "value": native([spoken("assistant", "No, that.")])},
            parent="a" * 16,
        ),
        around,
        span(
            1,
            attribute("gen_ai.system_instructions", [{"type": "text", "content": "Be brief."}]),
            attribute("gen_ai.agent.name", "planner"),
            attribute("gen_ai.input.messages", task),
            attribute("gen_ai.output.messages", [spoken("assistant", "First this.")]),
        ),
        span(3, attribute("gen_ai.output.messages", [spoken("assistant", "Done.")])),
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
                    "attributes": [attribute("gen_ai.output.messages", [spoken("assistant", "No, that.")])],
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
    observations = langfuse()["observations"]
    observations[3]["metadata"] = json.dumps({"attributes": {"gen_ai.agent.name": "planner"}})
    observations[3]["output"] = {"choices": [{"message": {"role": "assistant", "content": "First this."}}]}
    observations[1]["output"] = {"messages": [{"type": "ai", "content": "No, that."}]}
    return {"data": observations, "meta": {}}


FORMS = (  # at least one of each format
    *(openai, langchain, wrapped, dumped),
    *(conventions_of_today, conventions_of_events, numbered_attributes),
    *(langfuse, langfuse_list),
)
