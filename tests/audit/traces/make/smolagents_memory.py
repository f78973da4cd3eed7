"""smolagents: the memory of an agent that calls a managed agent, and the result of its run."""

# requires: smolagents[openai]==1.26.0

from __future__ import annotations

from typing import Any

import answers
from smolagents import LogLevel, OpenAIModel, PromptTemplates, ToolCallingAgent, tool


@tool
def measure_beds(garden: str) -> str:
    """Measure the beds.

    Args:
        garden: The garden.
    """
    return answers.TOOL_RESULT


def agent(url: str, name: str, system: str, **settings: Any) -> ToolCallingAgent:
    model = OpenAIModel("gpt-5", api_base=f"{url}/v1", api_key="none")
    made = ToolCallingAgent(
        model=model, name=name, description=name, verbosity_level=LogLevel.OFF, **settings
    )
    # The default prompts are long: keep the parts that name agents and results.
    default = made.prompt_templates
    made.prompt_templates = PromptTemplates(**{**default, "system_prompt": system})
    made.memory.system_prompt.system_prompt = system
    return made


SCRIPT = (
    [answers.PLANNER, answers.call("measure_beds", garden="school")],
    [answers.call("critic", task=answers.PLANNER)],
    [answers.call("final_answer", answer=answers.CRITIC)],
    [answers.call("final_answer", answer=answers.PLANNER_AGAIN)],
)

with answers.server(*SCRIPT) as url:
    critic = agent(url, "critic", answers.CRITIC_SYSTEM, tools=[])
    planner = agent(url, "planner", answers.PLANNER_SYSTEM, tools=[measure_beds], managed_agents=[critic])
    result = planner.run(answers.USER, return_full_result=True)

answers.write("smolagents_full_steps.json", planner.memory.get_full_steps())
answers.write("smolagents_run_result.json", result.dict())
steps = {made.name: made.memory.get_succinct_steps() for made in (planner, critic)}
answers.write("smolagents_steps_by_agent.json", steps)
