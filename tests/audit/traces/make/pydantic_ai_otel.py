"""Spans of pydantic-ai in several versions of its format: the planner calls the critic as a tool.

Pydantic AI 1 writes versions 1 (messages as events, in an attribute or in log records) and 2, Pydantic AI 2
writes versions 5 and 6. Logfire's spans are those of version 5 with more attributes.
"""

# requires: pydantic-ai-slim[openai]==2.68.0
# requires: logfire==5.4.0
# requires: opentelemetry-exporter-otlp-json-file==0.66b1
# For versions 1 and 2, in another environment: pydantic-ai-slim[openai]==1.107.10, logfire==4.41.0

import importlib.metadata
from typing import Any

import answers
import logfire
import otlp
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings

PLANNER_ANSWERS = [
    ModelResponse([ToolCallPart("measure", {}, "call_1")]),
    ModelResponse(
        [TextPart(answers.PLANNER), ToolCallPart("ask_critic", {"plan": answers.PLANNER}, "call_2")]
    ),
    ModelResponse([TextPart(answers.PLANNER_AGAIN)]),
]


def answer_planner(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return PLANNER_ANSWERS[len(messages) // 2]


def answer_critic(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse([TextPart(answers.CRITIC)])


critic = Agent(FunctionModel(answer_critic), name="critic", instructions=answers.CRITIC_SYSTEM)
planner = Agent(FunctionModel(answer_planner), name="planner", system_prompt=answers.PLANNER_SYSTEM)


@planner.tool_plain
def measure() -> str:
    """Measure the garden."""
    return answers.TOOL_RESULT


@planner.tool_plain
async def ask_critic(plan: str) -> str:
    """Ask the critic about a plan."""
    return (await critic.run(plan)).output


def run(version: Any, **options: Any) -> None:
    providers = {"tracer_provider": otlp.TRACER_PROVIDER, **options}
    Agent.instrument_all(InstrumentationSettings(version=version, **providers))
    planner.run_sync(answers.USER)


if importlib.metadata.version("pydantic-ai-slim") < "2":
    run(1)
    otlp.save("pydantic_ai_v1_spans.json")
    run(1, event_mode="logs", logger_provider=otlp.LOGGER_PROVIDER)
    otlp.save("pydantic_ai_v1_logs.jsonl", otlp.spans(), otlp.logs())
    run(2)
    otlp.save("pydantic_ai_v2_spans.json")
else:
    run(5)
    otlp.save("pydantic_ai_v5_spans.json")
    run(6)
    otlp.save("pydantic_ai_v6_spans.json")
    logfire.configure(
        send_to_logfire=False,
        console=False,
        inspect_arguments=False,
        additional_span_processors=[SimpleSpanProcessor(otlp.SPANS)],
    )
    logfire.instrument_pydantic_ai()
    with logfire.span("plan the garden"):
        planner.run_sync(answers.USER)
    otlp.save("logfire_spans.json")
