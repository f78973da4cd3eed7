"""Microsoft Agent Framework before version 1: responses and a thread, with roles as objects."""

# requires: agent-framework-core==1.0.0b251028 mcp==1.19.0 pydantic==2.11.10 websockets==17.4

from __future__ import annotations

import asyncio

import answers
from agent_framework import ChatAgent, ChatMessage, ChatMessageStore
from agent_framework.openai import OpenAIChatClient


def measure_beds(garden: str) -> str:
    """Measure the beds."""
    return answers.TOOL_RESULT


async def main() -> None:
    script = (
        [answers.call("measure_beds", garden="school")],
        answers.PLANNER,
        answers.CRITIC,
        answers.PLANNER_AGAIN,
    )
    with answers.server(*script) as url:
        client = OpenAIChatClient(model_id="gpt-5", base_url=f"{url}/v1", api_key="none")
        planner = ChatAgent(client, answers.PLANNER_SYSTEM, name="planner", tools=[measure_beds])
        critic = ChatAgent(client, answers.CRITIC_SYSTEM, name="critic")
        thread = planner.get_new_thread(message_store=ChatMessageStore())
        first = await planner.run(answers.USER, thread=thread)
        second = await critic.run([ChatMessage(role="user", text=answers.USER), *first.messages])
        third = await planner.run(second.messages, thread=thread)
    responses = [response.to_dict() for response in (first, second, third)]
    answers.write("agent_framework_older_responses.json", responses)
    answers.write("agent_framework_older_thread.json", await thread.serialize())


asyncio.run(main())
