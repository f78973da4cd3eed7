"""Langfuse's observations, as its API and its exports have them.

The `output` of a generation is the model's text, its `input` is not (langfuse.com/docs, data model). Spans,
chains and agents around a generation repeat its output, and outputs of tools are not the model's text: they
are not read.
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
        isinstance(item, dict)
        and isinstance(item.get("type"), str)
        and ("traceId" in item or "startTime" in item)
        for item in observations
    )


def pieces(document: Any, agents: frozenset[str]) -> list[Piece]:
    """Return the input and output of each generation, in the order of their ends."""
    observations = sorted(
        _list(document), key=lambda item: (_time(item, "endTime"), _time(item, "startTime"))
    )
    by_id = by_text(observations, "id")
    pieces = []
    for item in observations:
        if item["type"].upper() != "GENERATION":  # spans and chains around it repeat its output
            continue
        owner = f"generation {str(item.get('name') or item.get('id'))[:80]}"
        claim = _claim(item, by_id, agents)
        pieces += [input_of(value, agents, owner) for value in messages_in(item.get("input") or [])]
        pieces += [output_of(value, agents, owner, claim) for value in messages_in(item.get("output") or [])]
    return pieces


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
    """Return the agent that ran this: by its metadata, an enclosing AGENT, or a span with its name."""
    for here in around(observation, by_id, "parentObservationId"):
        metadata = parsed(here.get("metadata"))
        if isinstance(metadata, dict):
            inner = parsed(metadata.get("attributes"))
            for holder in (metadata, inner if isinstance(inner, dict) else {}):
                if value := next((holder[key] for key in _NODE if isinstance(holder.get(key), str)), ""):
                    return str(value)
        name = here.get("name")
        if isinstance(name, str) and (name in agents or str(here.get("type")).upper() == "AGENT"):
            return name
    return None
