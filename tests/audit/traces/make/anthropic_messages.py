"""Anthropic: the answers of two agents, the list of messages, and the results of a batch."""
# requires: anthropic==2.14.0

from __future__ import annotations

from typing import Any

import answers
from anthropic import Anthropic

SCRIPT = (
    [answers.call("measure_beds", garden="school")],
    answers.PLANNER,
    answers.CRITIC,
    answers.PLANNER_AGAIN,
)
SCHEMA = {"type": "object", "properties": {"garden": {"type": "string"}}}
TOOLS: Any = [{"name": "measure_beds", "description": "Measure the beds.", "input_schema": SCHEMA}]

messages: list[Any] = [{"role": "user", "content": answers.USER}]
results = []
with answers.server(*SCRIPT) as url:
    client = Anthropic(base_url=url, api_key="none")

    def turn(system: str) -> Any:
        arguments = {"system": system, "tools": TOOLS, "max_tokens": 100}
        result = client.messages.create(model="claude-sonnet-4-5", messages=messages, **arguments)
        results.append(result.model_dump())
        messages.append(
            {"role": "assistant", "content": [part.model_dump(exclude_none=True) for part in result.content]}
        )
        return result

    use = turn(answers.PLANNER_SYSTEM).content[0]
    output = {"type": "tool_result", "tool_use_id": use.id, "content": answers.TOOL_RESULT}
    messages.append({"role": "user", "content": [output]})
    turn(answers.PLANNER_SYSTEM)
    messages.append({"role": "user", "content": "What is missing?"})
    turn(answers.CRITIC_SYSTEM)
    messages.append({"role": "user", "content": "Finish the plan."})
    turn(answers.PLANNER_SYSTEM)
answers.write("anthropic_answers.json", results)
answers.write("anthropic_messages.json", {"system": answers.PLANNER_SYSTEM, "messages": messages})

# The results of a batch, as in https://docs.anthropic.com/en/docs/build-with-claude/batch-processing.
lines = [
    {"custom_id": f"{agent}-{number}", "result": {"type": "succeeded", "message": result}}
    for number, (agent, result) in enumerate(
        zip(("planner", "critic", "planner"), results[1:], strict=True), 1
    )
]
answers.write("anthropic_batch_results.jsonl", [lines[1], lines[0], lines[2]])
