"""Pydantic AI: the JSON of `all_messages()` of two agents, one after the other."""
# requires: pydantic-ai-slim==2.68.0

from __future__ import annotations

import json
from typing import Any

import answers
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel


def scripted(*script: Any) -> FunctionModel:
    parts = list(script)

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        part = parts.pop(0)
        return ModelResponse([TextPart(part) if isinstance(part, str) else ToolCallPart(**part)])

    return FunctionModel(answer, model_name="scripted")


def measure_beds(garden: str) -> str:
    """Measure the beds."""
    return answers.TOOL_RESULT


call = {"tool_name": "measure_beds", "args": {"garden": "school"}, "tool_call_id": "call_1"}
planner = Agent(
    scripted(call, answers.PLANNER, answers.PLANNER_AGAIN),
    name="planner",
    instructions=answers.PLANNER_SYSTEM,
    tools=[measure_beds],
)
critic = Agent(scripted(answers.CRITIC), name="critic", instructions=answers.CRITIC_SYSTEM)

result = planner.run_sync(answers.USER)
result = critic.run_sync("What is missing?", message_history=result.all_messages())
result = planner.run_sync("Finish the plan.", message_history=result.all_messages())
answers.write(
    "pydantic_ai_messages.json", json.loads(ModelMessagesTypeAdapter.dump_json(result.all_messages()))
)
