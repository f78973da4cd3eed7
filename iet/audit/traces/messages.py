"""Chat messages of OpenAI's API, LangChain, LangGraph, AutoGen and A2A, and logs whose roles are names."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from iet.audit.traces import roles
from iet.audit.traces.content import all_text_of, decoded, is_message, parsed, text_of
from iet.audit.traces.pieces import NO_TEXT, Piece, Transfer

_HAND_OVER = re.compile(r"(?:Handoff-)?(?:transfer|hand_?off)(?:_back)?_to_(?!agent$)(.+)", re.IGNORECASE)
"""Names of tools that hand over to an agent: Agents SDK, LangGraph, AutoGen, AG2, Semantic Kernel."""

_SUMMARY = "For context, here is the conversation so far between the user and the previous agent:"
"""First words of a message in which the Agents SDK repeats the conversation before a hand-over."""


class Message(NamedTuple):
    """A message, or an item in place of one, as a format finds it.

    Attributes:
        value: the message as a chat API has it; anything else is counted.
        claim: the agent that the record names for it, unless the message has a name of its own.
        transfer: the hand-over that the record states here.
        part_of: id of the message that this is one of several parts of.
        is_whole: whether it replaces the earlier parts.
    """

    value: Any
    claim: str | None = None
    transfer: Transfer | None = None
    part_of: str | None = None
    is_whole: bool = False


def is_of(item: Any) -> bool:
    """Tell whether a value is a message."""
    message = _flat(item)
    fields = (*_CONTENT, "tool_calls", "tool_responses", "type", "source")
    return _role(message) is not None and any(field in message for field in fields)


def is_question(item: Any) -> bool:
    """Tell whether a value is a message of a user without a name."""
    message = _flat(item)
    return roles.kind_of(_role(message) or "") == roles.USER and not message.get("name")


def pieces(lists: Iterable[Iterable[Any]], agents: frozenset[str]) -> list[Piece]:
    """Return a piece for each message of each list, with an empty text for one that has none."""
    read_lists = (read((Message(item, part_of=whole_of(item)) for item in items), agents) for items in lists)
    return [piece for inner in read_lists for piece in inner]


def whole_of(item: Any) -> str | None:
    """Return the id of the whole message, if a stream's item is a part of one."""
    message = _flat(item)
    identity = message.get(_STREAMED.get(str(message.get("type")), ""))
    return identity if isinstance(identity, str) else None


_STREAMED = {"AIMessageChunk": "id", "agent_response_update": "message_id"}
"""Types of parts in streams of LangChain and Microsoft's Agent Framework -> field of the message's id."""


def read(messages: Iterable[Message], agents: frozenset[str]) -> list[Piece]:
    """Return a piece for each message of one conversation.

    A call of a tool, its result and an event may state one hand-over, before the next agent writes. Once a
    result or an event confirms it, messages without a name are the new agent's, until a user writes. After
    such a result of a tool that is not known to hand over, they have no writer.
    """
    pieces, targets = list[Piece](), dict[str, str]()
    speaker: str | None = None  # the agent that wrote last or took over
    owner: str | None = None  # the agent of messages without a name
    last: int | None = None  # the last hand-over, until an agent writes
    for i, message in enumerate(_whole_messages(messages)):
        value = _flat(message.value)
        result = message.transfer or _stated(value, agents, targets)
        if _role(value) is None and result is None:
            kind = f"no message: {kind_of_item(message.value)}"
            pieces.append(Piece("", None, kind, f"message {i}"))
            continue
        piece = piece_of(value, agents, f"message {i}", message.claim or owner)
        if piece.skipped is None and piece.text:
            speaker, last = piece.claim, None
        is_sure = message.transfer is not None or _is_of_hand_over(value, result, agents, targets)
        for identity, _, _ in _calls_in(value):
            targets.pop(identity, None)  # some records use an id again
        transfer = result or next(transfers_in(value, None, agents), None)
        if transfer is not None:
            if transfer.id is not None:
                targets[transfer.id] = transfer.target
            earlier = None if last is None else pieces[last].transfer
            if last is not None and earlier is not None and _is_same(transfer, earlier):
                stated = earlier._replace(target=transfer.target, source=transfer.source or earlier.source)
                pieces[last] = dataclasses.replace(pieces[last], transfer=stated)
            else:
                last = len(pieces)
                source = transfer.source or speaker
                piece = dataclasses.replace(piece, transfer=transfer._replace(source=source))
        if result is not None:
            speaker = owner = result.target if is_sure else None
        elif piece.skipped == roles.USER:  # a new turn may start with any agent
            owner = None
        pieces.append(piece)
    return pieces


def _is_same(transfer: Transfer, earlier: Transfer) -> bool:
    return transfer.target == earlier.target or (transfer.id is not None and transfer.id == earlier.id)


def _whole_messages(messages: Iterable[Message]) -> list[Message]:
    """Return messages whose parts are joined, each at the place of its first part."""
    joined, texts = list[Message](), dict[str, list[str]]()
    for message in messages:
        if message.part_of is None:
            joined.append(message)
            continue
        if message.part_of not in texts:
            joined.append(message)
        if message.is_whole:
            texts[message.part_of] = []
        texts.setdefault(message.part_of, []).append(text_of(_content(_flat(message.value))))
    return [
        message
        if message.part_of is None
        else message._replace(value={**_flat(message.value), "content": "".join(texts[message.part_of])})
        for message in joined
    ]


def _stated(
    message: Mapping[str, Any], agents: Collection[str], targets: Mapping[str, str]
) -> Transfer | None:
    """Return the hand-over that the result of a tool confirms, or a framework's event.

    The result of the Agents SDK is {"assistant": NAME}, that of Microsoft's Agent Framework
    {"handoff_to": NAME}. Other results begin with words like "Transferred to NAME".

    Args:
        message: the result or event.
        agents: names of agents.
        targets: id of a call that hands over -> the agent that it names.
    """
    if message.get("type") in _EVENTS and isinstance(message.get("target"), str):
        source = message.get("source")
        return Transfer(source if isinstance(source, str) else None, message["target"])
    if roles.kind_of(_role(message) or "") != roles.TOOL:
        return None
    extra = message.get("additional_kwargs")
    ids = [
        holder.get(field) for holder in (message, extra) if isinstance(holder, dict) for field in _RESULT_IDS
    ]
    identity = next((value for value in ids if isinstance(value, str)), None)
    text = all_text_of(_content(message))
    output = parsed(text)
    if isinstance(output, dict) and list(output) in (["assistant"], ["handoff_to"]):
        name = next(iter(output.values()))
        return Transfer(None, name, identity) if isinstance(name, str) else None
    target = targets.get(identity or "") or _target(_tool(message), agents)
    if target is None or message.get("status") == "error":
        return None
    done = _DONE.match(text)
    if done is None or not _spelled(text[done.end() :]).startswith(_spelled(target)):
        return None
    return Transfer(None, target, identity)


_EVENTS = ("HandoffMessage", "handoff_sent")
"""Types of AutoGen's and Microsoft's events of a hand-over."""

_RESULT_IDS = ("tool_call_id", "call_id")

_DONE = re.compile(
    r"(?:successfully )?(?:transfer(?:red)?|hand(?:ed|ing)?[- ]?(?:off|over))(?: back)? to (?:agent )?"
    r"|agent ",
    re.IGNORECASE,
)
"""First words of the result of a hand-over, before the agent's name."""


def _spelled(name: str) -> str:
    return re.sub(r"\W", "_", name).casefold()


def transfers_in(value: Any, source: str | None, agents: Collection[str]) -> Iterator[Transfer]:
    """Yield the hand-overs that a model's answer calls for, by the names of the tools that it calls."""
    for identity, name, call in _calls_in(_flat(value)):
        target: Any = _target(name, agents)
        if name in _HAND_OVER_TOOLS:
            values = (parsed(call.get(field)) for field in _ARGUMENTS)
            named = [
                value[field]
                for value in values
                if isinstance(value, dict)
                for field in _TARGETS
                if field in value
            ]
            target = next(iter(named), None)
        if isinstance(target, str):
            yield Transfer(source, target, identity or None)


def _calls_in(message: Mapping[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield id ("" without one), name and fields of each call of a tool in a message."""
    called = [message] if message.get("type") == "function_call" else []
    for field in ("tool_calls", *_CONTENT):
        values = decoded(message.get(field))
        called += (call for call in values if isinstance(call, dict)) if isinstance(values, list) else ()
    for outer in called:
        call = next(
            (outer[name] for name in ("function", "toolUse") if isinstance(outer.get(name), dict)), outer
        )
        identity = next(
            (holder[name] for name in _CALL_IDS for holder in (outer, call) if name in holder), ""
        )
        yield str(identity), _tool(call), dict(call)


def _tool(holder: Mapping[str, Any]) -> Any:
    """Return the name of the tool that is called, or whose result this is."""
    return holder.get("tool_name", holder.get("name"))


def _is_of_hand_over(
    message: Mapping[str, Any],
    result: Transfer | None,
    agents: Collection[str],
    targets: Mapping[str, str],
) -> bool:
    """Tell whether a hand-over is stated by an event or a tool that hands over, not by any other tool."""
    tool = _tool(message)
    return (
        message.get("type") in _EVENTS
        or (result is not None and result.id in targets)
        or tool in _HAND_OVER_TOOLS
        or _target(tool, agents) is not None
    )


_HAND_OVER_TOOLS = ("handoff", "handoff_to_agent", "transfer_to_agent")
"""Tools of LlamaIndex, Strands Agents and Google ADK that name the agent in an argument."""

_ARGUMENTS = ("arguments", "args", "input", "tool_kwargs")
_TARGETS = ("to_agent", "agent_name")
_CALL_IDS = ("call_id", "id", "toolUseId", "tool_call_id")


def _target(tool: Any, agents: Collection[str]) -> str | None:
    """Return the agent that a tool hands over to, by the tool's name.

    The frameworks replace spaces and capitals in the agent's name.
    """
    match = _HAND_OVER.fullmatch(tool) if isinstance(tool, str) else None
    if match is None:
        return None
    spelled = {_spelled(agent): agent for agent in agents}
    name = match[1].casefold()
    return spelled.get(name) or spelled.get(re.sub(r"_\d+$", "", name)) or match[1]


_CONTENT = ("content", "contents", "parts", "items", "blocks", "output", "result")
"""Fields that hold the content of a message or of a tool's result."""


def _content(message: Mapping[str, Any]) -> Any:
    return next((message[field] for field in _CONTENT if message.get(field) not in (None, "", [])), None)


def piece_of(value: Any, agents: Collection[str], origin: str, claim: str | None = None) -> Piece:
    """Return one message as a piece, under its own name or else under `claim`.

    Args:
        value: the message. Its role decides: a tool's output is no agent's text, whatever its name.
        agents: names of agents; they count also with the role of a user, or as a role.
        origin: its place in the record.
        claim: the agent whose call returned it.
    """
    message = _flat(value)
    role = _role(message) or ""
    name = message.get("name", message.get("author_name"))
    name = name if isinstance(name, str) and name else None
    kind = roles.kind_of(role)
    if "source" in message and not message.get("role"):  # AutoGen
        name = message["source"] if isinstance(message["source"], str) and message["source"] else name
        event = message.get("type")
        kind = roles.kind_of_event(event if isinstance(event, str) else "")
        if kind == roles.AGENT and name not in agents and roles.kind_of(name or "") == roles.USER:
            kind = roles.USER
    skipped: str | None = kind
    if kind in (None, roles.AGENT, roles.USER) and name in agents:
        # In the log of one agent, the messages of the others have the role of a user.
        skipped = None
    elif roles.is_name(role, agents):
        name, skipped = role, None
    elif kind == roles.AGENT or (kind is None and not role and (claim or name) is not None):
        skipped = None
    elif kind is None:
        skipped = f"role {role!r:.60}, which is no agent of the registry" if role else roles.UNNAMED
    elif kind == roles.USER and name is not None and roles.kind_of(name) != roles.USER:
        skipped = f"{kind} under the name {name!r:.60}"
    content = _content(message)
    if content == "None" and message.get("tool_calls"):  # AG2
        content = None
    content_text = text_of(content) if skipped is None else all_text_of(content)
    if skipped is None and name is None and claim is None and content_text.startswith(_SUMMARY):
        skipped = roles.NOTICE
    if not content_text.strip():
        return Piece("", None, NO_TEXT, origin)
    return Piece(content_text, (name or claim) if skipped is None else None, skipped, origin)


def output_of(value: Any, agents: Collection[str], origin: str, claim: str | None) -> Piece:
    """Return a message that a call returned as a piece; without a role it is the agent's."""
    message = _flat(value)
    return piece_of(message if _role(message) else {**message, "role": "assistant"}, agents, origin, claim)


def input_of(value: Any, agents: Collection[str], origin: str) -> Piece:
    """Return a message in the input of a call as a piece; it is judged only if it names an agent."""
    piece = piece_of(value, agents, origin)
    if piece.skipped == roles.UNNAMED or (piece.skipped is None and piece.claim not in agents):
        return Piece(piece.text, None, roles.INPUT, origin)
    return piece


def _flat(value: Any) -> dict[str, Any]:
    """Return the fields of a message, whatever it is wrapped in."""
    if not isinstance(value, dict):
        return {}
    if value.get("type") == "constructor" and isinstance(value.get("kwargs"), dict):  # langchain.load.dumpd
        identity = value.get("id")
        kind = identity[-1] if isinstance(identity, list) and identity else None
        return {"type": kind, **value["kwargs"]}
    if isinstance(value.get("data"), dict) and isinstance(value.get("type"), str):  # messages_to_dict
        return {**value["data"], "type": value["type"]}
    if isinstance(value.get("raw_item"), dict):  # an item of a run of the Agents SDK
        agent = value.get("agent")
        item, name = value["raw_item"], agent.get("name") if isinstance(agent, dict) else None
        return {**item, "tool_name": item.get("name"), "name": name}
    if isinstance(value.get("response"), dict) and "current_agent_name" in value:  # LlamaIndex's AgentOutput
        return {**_flat(value["response"]), "name": value["current_agent_name"]}
    message, role = dict(value), value.get("role")
    if isinstance(role, dict) and isinstance(role.get("value"), str):  # Agent Framework before 1.0
        message["role"] = role["value"]
    if roles.kind_of(_role(message) or "") == roles.AGENT:  # others may write anything
        inner = decoded(message.get("content"), is_message)
        if is_message(inner):
            message["content"] = _content(inner)
    return message


_TYPES = frozenset(
    {"human", "ai", "system", "tool", "function", "chat", "remove", "AIMessageChunk"}
    | {"FunctionExecutionResultMessage"}
    | {"HumanMessage", "AIMessage", "SystemMessage", "ToolMessage", "FunctionMessage", "ChatMessage"}
)
"""Kinds of LangChain's messages."""


_CALLS = ("_call", "_call_output")
"""Last letters of the types of items of the Responses API for a tool's call and output."""


def _role(message: Mapping[str, Any]) -> str | None:
    """Return the role of a message, empty if it has only a source; None: it is no message."""
    role = message.get("role")
    if isinstance(role, str):
        return role
    kind = message.get("type")
    if isinstance(kind, str) and kind in _TYPES:
        return kind
    if isinstance(kind, str) and kind.endswith(_CALLS):
        return "tool"
    is_event = "content" in message or (isinstance(kind, str) and kind.endswith(("Event", "Message")))
    return "" if isinstance(message.get("source"), str) and is_event else None


def kind_of_item(value: Any) -> str:
    """Return what a value is that is no message, in words."""
    kind = value.get("type") if isinstance(value, dict) else type(value).__name__
    return f"type {kind!r:.60}" if isinstance(kind, str) else "an object without a role"
