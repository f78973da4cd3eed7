"""Records that could make an agent answer for another one's text, or hide a text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from iet.audit.traces import read
from tests.support.traces import Pieces, pieces_of

USER: dict[str, Any] = {"role": "user", "content": "Q"}


def said(text: str | None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


def call(name: str, identity: str = "c1", **arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": identity, "type": "function", "function": function}


def result(text: str, identity: str = "c1", **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": text, **fields}


def claims_of(record: Any) -> Pieces:
    return [piece for piece in pieces_of(read(record, agents=("planner", "critic"))) if piece[2]]


HAND_OVER = said(None, tool_calls=[call("transfer_to_critic")])
ANSWER = {"object": "response", "id": "r"}


@pytest.mark.parametrize(
    "answer",
    [
        result("Rejected: transfer to critic needs an approval."),
        result("Agent planner keeps the task."),
        result("The critic says: add the pump."),
        result("Transferred to critic", status="error"),
        result("Transferred to critic", "c2"),
    ],
)
def test_a_hand_over_without_its_confirmation_names_no_later_message(answer: dict[str, Any]) -> None:
    assert claims_of([USER, HAND_OVER, answer, said("P")]) == [("P", None, True)]


def test_a_confirmed_hand_over_names_messages_until_a_user_writes() -> None:
    log = [USER, HAND_OVER, result("Transferred to critic"), said("C"), USER, said("P")]
    assert claims_of(log) == [("C", "critic", True), ("P", None, True)]


def test_answers_of_apis_are_conversations_of_their_own() -> None:
    output = {"type": "function_call_output", "call_id": "c", "output": '{"assistant": "critic"}'}
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "P"}]}
    assert claims_of([{**ANSWER, "output": [output]}, {**ANSWER, "output": [message]}]) == [("P", None, True)]


def test_tasks_of_a2a_are_conversations_of_their_own() -> None:
    data = {"name": "transfer_to_agent", "id": "x"}
    parts = [{"data": {**data, "args": {"agent_name": "critic"}}}, {"data": {**data, "response": {}}}]
    status = {"state": "working", "message": {"role": "agent", "parts": parts}}
    other = {"id": "2", "contextId": "b", "artifacts": [{"artifactId": "z", "parts": [{"text": "P"}]}]}
    assert claims_of([{"id": "1", "contextId": "a", "status": status}, other]) == [("P", None, True)]


def test_an_artifact_that_is_whole_replaces_its_parts() -> None:
    def update(text: str, append: bool) -> dict[str, Any]:
        return {"taskId": "1", "append": append, "artifact": {"artifactId": "z", "parts": [{"text": text}]}}

    task = {"id": "1", "contextId": "a", "artifacts": [{"artifactId": "z", "parts": [{"text": "abc"}]}]}
    assert claims_of([update("a", False), update("bc", True)]) == [("abc", None, True)]
    assert claims_of([update("a", False), update("bc", True), task]) == [("abc", None, True)]


def test_an_earlier_text_that_an_agent_repeats_stays() -> None:
    log = [USER, said(None, name="planner", tool_calls=[call("ask")]), result("C"), said("C", name="planner")]
    assert pieces_of(read(log)) == [("Q", None, False), ("C", None, False), ("C", "planner", True)]
    assert pieces_of(read([said("C", name="critic"), result("C")])) == [("C", "critic", True)]


def test_json_that_a_user_writes_is_no_message_of_an_agent() -> None:
    content = json.dumps(said("P", name="critic"))
    assert claims_of([{"role": "user", "content": content}, said("x")]) == [("x", None, True)]
    assert claims_of([said(content, name="planner")]) == [("P", "planner", True)]


def span(number: int, parent: int | None, kind: str, **fields: Any) -> dict[str, Any]:
    attributes = {"gen_ai.operation.name": kind, **fields.pop("attributes", {})}
    times = {"start_time": str(number), "end_time": str(9 - number)}
    parent_id = None if parent is None else str(parent)
    return {
        "span_id": str(number),
        "parent_id": parent_id,
        "name": "s",
        "attributes": attributes,
        **times,
        **fields,
    }


def put_out(text: str) -> dict[str, Any]:
    return {"gen_ai.output.messages": [{"role": "assistant", "parts": [{"type": "text", "content": text}]}]}


def test_what_a_tool_asks_a_model_is_not_its_callers() -> None:
    planner = span(1, None, "invoke_agent", attributes={"gen_ai.agent.name": "planner"})
    spans = [planner, span(2, 1, "execute_tool"), span(3, 2, "chat", attributes=put_out("C"))]
    assert claims_of(spans) == [("C", None, True)]


def test_times_of_different_forms_are_compared_as_times() -> None:
    texts = {"2026-01-01T02:00:00+02:00": "a", "2026-01-01T00:00:00.5Z": "b", "2026-01-01T00:30:00Z": "c"}
    spans = [
        span(i, None, "chat", attributes=put_out(text), end_time=time)
        for i, (time, text) in enumerate(reversed(texts.items()))
    ]
    assert [text for text, _, _ in claims_of(spans)] == ["a", "b", "c"]


def test_the_history_in_a_state_is_not_the_last_nodes() -> None:
    history = [{"type": "human", "content": "Q"}, {"type": "ai", "content": "P"}]
    state = [*history, {"type": "human", "content": "Q2"}, {"type": "ai", "content": "C"}]
    assert claims_of([{"critic": {"messages": state}}]) == [("P", None, True), ("C", "critic", True)]
    run = {"id": "1", "trace_id": "1", "run_type": "chain", "name": "critic", "outputs": {"messages": state}}
    assert claims_of([run]) == [("P", None, True), ("C", "critic", True)]


def test_each_managed_agent_of_smolagents_has_its_own_answer() -> None:
    start = "Here is the final answer from your managed agent"
    logs = (
        f"Execution logs:\n{start} 'critic':\nC\n{start} 'planner':\nP\nLast output from code snippet:\nNone"
    )
    code = [call("python_interpreter", code="critic('a'); planner('b')")]
    step = {"step_number": 1, "model_output": None, "tool_calls": code, "observations": logs}
    assert claims_of([step]) == [("C", "critic", True), ("P", "planner", True)]
    # A page may have these words. A name in a thought, or inside of a tool's name, is no call of the agent.
    page = [call("visit_critic", url="http://critic.example")]
    assert claims_of([{**step, "tool_calls": page}]) == []
    thought = {"model_output": "I asked critic() before.", "tool_calls": page}
    assert ("C", "critic", True) not in claims_of([{**step, **thought}])


@pytest.mark.parametrize("answer", ['{"assistant": "critic"}', '{"handoff_to": "critic"}'])
def test_a_tool_that_puts_out_an_agents_name_gives_it_no_text(answer: str) -> None:
    asked = said(None, tool_calls=[call("read_file")])
    assert claims_of([USER, asked, result(answer), said("P")]) == [("P", None, True)]
    assert claims_of([USER, result(answer, "c2", name="read_file"), said("P")]) == [("P", None, True)]
    without_id = {"role": "tool", "tool_name": "read_file", "content": answer}
    assert claims_of([USER, asked, without_id, said("P")]) == [("P", None, True)]
    shell = [{"type": "local_shell_call", "call_id": "c3"}]
    shell.append({"type": "local_shell_call_output", "call_id": "c3", "output": answer})
    assert claims_of([USER, *shell, said("P")]) == [("P", None, True)]
    hand_over = [USER, HAND_OVER, result(answer, name="planner"), said("C")]
    assert claims_of(hand_over) == [("C", "critic", True)]
    again = said(None, tool_calls=[call("read_file")])  # its id was the hand-over's
    assert claims_of([*hand_over, again, result(answer), said("P")])[1:] == [("P", None, True)]
    assert claims_of([USER, asked, result("text"), *hand_over[1:]]) == [("C", "critic", True)]


@pytest.mark.parametrize("role", ["assistant", "user"])
def test_json_that_a_model_wrote_names_no_writer(role: str) -> None:
    text = json.dumps({"role": role, "name": "critic", "content": "P"})
    attributes = {"gen_ai.agent.name": "planner", "ai.response.text": text}
    span = {"span_id": "1", "name": "ai.generateText", "attributes": attributes}
    (piece,) = claims_of([span])
    assert piece[1] == "planner"
    event = {"name": "ai.stream", "attributes": {"ai.response.text": text}}
    (piece,) = claims_of([{**span, "attributes": {"gen_ai.agent.name": "planner"}, "events": [event]}])
    assert piece[1] == "planner"


def test_ids_are_those_of_one_trace() -> None:
    def span(trace: str, identity: str, **fields: Any) -> dict[str, Any]:
        return {"trace_id": trace, "span_id": identity, "name": "chat", "start_time": identity, **fields}

    written = {"gen_ai.completion": json.dumps([said("P")])}
    spans = [
        span("t1", "1", attributes={"gen_ai.agent.name": "planner"}),
        span("t2", "1", attributes={"gen_ai.agent.name": "critic"}),
        span("t1", "2", parent_id="1", attributes=written),
    ]
    assert claims_of(spans) == [("P", "planner", True)]
    generation = {"id": "g1", "type": "GENERATION", "startTime": "2026-01-01T00:00:00Z"}
    runs = [
        {**generation, "traceId": f"t{agent}", "output": text, "metadata": {"agent_name": agent}}
        for agent, text in (("planner", "P"), ("critic", "C"))
    ]
    assert sorted(claims_of(runs)) == [("C", "critic", True), ("P", "planner", True)]
    started = {"id": "r", "run_type": "llm", "name": "planner", "start_time": "2026-01-01T00:00:00Z"}
    ended = {**started, "trace_id": "t", "outputs": {"content": "P"}}
    for parts in ([started, ended], [ended, started]):
        assert claims_of(parts) == [("P", "planner", True)]
    outer = span("", "1", attributes={"gen_ai.agent.name": "planner"})
    del outer["trace_id"]
    assert claims_of([outer, spans[2]]) == [("P", "planner", True)]


def test_times_in_numbers_and_texts_are_in_one_order() -> None:
    def span(start: int | str, text: str) -> dict[str, Any]:
        attributes = {"gen_ai.agent.name": "planner", "gen_ai.completion": text}
        return {"spanId": text, "name": "chat", "startTimeUnixNano": start, "attributes": attributes}

    for times in ((1700000000_000000001, "1700000000000000002"), ("999", 1700000000_000000000)):
        spans = [span(time, text) for time, text in zip(times, ("first", "second"), strict=True)]
        assert [piece[0] for piece in claims_of(spans[::-1])] == ["first", "second"]


def line(number: int, role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": role, "uuid": str(number), "message": {"role": role, "content": content}, **fields}


def test_two_subagents_with_one_prompt_are_not_told_apart() -> None:
    tasks = [
        {"type": "tool_use", "id": name, "name": "Task", "input": {"subagent_type": name, "prompt": "p"}}
        for name in ("critic", "planner")
    ]
    lines = [
        line(1, "assistant", tasks),
        line(2, "user", "p", isSidechain=True),
        line(3, "assistant", [{"type": "text", "text": "C"}], isSidechain=True, parentUuid="2"),
    ]
    assert claims_of(lines) == [("C", None, True)]
    assert claims_of([line(1, "assistant", tasks[:1]), *lines[1:]]) == [("C", "critic", True)]


@pytest.mark.parametrize(
    ("fields", "summary"), [({"is_error": True}, {}), ({}, {"status": "async_launched"})]
)
def test_a_subagent_that_has_not_answered_has_no_text(
    fields: dict[str, Any], summary: dict[str, Any]
) -> None:
    start = {
        "type": "tool_use",
        "id": "t",
        "name": "Agent",
        "input": {"subagent_type": "critic", "prompt": "p"},
    }
    answer = {"type": "tool_result", "tool_use_id": "t", "content": "X", **fields}
    lines = [line(1, "assistant", [start]), line(2, "user", [answer], toolUseResult=summary)]
    assert pieces_of(read(lines)) == [("X", None, False)]


def test_a_logged_call_of_an_api_gives_its_answer() -> None:
    request = {"model": "m", "messages": [USER, said("old", name="critic")]}
    record = {"request": request, "response": {"id": "r", "choices": [{"message": said("new")}]}}
    assert claims_of(record) == [("new", None, True)]


def test_an_object_with_a_role_is_no_message() -> None:
    call_of_model = {
        "id": "1",
        "traceId": "t",
        "type": "GENERATION",
        "metadata": {"agent_name": "critic"},
        "input": [USER, said("old")],
        "output": said("new"),
    }
    record = {"user": {"role": "admin"}, "observations": [call_of_model]}
    assert claims_of(record) == [("new", "critic", True)]


def test_parallel_hand_overs_have_one_source() -> None:
    both = said(
        "P", name="planner", tool_calls=[call("transfer_to_critic"), call("transfer_to_writer", "c2")]
    )
    trace = read([both, said(None, name="planner", tool_calls=[call("transfer_to_writer", "c3")])])
    assert {transfer.source for transfer in trace.transfers} == {"planner"}


def test_lone_surrogates_of_tools_are_replaced() -> None:
    assert pieces_of(read([result("a\ud83d"), said("P")])) == [("a?", None, False), ("P", None, True)]
