"""OpenTelemetry's own instrumentation of the OpenAI Agents SDK: OTLP JSON, a collector's file, the console.

The content of messages is on the spans in the first run, and in log records in the second.
"""

# requires: opentelemetry-instrumentation-genai-openai-agents==1.3b0
# requires: opentelemetry-instrumentation-genai-openai==1.3b0
# requires: openai-agents==0.24.0
# requires: opentelemetry-exporter-otlp-json-file==0.66b1

import json
import os

import answers
import otlp
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
from openai import AsyncOpenAI
from opentelemetry.exporter.otlp.json.common.metrics_encoder import encode_metrics
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.instrumentation.genai.openai_agents import OpenAIAgentsInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"
READER = InMemoryMetricReader()
SCRIPT = (
    answers.call("measure"),
    [answers.PLANNER, answers.call("transfer_to_critic")],
    answers.CRITIC,
    answers.PLANNER_AGAIN,
)


@function_tool
def measure() -> str:
    """Measure the garden."""
    return answers.TOOL_RESULT


def run(capture: str) -> None:
    """Let the planner hand over to the critic, and then write again."""
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = capture
    os.environ["OTEL_INSTRUMENTATION_GENAI_EMIT_EVENT"] = str(capture == "EVENT_ONLY").lower()
    providers = {
        "tracer_provider": otlp.TRACER_PROVIDER,
        "logger_provider": otlp.LOGGER_PROVIDER,
        "meter_provider": MeterProvider([READER], otlp.RESOURCE) if capture == "EVENT_ONLY" else None,
    }
    instrumentors = [OpenAIAgentsInstrumentor(), OpenAIInstrumentor()]
    for instrumentor in instrumentors:
        instrumentor.instrument(**providers)
    with answers.server(*SCRIPT) as url:
        model = OpenAIChatCompletionsModel("gpt-5", AsyncOpenAI(base_url=f"{url}/v1", api_key="-"))
        critic = Agent("critic", instructions=answers.CRITIC_SYSTEM, model=model)
        planner = Agent(
            "planner", instructions=answers.PLANNER_SYSTEM, model=model, handoffs=[critic], tools=[measure]
        )
        result = Runner.run_sync(planner, answers.USER)
        Runner.run_sync(planner, result.to_input_list())
    for instrumentor in instrumentors:
        instrumentor.uninstrument()


run("SPAN_ONLY")
console = "".join(span.to_json() + "\n" for span in otlp.SPANS.get_finished_spans())  # ConsoleSpanExporter
(answers.RECORDS / "otel_console_spans.json").write_text(otlp.neutral(console))
lines = [json.loads(span.to_json(indent=None)) for span in otlp.SPANS.get_finished_spans()]
otlp.save("otel_sdk_spans.jsonl", *lines)
otlp.save("otel_sdk_spans_list.json", lines)
otlp.save("genai_otel_spans.json")
run("EVENT_ONLY")
console = "".join(record.to_json() + "\n" for record in otlp.LOGS.get_finished_logs())
(answers.RECORDS / "otel_console_logs.json").write_text(otlp.neutral(console))
spans, logs, metrics = otlp.spans(), otlp.logs(), encode_metrics(READER.get_metrics_data()).to_dict()
otlp.save("genai_otel_logs.json", logs)
otlp.save("genai_otel_collector.jsonl", metrics, logs, spans)  # as a collector's file exporter
