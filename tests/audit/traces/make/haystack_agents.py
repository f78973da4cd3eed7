"""Haystack: the messages of an agent that calls another as a tool, and of two agents with names."""

# requires: haystack-ai==3.4.1

from __future__ import annotations

import os
from typing import Annotated, Any

os.environ |= {"HAYSTACK_TELEMETRY_ENABLED": "False", "OPENAI_API_KEY": "none"}

import answers
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import AgentTool, tool

QUESTION = {"role": "user", "content": [{"text": answers.PLANNER}]}


@tool
def measure_beds(garden: Annotated[str, "The garden."]) -> str:
    """Measure the beds."""
    return answers.TOOL_RESULT


def agent(url: str, system: str, **settings: Any) -> Agent:
    generator = OpenAIChatGenerator(model="gpt-5", api_base_url=f"{url}/v1")
    return Agent(chat_generator=generator, system_prompt=system, **settings)


def agent_as_tool() -> list[Any]:
    script = (
        [answers.call("measure_beds", garden="school")],
        [answers.PLANNER, answers.call("critic", messages=[QUESTION])],
        answers.CRITIC,
        answers.PLANNER_AGAIN,
    )
    with answers.server(*script) as url:
        critic = agent(url, answers.CRITIC_SYSTEM)
        called = AgentTool(agent=critic, name="critic", description="Finds what is missing.")
        planner = agent(url, answers.PLANNER_SYSTEM, tools=[measure_beds, called])
        result = planner.run(messages=[ChatMessage.from_user(answers.USER)])
    return [message.to_dict() for message in result["messages"]]


def named() -> list[Any]:
    with answers.server(answers.PLANNER, answers.CRITIC, answers.PLANNER_AGAIN) as url:
        systems = {"planner": answers.PLANNER_SYSTEM, "critic": answers.CRITIC_SYSTEM}
        messages = [ChatMessage.from_user(answers.USER)]
        for name in ("planner", "critic", "planner"):
            reply = agent(url, systems[name]).run(messages=messages)["last_message"]
            messages.append(ChatMessage.from_assistant(reply.text, name=name, meta=reply.meta))
    return [message.to_dict() for message in messages]


answers.write("haystack_messages.json", named())
answers.write("haystack_agent_tool.json", agent_as_tool())
