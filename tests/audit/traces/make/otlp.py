"""Collects the spans and log records of the OpenTelemetry SDK, and writes them as one export in OTLP JSON.

A script that imports this module requires opentelemetry-exporter-otlp-json-file as well.
"""

from __future__ import annotations

import json
import re
from typing import Any

from answers import RECORDS
from opentelemetry.exporter.otlp.json.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.json.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

RESOURCE = Resource.create({"service.name": "garden", "service.instance.id": "1"})
SPANS = InMemorySpanExporter()
LOGS = InMemoryLogRecordExporter()
TRACER_PROVIDER = TracerProvider(resource=RESOURCE)
TRACER_PROVIDER.add_span_processor(SimpleSpanProcessor(SPANS))
LOGGER_PROVIDER = LoggerProvider(resource=RESOURCE)
LOGGER_PROVIDER.add_log_record_processor(SimpleLogRecordProcessor(LOGS))


def spans() -> dict[str, Any]:
    """Return the spans that ended since the last call, in OTLP JSON."""
    document = encode_spans(SPANS.get_finished_spans()).to_dict()
    SPANS.clear()
    return document


def logs() -> dict[str, Any]:
    """Return the log records since the last call, in OTLP JSON."""
    document = encode_logs(LOGS.get_finished_logs()).to_dict()
    LOGS.clear()
    return document


def save(name: str, *documents: dict[str, Any]) -> None:
    """Write the documents as lines of JSON, as the file exporters do; without any, the spans."""
    lines = [json.dumps(item, ensure_ascii=False, separators=(",", ":")) for item in documents or [spans()]]
    (RECORDS / name).write_text(neutral("".join(f"{line}\n" for line in lines)), encoding="utf-8")


def neutral(text: str) -> str:
    """Replace the port of the local server, and the names of the machine and of the checkout."""
    port = r'(127\.0\.0\.1:|server\.port\\?":\s*|server\.port","value":\{"intValue":"?)\d+'
    host = r'("key":"(?:host\.name|host\.id|service\.version)","value":\{"stringValue":")[^"]*'
    return re.sub(host, r"\g<1>garden", re.sub(port, r"\g<1>8000", text))


def text_messages(role: str, text: str) -> str:
    """Return one message as the JSON that gen_ai.input.messages and gen_ai.output.messages hold."""
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])
