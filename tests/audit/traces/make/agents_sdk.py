"""OpenAI Agents SDK: the input list, and the state, of a run with two hand-offs."""
# requires: openai-agents==0.24.0

from __future__ import annotations

from typing import Any

import answers
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)
SCRIPT = (
    [answers.call("measure_beds", garden="school")],
    [answers.PLANNER, answers.call("transfer_to_critic")],
    [answers.CRITIC, answers.call("transfer_to_planner")],
    answers.PLANNER_AGAIN,
)


@function_tool
def measure_beds(garden: str) -> str:
    """Measure the beds."""
    return answers.TOOL_RESULT


def run(kind: Any, *, nested: bool = False) -> Any:
    with answers.server(*SCRIPT) as url:
        model = kind("gpt-5", AsyncOpenAI(base_url=f"{url}/v1", api_key="none"))
        critic: Agent = Agent(name="critic", instructions=answers.CRITIC_SYSTEM, model=model)
        planner: Agent = Agent(name="planner", instructions=answers.PLANNER_SYSTEM, model=model)
        planner.tools, planner.handoffs, critic.handoffs = [measure_beds], [critic], [planner]
        return Runner.run_sync(planner, answers.USER, run_config=RunConfig(nest_handoff_history=nested))


result = run(OpenAIResponsesModel)
answers.write("agents_sdk_input_list.json", result.to_input_list())
answers.write("agents_sdk_run_state.json", result.to_state().to_json())
answers.write("agents_sdk_input_list_completions.json", run(OpenAIChatCompletionsModel).to_input_list())
answers.write("agents_sdk_nested_history.json", run(OpenAIResponsesModel, nested=True).to_input_list())
