"""OpenTelemetry's spans and log records of calls to models, in OTLP's JSON or as an SDK prints them.

Conventions for generative AI have changed several times, and each instrumentation has its own. The tables
below name every field that is read, and whether a model put its text out or was given it. "semconv" is
open-telemetry/semantic-conventions, docs/gen-ai, at the version named; "genai" is
open-telemetry/semantic-conventions-genai.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from iet.audit.traces import calls
from iet.audit.traces.calls import Call, agent_in, sortable
from iet.audit.traces.content import messages_in, parsed, parsed_text
from iet.audit.traces.pieces import Piece

_SIGNALS = {
    "resourceSpans": ("scopeSpans", "spans"),
    "resourceLogs": ("scopeLogs", "logRecords"),
    "resource_spans": ("scope_spans", "spans"),
    "resource_logs": ("scope_logs", "log_records"),
}
_METRICS = ("resourceMetrics", "resource_metrics", "resourceProfiles")

_AGENT = (
    *("gen_ai.agent.name", "gen_ai.agent.id", "agent.name", "agent_name", "graph.node.id"),
    *("lc_agent_name", "langgraph_node", "langfuse.observation.metadata.langgraph_node"),
    "traceloop.association.properties.langgraph_node",
)

_ATTRIBUTES = {
    # genai and semconv 1.37: "messages returned by the model", on a span or on the event
    # gen_ai.client.inference.operation.details
    "gen_ai.output.messages": True,
    "gen_ai.completion": True,  # semconv 1.27: "the full response received from the GenAI model"
    "gen_ai.system_instructions": False,  # semconv 1.37: "the system message or instructions provided"
    # genai and semconv 1.37: "the chat history provided to the model as an input"
    "gen_ai.input.messages": False,
    "gen_ai.prompt": False,  # semconv 1.27: "the full prompt sent to the GenAI model"
    "ai.prompt.messages": False,
    "ai.prompt": False,
}
"""Attribute -> whether it is output."""

_RAW = "ai.response.text"
"""Attribute of the Vercel AI SDK with the model's text: JSON in it is the model's own."""

_RESULTS = (
    *("output.value", "traceloop.entity.output", "mlflow.spanOutputs", "langfuse.observation.output"),
    *("gen_ai.tool.call.result", "tool_response", "ai.toolCall.result"),
)
"""Attributes that hold the output of a call of any kind, so they repeat what a model said."""

_EVENTS = {
    "gen_ai.choice": True,  # semconv 1.36, gen-ai-events: "the Gen AI response message"
    "gen_ai.content.completion": True,  # semconv 1.27: "the content of the completion"
    # semconv 1.36: "the assistant message passed to GenAI system", so an earlier turn that was given back
    "gen_ai.assistant.message": False,
    "gen_ai.user.message": False,  # semconv 1.36: "the user message passed to the GenAI system"
    "gen_ai.system.message": False,  # semconv 1.36: "the system instructions passed to the GenAI system"
    "gen_ai.tool.message": False,  # semconv 1.36: "the response from a tool passed to the GenAI system"
    "gen_ai.content.prompt": False,  # semconv 1.27: "the content of the prompt"
}
"""Event -> whether it is output."""

_LISTED_EVENTS = "events"
"""Attribute of Pydantic AI's version 1 with a list of the events above."""

_NUMBERED = re.compile(
    # OpenLLMetry: gen_ai.prompt.N is input, gen_ai.completion.N output. OpenInference: "messages provided to
    # a completions API" and "messages received from" one (openinference.semconv.trace.SpanAttributes).
    r"(?:gen_ai\.(prompt|completion)|llm\.(input|output)_messages)\.(\d{1,6})\.(?:message\.)?"
    r"(?:(role|content|name)|contents\.(\d{1,6})\.message_content\.text|"
    r"tool_calls\.(\d{1,6})\.(?:tool_call\.)?(?:function\.)?(name|id))"
)

_KINDS = {
    **dict.fromkeys(
        ("chat", "text_completion", "generate_content", "llm", "chat_model", "generation"), calls.MODEL
    ),
    **dict.fromkeys(("invoke_agent", "create_agent", "agent"), calls.AGENT),
    **dict.fromkeys(("execute_tool", "tool", "retrieval", "retriever", "reranker", "evaluator"), calls.TOOL),
    **dict.fromkeys(("embeddings", "embedding", "guardrail", "memory", "parser", "ai.toolcall"), calls.TOOL),
}
"""Value of an attribute of `_KIND` -> kind of call."""

_KIND = (
    "gen_ai.operation.name",  # genai
    "openinference.span.kind",  # openinference.semconv.trace.OpenInferenceSpanKindValues
    "traceloop.span.kind",  # opentelemetry.semconv_ai.TraceloopSpanKindValues
    "mlflow.spanType",
    "langfuse.observation.type",
    "ai.operationId",
)


def is_of(item: Any) -> bool:
    """Tell whether a value is OTLP's JSON, a span or a log record."""
    if not isinstance(item, dict):
        return False
    if any(isinstance(item.get(name), list) for name in (*_SIGNALS, *_METRICS)):
        return True
    if isinstance(item.get("context.span_id"), str):
        return True
    return _id(item) is not None and "attributes" in item and ("name" in item or "body" in item)


def pieces(items: list[dict[str, Any]], agents: frozenset[str]) -> list[Piece]:
    """Return the input and output of each call, in the order of their ends."""
    metrics = [
        item for item in items if any(name in item for name in _METRICS) and not set(_SIGNALS) & set(item)
    ]
    read = [_call(span) for item in items for span in _spans(item)]
    return [*calls.pieces_of(read, agents), *(Piece("", None, "metrics") for _ in metrics)]


_FLAT = "attributes."


def _spans(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the spans and log records of one export, or the item itself."""
    if isinstance(item.get("context.span_id"), str):  # a row of Phoenix's table of spans
        attributes = {
            name.removeprefix(_FLAT): value for name, value in item.items() if name.startswith(_FLAT)
        }
        yield {**item, "span_id": item["context.span_id"], "attributes": attributes}
    if _id(item) is not None and "attributes" in item:
        yield item
        return
    for signal, (scopes, records) in _SIGNALS.items():
        for resource in _dicts(item.get(signal)):
            for scope in _dicts(resource.get(scopes)):
                yield from _dicts(scope.get(records))


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def _field(span: Mapping[str, Any], *names: str) -> Any:
    return next((span[name] for name in names if span.get(name) is not None), None)


def _id(span: Mapping[str, Any]) -> str | None:
    context = span.get("context")
    value = _field(span, "spanId", "span_id") or (
        _field(context, "span_id", "spanId") if isinstance(context, dict) else None
    )
    return value if isinstance(value, str) else None


def _trace(span: Mapping[str, Any]) -> str | None:
    context = span.get("context")
    value = _field(span, "traceId", "trace_id", "context.trace_id") or (
        _field(context, "trace_id", "traceId") if isinstance(context, dict) else None
    )
    return value if isinstance(value, str) else None


def _call(span: dict[str, Any]) -> Call:
    """Return the call of a span. A log record is a call inside its span."""
    attributes = _attributes(span)
    is_log = "body" in span or "observedTimeUnixNano" in span or "observed_timestamp" in span
    name = _field(span, "name", "eventName", "event_name")
    events = [(event.get("name"), _attributes(event)) for event in _dicts(span.get("events"))]
    if is_log:
        body = _value(span.get("body"), 0) if "observedTimeUnixNano" in span else span.get("body")
        name = name or attributes.get("event.name")
        events.append((name, {**attributes, **(body if isinstance(body, dict) else {})}))
    used, put_out = _texts({} if is_log else attributes, events)
    kind = span.get("span_kind"), *(attributes.get(field) for field in _KIND)
    kinds = [_KINDS.get(str(parsed(value)).strip('"').casefold()) for value in kind]
    call_kind = next((value for value in kinds if value is not None), None)
    metadata = parsed(attributes.get("metadata"))
    agent = agent_in(attributes, _AGENT) or (
        agent_in(metadata, _AGENT) if isinstance(metadata, dict) else None
    )
    entity = _field(attributes, "traceloop.entity.name", "ai.telemetry.functionId")
    if agent is None and call_kind == calls.AGENT:
        agent = next((value for value in (entity, name) if isinstance(value, str) and value), None)
    names = [value for value in (name, entity) if isinstance(value, str)]
    parent = _id(span) if is_log else _field(span, "parentSpanId", "parent_id", "parent_span_id")
    caller = _field(attributes, "gen_ai.caller.name", "graph.node.parent_id")  # OpenInference has the latter
    caller = caller if attributes.get("gen_ai.caller.type", "agent") == "agent" else None
    targets = (
        _field(attributes, "gen_ai.transfer.target.name", "langgraph.command.goto_node"),
        *_commands(attributes),
    )
    result = [message for field in _RESULTS for message in messages_in(_unquoted(attributes.get(field, [])))]
    return Call(
        origin=f"span {str(name or _id(span))[:80]}",
        trace=_trace(span),
        id=None if is_log else _id(span),
        parent=parent if isinstance(parent, str) else None,
        start=sortable(_field(span, "startTimeUnixNano", "start_time_unix_nano", "start_time", "timestamp")),
        end=sortable(
            _field(span, "endTimeUnixNano", "end_time_unix_nano", "end_time", "timeUnixNano", "timestamp")
        ),
        kind=call_kind,
        agent=agent,
        name=next((value for value in reversed(names)), None),
        used=used,
        put_out=result if call_kind == calls.MODEL and not put_out else put_out,
        result=result,
        targets=[
            value if isinstance(value, str) and value and value[:2] != "__" else None for value in targets
        ],
        caller=caller if isinstance(caller, str) and caller else None,
    )


def _commands(attributes: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the targets in the output of a call: of LangGraph's command, and of MLflow's hand-over."""
    output = parsed(_field(attributes, "output.value", "traceloop.entity.output", "mlflow.spanOutputs"))
    output = output.get("outputs", output) if isinstance(output, dict) else None
    for name in ("goto", "to_agent"):
        yield output.get(name) if isinstance(output, dict) else None


def _unquoted(value: Any) -> Any:
    """Return the text of a JSON string: MLflow and OpenLLMetry encode outputs that are texts."""
    inner = parsed_text(value) if isinstance(value, str) and value[:1] == value[-1:] == '"' else None
    return inner if isinstance(inner, str) else value


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes by their full names: OTLP's list, or an object that may be nested."""
    values = holder.get("attributes")
    if isinstance(values, dict):
        return dict(_flat(values, "", 0))
    return {
        item["key"]: _value(item.get("value"), 0)
        for item in _dicts(values)
        if isinstance(item.get("key"), str)
    }


_DEEPEST = 32
"""Levels of lists and objects that a value is read to."""


def _flat(value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield each value, and the values in it, under the joined names of the objects around it."""
    if name:
        yield name, value
    if depth < _DEEPEST and isinstance(value, (dict, list)) and not _is_named(name):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(inner, f"{name}.{key}".lstrip("."), depth + 1)


def _is_named(name: str) -> bool:
    return name in _ATTRIBUTES or name in _RESULTS or name in (_RAW, _LISTED_EVENTS)


def _value(value: Any, depth: int) -> Any:
    """Return an OTLP value as JSON would have it."""
    if not isinstance(value, dict) or depth > _DEEPEST:
        return None
    for kind in ("arrayValue", "array_value"):
        if isinstance(value.get(kind), dict):
            return [_value(item, depth + 1) for item in _dicts(value[kind].get("values"))]
    for kind in ("kvlistValue", "kvlist_value"):
        if isinstance(value.get(kind), dict):
            pairs = _dicts(value[kind].get("values"))
            return {str(item.get("key")): _value(item.get("value"), depth + 1) for item in pairs}
    return next((inner for kind, inner in value.items() if kind in _SCALARS and inner is not None), None)


_SCALARS = frozenset(
    (
        "stringValue",
        "intValue",
        "doubleValue",
        "boolValue",
        "string_value",
        "int_value",
        "double_value",
        "bool_value",
    )
)


def _texts(
    attributes: Mapping[str, Any], events: list[tuple[Any, dict[str, Any]]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the messages that a call took in, and those that it put out."""
    used, put_out = list[dict[str, Any]](), list[dict[str, Any]]()
    listed = parsed(attributes.get(_LISTED_EVENTS))
    events = [*events, *((event.get("event.name"), event) for event in _dicts(listed))]
    holders = [attributes]
    for name, values in events:
        if not isinstance(name, str) or name not in _EVENTS:
            holders.append(values)
            continue
        texts = (
            values.get("message") or values.get("gen_ai.completion") or values.get("gen_ai.prompt") or values
        )
        role = name.split(".")[1] if name.endswith(".message") else ""
        messages = ({"role": role, **message} for message in messages_in(texts))
        (put_out if _EVENTS[name] else used).extend(messages)
    for holder in holders:
        if isinstance(holder.get(_RAW), str) and holder[_RAW]:
            put_out.append({"role": "assistant", "content": holder[_RAW]})
        for name, is_output in _ATTRIBUTES.items():
            (put_out if is_output else used).extend(messages_in(holder.get(name, [])))
    numbered = dict[tuple[bool, int], dict[str, Any]]()
    for key, value in attributes.items():
        if match := _NUMBERED.fullmatch(key):
            out = match[1] == "completion" or match[2] == "output"
            message = numbered.setdefault((out, int(match[3])), {})
            if match[4]:
                message[match[4]] = value
            elif match[5]:
                message.setdefault("contents", {})[int(match[5])] = value
            else:
                message.setdefault("tool_calls", {}).setdefault(int(match[6]), {})[match[7]] = value
    for (out, _), message in sorted(numbered.items()):
        message["tool_calls"] = list(message.get("tool_calls", {}).values())
        parts = message.pop("contents", None)
        if parts and not message.get("content"):
            message["content"] = [{"type": "text", "text": parts[i]} for i in sorted(parts)]
        (put_out if out else used).append(message)
    return used, put_out
