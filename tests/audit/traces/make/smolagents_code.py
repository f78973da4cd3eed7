"""smolagents: the memory of a code agent that calls a managed agent. Its texts are in its code."""

# requires: smolagents[openai]==1.26.0

from __future__ import annotations

import answers
from smolagents import CodeAgent, LogLevel, OpenAIModel, PromptTemplates, ToolCallingAgent, tool


@tool
def measure_beds(garden: str) -> str:
    """Measure the beds.

    Args:
        garden: The garden.
    """
    return answers.TOOL_RESULT


def code(thought: str, *lines: str) -> str:
    return "\n".join([f"Thought: {thought}", "<code>", *lines, "</code>"])


SCRIPT = (
    code(answers.PLANNER, 'print(measure_beds(garden="school"))'),
    code("The critic shall read it.", 'print(critic(task="Find what the plan lacks."))'),
    [answers.call("final_answer", answer=answers.CRITIC)],
    code("The plan is done.", f'final_answer("{answers.PLANNER_AGAIN}")'),
)

with answers.server(*SCRIPT) as url:
    model = OpenAIModel("gpt-5", api_base=f"{url}/v1", api_key="none")
    quiet = LogLevel.OFF
    critic = ToolCallingAgent([], model, name="critic", description="Finds gaps.", verbosity_level=quiet)
    planner = CodeAgent([measure_beds], model, name="planner", managed_agents=[critic], verbosity_level=quiet)
    for agent, system in ((planner, answers.PLANNER_SYSTEM), (critic, answers.CRITIC_SYSTEM)):
        agent.prompt_templates = PromptTemplates(**{**agent.prompt_templates, "system_prompt": system})
    planner.run(answers.USER)

answers.write("smolagents_code_steps.json", planner.memory.get_succinct_steps())
