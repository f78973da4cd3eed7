"""AG2 1.x: the events of an agent that calls another one."""

# requires: ag2[openai]==1.2.1

from __future__ import annotations

import asyncio

import answers
from ag2 import Agent
from ag2.config import OpenAIConfig
from ag2.events._serialization import serialize_value


def measure_beds(garden: str) -> str:
    """Measure the beds."""
    return answers.TOOL_RESULT


def config(url: str) -> OpenAIConfig:
    return OpenAIConfig(model="gpt-5", base_url=f"{url}/v1", api_key="none")


async def events() -> None:
    """Record the events of the caller's stream."""
    script = (
        [answers.call("measure_beds", garden="school")],
        [answers.PLANNER, answers.call("task_critic", objective=answers.PLANNER)],
        answers.CRITIC,
        answers.PLANNER_AGAIN,
    )
    with answers.server(*script) as url:
        critic = Agent("critic", answers.CRITIC_SYSTEM, config=config(url))
        called = critic.as_tool(description="Finds what is missing.")
        planner = Agent("planner", answers.PLANNER_SYSTEM, config=config(url), tools=[measure_beds, called])
        reply = await planner.ask(answers.USER)
        history = [serialize_value(event) for event in await reply.history.get_events()]
    answers.write("ag2_events.json", history)


asyncio.run(events())
