"""Claude Code: transcripts of sessions with subagents, and the messages of the Claude Agent SDK for them.

Claude Code writes no description of its transcripts. The lines follow what readers of them document and test:
https://github.com/daaain/claude-code-log, test/test_data and dev-docs/teammates.md (MIT). It also runs
the SDK's own reader of sessions over the transcripts.
"""

# requires: claude-agent-sdk==0.2.189

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import tempfile
import uuid
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import answers

SESSION = "55550000-0000-4000-8000-000000000001"
MODEL = "claude-sonnet-5"
CWD = "/garden"


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


class Transcript:
    """Lines of one chain: each one's parent is the line before it."""

    def __init__(self, label: str, version: str = "2.1.173", **fields: Any) -> None:
        self.label, self.fields = label, fields
        self.version, self.lines = version, list[dict[str, Any]]()

    def _add(self, kind: str, message: dict[str, Any], **fields: Any) -> None:
        number = len(self.lines)
        line: dict[str, Any] = {
            "parentUuid": self.lines[-1]["uuid"] if self.lines else None,
            "isSidechain": False,
        }
        line |= {
            "userType": "external",
            "cwd": CWD,
            "sessionId": SESSION,
            "version": self.version,
            "gitBranch": "",
        }
        identifier = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.label}-{number}"))
        stamp = f"2026-01-01T00:00:{number:02}.000Z"
        line |= {
            "type": kind,
            "message": message,
            "uuid": identifier,
            "timestamp": stamp,
            **self.fields,
            **fields,
        }
        self.lines.append(line)

    def user(self, content: Any, **fields: Any) -> None:
        self._add("user", {"role": "user", "content": content}, **fields)

    def assistant(self, *content: dict[str, Any]) -> None:
        """Write a line for each block, as Claude Code does: the lines of an answer share message.id."""
        identifier = f"msg_{self.label}_{len(self.lines)}"
        usage = {"input_tokens": 20, "output_tokens": 12}
        reason = "tool_use" if content[-1]["type"] == "tool_use" else "end_turn"
        for block in content:
            message = {
                "id": identifier,
                "type": "message",
                "role": "assistant",
                "model": MODEL,
                "content": [block],
            }
            self._add(
                "assistant",
                {**message, "stop_reason": reason, "stop_sequence": None, "usage": usage},
                requestId=f"req_{identifier}",
            )

    def result(self, call: str, content: Any, detail: Any) -> None:
        block = {"tool_use_id": call, "type": "tool_result", "content": content}
        self.user([block], toolUseResult=detail)


def spawn(call: str, agent: str, prompt: str, tool: str = "Agent", **more: Any) -> dict[str, Any]:
    arguments = {"description": f"Ask the {agent}", "subagent_type": agent, "prompt": prompt, **more}
    return {"type": "tool_use", "id": call, "name": tool, "input": arguments}


def measure(transcript: Transcript) -> None:
    call = {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "mcp__garden__measure_beds",
        "input": {"garden": "school"},
    }
    transcript.assistant(call)
    transcript.result("toolu_1", [text(answers.TOOL_RESULT)], [text(answers.TOOL_RESULT)])


def finish(transcript: Transcript, call: str, agent_id: str, prompt: str, answer: str) -> None:
    """Write the result of a subagent's call: the subagent's last text, and a tail with its id."""
    tail = f"agentId: {agent_id} (use SendMessage with to: '{agent_id}' to continue this agent)"
    detail = {"status": "completed", "prompt": prompt, "agentId": agent_id, "content": [text(answer)]}
    detail |= {"totalDurationMs": 4200, "totalTokens": 32, "totalToolUseCount": 0}
    transcript.result(call, [text(answer), text(tail)], detail)


def inline() -> list[Any]:
    """Return a session of older versions, with the sidechain in the same file and no id of an agent."""
    prompt = "Find what the plan lacks."
    main = Transcript("inline", "1.0.80")
    main.user(answers.USER)
    measure(main)
    main.assistant(text(answers.PLANNER), spawn("toolu_2", "critic", prompt, tool="Task"))
    side = Transcript("inline-side", "1.0.80", isSidechain=True)
    side.user(prompt)
    side.assistant(text(answers.CRITIC))
    before = len(main.lines)
    main.result("toolu_2", [text(answers.CRITIC)], {"content": [text(answers.CRITIC)], "totalTokens": 32})
    main.assistant(text(answers.PLANNER_AGAIN))
    summary = {"type": "summary", "summary": "A garden with a pump", "leafUuid": main.lines[-1]["uuid"]}
    return [*main.lines[:before], *side.lines, *main.lines[before:], summary]


def session() -> list[Any]:
    """Return the session of the planner, whose subagent has a transcript of its own that is not here."""
    prompt = "Find what the plan lacks."
    main = Transcript("main")
    main.user(answers.USER)
    measure(main)
    main.assistant(text(answers.PLANNER), spawn("toolu_2", "critic", prompt))
    finish(main, "toolu_2", "a1b2c3d", prompt, answers.CRITIC)
    main.assistant(text(answers.PLANNER_AGAIN))
    return main.lines


def subagents() -> dict[str, list[Any]]:
    """Return the transcripts of a session and of the three subagents that it runs, by the subagent's id."""
    turns = (
        ("planner", answers.USER, answers.PLANNER),
        ("critic", "Find what the plan lacks.", answers.CRITIC),
        ("planner", "Write the plan again.", answers.PLANNER_AGAIN),
    )
    main = Transcript("lead")
    main.user("Let the planner and the critic plan the school garden.")
    files: dict[str, list[Any]] = {"": main.lines}
    for number, (agent, prompt, answer) in enumerate(turns):
        agent_id = f"a{number}b2c3d"
        side = Transcript(agent_id, isSidechain=True, agentId=agent_id)
        side.user(prompt)
        if number == 0:
            measure(side)
        side.assistant(text(answer))
        files[agent_id] = side.lines
        main.assistant(spawn(f"toolu_lead_{number}", agent, prompt))
        finish(main, f"toolu_lead_{number}", agent_id, prompt, answer)
    main.assistant(text("The plan is done."))
    return files


def teammates() -> list[Any]:
    """Return the session of a lead that plans itself, and that the critic of its team sends a message."""
    lead = Transcript("team", teamName="garden")
    lead.user(answers.USER)
    prompt = "Find what the plan lacks."
    lead.assistant(
        text(answers.PLANNER), spawn("toolu_t", "general-purpose", prompt, team_name="garden", name="critic")
    )
    spawned = "Spawned successfully.\nagent_id: critic@garden\nname: critic\nteam_name: garden"
    detail = {"status": "teammate_spawned", "teammate_id": "critic@garden", "agent_id": "critic@garden"}
    lead.result("toolu_t", [text(spawned)], {**detail, "name": "critic", "team_name": "garden"})
    opening = '<teammate-message teammate_id="critic" color="blue" summary="Add the pump">'
    lead.user(f"{opening}\n{answers.CRITIC}\n</teammate-message>")
    lead.assistant(text(answers.PLANNER_AGAIN))
    return lead.lines


def stream() -> list[Any]:
    """Return the lines of `claude --print --output-format stream-json` for the session with one subagent."""
    started = {"type": "system", "subtype": "task_started", "task_id": "a1b2c3d", "tool_use_id": "toolu_2"}
    prompt = "Find what the plan lacks."
    lines: list[Any] = [{"type": "system", "subtype": "init", "cwd": CWD, "model": MODEL, "tools": ["Agent"]}]
    for line in session()[1:]:
        kept = {
            "type": line["type"],
            "message": line["message"],
            "parent_tool_use_id": None,
            "uuid": line["uuid"],
        }
        if "toolUseResult" in line:
            kept["tool_use_result"] = line["toolUseResult"]
        lines.append(kept)
    side = Transcript("stream-side")
    side.user([text(prompt)])
    side.assistant(text(answers.CRITIC))
    inner = [{"type": line["type"], "message": line["message"], "uuid": line["uuid"]} for line in side.lines]
    for line in inner:
        line |= {"parent_tool_use_id": "toolu_2"}
    inner[1] |= {"subagent_type": "critic", "task_description": "Ask the critic"}
    details = {"description": "Ask the critic", "subagent_type": "critic", "task_type": "local_agent"}
    position = next(i for i, line in enumerate(lines) if "toolu_2" in json.dumps(line)) + 1
    lines[position:position] = [{**started, **details, "uuid": str(uuid.UUID(int=1))}, *inner]
    ending = {"type": "result", "subtype": "success", "is_error": False, "result": answers.PLANNER_AGAIN}
    ending |= {"duration_ms": 9000, "duration_api_ms": 8000, "num_turns": 4, "total_cost_usd": 0.0}
    return [{**line, "session_id": SESSION} for line in [*lines, ending]]


async def sdk_messages(lines: list[Any]) -> list[Any]:
    """Return the messages that the SDK's query yields for the lines."""
    from claude_agent_sdk import Transport, query

    class Scripted(Transport):
        """Answer the request for initialization, then send the lines."""

        def __init__(self) -> None:
            self.requests: asyncio.Queue[Any] = asyncio.Queue()

        async def connect(self) -> None: ...

        async def write(self, data: str) -> None:
            await self.requests.put(json.loads(data))

        async def _read(self) -> AsyncIterator[dict[str, Any]]:
            request = await self.requests.get()
            response = {"subtype": "success", "request_id": request["request_id"], "response": {}}
            yield {"type": "control_response", "response": response}
            await self.requests.get()
            for line in lines:
                yield line

        def read_messages(self) -> AsyncIterator[dict[str, Any]]:
            return self._read()

        async def close(self) -> None: ...

        def is_ready(self) -> bool:
            return True

        async def end_input(self) -> None: ...

    messages = [message async for message in query(prompt=answers.USER, transport=Scripted())]
    return [{"message_type": type(message).__name__, **asdict(message)} for message in messages]


def read_back(files: dict[str, list[Any]]) -> list[Any]:
    """Return what the SDK reads from transcripts on disk, the session's messages first."""
    from claude_agent_sdk import get_session_messages, get_subagent_messages, list_subagents

    folder = pathlib.Path(tempfile.mkdtemp())
    os.environ["CLAUDE_CONFIG_DIR"] = str(folder)
    project = folder / "projects" / CWD.replace("/", "-")
    (project / SESSION / "subagents").mkdir(parents=True)
    for agent_id, lines in files.items():
        name = f"{SESSION}/subagents/agent-{agent_id}.jsonl" if agent_id else f"{SESSION}.jsonl"
        (project / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        if agent_id:
            calls = [json.dumps(line) for line in files[""] if agent_id in json.dumps(line)]
            [call] = {
                part["tool_use_id"] for line in map(json.loads, calls) for part in line["message"]["content"]
            }
            sidecar = {"agentType": "unused by the reader", "toolUseId": call}
            (project / name.replace(".jsonl", ".meta.json")).write_text(json.dumps(sidecar))
    messages = list(get_session_messages(SESSION))
    for agent_id in sorted(list_subagents(SESSION)):
        messages += get_subagent_messages(SESSION, agent_id)
    assert len(messages) == sum(map(len, files.values())), "the SDK's reader skips lines"
    return [asdict(message) for message in messages]


answers.write("claude_code_inline.jsonl", inline())
answers.write("claude_code_session.jsonl", session())
transcripts = subagents()
answers.write("claude_code_subagents.jsonl", [line for lines in transcripts.values() for line in lines])
answers.write("claude_code_teammates.jsonl", teammates())
answers.write("claude_code_stream.jsonl", stream())
answers.write("claude_agent_sdk_messages.json", asyncio.run(sdk_messages(stream())))
answers.write("claude_agent_sdk_session_messages.json", read_back(transcripts))
