"""OpenTelemetry's spans of calls to models, in OTLP's JSON.

Conventions for generative AI have changed several times; what each of them calls the texts and the agent's
name stands here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from iet.audit.traces.messages import piece_of
from iet.audit.traces.pieces import Piece, around, by_text, messages_in

_AGENT = ("gen_ai.agent.name", "gen_ai.agent.id", "agent.name", "graph.node.id")
_OUT = ("gen_ai.output.messages", "gen_ai.completion")
_IN = ("gen_ai.system_instructions", "gen_ai.input.messages", "gen_ai.prompt")
_EVENTS_OUT = ("gen_ai.choice", "gen_ai.content.completion", "gen_ai.assistant.message")
_EVENTS_IN = (
    *("gen_ai.system.message", "gen_ai.user.message"),
    *("gen_ai.tool.message", "gen_ai.content.prompt"),
)
_NUMBERED = re.compile(
    r"(?:gen_ai\.(prompt|completion)|llm\.(input|output)_messages)\.(\d{1,6})\.(?:message\.)?(role|content)"
)


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
    found = []
    for span in spans:
        where = f"span {str(span.get('name') or span.get('spanId'))[:80]}"
        attributes = _attributes(span)
        taken, put_out = _texts(attributes, span)
        claim = _claim(span, attributes, by_id) if put_out else None
        for value in taken:
            piece = piece_of(value, agents, where)
            # An agent's text among the inputs is what it wrote in an earlier call.
            found.append(Piece(piece.text, piece.claim, piece.claim in agents, where))
        found += [piece_of({**value, "role": "assistant"}, agents, where, claim) for value in put_out]
    return found


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
        if name in _EVENTS_OUT or name in _EVENTS_IN:
            said = (
                found.get("message") or found.get("gen_ai.completion") or found.get("gen_ai.prompt") or found
            )
            (put_out if name in _EVENTS_OUT else taken).extend(messages_in(said))
        else:
            holders.append(found)
    for holder in holders:
        for name in _IN:
            taken += messages_in(holder.get(name, []))
        for name in _OUT:
            put_out += messages_in(holder.get(name, []))
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
