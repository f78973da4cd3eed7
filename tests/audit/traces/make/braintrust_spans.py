"""Braintrust: the rows of its spans, as its client sends them and its export holds them."""

# requires: braintrust==0.48.1
# requires: openai==2.54.0

import answers
import braintrust
from braintrust.logger import _internal_with_memory_background_logger
from openai import OpenAI

SYSTEM = {"planner": answers.PLANNER_SYSTEM, "critic": answers.CRITIC_SYSTEM}


@braintrust.traced(type="tool")
def measure() -> str:
    return answers.TOOL_RESULT


@braintrust.traced(name="planner", type="task")
def plan(log: list[dict[str, str]]) -> str:
    if len(log) == 1:
        measure()
    return complete("planner", log)


@braintrust.traced(name="critic", type="task")
def criticize(log: list[dict[str, str]]) -> str:
    return complete("critic", log)


@braintrust.traced
def garden(task: str) -> str:
    log = [{"role": "user", "content": task}]
    for member in (plan, criticize, plan):
        log.append({"role": "assistant", "content": member(list(log))})
    return log[-1]["content"]


with _internal_with_memory_background_logger() as memory:
    from braintrust.test_helpers import init_test_logger

    init_test_logger("garden")
    with answers.server(answers.PLANNER, answers.CRITIC, answers.PLANNER_AGAIN) as url:
        client = braintrust.wrap_openai(OpenAI(base_url=f"{url}/v1", api_key="-"))

        def complete(name: str, log: list[dict[str, str]]) -> str:
            messages = [{"role": "system", "content": SYSTEM[name]}, *log]
            return str(
                client.chat.completions.create(model="gpt-5", messages=messages).choices[0].message.content
            )

        garden(answers.USER)
    rows = memory.pop()
for row in rows:
    row["context"].update(caller_filename="garden.py")
answers.write("braintrust_spans.jsonl", rows)
