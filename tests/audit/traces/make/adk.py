"""Google ADK: the events of a session with a transfer, and the same session as an evaluation set."""
# requires: google-adk==2.13.0

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import answers
from google.adk.agents import LlmAgent
from google.adk.evaluation.eval_case import EvalCase, IntermediateData
from google.adk.evaluation.eval_set import EvalSet
from google.adk.evaluation.evaluation_generator import EvaluationGenerator
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types


class Scripted(BaseLlm):
    """A model that answers with its parts in turn."""

    script: list[Any]

    async def generate_content_async(
        self, request: Any, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        yield LlmResponse(content=types.Content(role="model", parts=self.script.pop(0)))


def text(value: str) -> types.Part:
    return types.Part(text=value)


def call(name: str, **arguments: Any) -> types.Part:
    return types.Part(function_call=types.FunctionCall(name=name, args=arguments))


def measure_beds(garden: str) -> dict[str, str]:
    """Measure the beds."""
    return {"result": answers.TOOL_RESULT}


async def main() -> None:
    critic_script = [[text(answers.CRITIC), call("transfer_to_agent", agent_name="planner")]]
    planner_script = [
        [call("measure_beds", garden="school")],
        [text(answers.PLANNER), call("transfer_to_agent", agent_name="critic")],
        [text(answers.PLANNER_AGAIN)],
    ]
    critic = LlmAgent(
        name="critic",
        description="Finds what is missing.",
        model=Scripted(model="scripted", script=critic_script),
        instruction=answers.CRITIC_SYSTEM,
    )
    planner = LlmAgent(
        name="planner",
        model=Scripted(model="scripted", script=planner_script),
        instruction=answers.PLANNER_SYSTEM,
        tools=[measure_beds],
        sub_agents=[critic],
    )
    runner = InMemoryRunner(planner, app_name="garden")
    session = await runner.session_service.create_session(
        app_name="garden", user_id="user", session_id="session"
    )
    message = types.Content(role="user", parts=[text(answers.USER)])
    async for _ in runner.run_async(user_id="user", session_id="session", new_message=message):
        pass
    session = await runner.session_service.get_session(
        app_name="garden", user_id="user", session_id="session"
    )
    answers.write("adk_session.json", session.model_dump(mode="json", by_alias=True, exclude_none=True))
    answers.write("adk_events.json", [event.model_dump(mode="json") for event in session.events])
    conversation = EvaluationGenerator.convert_events_to_eval_invocations(session.events)
    case = EvalCase(eval_id="garden", conversation=conversation)
    cases = EvalSet(eval_set_id="garden", eval_cases=[case])
    answers.write("adk_evalset.json", cases.model_dump(mode="json", exclude_none=True))
    # The form of older versions, which EvalCase still reads.
    responses = [("planner", [text(answers.PLANNER)]), ("critic", [text(answers.CRITIC)])]
    case.conversation[0].intermediate_data = IntermediateData(intermediate_responses=responses)
    answers.write("adk_evalset_responses.json", cases.model_dump(mode="json", exclude_none=True))


asyncio.run(main())
