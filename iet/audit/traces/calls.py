"""Calls of models, agents and tools as telemetry records them: a tree, with the messages of each call.

An agent's name is on the call of the model or on a call around it: the nearest name counts. The output of a
call around another one often repeats the inner output.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from iet.audit.traces import roles
from iet.audit.traces.messages import input_of, output_of, transfers_in
from iet.audit.traces.pieces import REPEAT, Piece, Transfer

MODEL = "model"
AGENT = "agent"
TOOL = "tool"

_FARTHEST = 256
"""Maximum number of enclosing calls to search for an agent: untrusted records may have endless chains."""

_STEPS = frozenset({"model", "agent", "tools", "call_model", "__start__"})
"""Nodes inside LangGraph's prebuilt agents. Their names are no agent's."""


@dataclasses.dataclass(kw_only=True)
class Call:
    """One call.

    Attributes:
        origin: its place in the record, for reports.
        trace: the id of its trace, in which ids of calls are unique; None: unknown.
        id, parent: of this call, and of the call around it; None: unknown.
        start, end: texts that sort as the times do.
        kind: `MODEL`, `AGENT` or `TOOL`; None: another kind. A tool's output is no agent's text.
        agent: the name of the agent that the record states for this call.
        name: the name of the call. It counts as the agent's if it is a registered agent's name.
        used, put_out: messages that it took in and put out.
        result: its output as a whole. It is read if neither this call nor a call inside it put out messages.
        targets: the agent that it hands over to, as each of several fields states it; None: not stated.
        caller: the agent that called it.
    """

    origin: str
    trace: str | None = None
    id: str | None = None
    parent: str | None = None
    start: str = ""
    end: str = ""
    kind: str | None = None
    agent: str | None = None
    name: str | None = None
    used: Sequence[dict[str, Any]] = ()
    put_out: Sequence[dict[str, Any]] = ()
    result: Sequence[dict[str, Any]] = ()
    targets: Sequence[str | None] = ()
    caller: str | None = None


_ById = Mapping[tuple[str | None, str], Call]
"""Trace and id -> call."""


def sortable(time: Any) -> str:
    """Return a time as text that sorts: a number, ISO 8601 (UTC if it has no zone), "" for anything else."""
    if isinstance(time, float) and abs(time) < 1e19:
        return f"{time:026.6f}"
    text = time if isinstance(time, str) else str(time) if type(time) is int and 0 <= time < 10**19 else ""
    if text.isdecimal() and len(text) < 20:
        return f"{text:0>19}.000000"
    try:
        date = datetime.datetime.fromisoformat(text)
        return f"{(date if date.tzinfo else date.replace(tzinfo=datetime.UTC)).timestamp():026.6f}"
    except (ValueError, OverflowError):
        return ""


def agent_in(values: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Return the first name of an agent in some fields. Steps of prebuilt agents do not count."""
    candidates = (values.get(name) for name in names)
    return next(
        (value for value in candidates if isinstance(value, str) and value and value not in _STEPS), None
    )


def pieces_of(calls: Sequence[Call], agents: frozenset[str]) -> list[Piece]:
    """Return the input and output of each call, in the order of their ends."""
    calls = sorted(calls, key=lambda call: (call.end or call.start, call.start))
    by_id = {(call.trace, call.id): call for call in calls if call.id is not None}
    inner = [call for call in calls if call.put_out and call.kind != TOOL]
    has_inner = {id(outer) for call in inner for outer in _with_enclosing(call, by_id) if outer is not call}
    of_calls = [_pieces_of(call, by_id, agents, id(call) in has_inner) for call in calls]
    nested = collections.defaultdict[int, set[str]](set)
    for call, (_, put_out) in zip(calls, of_calls, strict=True):
        for outer in _with_enclosing(call, by_id):
            if outer is not call:
                nested[id(outer)].update(piece.text.strip() for piece in put_out if piece.skipped is None)
    pieces = list[Piece]()
    for call, (used, put_out) in zip(calls, of_calls, strict=True):
        pieces += used
        for piece in put_out:
            # An agent that calls another one, or hands over to it, may end with that one's words.
            relayed = piece.skipped is None and piece.text.strip() in nested[id(call)]
            pieces.append(Piece(piece.text, None, REPEAT, piece.origin) if relayed else piece)
    return [*pieces, *_transfers(calls, by_id, agents, has_inner)]


def _pieces_of(
    call: Call, by_id: _ById, agents: frozenset[str], has_inner: bool
) -> tuple[list[Piece], list[Piece]]:
    """Return what went into one call, and what came out of it."""
    put_out = call.put_out
    if not put_out and not has_inner and (call.kind is not None or call.name in agents):
        put_out = call.result
    claim = _claim(call, by_id, agents) if put_out else None
    # A result as a whole may be a state with earlier messages; only the last one is surely this call's.
    first = 0 if call.put_out else len(put_out) - 1
    outputs = [
        output_of(value, agents, call.origin, claim if i >= first else None)
        for i, value in enumerate(put_out)
    ]
    if call.kind == TOOL:
        outputs = [Piece(piece.text, None, roles.TOOL, call.origin) for piece in outputs]
    return [input_of(value, agents, call.origin) for value in call.used], outputs


def _with_enclosing(inner: Call, by_id: _ById) -> Iterator[Call]:
    """Yield a call, the one around it, and so on, as long as the ids are known."""
    here: Call | None = inner
    for _ in range(_FARTHEST):
        if here is None:
            return
        yield here
        if here.parent is None:
            return
        here = by_id.get((here.trace, here.parent)) or by_id.get((None, here.parent))


def _claim(call: Call, by_id: _ById, agents: frozenset[str]) -> str | None:
    """Return the agent of the nearest call; the caller of a tool wrote nothing of what is inside the tool."""
    for here in _with_enclosing(call, by_id):
        if here.agent is not None and (here is call or here.kind != TOOL):
            return here.agent
        if here.name in agents:
            return here.name
        if here.kind == TOOL:
            return None
    return None


def _transfers(
    calls: Sequence[Call], by_id: _ById, agents: frozenset[str], has_inner: Collection[int]
) -> Iterator[Piece]:
    """Yield a piece without text for each stated hand-over.

    Fields of the call that hands over, the model's call of a tool, and the call of the agent that takes over
    may all state the same one.
    """
    groups = collections.defaultdict[str, list[tuple[Transfer, str]]](list)
    for call in calls:
        agent = _claim(call, by_id, agents)
        for field, target in enumerate(call.targets):
            if target is not None:
                groups[f"field {field}"].append((Transfer(agent, target), call.origin))
        for value in call.put_out if call.kind != TOOL and id(call) not in has_inner else ():
            groups["tools"] += ((transfer, call.origin) for transfer in transfers_in(value, agent, agents))
        if call.caller is not None and agent is not None and agent != call.caller:
            groups["callers"].append((Transfer(call.caller, agent), call.origin))
    seen = collections.Counter[tuple[str | None, str]]()
    for group in groups.values():
        again = seen.copy()
        for transfer, origin in {
            transfer.id or i: (transfer, origin) for i, (transfer, origin) in enumerate(group)
        }.values():
            if again[transfer[:2]] > 0:
                again[transfer[:2]] -= 1
            else:
                seen[transfer[:2]] += 1
                yield Piece("", None, roles.NOTICE, origin, transfer)
