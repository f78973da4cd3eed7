"""LlamaIndex: the events of an AgentWorkflow with hand-offs and its chat history."""

# requires: llama-index-core==0.14.25 llama-index-llms-openai-like==0.8.1

from __future__ import annotations

import asyncio
from typing import Any

import answers
from llama_index.core.agent.workflow import (
    AgentOutput,
    AgentWorkflow,
    FunctionAgent,
    ToolCall,
    ToolCallResult,
)
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.llms.openai_like import OpenAILike

SCRIPT = (
    [answers.call("measure_beds", garden="school")],
    [answers.PLANNER, answers.call("handoff", to_agent="critic", reason="review")],
    [answers.CRITIC, answers.call("handoff", to_agent="planner", reason="again")],
    answers.PLANNER_AGAIN,
)


def measure_beds(garden: str) -> str:
    """Measure the beds."""
    return answers.TOOL_RESULT


async def main() -> None:
    with answers.server(*SCRIPT) as url:
        llm = OpenAILike(
            model="gpt-5",
            api_base=f"{url}/v1",
            api_key="none",
            is_chat_model=True,
            is_function_calling_model=True,
            context_window=8000,
        )

        def agent(name: str, system: str, **settings: Any) -> FunctionAgent:
            return FunctionAgent(
                name=name, description=name, system_prompt=system, llm=llm, streaming=False, **settings
            )

        planner = agent("planner", answers.PLANNER_SYSTEM, tools=[measure_beds], can_handoff_to=["critic"])
        critic = agent("critic", answers.CRITIC_SYSTEM, can_handoff_to=["planner"])
        workflow = AgentWorkflow(agents=[planner, critic], root_agent="planner")
        memory = ChatMemoryBuffer.from_defaults(token_limit=8000)
        handler = workflow.run(user_msg=answers.USER, memory=memory)
        events = []
        async for event in handler.stream_events():
            if isinstance(event, (AgentOutput, ToolCall, ToolCallResult)):
                events.append({"type": type(event).__name__, **event.model_dump(mode="json")})
        await handler
    answers.write("llama_index_events.jsonl", events)
    history = [message.model_dump(mode="json") for message in memory.get_all()]
    answers.write("llama_index_memory.json", history)


asyncio.run(main())
