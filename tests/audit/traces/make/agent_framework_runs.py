"""Microsoft Agent Framework: messages, responses, a session, and the events of workflows with two agents."""

# requires: agent-framework-core==1.23.0 agent-framework-openai==1.17.0 agent-framework-orchestrations==1.4.0

from __future__ import annotations

import asyncio
from typing import Any

import answers
from agent_framework import Agent, InMemoryHistoryProvider
from agent_framework.openai import OpenAIChatCompletionClient
from agent_framework.orchestrations import HandoffBuilder


def measure_beds(garden: str) -> str:
    """Measure the beds."""
    return answers.TOOL_RESULT


def team(url: str, **settings: Any) -> list[Agent]:
    client = OpenAIChatCompletionClient(model="gpt-5", base_url=f"{url}/v1", api_key="none")
    return [
        Agent(client, answers.PLANNER_SYSTEM, name="planner", tools=[measure_beds], **settings),
        Agent(client, answers.CRITIC_SYSTEM, name="critic", **settings),
    ]


async def turns() -> None:
    """Let the agents speak in turn and share the list of messages."""
    script = (
        [answers.call("measure_beds", garden="school")],
        answers.PLANNER,
        answers.CRITIC,
        answers.PLANNER_AGAIN,
    )
    with answers.server(*script) as url:
        planner, critic = team(url)
        planner.context_providers.append(InMemoryHistoryProvider())
        session = planner.create_session(session_id="session")
        first = await planner.run(answers.USER, session=session)
        second = await critic.run(first.messages)
        third = await planner.run(second.messages, session=session)
    responses = [first, second, third]
    answers.write("agent_framework_responses.json", [response.to_dict() for response in responses])
    messages = [message.to_dict() for response in responses for message in response.messages]
    answers.write("agent_framework_messages.json", messages)
    answers.write("agent_framework_session.json", session.to_dict())


async def events(workflow: Any) -> list[Any]:
    """Return the fields of outputs and hand-offs, because events have no JSON form of their own."""
    result = []
    async for event in workflow.run(answers.USER, stream=True):
        data = event.data
        if event.type == "handoff_sent":
            data = {"source": data.source, "target": data.target}
        elif event.type == "output":
            data = data.to_dict()
        else:
            continue
        result.append({"type": event.type, "executor_id": event.executor_id, "data": data})
    return result


async def handoff() -> None:
    script = (
        [answers.call("measure_beds", garden="school")],
        [answers.PLANNER, answers.call("handoff_to_critic")],
        [answers.CRITIC, answers.call("handoff_to_planner")],
        answers.PLANNER_AGAIN,
    )
    for stream in (True, False):
        with answers.server(*script) as url:
            agents = team(url, require_per_service_call_history_persistence=True)
            builder = HandoffBuilder(participants=agents).with_start_agent(agents[0])
            workflow = builder.build()
            if stream:
                answers.write("agent_framework_handoff_events.jsonl", await events(workflow))
                continue
            result = await workflow.run(answers.USER)
        outputs = [output.to_dict() for output in result.get_outputs()]
        answers.write("agent_framework_handoff_outputs.json", outputs)


asyncio.run(turns())
asyncio.run(handoff())
