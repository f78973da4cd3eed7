"""Langfuse's SDK: the OTLP spans that it sends, with observations of the types agent, generation and tool."""

# requires: langfuse==5.0.4
# requires: openai==3.57.0
# requires: opentelemetry-exporter-otlp-json-file==0.66b1

import answers
import otlp
from langfuse import Langfuse, observe
from langfuse.openai import OpenAI

SYSTEM = {"planner": answers.PLANNER_SYSTEM, "critic": answers.CRITIC_SYSTEM}
client = Langfuse(
    public_key="-",
    secret_key="-",
    base_url="http://127.0.0.1:8000",
    tracer_provider=otlp.TRACER_PROVIDER,
    span_exporter=type(otlp.SPANS)(),
)


@observe(as_type="tool")
def measure() -> str:
    return answers.TOOL_RESULT


@observe(name="planner", as_type="agent")
def plan(log: list[dict[str, str]]) -> str:
    if len(log) == 1:
        measure()
    return complete("planner", log)


@observe(name="critic", as_type="agent")
def criticize(log: list[dict[str, str]]) -> str:
    return complete("critic", log)


@observe()
def garden(task: str) -> str:
    log = [{"role": "user", "content": task}]
    for member in (plan, criticize, plan):
        log.append({"role": "assistant", "content": member(log)})
    return log[-1]["content"]


with answers.server(answers.PLANNER, answers.CRITIC, answers.PLANNER_AGAIN) as url:
    model = OpenAI(base_url=f"{url}/v1", api_key="-")

    def complete(name: str, log: list[dict[str, str]]) -> str:
        messages = [{"role": "system", "content": SYSTEM[name]}, *log]
        response = model.chat.completions.create(model="gpt-5", messages=messages)
        return str(response.choices[0].message.content)

    garden(answers.USER)
client.flush()
otlp.save("langfuse_sdk_spans.json")
