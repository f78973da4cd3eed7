"""Calls in stores of telemetry: Langfuse, LangSmith, Weave, Braintrust, and traces of OpenAI's Agents SDK.

Langfuse's API has camel case, its export to a blob storage snake case. LangSmith's client posts the start and
the end of a run as two objects with one id. A generation's `output` is the model's text, its `input` is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from iet.audit.traces import calls
from iet.audit.traces.calls import Call, agent_in, sortable
from iet.audit.traces.content import messages_in, parsed
from iet.audit.traces.pieces import Piece


class _Fields(NamedTuple):
    """Names of the fields of one store, in each of its spellings."""

    kind: tuple[str, ...]
    trace: tuple[str, ...]
    parent: tuple[str, ...]
    start: tuple[str, ...]
    end: tuple[str, ...]
    used: tuple[str, ...]
    put_out: tuple[str, ...]


_STORES = (
    _Fields(  # agents.tracing.SpanImpl.export
        kind=("type",),
        trace=("span_data",),
        parent=("parent_id",),
        start=("started_at",),
        end=("ended_at",),
        used=("input",),
        put_out=("output",),
    ),
    _Fields(  # langfuse.com/docs, data model
        kind=("type",),
        trace=("traceId", "trace_id", "startTime", "start_time"),
        parent=("parentObservationId", "parent_observation_id"),
        start=("startTime", "start_time"),
        end=("endTime", "end_time"),
        used=("input",),
        put_out=("output",),
    ),
    _Fields(  # langsmith.schemas.Run
        kind=("run_type",),
        trace=("trace_id", "id"),
        parent=("parent_run_id",),
        start=("start_time",),
        end=("end_time",),
        used=("inputs",),
        put_out=("outputs",),
    ),
    _Fields(  # weave.trace_server.trace_server_interface.CallSchema
        kind=("op_name",),
        trace=("trace_id",),
        parent=("parent_id",),
        start=("started_at",),
        end=("ended_at",),
        used=("inputs",),
        put_out=("output",),
    ),
)

_KINDS = {
    **dict.fromkeys(("generation", "llm", "chat_model"), calls.MODEL),
    "agent": calls.AGENT,
    **dict.fromkeys(
        ("tool", "retriever", "embedding", "evaluator", "guardrail", "prompt", "parser"), calls.TOOL
    ),
}

_AGENT = ("gen_ai.agent.name", "lc_agent_name", "agent_name", "langgraph_node", "agent")


def is_of(item: Any) -> bool:
    """Tell whether a value is a call of one of the stores."""
    return isinstance(item, dict) and _fields(_flat(item)) is not None


def _flat(item: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a call, those of Braintrust under the names that the Agents SDK uses."""
    inner = item.get("span_data")
    if isinstance(inner, dict):
        return {**item, **inner}
    inner, parents, times = (item.get(name) for name in ("span_attributes", "span_parents", "metrics"))
    if not isinstance(inner, dict) or "root_span_id" not in item:
        return item
    return {
        **item,
        **inner,
        "span_data": inner,
        "id": item.get("span_id"),
        "parent_id": next(iter(parents), None) if isinstance(parents, list) else None,
        "started_at": times.get("start") if isinstance(times, dict) else None,
        "ended_at": times.get("end") if isinstance(times, dict) else None,
    }


def _fields(item: Mapping[str, Any]) -> _Fields | None:
    return next(
        (
            store
            for store in _STORES
            if isinstance(item.get(store.kind[0]), str) and any(name in item for name in store.trace)
        ),
        None,
    )


def pieces(items: list[dict[str, Any]], agents: frozenset[str]) -> list[Piece]:
    """Return the input and output of each call of a model, in the order of their ends."""
    merged, traces = dict[Any, dict[str, Any]](), dict[str, tuple[str | None, str]]()
    for i, item in enumerate(map(_flat, items)):  # a later object of the same call completes the earlier one
        key: Any = i
        if isinstance(identity := item.get("id"), str):
            earlier, trace = traces.get(identity, (None, identity)), _trace(item)
            key = traces[identity] = earlier if trace is None else (trace, identity)
            if earlier[0] is None and earlier in merged:
                merged[key] = merged.pop(earlier)
        merged[key] = {
            **merged.get(key, {}),
            **{name: value for name, value in item.items() if value is not None},
        }
    return calls.pieces_of([_call(item) for item in merged.values()], agents)


def _call(item: dict[str, Any]) -> Call:
    fields = _fields(item) or _STORES[-1]
    title = item.get("display_name") or item.get("name") or item.get("op_name")
    name = title.rpartition("/")[2].partition(":")[0] if isinstance(title, str) and "://" in title else title
    kind = _KINDS.get(str(_first(item, fields.kind)).casefold())
    output = _first(item, fields.put_out)
    answer = parsed(output)
    if (
        kind is None
        and isinstance(answer, dict)
        and ("choices" in answer or answer.get("role") == "assistant")
    ):
        kind = calls.MODEL  # Weave has no kinds
    agent = next((agent_in(values, _AGENT) for values in _metadata(item) if agent_in(values, _AGENT)), None)
    if agent is None and kind == calls.AGENT and isinstance(name, str):
        agent = name
    target = item.get("to_agent")
    if isinstance(item.get("from_agent"), str):  # a hand-over of the Agents SDK
        agent = item["from_agent"]
    parent, identity = _first(item, fields.parent), item.get("id")
    put_out = list(messages_in([] if output is None else output))
    return Call(
        origin=f"{kind or 'call'} {str(name or identity)[:80]}",
        trace=_trace(item),
        id=identity if isinstance(identity, str) else None,
        parent=parent if isinstance(parent, str) else None,
        start=sortable(_first(item, fields.start)),
        end=sortable(_first(item, fields.end)),
        kind=kind,
        agent=agent,
        name=name if isinstance(name, str) else None,
        used=list(messages_in(_first(item, fields.used) or [])) if kind == calls.MODEL else (),
        put_out=put_out if kind == calls.MODEL else (),
        result=put_out,
        targets=[target] if isinstance(target, str) else (),
    )


def _trace(item: Mapping[str, Any]) -> str | None:
    trace = item.get("trace_id") or item.get("traceId")
    return trace if isinstance(trace, str) else None


def _first(item: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((item[name] for name in names if item.get(name) is not None), None)


def _metadata(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects that may hold the agent's name."""
    extra = item.get("extra")
    for holder in (
        item.get("metadata"),
        extra.get("metadata") if isinstance(extra, dict) else None,
        item.get("data"),
    ):
        metadata = parsed(holder)
        if isinstance(metadata, dict):
            yield metadata
            inner = parsed(metadata.get("attributes"))
            if isinstance(inner, dict):
                yield inner
