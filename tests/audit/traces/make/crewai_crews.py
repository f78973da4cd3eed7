"""CrewAI: the output of a crew, its log of tasks, its calls of models, and the output of a delegation."""

# requires: crewai==1.15.30

from __future__ import annotations

import json
import os
import pathlib
import tempfile
from typing import Any

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false"}

import answers
from crewai import LLM, Agent, Crew, Task
from crewai.events import LLMCallCompletedEvent, crewai_event_bus
from crewai.tools import tool


@tool("measure_beds")
def measure_beds(garden: str) -> str:
    """Measure the beds."""
    return answers.TOOL_RESULT


def team(url: str, **settings: Any) -> tuple[Agent, Agent]:
    def agent(name: str, **more: Any) -> Agent:
        llm = LLM(model="openai/gpt-5", base_url=f"{url}/v1", api_key="none")
        goal = "Plan the garden." if name == "planner" else "Find what is missing."
        return Agent(role=name, goal=goal, backstory="A small team.", llm=llm, **more)

    return agent("planner", tools=[measure_beds], **settings), agent("critic")


def task(agent: Agent, description: str, name: str) -> Task:
    return Task(description=description, expected_output="One sentence.", agent=agent, name=name)


def crew() -> None:
    events: list[Any] = []
    script = (
        [answers.call("measure_beds", garden="school")],
        answers.PLANNER,
        answers.CRITIC,
        answers.PLANNER_AGAIN,
    )
    folder = pathlib.Path(tempfile.mkdtemp())
    with answers.server(*script) as url, crewai_event_bus.scoped_handlers():
        # Other events hold whole agents and tasks, with prompts of several kilobytes.
        crewai_event_bus.on(LLMCallCompletedEvent)(lambda source, event: events.append(event))
        planner, critic = team(url)
        tasks = [
            task(planner, answers.USER, "plan"),
            task(critic, "Find what the plan lacks.", "review"),
            task(planner, "Write the plan again.", "plan again"),
        ]
        output = Crew(
            agents=[planner, critic], tasks=tasks, output_log_file=str(folder / "log.json")
        ).kickoff()
        crewai_event_bus.flush()
    answers.write("crewai_output.json", output.model_dump(mode="json"))
    answers.write("crewai_log.json", json.loads((folder / "log.json").read_text()))
    answers.write("crewai_llm_events.jsonl", [event.to_json() for event in events])


def delegation() -> None:
    question = {"task": "Find what is missing.", "context": answers.PLANNER, "coworker": "critic"}
    script = (
        [answers.PLANNER, answers.call("delegate_work_to_coworker", **question)],
        answers.CRITIC,
        answers.PLANNER_AGAIN,
    )
    with answers.server(*script) as url:
        planner, critic = team(url, allow_delegation=True)
        crew = Crew(agents=[planner, critic], tasks=[task(planner, answers.USER, "plan")])
        output = crew.kickoff()
    answers.write("crewai_delegation.json", output.model_dump(mode="json", exclude_none=True))


crew()
delegation()
