"""The team as functions with Traceloop's decorators, around OpenAI's client."""

from __future__ import annotations

import os

import answers
from openai import OpenAI
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from traceloop.sdk import Traceloop
from traceloop.sdk.decorators import agent, tool, workflow
from traceloop.sdk.instruments import Instruments

SYSTEM = {"planner": answers.PLANNER_SYSTEM, "critic": answers.CRITIC_SYSTEM}


def run(exporter: SpanExporter) -> None:
    """Give the spans of the conversation to the exporter."""
    os.environ |= {"TRACELOOP_METRICS_ENABLED": "false", "TRACELOOP_TELEMETRY": "false"}
    Traceloop.init(
        app_name="garden",
        api_endpoint="http://127.0.0.1:8000",
        telemetry_enabled=False,
        processor=SimpleSpanProcessor(exporter),
        instruments={Instruments.OPENAI},
    )
    with answers.server(answers.PLANNER, answers.CRITIC, answers.PLANNER_AGAIN) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="-")

        def complete(name: str, log: list[dict[str, str]]) -> str:
            messages = [{"role": "system", "content": SYSTEM[name]}, *log]
            response = client.chat.completions.create(model="gpt-5", messages=messages)
            return str(response.choices[0].message.content)

        @tool(name="measure")
        def measure() -> str:
            return answers.TOOL_RESULT

        @agent(name="planner")
        def plan(log: list[dict[str, str]]) -> str:
            if len(log) == 1:
                measure()
            return complete("planner", log)

        @agent(name="critic")
        def criticize(log: list[dict[str, str]]) -> str:
            return complete("critic", log)

        @workflow(name="garden")
        def garden(task: str) -> str:
            log = [{"role": "user", "content": task}]
            for member in (plan, criticize, plan):
                log.append({"role": "assistant", "content": member(log)})
            return log[-1]["content"]

        garden(answers.USER)
