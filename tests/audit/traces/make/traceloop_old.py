"""OpenLLMetry's spans of 2025, with attributes gen_ai.prompt.N.content and gen_ai.completion.N.content."""

# requires: traceloop-sdk==0.47.5
# requires: openai==1.109.1 openai-agents==0.3.2
# requires: langgraph==0.6.7 langchain-openai==0.3.33
# requires: opentelemetry-sdk==1.37.0

import base64
import json
import re
from typing import Any

import answers
import traceloop_frameworks
import traceloop_team
from google.protobuf.json_format import MessageToDict
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.instrumentation.langchain import LangchainInstrumentor
from opentelemetry.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.instrumentation.openai_agents import OpenAIAgentsInstrumentor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

SPANS = InMemorySpanExporter()


def save(name: str) -> None:
    """Write the spans since the last call as OTLP JSON, with the ids in hexadecimal."""
    spans = SPANS.get_finished_spans()
    SPANS.clear()
    document: Any = MessageToDict(encode_spans(spans))
    for scope in (scope for part in document["resourceSpans"] for scope in part["scopeSpans"]):
        for span in scope["spans"]:
            for key in {"traceId", "spanId", "parentSpanId"} & span.keys():
                span[key] = base64.b64decode(span[key]).hex()
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
    (answers.RECORDS / name).write_text(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8000", text), encoding="utf-8")


traceloop_team.run(SPANS)
save("traceloop_old_spans.json")
provider = trace.get_tracer_provider()
OpenAIInstrumentor().uninstrument()
LangchainInstrumentor().instrument(tracer_provider=provider)
traceloop_frameworks.run_graph()
save("traceloop_old_langgraph_spans.json")
LangchainInstrumentor().uninstrument()
OpenAIAgentsInstrumentor().instrument(tracer_provider=provider)
traceloop_frameworks.run_agents()
save("traceloop_old_agents_spans.json")
