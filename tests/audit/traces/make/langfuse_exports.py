"""Langfuse's spans (run langfuse_sdk.py first) in the forms that its server returns and exports.

The forms are those of https://langfuse.com/docs/api-and-data-platform: the types of the SDK for version 2,
the reference of TraceWithFullDetails for version 1, and the field reference of the export to a blob storage.
"""

# requires: langfuse==5.0.4

import json
from datetime import UTC, datetime
from typing import Any

import answers
from langfuse.api.commons.types import ObservationV2

document = json.loads((answers.RECORDS / "langfuse_sdk_spans.json").read_text(encoding="utf-8"))
scopes = (scope for part in document["resourceSpans"] for scope in part["scopeSpans"])
spans = sorted(
    (span for scope in scopes for span in scope["spans"]), key=lambda span: span["startTimeUnixNano"]
)
PREFIX = "langfuse.observation."


def time_of(nanoseconds: str) -> datetime:
    return datetime.fromtimestamp(int(nanoseconds) // 1_000_000 / 1000, tz=UTC)


def stored(span: dict[str, Any]) -> dict[str, Any]:
    """Return an observation with the names of the columns of the export."""
    values = {
        item["key"].removeprefix(PREFIX): item["value"].get("stringValue") for item in span["attributes"]
    }
    start, end = time_of(span["startTimeUnixNano"]), time_of(span["endTimeUnixNano"])
    is_model = values["type"] == "generation"
    return {
        "id": span["spanId"],
        "trace_id": span["traceId"],
        "project_id": "garden",
        "environment": "default",
        "type": values["type"].upper(),
        "parent_observation_id": span.get("parentSpanId", ""),
        "start_time": start,
        "end_time": end,
        "name": span["name"],
        "metadata": {},
        "level": "DEFAULT",
        "status_message": "",
        "version": "",
        "input": values.get("input", ""),
        "output": values.get("output", ""),
        "provided_model_name": values.get("model.name", ""),
        "model_parameters": values.get("model.parameters", ""),
        "usage_details": {"input": 20, "output": 12, "total": 32} if is_model else {},
        "latency": (end - start).total_seconds(),
    }


def parsed(text: str) -> Any:
    """Return what version 1 makes of an input or an output: the value if the text is JSON, or the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text or None


def iso(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def of_version_2(row: dict[str, Any]) -> dict[str, Any]:
    names = ("id", "trace_id", "start_time", "end_time", "project_id", "type", "name", "level", "environment")
    others = {
        "parent_observation_id": row["parent_observation_id"] or None,
        "is_root_observation": not row["parent_observation_id"],
        "model": row["provided_model_name"] or None,
    }
    same = ("input", "output", "usage_details", "latency", "metadata")
    observation = ObservationV2(**{name: row[name] for name in names + same}, **others, trace_name="garden")
    return json.loads(observation.model_dump_json(by_alias=True, exclude_unset=True))


def of_version_1(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": row["id"],
        "traceId": row["trace_id"],
        "type": row["type"],
        "name": row["name"],
        "startTime": iso(row["start_time"]),
        "endTime": iso(row["end_time"]),
        "completionStartTime": None,
        "parentObservationId": row["parent_observation_id"] or None,
        "input": parsed(row["input"]),
        "output": parsed(row["output"]),
        "model": row["provided_model_name"] or None,
        "modelParameters": parsed(row["model_parameters"]),
        "usageDetails": row["usage_details"],
        "level": "DEFAULT",
        "statusMessage": None,
        "metadata": {},
        "latency": row["latency"],
        "promptName": None,
        "environment": "default",
    }


rows = [stored(span) for span in spans]
root = next(row for row in rows if not row["parent_observation_id"])
newest_first = [of_version_2(row) for row in reversed(rows)]
answers.write("langfuse_v2_observations.json", {"data": newest_first, "meta": {"cursor": None}})
trace = {
    "id": root["trace_id"],
    "name": root["name"],
    "timestamp": iso(root["start_time"]),
    "input": parsed(root["input"]),
    "output": parsed(root["output"]),
    "sessionId": None,
    "userId": None,
    "metadata": {},
    "tags": [],
    "environment": "default",
    "htmlPath": f"/project/garden/traces/{root['trace_id']}",
    "latency": root["latency"],
    "observations": [of_version_1(row) for row in sorted(rows, key=lambda row: row["id"])],
    "scores": [],
}
answers.write("langfuse_v1_trace.json", trace)
exported = [
    row
    | {name: row[name].strftime("%Y-%m-%d %H:%M:%S.%f") for name in ("start_time", "end_time")}
    | {"trace_name": root["name"], "user_id": "", "session_id": "", "tags": [], "release": ""}
    | {"tool_calls": [], "tool_call_names": [], "tool_definitions": {}}
    for row in sorted(rows, key=lambda row: row["id"])
]
answers.write("langfuse_blob_observations.jsonl", exported)
