"""Claude Code: transcripts of sessions and subagents, its JSON stream, and messages of the Claude Agent SDK.

The main agent has no name. A subagent's name is in the call of the tool that starts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from iet.audit.traces.content import field_of, text_of
from iet.audit.traces.messages import Message, read
from iet.audit.traces.pieces import Piece

_STARTS = ("Task", "Agent")
"""Tools that start a subagent."""

_TEAMMATE = re.compile(
    r'<teammate-message teammate_id="([^"]+)"[^>]*>\n?((?:(?!<teammate-message ).)*?)\n?</teammate-message>',
    re.DOTALL,
)

_NO_AGENTS = ("system", "team-lead")
"""Ids in messages of a team that are no agent's name."""

_DONE = "completed"
"""Status of a subagent that has answered."""

_NOTE = "agentId: "
"""First letters of the text that Claude Code adds to a subagent's answer."""


def is_of(item: Any) -> bool:
    """Tell whether a value is a line of a transcript or of a stream, or a message of the SDK."""
    if not isinstance(item, dict):
        return False
    if item.get("message_type") in ("AssistantMessage", "UserMessage"):
        return "content" in item
    is_line = "uuid" in item or "sessionId" in item or "session_id" in item
    return is_line and item.get("type") in ("user", "assistant") and isinstance(item.get("message"), dict)


def pieces(items: list[Any], agents: frozenset[str]) -> list[Piece]:
    """Return a piece for each text; the answer of a subagent also where its own lines are missing."""
    names = _Names(items)
    return read((message for item in items for message in _messages(item, names)), agents)


class _Names:
    """Names of subagents: by the id of the call, by the agent's id, and by the prompt (older versions)."""

    def __init__(self, items: list[Any]) -> None:
        self.by_call, self.by_agent = dict[str, str](), dict[str, str]()
        self.by_prompt = dict[str, str | None]()  # None: several subagents had this prompt
        self.lines, self.firsts = dict[str, Any](), dict[str, Any]()
        for item in items:
            for block in _blocks(item):
                values = block.get("input")
                if block.get("name") in _STARTS and isinstance(values, dict):
                    name = values.get("name") or values.get("subagent_type")
                    if isinstance(name, str):
                        self.by_call[str(block.get("id"))] = name
                        prompt = str(values.get("prompt"))
                        self.by_prompt[prompt] = name if self.by_prompt.get(prompt, name) == name else None
                result = field_of(item, "tool_use_result")
                agent = result.get("agentId") if isinstance(result, dict) else None
                caller = self.by_call.get(str(block.get("tool_use_id")))
                if isinstance(agent, str) and caller is not None:
                    self.by_agent[agent] = caller
            if isinstance(item.get("uuid"), str):
                self.lines[item["uuid"]] = item

    def of(self, item: Mapping[str, Any]) -> str | None:
        """Return the subagent that wrote a line; None: the main agent, or unknown."""
        if isinstance(item.get("subagent_type"), str):
            return str(item["subagent_type"])
        if item.get("parent_tool_use_id") is not None:
            return self.by_call.get(str(item["parent_tool_use_id"]))
        if isinstance(item.get("agentId"), str):
            return self.by_agent.get(item["agentId"])
        if item.get("isSidechain") is not True:
            return None
        return self.by_prompt.get(text_of(_content(self._first(item))))

    def _first(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the first line of a subagent, which has its prompt."""
        path = list[str]()
        while (above := self.lines.get(str(item.get("parentUuid")))) is not None:
            uuid = str(item.get("uuid"))
            if above.get("isSidechain") is not True or uuid in path[-1:] or len(path) > len(self.lines):
                break
            if uuid in self.firsts:
                item = self.firsts[uuid]
                break
            path.append(uuid)
            item = above
        self.firsts |= dict.fromkeys(path, item)
        return item


def _content(item: Mapping[str, Any]) -> Any:
    return item["content"] if "message_type" in item else item["message"].get("content")


def _blocks(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = _content(item)
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _messages(item: dict[str, Any], names: _Names) -> Iterator[Message]:
    content, blocks = _content(item), _blocks(item)
    if item.get("type") == "assistant" or item.get("message_type") == "AssistantMessage":
        texts = [block for block in blocks if "text" in block] if blocks else content
        yield Message({"role": "assistant", "content": texts}, names.of(item))
        return
    results = [block for block in blocks if "tool_use_id" in block]
    for block in results:
        name, result = names.by_call.get(str(block["tool_use_id"])), block.get("content")
        parts = result if isinstance(result, list) else [{"text": result}]
        texts = [part for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
        summary = field_of(item, "tool_use_result")
        status = summary.get("status", _DONE) if isinstance(summary, dict) else _DONE
        if name is None or block.get("is_error") is True or status != _DONE:
            yield Message({"role": "tool", "content": texts})
            continue
        answer = [
            part for part in texts if not part["text"].startswith(_NOTE) and "agent_id: " not in part["text"]
        ]
        yield Message({"role": "assistant", "content": answer}, name)
    text = text_of(content) if not results else ""
    for match in _TEAMMATE.finditer(text):
        if match[1] not in _NO_AGENTS:
            yield Message({"role": "assistant", "content": match[2]}, match[1])
    yield Message({"role": "user", "content": _TEAMMATE.sub("", text)})
