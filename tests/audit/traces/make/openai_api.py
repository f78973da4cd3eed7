"""Two agents over OpenAI's API: chat completions, Responses, and the output file of a batch.

The lines of the batch are assembled as https://platform.openai.com/docs/guides/batch shows them, around the
completions that the client returned.
"""
# requires: openai==3.57.0

from __future__ import annotations

from typing import Any

import answers
from openai import OpenAI

SCRIPT = (
    [answers.call("measure_beds", garden="school")],
    answers.PLANNER,
    answers.CRITIC,
    answers.PLANNER_AGAIN,
)
PARAMETERS = {"type": "object", "properties": {"garden": {"type": "string"}}}
TOOL = {"name": "measure_beds", "description": "Measure the beds.", "parameters": PARAMETERS}


def completions(client: OpenAI) -> list[Any]:
    log: list[Any] = [{"role": "user", "content": answers.USER}]
    results = []

    def turn(name: str, system: str, **settings: Any) -> Any:
        messages = [{"role": "system", "content": system}, *log]
        result = client.chat.completions.create(model="gpt-5", messages=messages, **settings)
        results.append(result.model_dump())
        message = result.choices[0].message
        log.append({**message.model_dump(exclude_none=True), "name": name})
        return message

    message = turn("planner", answers.PLANNER_SYSTEM, tools=[{"type": "function", "function": TOOL}])
    log.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": answers.TOOL_RESULT})
    turn("planner", answers.PLANNER_SYSTEM)
    turn("critic", answers.CRITIC_SYSTEM)
    turn("planner", answers.PLANNER_SYSTEM)
    return [results, [{"role": "system", "content": answers.PLANNER_SYSTEM}, *log]]


def responses(client: OpenAI) -> list[Any]:
    log: list[Any] = [{"role": "user", "content": answers.USER}]
    results = []
    tools = [{"type": "function", **TOOL}]
    for system in (
        answers.PLANNER_SYSTEM,
        answers.PLANNER_SYSTEM,
        answers.CRITIC_SYSTEM,
        answers.PLANNER_SYSTEM,
    ):
        result = client.responses.create(model="gpt-5", instructions=system, input=log, tools=tools)
        results.append(result.model_dump())
        for item in result.output:
            log.append(item.model_dump(exclude_none=True))
            if item.type == "function_call":
                output = {"call_id": item.call_id, "output": answers.TOOL_RESULT}
                log.append({"type": "function_call_output", **output})
    return results


def batch(results: list[Any]) -> list[Any]:
    lines = []
    for number, (result, agent) in enumerate(zip(results, ("planner", "critic", "planner"), strict=True), 1):
        response = {"status_code": 200, "request_id": f"req_{number}", "body": result}
        lines.append({"id": f"batch_req_{number}", "custom_id": f"{agent}-{number}"})
        lines[-1] |= {"response": response, "error": None}
    # The API returns the lines in any order.
    return [lines[1], lines[0], lines[2]]


with answers.server(*SCRIPT) as url:
    completed, messages = completions(OpenAI(base_url=f"{url}/v1", api_key="none"))
    answers.write("openai_completions.json", completed)
    answers.write("openai_messages.json", messages)
    answers.write("openai_batch_output.jsonl", batch(completed[1:]))
with answers.server(*SCRIPT) as url:
    answers.write("openai_responses.json", responses(OpenAI(base_url=f"{url}/v1", api_key="none")))
