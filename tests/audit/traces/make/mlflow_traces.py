"""MLflow's traces: of functions with @mlflow.trace, and of the OpenAI Agents SDK with autolog.

With the packages of the last line instead, the script writes the form of a trace of MLflow 2.
"""

# requires: mlflow==3.17.2
# requires: openai==3.57.0 openai-agents==0.24.0
# or: mlflow==2.22.0 sqlalchemy<2.1 opentelemetry-sdk==1.33.0 openai==1.109.1

import asyncio
import json
import re
import tempfile
from typing import Any

import answers
import mlflow
from mlflow.entities import SpanType
from openai import AsyncOpenAI, OpenAI

SYSTEM = {"planner": answers.PLANNER_SYSTEM, "critic": answers.CRITIC_SYSTEM}
is_old = mlflow.__version__.startswith("2.")


def run_functions() -> None:
    """Run agents that are functions, around OpenAI's client."""
    with answers.server(answers.PLANNER, answers.CRITIC, answers.PLANNER_AGAIN) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="-")

        def complete(name: str, log: list[dict[str, str]]) -> str:
            messages = [{"role": "system", "content": SYSTEM[name]}, *log]
            response = client.chat.completions.create(model="gpt-5", messages=messages)
            return str(response.choices[0].message.content)

        @mlflow.trace(span_type=SpanType.TOOL)
        def measure() -> str:
            return answers.TOOL_RESULT

        @mlflow.trace(name="planner", span_type=SpanType.AGENT)
        def plan(log: list[dict[str, str]]) -> str:
            if len(log) == 1:
                measure()
            return complete("planner", log)

        @mlflow.trace(name="critic", span_type=SpanType.AGENT)
        def criticize(log: list[dict[str, str]]) -> str:
            return complete("critic", log)

        @mlflow.trace(span_type=SpanType.CHAIN)
        def garden(task: str) -> str:
            log = [{"role": "user", "content": task}]
            for member in (plan, criticize, plan):
                log.append({"role": "assistant", "content": member(log)})
            return log[-1]["content"]

        garden(answers.USER)


def run_agents() -> None:
    """Let the planner hand over to the critic, who hands back."""
    from agents import Agent, OpenAIChatCompletionsModel, Runner

    to_critic = [answers.PLANNER, answers.call("transfer_to_critic")]
    to_planner = [answers.CRITIC, answers.call("transfer_to_planner")]
    with answers.server(to_critic, to_planner, answers.PLANNER_AGAIN) as url:
        model = OpenAIChatCompletionsModel("gpt-5", AsyncOpenAI(base_url=f"{url}/v1", api_key="-"))
        critic: Any = Agent("critic", instructions=answers.CRITIC_SYSTEM, model=model)
        planner: Any = Agent("planner", instructions=answers.PLANNER_SYSTEM, model=model, handoffs=[critic])
        critic.handoffs.append(planner)
        asyncio.run(Runner.run(planner, answers.USER))


def last_trace() -> Any:
    if is_old:
        return neutral(mlflow.get_last_active_trace().to_dict())
    mlflow.flush_trace_async_logging()
    return neutral(mlflow.get_trace(mlflow.get_last_active_trace_id()).to_dict())


def neutral(value: Any) -> Any:
    """Replace the facts about this machine in a trace."""
    text = re.sub(
        r'((?:mlflow\.source\.name|mlflow\.user)\\?": \\?")[^"\\]*', r"\g<1>garden", json.dumps(value)
    )
    return json.loads(re.sub(r'(mlflow\.artifactLocation\\?": \\?")[^"\\]*/mlruns', r"\g<1>mlruns", text))


mlflow.set_tracking_uri(f"sqlite:///{tempfile.mkdtemp()}/mlflow.db")
mlflow.set_experiment("garden")
mlflow.openai.autolog()
run_functions()
answers.write("mlflow_2_trace.json" if is_old else "mlflow_trace.json", last_trace())
if not is_old:
    rows = mlflow.search_traces().to_json(orient="records", default_handler=str)
    answers.write("mlflow_search_traces.json", neutral(json.loads(rows)))
    run_agents()
    text = json.dumps(last_trace(), separators=(",", ":"))
    (answers.RECORDS / "mlflow_agents.json").write_text(text + "\n", encoding="utf-8")
