"""Agno: the output of a team with two members that it delegates to, and the outputs of the members alone."""

# requires: agno==3.1.10 openai==2.54.0

from __future__ import annotations

import json
import os
from typing import Any

os.environ["AGNO_TELEMETRY"] = "false"

import answers
from agno.agent import Agent
from agno.models.openai import OpenAILike
from agno.team import Team


def measure_beds(garden: str) -> str:
    """Measure the beds."""
    return answers.TOOL_RESULT


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


SCRIPT = (
    [answers.call("delegate_task_to_member", member_id="planner", task=answers.USER)],
    [answers.call("measure_beds", garden="school")],
    answers.PLANNER,
    [answers.call("delegate_task_to_member", member_id="critic", task="Find what the plan lacks.")],
    answers.CRITIC,
    [answers.call("delegate_task_to_member", member_id="planner", task="Write the plan again.")],
    answers.PLANNER_AGAIN,
    "The plan is done.",
)


def run() -> Any:
    with answers.server(*SCRIPT) as url:

        def agent(name: str, system: str, **more: Any) -> Agent:
            model = OpenAILike(id="gpt-5", base_url=f"{url}/v1", api_key="none")
            return Agent(name=name, id=name, instructions=system, model=model, telemetry=False, **more)

        planner = agent("planner", answers.PLANNER_SYSTEM, tools=[measure_beds])
        team = Team(
            [planner, agent("critic", answers.CRITIC_SYSTEM)],
            name="garden",
            id="garden",
            model=OpenAILike(id="gpt-5", base_url=f"{url}/v1", api_key="none"),
            telemetry=False,
        )
        return team.run(answers.USER, session_id="session")


output = run()
answers.write("agno_team_output.json", plain(output.to_dict()))
answers.write("agno_member_outputs.json", [plain(member.to_dict()) for member in output.member_responses])
