"""A2A: a task, streamed events and messages of protocols 1.0 and 0.3, and a task of Google ADK's server."""

# requires: a2a-sdk[http-server]==1.3.0 google-adk==2.13.0 httpx==0.28.1

from __future__ import annotations

import asyncio
import json
from typing import Any

import answers
import httpx
from a2a.compat.v0_3 import types as old
from a2a.compat.v0_3.conversions import to_compat_message
from a2a.helpers import new_task_from_user_message, new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, Part, Role, TaskState
from google.adk.a2a.utils.agent_to_a2a import to_a2a
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.genai import types
from google.protobuf.json_format import MessageToDict
from starlette.applications import Starlette

URL = "http://garden.example/"
HEADERS = {"A2A-Version": "1.0"}


class Team(AgentExecutor):
    """Two agents in one server: it reports their messages while it works, and the plan as an artifact."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        for text in (answers.PLANNER, answers.CRITIC):
            message = updater.new_agent_message([Part(text=text)])
            await updater.update_status(TaskState.TASK_STATE_WORKING, message)
        first, second = answers.PLANNER_AGAIN[:30], answers.PLANNER_AGAIN[30:]
        await updater.add_artifact([Part(text=first)], artifact_id="plan-1", name="plan")
        await updater.add_artifact([Part(text=second)], artifact_id="plan-1", append=True, last_chunk=True)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


def team() -> Starlette:
    card = AgentCard(
        name="garden team",
        description="Plans gardens.",
        version="1",
        supported_interfaces=[AgentInterface(url=URL, protocol_binding="JSONRPC", protocol_version="1.0")],
        capabilities=AgentCapabilities(streaming=True),
    )
    handler = DefaultRequestHandler(agent_executor=Team(), task_store=InMemoryTaskStore(), agent_card=card)
    return Starlette(routes=create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True))


class Scripted(BaseLlm):
    """A model that answers with its parts in turn."""

    script: list[Any]

    async def generate_content_async(self, request: Any, stream: bool = False) -> Any:
        yield LlmResponse(content=types.Content(role="model", parts=self.script.pop(0)))


def measure_beds(garden: str) -> dict[str, str]:
    """Measure the beds."""
    return {"result": answers.TOOL_RESULT}


def adk_team() -> LlmAgent:
    def text(value: str) -> types.Part:
        return types.Part(text=value)

    def call(name: str, **arguments: Any) -> types.Part:
        return types.Part(function_call=types.FunctionCall(name=name, args=arguments))

    transfer = [call("transfer_to_agent", agent_name=name) for name in ("critic", "planner")]
    critic_script = [[text(answers.CRITIC), transfer[1]]]
    planner_script = [
        [call("measure_beds", garden="school")],
        [text(answers.PLANNER), transfer[0]],
        [text(answers.PLANNER_AGAIN)],
    ]
    critic = LlmAgent(
        name="critic",
        instruction=answers.CRITIC_SYSTEM,
        model=Scripted(model="scripted", script=critic_script),
    )
    return LlmAgent(
        name="planner",
        instruction=answers.PLANNER_SYSTEM,
        model=Scripted(model="scripted", script=planner_script),
        tools=[measure_beds],
        sub_agents=[critic],
    )


async def post(app: Starlette, body: dict[str, Any], headers: dict[str, str]) -> list[Any]:
    """Return the answer to a JSON-RPC request, or the events if it is a stream."""
    body = {"jsonrpc": "2.0", "id": 1, **body}
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url=URL, headers=headers) as client,
    ):
        text = (await client.post("/", json=body)).text
    if text.startswith("{"):
        return [json.loads(text)]
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


async def main() -> None:
    message = {"messageId": "msg-1", "role": "ROLE_USER", "parts": [{"text": answers.USER}]}
    older = {**message, "role": "user", "kind": "message", "parts": [{"kind": "text", "text": answers.USER}]}
    params, older_params = {"message": message}, {"message": older}
    [response] = await post(team(), {"method": "SendMessage", "params": params}, HEADERS)
    answers.write("a2a_response.json", response)
    answers.write("a2a_task.json", response["result"]["task"])
    events = await post(team(), {"method": "SendStreamingMessage", "params": params}, HEADERS)
    answers.write("a2a_stream.jsonl", events)
    [response] = await post(team(), {"method": "message/send", "params": older_params}, {})
    answers.write("a2a_v03_response.json", response)
    answers.write(
        "a2a_v03_stream.jsonl", await post(team(), {"method": "message/stream", "params": older_params}, {})
    )

    # The planner is the client of the critic's server, so its texts have the role of a user.
    user, agent = Role.ROLE_USER, Role.ROLE_AGENT
    texts = ((answers.PLANNER, user), (answers.CRITIC, agent), (answers.PLANNER_AGAIN, user))
    messages = [new_text_message(text, context_id="context-1", role=role) for text, role in texts]
    answers.write("a2a_messages.json", [MessageToDict(message) for message in messages])
    dumped = [to_compat_message(message).model_dump(mode="json", exclude_none=True) for message in messages]
    assert old.Message.model_validate(dumped[0])
    answers.write("a2a_v03_messages.json", dumped)

    for name, method in (("response.json", "SendMessage"), ("stream.jsonl", "SendStreamingMessage")):
        result = await post(to_a2a(adk_team()), {"method": method, "params": params}, HEADERS)
        answers.write(f"a2a_adk_{name}", result if name.endswith("l") else result[0])


asyncio.run(main())
