"""AutoGen's AgentChat: the result and the state of a round robin, the result and the stream of a swarm."""

# requires: autogen-agentchat==0.7.5 autogen-ext[openai]==0.7.5

from __future__ import annotations

import asyncio
from typing import Any

import answers
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat, Swarm
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True
)


async def measure_beds(garden: str) -> str:
    """Measure the beds."""
    return answers.TOOL_RESULT


def team(url: str, *, handoffs: bool, reflect: bool = True, **common: Any) -> list[AssistantAgent]:
    def agent(name: str, system: str, other: str, **settings: Any) -> AssistantAgent:
        client = OpenAIChatCompletionClient(
            model="gpt-5", base_url=f"{url}/v1", api_key="none", model_info=INFO
        )
        if handoffs:
            settings["handoffs"] = [other]
        return AssistantAgent(name, client, system_message=system, **common, **settings)

    # A reflection after the tool makes the text.
    planner = agent(
        "planner", answers.PLANNER_SYSTEM, "critic", tools=[measure_beds], reflect_on_tool_use=reflect
    )
    return [planner, agent("critic", answers.CRITIC_SYSTEM, "planner")]


async def round_robin() -> None:
    script = (
        [answers.call("measure_beds", garden="school")],
        answers.PLANNER,
        answers.CRITIC,
        answers.PLANNER_AGAIN,
    )
    with answers.server(*script) as url:
        group = RoundRobinGroupChat(
            team(url, handoffs=False), termination_condition=TextMentionTermination("Saturday")
        )
        result = await group.run(task=answers.USER)
        answers.write("autogen_task_result.json", result.model_dump(mode="json"))
        answers.write("autogen_state.json", await group.save_state())


async def swarm() -> None:
    script = (
        [answers.PLANNER, answers.call("transfer_to_critic")],
        [answers.CRITIC, answers.call("transfer_to_planner")],
        answers.PLANNER_AGAIN,
    )
    with answers.server(*script) as url:
        group = Swarm(team(url, handoffs=True), termination_condition=TextMentionTermination("Saturday"))
        lines = []
        async for message in group.run_stream(task=answers.USER):
            lines.append(message.model_dump(mode="json"))
        answers.write("autogen_swarm_stream.jsonl", lines[:-1])
        answers.write("autogen_swarm_result.json", lines[-1])


async def stream() -> None:
    """Record the pieces of streamed texts too, and the result of a tool as the planner's message."""
    measure = [answers.call("measure_beds", garden="school")]
    with answers.server(measure, answers.CRITIC, answers.PLANNER_AGAIN) as url:
        planner, critic = team(url, handoffs=False, reflect=False, model_client_stream=True)
        group = RoundRobinGroupChat(
            [planner, critic], termination_condition=TextMentionTermination("Saturday")
        )
        task = [
            TextMessage(source="user", content=answers.USER),
            TextMessage(source="planner", content=answers.PLANNER),
        ]
        lines = [message.model_dump(mode="json") async for message in group.run_stream(task=task)]
    answers.write("autogen_stream.jsonl", lines)


asyncio.run(round_robin())
asyncio.run(swarm())
asyncio.run(stream())
