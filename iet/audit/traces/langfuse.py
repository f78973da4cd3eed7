"""Langfuse's observations, as its API and its exports have them.

A generation's `input` was given to the model and its `output` is the model's (langfuse.com/docs, data model).
Spans, chains and agents around a generation repeat what it put out, and tools' outputs are not the model's;
neither is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iet.audit.traces.content import messages_in, parsed
from iet.audit.traces.messages import input_of, output_of
from iet.audit.traces.pieces import Piece, around, by_text

_NODE = ("gen_ai.agent.name", "agent_name", "langgraph_node", "agent")


def is_of(document: Any) -> bool:
    """Tell whether the document is a trace with observations, or a list of observations."""
    observations = _list(document)
    return bool(observations) and all(
        isinstance(each, dict)
        and isinstance(each.get("type"), str)
        and ("traceId" in each or "startTime" in each)
        for each in observations
    )


def pieces(document: Any, agents: frozenset[str]) -> list[Piece]:
    """Return what went into each generation and what came out of it, in the order in which they ended."""
    observations = sorted(
        _list(document), key=lambda each: (_time(each, "endTime"), _time(each, "startTime"))
    )
    by_id = by_text(observations, "id")
    found = []
    for each in observations:
        if each["type"].upper() != "GENERATION":  # spans and chains around it repeat what it put out
            continue
        where = f"generation {str(each.get('name') or each.get('id'))[:80]}"
        claim = _claim(each, by_id, agents)
        found += [input_of(value, agents, where) for value in messages_in(each.get("input") or [])]
        found += [output_of(value, agents, where, claim) for value in messages_in(each.get("output") or [])]
    return found


def _list(document: Any) -> list[Any]:
    if isinstance(document, dict):
        document = document.get("observations", document.get("data"))
    return document if isinstance(document, list) else []


def _time(observation: Mapping[str, Any], name: str) -> str:
    time = observation.get(name) or observation.get("startTime")
    return time if isinstance(time, str) else ""  # ISO 8601 in UTC: texts sort as times do


def _claim(
    observation: Mapping[str, Any], by_id: Mapping[str, Mapping[str, Any]], agents: frozenset[str]
) -> str | None:
    """Return the agent in whose run this stands: by its metadata, an AGENT around it, or a span so called."""
    for here in around(observation, by_id, "parentObservationId"):
        metadata = parsed(here.get("metadata"))
        if isinstance(metadata, dict):
            inner = parsed(metadata.get("attributes"))
            for holder in (metadata, inner if isinstance(inner, dict) else {}):
                if given := next((holder[key] for key in _NODE if isinstance(holder.get(key), str)), ""):
                    return str(given)
        name = here.get("name")
        if isinstance(name, str) and (name in agents or str(here.get("type")).upper() == "AGENT"):
            return name
    return None
