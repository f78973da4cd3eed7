"""Semantic Kernel: the histories of a group chat, of an agent's thread, and of an orchestration."""

# requires: semantic-kernel==1.45.0

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import answers
from openai import AsyncOpenAI
from semantic_kernel.agents import (
    AgentGroupChat,
    ChatCompletionAgent,
    ChatHistoryAgentThread,
    HandoffOrchestration,
    OrchestrationHandoffs,
)
from semantic_kernel.agents.runtime import InProcessRuntime
from semantic_kernel.agents.strategies import DefaultTerminationStrategy
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.contents import ChatHistory, ChatMessageContent
from semantic_kernel.functions import KernelPlugin, kernel_function


class Beds:
    @kernel_function(description="Measure the beds.")
    def measure_beds(self, garden: Annotated[str, "The garden."]) -> str:
        return answers.TOOL_RESULT


MEASURE = answers.call("beds-measure_beds", garden="school")


def team(url: str) -> tuple[ChatCompletionAgent, ChatCompletionAgent]:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")

    def agent(name: str, instructions: str, **settings: Any) -> ChatCompletionAgent:
        service = OpenAIChatCompletion(ai_model_id="gpt-5", async_client=client)
        return ChatCompletionAgent(
            name=name, description=name, instructions=instructions, service=service, **settings
        )

    planner = agent("planner", answers.PLANNER_SYSTEM, plugins=[KernelPlugin.from_object("beds", Beds())])
    return planner, agent("critic", answers.CRITIC_SYSTEM)


async def group_chat() -> None:
    script = [[MEASURE], answers.PLANNER, answers.CRITIC, answers.PLANNER_AGAIN]
    with answers.server(*script) as url:
        chat = AgentGroupChat(
            agents=list(team(url)), termination_strategy=DefaultTerminationStrategy(maximum_iterations=3)
        )
        await chat.add_chat_message(answers.USER)
        async for _ in chat.invoke():
            pass
        answers.write("semantic_kernel_group_chat.json", json.loads(chat.history.serialize()))
        answers.write("semantic_kernel_messages.json", [message.to_dict() for message in chat.history])


async def thread() -> None:
    script = [[MEASURE], answers.PLANNER, answers.CRITIC, answers.PLANNER_AGAIN]
    with answers.server(*script) as url:
        planner, critic = team(url)
        history = ChatHistory(system_message=answers.PLANNER_SYSTEM)
        shared = ChatHistoryAgentThread(chat_history=history, thread_id="thread")
        await planner.get_response(messages=answers.USER, thread=shared)
        await critic.get_response(thread=shared)
        await planner.get_response(thread=shared)
        answers.write("semantic_kernel_thread.json", json.loads(history.model_dump_json(exclude_none=True)))


async def handoffs() -> None:
    script = [
        [MEASURE],
        [answers.PLANNER, answers.call("Handoff-transfer_to_critic")],
        [answers.CRITIC, answers.call("Handoff-transfer_to_planner")],
        answers.PLANNER_AGAIN,
        [answers.call("Handoff-complete_task", task_summary="The pump is on the list.")],
    ]
    messages: list[ChatMessageContent] = []
    with answers.server(*script) as url:
        planner, critic = team(url)
        orchestration = HandoffOrchestration(
            members=[planner, critic],
            handoffs=OrchestrationHandoffs().add(planner, critic).add(critic, planner),
            agent_response_callback=messages.append,
        )
        runtime = InProcessRuntime()
        runtime.start()
        result = await orchestration.invoke(task=answers.USER, runtime=runtime)
        await result.get(timeout=20)
        await runtime.stop_when_idle()
    history = ChatHistory(messages=messages)
    answers.write("semantic_kernel_handoffs.json", json.loads(history.model_dump_json(exclude_none=True)))


asyncio.run(group_chat())
asyncio.run(thread())
asyncio.run(handoffs())
