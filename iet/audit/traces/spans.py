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
        return bool(document) and all(isinstance(each, dict) and is_of(each) for each in document)
    return isinstance(document, dict) and isinstance(document.get("resourceSpans"), list)


def pieces(document: Any, agents: frozenset[str]) -> list[Piece]:
    """Return what went into each call and what came out of it, in the order in which calls ended."""
    spans = sorted(
        _spans(document), key=lambda span: (_time(span, "endTimeUnixNano"), _time(span, "startTimeUnixNano"))
    )
    by_id = by_text(spans, "spanId")
    found, nested = list[Piece](), dict[int, set[str]]()
    read = [_pieces_of(span, by_id, agents) for span in spans]
    for span, (_, put_out) in zip(spans, read, strict=True):
        for outer in around(span, by_id, "parentSpanId"):
            if outer is not span:
                nested.setdefault(id(outer), set()).update(p.text for p in put_out if p.skipped is None)
    for span, (taken, put_out) in zip(spans, read, strict=True):
        found += taken
        for piece in put_out:
            # An agent that calls another one, or hands over to it, may end with that one's words.
            relayed = piece.skipped is None and piece.text in nested.get(id(span), ())
            found.append(Piece(piece.text, None, REPEAT, piece.where) if relayed else piece)
    return found


def _pieces_of(
    span: Mapping[str, Any], by_id: Mapping[str, Mapping[str, Any]], agents: frozenset[str]
) -> tuple[list[Piece], list[Piece]]:
    """Return what went into one call, and what came out of it."""
    where = f"span {str(span.get('name') or span.get('spanId'))[:80]}"
    attributes = _attributes(span)
    taken, put_out = _texts(attributes, span)
    claim = _claim(span, attributes, by_id) if put_out else None
    outputs = [output_of(value, agents, where, claim) for value in put_out]
    if any(str(attributes.get(name)) in kinds for name, kinds in _NO_MODEL.items()):
        outputs = [Piece(piece.text, None, roles.TOOL, where) for piece in outputs]
    return [input_of(value, agents, where) for value in taken], outputs


def _spans(document: Any) -> Iterator[dict[str, Any]]:
    for each in document if isinstance(document, list) else [document]:
        for resource in _dicts(each.get("resourceSpans")):
            for scope in _dicts(resource.get("scopeSpans")):
                yield from _dicts(scope.get("spans"))


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, dict))


def _time(span: Mapping[str, Any], name: str) -> int:
    try:
        return int(span.get(name) or 0)
    except (TypeError, ValueError, OverflowError):
        return 0


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {
        each["key"]: _value(each.get("value"), 0)
        for each in _dicts(holder.get("attributes"))
        if isinstance(each.get("key"), str)
    }


_DEEPEST = 32
"""Levels of lists and objects that a value is read to."""


def _value(value: Any, depth: int) -> Any:
    """Return an OTLP value as JSON would have it."""
    if not isinstance(value, dict) or depth > _DEEPEST:
        return None
    if isinstance(value.get("arrayValue"), dict):
        return [_value(each, depth + 1) for each in _dicts(value["arrayValue"].get("values"))]
    if isinstance(value.get("kvlistValue"), dict):
        pairs = _dicts(value["kvlistValue"].get("values"))
        return {str(each.get("key")): _value(each.get("value"), depth + 1) for each in pairs}
    return next(
        (value[kind] for kind in ("stringValue", "intValue", "doubleValue", "boolValue") if kind in value),
        None,
    )


def _texts(
    attributes: Mapping[str, Any], span: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the messages that a call took in, and those that it put out."""
    taken, put_out = list[dict[str, Any]](), list[dict[str, Any]]()
    holders = [attributes]
    for event in _dicts(span.get("events")):
        found = _attributes(event)
        name = event.get("name")
        if isinstance(name, str) and name in _EVENTS:
            said = (
                found.get("message") or found.get("gen_ai.completion") or found.get("gen_ai.prompt") or found
            )
            role = name.split(".")[1] if name.endswith(".message") else ""
            messages = ({"role": role, **message} for message in messages_in(said))
            (put_out if _EVENTS[name] else taken).extend(messages)
        else:
            holders.append(found)
    for holder in holders:
        for name, is_output in _ATTRIBUTES.items():
            (put_out if is_output else taken).extend(messages_in(holder.get(name, [])))
    numbered = dict[tuple[bool, int], dict[str, Any]]()
    for key, value in attributes.items():
        if match := _NUMBERED.fullmatch(key):
            out = match[1] == "completion" or match[2] == "output"
            numbered.setdefault((out, int(match[3])), {})[match[4]] = value
    for (out, _), message in sorted(numbered.items()):
        (put_out if out else taken).append(message)
    return taken, put_out


def _claim(
    span: Mapping[str, Any], attributes: Mapping[str, Any], by_id: Mapping[str, Mapping[str, Any]]
) -> str | None:
    """Return the name of the agent whose span this is, or of the nearest one around it."""
    for here in around(span, by_id, "parentSpanId"):
        known = attributes if here is span else _attributes(here)
        for name in _AGENT:
            if isinstance(known.get(name), str) and known[name]:
                return str(known[name])
    return None
