"""Whether an agent, a user, the system or a tool wrote a message, according to its role."""

from __future__ import annotations

from collections.abc import Collection

AGENT = "agent"
USER = "user message"
SYSTEM = "system message"
TOOL = "tool output"
INPUT = "input of a call"
NOTICE = "notice of the framework"
UNNAMED = "no role and no name"
CHUNK = "chunk of a stream"

_ROLES = {
    **dict.fromkeys(("assistant", "ai", "model", "agent", "bot", "chatbot"), AGENT),
    **dict.fromkeys(("user", "human", "user_proxy", "userproxy"), USER),
    **dict.fromkeys(("system", "developer"), SYSTEM),
    **dict.fromkeys(("tool", "function", "ipython", "tool_result", "tool_response"), TOOL),
    "functionexecutionresult": TOOL,
    CHUNK: CHUNK,
}

_AUTOGEN = {
    # The agent's own words.
    **dict.fromkeys(("TextMessage", "MultiModalMessage", "ThoughtEvent", "CodeGenerationEvent"), AGENT),
    # Messages in the context of a model, as a saved state has them.
    "AssistantMessage": AGENT,
    "UserMessage": USER,
    "SystemMessage": SYSTEM,
    # Text that another program wrote, under the agent's name.
    **dict.fromkeys(("ToolCallExecutionEvent", "ToolCallSummaryMessage"), TOOL),
    **dict.fromkeys(("CodeExecutionEvent", "MemoryQueryEvent"), TOOL),
    # Written by AutoGen's code or by a group's selector; tool requests contain no text.
    **dict.fromkeys(("HandoffMessage", "StopMessage", "ToolCallRequestEvent"), NOTICE),
    **dict.fromkeys(("UserInputRequestedEvent", "SelectSpeakerEvent", "SelectorEvent"), NOTICE),
    "ModelClientStreamingChunkEvent": CHUNK,  # the whole message follows it
}
"""Kinds of AutoGen's messages and events: autogen_agentchat.messages 0.7.5."""


def kind_of(role: str) -> str | None:
    """Return `AGENT`, `USER`, `SYSTEM` or `TOOL`; None for a role that no chat API knows.

    Roles of OpenAI, Anthropic, Gemini, Cohere, LangChain (`AIMessage`), A2A (`ROLE_AGENT`), in any case.
    """
    names = role.casefold().removeprefix("role_").removesuffix("chunk").removesuffix("message")
    return _ROLES.get(names)


def kind_of_event(event: str) -> str:
    """Return the kind of one of AutoGen's messages or events by its `type`, empty for none.

    The type is a name of `autogen_agentchat.messages`. A message of an unknown type is not judged, because
    anyone may have written it.
    """
    if not event or event.startswith("StructuredMessage"):
        return AGENT
    return _AUTOGEN.get(event, f"event of type {event!r:.60}")


def is_name(role: str, agents: Collection[str]) -> bool:
    """Tell whether a role is an agent's name, as in Who&When's logs; `assistant` and the like never are."""
    return role in agents and (kind_of(role) is None or not role.islower())
