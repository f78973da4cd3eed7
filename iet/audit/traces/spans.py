"""OpenTelemetry's spans of calls to models, in OTLP's JSON.

Conventions for generative AI have changed several times. The tables below name every field that is read, and
whether a model put its text out or was given it. "semconv" is open-telemetry/semantic-conventions,
docs/gen-ai, at the version named; "genai" is open-telemetry/semantic-conventions-genai.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from iet.audit.traces import roles
from iet.audit.traces.content import messages_in
from iet.audit.traces.messages import input_of, output_of
from iet.audit.traces.pieces import REPEAT, Piece, around, by_text

_AGENT = ("gen_ai.agent.name", "gen_ai.agent.id", "agent.name", "graph.node.id")

_ATTRIBUTES = {
    # genai and semconv 1.37: "messages returned by the model", on a span or on the event
    # gen_ai.client.inference.operation.details
    "gen_ai.output.messages": True,
    "gen_ai.completion": True,  # semconv 1.27: "the full response received from the GenAI model"
    "gen_ai.system_instructions": False,  # semconv 1.37: "the system message or instructions provided"
    # genai and semconv 1.37: "the chat history provided to the model as an input"
    "gen_ai.input.messages": False,
    "gen_ai.prompt": False,  # semconv 1.27: "the full prompt sent to the GenAI model"
}
"""Attribute -> whether it is output."""

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

_NUMBERED = re.compile(
    # OpenLLMetry: gen_ai.prompt.N is input, gen_ai.completion.N output. OpenInference: "messages provided to
    # a completions API" and "messages received from" one (openinference.semconv.trace.SpanAttributes).
    r"(?:gen_ai\.(prompt|completion)|llm\.(input|output)_messages)\.(\d{1,6})\.(?:message\.)?(role|content)"
)

_NO_MODEL = {
    # genai, gen_ai.operation.name: spans whose output is no message of a model
    "gen_ai.operation.name": {"execute_tool", "embeddings", "retrieval"},
    # openinference.semconv.trace.OpenInferenceSpanKindValues
    "openinference.span.kind": {"TOOL", "RETRIEVER", "RERANKER", "EMBEDDING", "GUARDRAIL", "EVALUATOR"},
    "traceloop.span.kind": {"tool"},  # opentelemetry.semconv_ai.TraceloopSpanKindValues
}


def is_of(document: Any) -> bool:
    """Tell whether the document is OTLP's JSON of spans, or a list of such."""
    if isinstance(document, list):
        return bool(document) and all(isinstance(item, dict) and is_of(item) for item in document)
    return isinstance(document, dict) and isinstance(document.get("resourceSpans"), list)


def pieces(document: Any, agents: frozenset[str]) -> list[Piece]:
    """Return the input and output of each call, in the order of their ends."""
    spans = sorted(
        _spans(document), key=lambda span: (_time(span, "endTimeUnixNano"), _time(span, "startTimeUnixNano"))
    )
    by_id = by_text(spans, "spanId")
    pieces, nested = list[Piece](), dict[int, set[str]]()
    read = [_pieces_of(span, by_id, agents) for span in spans]
    for span, (_, put_out) in zip(spans, read, strict=True):
        for outer in around(span, by_id, "parentSpanId"):
            if outer is not span:
                nested.setdefault(id(outer), set()).update(p.text for p in put_out if p.skipped is None)
    for span, (used, put_out) in zip(spans, read, strict=True):
        pieces += used
        for piece in put_out:
            # An agent that calls another one, or hands over to it, may end with that one's words.
            relayed = piece.skipped is None and piece.text in nested.get(id(span), ())
            pieces.append(Piece(piece.text, None, REPEAT, piece.origin) if relayed else piece)
    return pieces


def _pieces_of(
    span: Mapping[str, Any], by_id: Mapping[str, Mapping[str, Any]], agents: frozenset[str]
) -> tuple[list[Piece], list[Piece]]:
    """Return what went into one call, and what came out of it."""
    origin = f"span {str(span.get('name') or span.get('spanId'))[:80]}"
    attributes = _attributes(span)
    used, put_out = _texts(attributes, span)
    claim = _claim(span, attributes, by_id) if put_out else None
    outputs = [output_of(value, agents, origin, claim) for value in put_out]
    if any(str(attributes.get(name)) in kinds for name, kinds in _NO_MODEL.items()):
        outputs = [Piece(piece.text, None, roles.TOOL, origin) for piece in outputs]
    return [input_of(value, agents, origin) for value in used], outputs


def _spans(document: Any) -> Iterator[dict[str, Any]]:
    for item in document if isinstance(document, list) else [document]:
        for resource in _dicts(item.get("resourceSpans")):
            for scope in _dicts(resource.get("scopeSpans")):
                yield from _dicts(scope.get("spans"))


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def _time(span: Mapping[str, Any], name: str) -> int:
    try:
        return int(span.get(name) or 0)
    except (TypeError, ValueError, OverflowError):
        return 0


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {
        item["key"]: _value(item.get("value"), 0)
        for item in _dicts(holder.get("attributes"))
        if isinstance(item.get("key"), str)
    }


_DEEPEST = 32
"""Levels of lists and objects that a value is read to."""


def _value(value: Any, depth: int) -> Any:
    """Return an OTLP value as JSON would have it."""
    if not isinstance(value, dict) or depth > _DEEPEST:
        return None
    if isinstance(value.get("arrayValue"), dict):
        return [_value(item, depth + 1) for item in _dicts(value["arrayValue"].get("values"))]
    if isinstance(value.get("kvlistValue"), dict):
        pairs = _dicts(value["kvlistValue"].get("values"))
        return {str(item.get("key")): _value(item.get("value"), depth + 1) for item in pairs}
    return next(
        (value[kind] for kind in ("stringValue", "intValue", "doubleValue", "boolValue") if kind in value),
        None,
    )


def _texts(
    attributes: Mapping[str, Any], span: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the messages that a call took in, and those that it put out."""
    used, put_out = list[dict[str, Any]](), list[dict[str, Any]]()
    holders = [attributes]
    for event in _dicts(span.get("events")):
        pieces = _attributes(event)
        name = event.get("name")
        if isinstance(name, str) and name in _EVENTS:
            texts = (
                pieces.get("message")
                or pieces.get("gen_ai.completion")
                or pieces.get("gen_ai.prompt")
                or pieces
            )
            role = name.split(".")[1] if name.endswith(".message") else ""
            messages = ({"role": role, **message} for message in messages_in(texts))
            (put_out if _EVENTS[name] else used).extend(messages)
        else:
            holders.append(pieces)
    for holder in holders:
        for name, is_output in _ATTRIBUTES.items():
            (put_out if is_output else used).extend(messages_in(holder.get(name, [])))
    numbered = dict[tuple[bool, int], dict[str, Any]]()
    for key, value in attributes.items():
        if match := _NUMBERED.fullmatch(key):
            out = match[1] == "completion" or match[2] == "output"
            numbered.setdefault((out, int(match[3])), {})[match[4]] = value
    for (out, _), message in sorted(numbered.items()):
        (put_out if out else used).append(message)
    return used, put_out


def _claim(
    span: Mapping[str, Any], attributes: Mapping[str, Any], by_id: Mapping[str, Mapping[str, Any]]
) -> str | None:
    """Return the name of the agent whose span this is, or of the nearest one around it."""
    for here in around(span, by_id, "parentSpanId"):
        seen_ids = attributes if here is span else _attributes(here)
        for name in _AGENT:
            if isinstance(seen_ids.get(name), str) and seen_ids[name]:
                return str(seen_ids[name])
    return None
