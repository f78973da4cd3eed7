"""Opik (Comet): traces and spans in the form of its REST API, of functions with @opik.track."""

# requires: opik==2.2.122
# requires: openai==2.54.0

import json
import os
from typing import Any

import answers

received: list[Any] = []
system = {"planner": answers.PLANNER_SYSTEM, "critic": answers.CRITIC_SYSTEM}
with answers.server(answers.PLANNER, answers.CRITIC, answers.PLANNER_AGAIN, received=received) as url:
    os.environ |= {
        "OPIK_URL_OVERRIDE": f"{url}/api",
        "OPIK_ENABLE_JSON_REQUEST_COMPRESSION": "false",
        "OPIK_TRACK_DISABLE": "false",
        "OPIK_SENTRY_ENABLE": "false",
        "OPIK_PROJECT_NAME": "garden",
    }
    import opik
    from openai import OpenAI
    from opik.integrations.openai import track_openai
    from opik.rest_api.types.span_public import SpanPublic
    from opik.rest_api.types.trace_public import TracePublic

    client = track_openai(OpenAI(base_url=f"{url}/v1", api_key="-"))

    def complete(name: str, log: list[dict[str, str]]) -> str:
        messages = [{"role": "system", "content": system[name]}, *log]
        return str(
            client.chat.completions.create(model="gpt-5", messages=messages).choices[0].message.content
        )

    @opik.track(type="tool")
    def measure() -> str:
        return answers.TOOL_RESULT

    @opik.track(name="planner")
    def plan(log: list[dict[str, str]]) -> str:
        if len(log) == 1:
            measure()
        return complete("planner", log)

    @opik.track(name="critic")
    def criticize(log: list[dict[str, str]]) -> str:
        return complete("critic", log)

    @opik.track
    def garden(task: str) -> str:
        log = [{"role": "user", "content": task}]
        for member in (plan, criticize, plan):
            log.append({"role": "assistant", "content": member(list(log))})
        return log[-1]["content"]

    garden(answers.USER)
    opik.flush_tracker()

stored: dict[str, dict[str, Any]] = {"spans": {}, "traces": {}}
for path, body in received:
    for kind in stored.keys() & body.keys() if path.endswith("/batch") else ():
        for entry in body[kind]:
            stored[kind].setdefault(entry["id"], {}).update(entry)
for entry in [entry for kind in stored.values() for entry in kind.values()]:
    entry["metadata"] = {key: entry.get("metadata", {}).get(key) for key in ("created_from", "type")}
spans = [
    SpanPublic(**span) for span in sorted(stored["spans"].values(), key=lambda span: span["id"], reverse=True)
]
listed = [json.loads(span.model_dump_json(exclude_none=True)) for span in spans]
answers.write("opik_spans.json", {"page": 1, "size": len(spans), "total": len(spans), "content": listed})
(trace,) = (TracePublic(**trace) for trace in stored["traces"].values())
export = {
    "trace": trace.model_dump(),
    "spans": [span.model_dump() for span in spans],
    "project_name": "garden",
}
answers.write("opik_export.json", export)
