"""OpenAI Agents SDK: traces as the SDK's exporter posts them, of a chat completions model."""

# requires: openai-agents==0.24.0

from __future__ import annotations

from typing import Any

import answers
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    function_tool,
    set_trace_processors,
)
from agents.tracing.processors import BackendSpanExporter, BatchTraceProcessor
from openai import AsyncOpenAI

SCRIPT = (
    [answers.call("measure_beds", garden="school")],
    [answers.PLANNER, answers.call("transfer_to_critic")],
    [answers.CRITIC, answers.call("transfer_to_planner")],
    answers.PLANNER_AGAIN,
)


@function_tool
def measure_beds(garden: str) -> str:
    """Measure the beds."""
    return answers.TOOL_RESULT


def traces(kind: type[OpenAIChatCompletionsModel]) -> list[Any]:
    """Return the bodies that the exporter posts for a run."""
    received: list[Any] = []
    with answers.server(*SCRIPT, received=received) as url:
        exporter = BackendSpanExporter(api_key="none", endpoint=f"{url}/v1/traces/ingest")
        processor = BatchTraceProcessor(exporter)
        set_trace_processors([processor])
        model = kind("gpt-5", AsyncOpenAI(base_url=f"{url}/v1", api_key="none"))
        critic: Agent = Agent(name="critic", instructions=answers.CRITIC_SYSTEM, model=model)
        planner: Agent = Agent(name="planner", instructions=answers.PLANNER_SYSTEM, model=model)
        planner.tools, planner.handoffs, critic.handoffs = [measure_beds], [critic], [planner]
        Runner.run_sync(planner, answers.USER, run_config=RunConfig(workflow_name="garden"))
        processor.shutdown()
    return [body for path, body in received if path.endswith("/traces/ingest")]


# Spans of Responses models name the response by its id only, so a trace of them has no texts.
[posted] = traces(OpenAIChatCompletionsModel)
for item in posted["data"]:
    settings = item.get("span_data", {}).get("model_config")
    if settings:
        settings["base_url"] = "https://api.openai.com/v1/"
answers.write("agents_sdk_traces.json", posted)
