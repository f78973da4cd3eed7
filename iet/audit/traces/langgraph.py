"""LangGraph's streams: updates of nodes, states, and chunks of messages, also with the subgraph's name first.

A node's name counts as the agent's. For a step inside a prebuilt agent, the subgraph's name counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from iet.audit.traces.calls import agent_in
from iet.audit.traces.content import is_message
from iet.audit.traces.messages import Message, is_question, read, whole_of
from iet.audit.traces.messages import is_of as is_chat
from iet.audit.traces.pieces import Piece

_STATES = ("values", "state", "channel_values", "output", "data")
"""Fields that hold a state, so they are no nodes."""

_CALLS = frozenset(("request", "response", "body", "custom_id"))
"""Fields of a logged call of an API, which is no update."""

_MODES = ("updates", "values", "messages")


def is_of(item: Any) -> bool:
    """Tell whether a value is one item of a stream."""
    return any(True for _ in _messages(item))


def pieces(items: list[Any], agents: frozenset[str]) -> list[Piece]:
    """Return a piece for each message. The chunks of one message are one piece."""
    return read((message for item in items for message in _messages(item)), agents)


def _messages(item: Any) -> Iterator[Message]:
    """Yield the messages in one item of a stream; nothing for other values."""
    subgraph = None
    if isinstance(item, dict) and item.get("type") in _MODES and "ns" in item and "data" in item:
        item = [item["ns"], item["data"]]
    if isinstance(item, list) and len(item) == 3 and item[1] in _MODES:
        item = [item[0], item[2]]
    if isinstance(item, list) and len(item) == 2 and item[0] in _MODES:
        item = item[1]
    if isinstance(item, list) and len(item) == 2 and isinstance(item[0], list):
        names = [name.partition(":")[0] for name in item[0] if isinstance(name, str)]
        subgraph, item = next(iter(names[::-1]), None), item[1]
    if isinstance(item, list) and len(item) == 2 and is_chat(item[0]) and isinstance(item[1], dict):
        if "langgraph_node" in item[1]:
            claim = agent_in(item[1], ("lc_agent_name", "langgraph_node")) or subgraph
            yield Message(item[0], claim, part_of=whole_of(item[0]))
        return
    if not isinstance(item, dict) or is_message(item) or _CALLS.intersection(item):
        return
    for node, update in item.items():
        inner = update.get("messages") if isinstance(update, dict) and node not in _STATES else None
        messages = inner if isinstance(inner, list) else [inner]
        # A node may return the whole state. Only what follows the last question is surely its own.
        asked = max((i for i, message in enumerate(messages[:-1]) if is_question(message)), default=-1)
        for i, message in enumerate(messages):
            if is_chat(message):
                yield Message(message, agent_in({"node": node}, ("node",)) or subgraph if i > asked else None)
