"""Audits as tools of agents, over the Model Context Protocol: `audit` and `check`.

A caller learns what the mark in a text says, and no key. Tools read only the texts in a call: no argument is
a path or an address.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import pydantic
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from iet import __version__
from iet.audit.auditor import Auditor
from iet.errors import IetError, InputError
from iet.report import Report
from iet.report.wording import verdict

MAX_CHARACTERS = 1 << 20
"""Maximum length of all texts of a call together."""

MAX_SEGMENTS = 200
"""Maximum number of segments in an answer, which lists the first ones."""

INSTRUCTIONS = (
    "Tells which agent of a team wrote a text, by the mark that each agent's key leaves in it. `audit` finds"
    " who wrote which part of one text. `check` tells for each message whether the agent that it is said to"
    ' be of wrote it. "unattributed" and "open" mean that nothing was found, not that somebody else wrote it.'
)


class Claimed(pydantic.BaseModel):
    """One message of a conversation."""

    text: str
    agent: str | None = pydantic.Field(None, description="Who is said to have written it; null: nobody is.")
    skip: bool = pydantic.Field(
        False, description="True for text that no agent wrote, such as a user's or a tool's: context only."
    )


def server(auditor: Auditor) -> MCPServer[Any]:
    """Return a server whose tools audit texts. A text that cannot be read fails only its call.

    Args:
        auditor: audits the texts, at its level.
    """
    tools: MCPServer[Any] = MCPServer(
        "iet", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING"
    )
    agents = ", ".join(auditor.agents[:100])

    def audit(
        text: Annotated[str, pydantic.Field(description="The whole text, unchanged.")],
    ) -> dict[str, Any]:
        return _answer([text], lambda: _summary(auditor.audit(text)))

    def check(messages: list[Claimed]) -> dict[str, Any]:
        texts = [message.text for message in messages]
        skip = [d for d, message in enumerate(messages) if message.skip]

        def checked() -> dict[str, Any]:
            report = auditor.check(texts, [message.agent for message in messages], skip=skip)
            return {"answer": report.headline, "meanings": report.legend(), **report.to_dict()}

        return _answer(texts, checked)

    tools.add_tool(
        audit,
        description="Find which agent wrote which part of a text. Returns the agents found with p-values, and"
        f" segments with characters [start, end). Agents that are known: {agents}",
        structured_output=True,
    )
    tools.add_tool(
        check,
        description="Tell for each message of a conversation, in the order of writing, whether the agent that"
        " it is said to be of wrote it: confirmed, contradicted (then by whom), named, open, or under an"
        f" unknown name. Agents that are known: {agents}",
        structured_output=True,
    )
    return tools


def _answer(texts: list[str], audit: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    size = sum(map(len, texts))
    try:
        if size > MAX_CHARACTERS:
            raise InputError(f"got {size:,} characters, expected at most {MAX_CHARACTERS:,} in a call")
        return dict(json.loads(json.dumps(audit())))
    except IetError as error:
        raise ToolError(str(error)) from None


def _summary(report: Report) -> dict[str, Any]:
    """Return the part of a report that an agent needs, without curves and texts."""
    segments = [report.redact_guesses(segment) for segment in report.segments if not segment.left_out]
    return {
        "answer": verdict(report),
        "level": report.level,
        "found": {name: report.evidence[name] for name in report.found},
        "log_p": report.log_p,
        "coverage": report.coverage,
        "segments": [
            {
                "start": segment.char_start,
                "end": segment.char_end,
                "agent": segment.agent,
                "error": segment.error,
                "share": segment.share,
                "quoted": segment.quoted,
            }
            for segment in segments[:MAX_SEGMENTS]
        ],
        "segments_in_all": len(segments),
    }
