"""LangSmith: the runs of teams, as its client sends them and as `list_runs` returns them."""
# requires: langgraph==1.2.24 langchain==1.5.2 langsmith==0.15.1 openai==3.57.0

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import answers
from langchain_core.tracers import LangChainTracer
from langgraph_streams import graph, start, swarm
from langsmith import Client, traceable, tracing_context
from langsmith.schemas import Run
from langsmith.wrappers import wrap_openai
from openai import OpenAI

LIMITS = {
    "use_multipart_endpoint": False,
    "size_limit": 100,
    "size_limit_bytes": 20_000_000,
    "scale_up_qsize_trigger": 1,
    "scale_up_nthreads_limit": 1,
    "scale_down_nempty_trigger": 1,
}


def sent_by(run: Callable[[Client], Any]) -> list[Any]:
    """Return the bodies that a client sends to /runs/batch, without facts about this machine."""
    received: list[Any] = []
    with answers.server(answers.PLANNER, answers.CRITIC, answers.PLANNER_AGAIN, received=received) as url:
        client = Client(api_url=url, api_key="none", info={"batch_ingest_config": LIMITS})
        run(client)
        client.flush()
    bodies = [body for path, body in received if path.endswith("/runs/batch")]
    for part in (part for body in bodies for key in ("post", "patch") for part in body.get(key, [])):
        extra = part.get("extra") or {}
        extra.get("runtime", {}).update(platform="Linux")
        extra.get("metadata", {}).pop("revision_id", None)
    return bodies


def graph_run(team: Any) -> Callable[[Client], Any]:
    tracers = partial(LangChainTracer, project_name="garden")
    return lambda client: team.invoke(start, {"callbacks": [tracers(client=client)]})


def functions(client: Client) -> None:
    """Run agents that are functions with @traceable, around OpenAI's client."""
    model = wrap_openai(OpenAI(base_url=f"{client.api_url}/v1", api_key="none"))

    def ask(system: str, log: list[Any]) -> str:
        messages = [{"role": "system", "content": system}, *log]
        return model.chat.completions.create(model="gpt-5", messages=messages).choices[0].message.content

    @traceable
    def planner(log: list[Any]) -> str:
        return ask(answers.PLANNER_SYSTEM, log)

    @traceable
    def critic(log: list[Any]) -> str:
        return ask(answers.CRITIC_SYSTEM, log)

    @traceable
    def plan(question: str) -> str:
        log: list[Any] = [{"role": "user", "content": question}]
        for agent in (planner, critic, planner):
            log.append({"role": "assistant", "content": agent(list(log))})
        return log[-1]["content"]

    with tracing_context(enabled=True, client=client, project_name="garden"):
        plan(answers.USER)


def listed(bodies: list[Any], kind: str = "") -> list[Any]:
    """Return the runs as `Client.list_runs` does: the latest first, each with its inputs and outputs."""
    runs: dict[str, Any] = {}
    for part in (part for body in bodies for key in ("post", "patch") for part in body.get(key, [])):
        known = {key: value for key, value in part.items() if value is not None}
        runs.setdefault(part["id"], {}).update(known)
    ordered = sorted(runs.values(), key=lambda run: run["dotted_order"], reverse=True)
    ordered = [run for run in ordered if kind in ("", run["run_type"])]
    return [Run(**run).model_dump(mode="json", exclude_none=True) for run in ordered]


bodies = sent_by(graph_run(graph()))
answers.write("langsmith_batch.json", bodies[0])
answers.write("langsmith_runs.json", listed(bodies))
answers.write("langsmith_llm_runs.json", listed(sent_by(graph_run(swarm())), "llm"))
answers.write("langsmith_traceable_runs.json", listed(sent_by(functions)))
