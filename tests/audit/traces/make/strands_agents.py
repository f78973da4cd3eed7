"""Strands Agents (AWS): OTLP spans with the messages in events (an older or a newer form) or in attributes.

Argument: "events", "latest", "attributes", or "swarm" for agents that hand over.
"""

# requires: strands-agents==1.62.0
# requires: openai==3.57.0
# requires: opentelemetry-exporter-otlp-json-file==0.66b1

import os
import sys
from typing import Any

FORMS = {
    "latest": "gen_ai_latest_experimental",
    "attributes": "gen_ai_latest_experimental,gen_ai_span_attributes_only",
}
form = sys.argv[1]
os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = FORMS.get(form, "")

import answers  # noqa: E402 - after the variable that the library reads
import otlp  # noqa: E402 - after the variable that the library reads
from opentelemetry import trace  # noqa: E402 - after the variable that the library reads
from strands import Agent, tool  # noqa: E402 - after the variable that the library reads
from strands.models.openai import OpenAIModel  # noqa: E402 - after the variable that the library reads
from strands.multiagent import Swarm  # noqa: E402 - after the variable that the library reads

trace.set_tracer_provider(otlp.TRACER_PROVIDER)


@tool
def measure() -> str:
    """Measure the garden."""
    return answers.TOOL_RESULT


def handoff(name: str) -> dict[str, Any]:
    return answers.call("handoff_to_agent", agent_name=name, message="Please go on.")


def team(url: str) -> tuple[Agent, Agent]:
    model = OpenAIModel(client_args={"base_url": f"{url}/v1", "api_key": "-"}, model_id="gpt-5")
    planner = Agent(
        model, name="planner", system_prompt=answers.PLANNER_SYSTEM, tools=[measure], callback_handler=None
    )
    return planner, Agent(model, name="critic", system_prompt=answers.CRITIC_SYSTEM, callback_handler=None)


if form == "swarm":  # an agent that hands over writes its text after the call
    with answers.server(handoff("critic"), answers.PLANNER, answers.CRITIC) as url:
        planner, critic = team(url)
        Swarm([planner, critic], entry_point=planner)(answers.USER)
else:
    script = answers.call("measure"), answers.PLANNER, answers.CRITIC, answers.PLANNER_AGAIN
    with answers.server(*script) as url:
        planner, critic = team(url)
        text = answers.USER
        for agent in (planner, critic, planner):
            text = str(agent(text)).strip()
otlp.save(f"strands_{form}_spans.json")
