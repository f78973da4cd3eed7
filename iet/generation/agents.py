"""The one line that names an agent in a request, and its counterpart at the gateway.

    client.chat.completions.create(..., extra_body=iet.agents.body("planner"))

A request carries the agent's name. The key stays on the server, in the registry that `IET_REGISTRY` names.
A name is no proof: where clients are not trusted, the gateway that knows who is asking calls `enforce`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, get_args

from iet.errors import InputError
from iet.marks.names import checked_name, checked_session

Engine = Literal["vllm", "sglang"]

ENGINES: tuple[Engine, ...] = get_args(Engine)

AGENT_FIELD = "iet_agent"
"""What the agent's name stands under, in the arguments that an engine hands to its processors."""

SESSION_FIELD = "iet_session"
"""What the id of the session stands under there, in which the text is written (`Registry.session`)."""

UNMARKED_FIELD = "iet_unmarked"
"""What asks for text without a mark there, in vLLM."""

# A pickle that is a name only, so that neither dill nor SGLang is needed to write it, and no code travels.
SGLANG_PROCESSOR = json.dumps({"callable": b"ciet.generation.sglang\nIETLogitsProcessor\n.".hex()})
"""What names `iet.generation.sglang.IETLogitsProcessor` in a request, in the form of SGLang's `to_str`."""

# By engine: the field that holds the agent's name, and what else asks for the mark.
_FIELDS: dict[str, tuple[str, dict[str, str]]] = {
    "vllm": ("vllm_xargs", {}),
    "sglang": ("custom_params", {"custom_logit_processor": SGLANG_PROCESSOR}),
}
# What a client could set to be marked otherwise, or not at all. SGLang's processor is code that its server
# runs; its `watermark` holds a key.
_CLIENTS_OWN: dict[str, tuple[str, ...]] = {
    "vllm": (),
    "sglang": ("custom_logit_processor", "watermark"),
}


def body(agent: str, *, engine: Engine = "vllm", session: str | None = None) -> dict[str, Any]:
    """Return what a request to an OpenAI-compatible server carries so that this agent's mark is set.

    The frameworks' `extra_body` takes it; on the wire its fields stand at the top level of the request.

    >>> body("planner")
    {'vllm_xargs': {'iet_agent': 'planner'}}
    >>> body("planner", engine="sglang")["custom_params"]
    {'iet_agent': 'planner'}

    Args:
        agent: its name in the server's registry. Whether it is there, the server tells.
        engine: "vllm" (served with `--logits-processors iet.generation.vllm:IETLogitsProcessor`) or "sglang"
            (served with `--enable-custom-logit-processor --disable-overlap-schedule`).
        session: id of the session, under whose keys the text is marked. None: under the agent's own.

    Returns:
        A new dict of strings, which JSON can hold. No key is in it.

    Raises:
        InputError: no name that a registry accepts, no id of a session, or another engine.
    """
    field, rest = _FIELDS[_checked_engine(engine)]
    named = {AGENT_FIELD: checked_name(agent)}
    if session is not None:
        named[SESSION_FIELD] = checked_session(session)
    return {field: named, **rest}


def enforce(
    request: Mapping[str, Any], agent: str, *, engine: Engine = "vllm", session: str | None = None
) -> dict[str, Any]:
    """Return a client's request with this agent in it, whatever the client named itself.

    For the gateway: it knows the agent from the authenticated identity (an API key, a client certificate).
    The client's other fields and arguments stay, but for those of ours, such as an opt-out or a session: text
    of a session that no auditor is told of is nobody's, so whoever passes one on keeps its id. SGLang's
    `custom_logit_processor`, with which a client could run code of its own on the server, and `watermark` are
    the gateway's alone.

    >>> enforce({"model": "m", "vllm_xargs": {"iet_agent": "boss", "session_id": "7"}}, "planner")
    {'model': 'm', 'vllm_xargs': {'session_id': '7', 'iet_agent': 'planner'}}

    Args:
        request: the JSON body of the request, which stays as it is.
        agent: as in `body`.
        engine: as in `body`.
        session: as in `body`.

    Returns:
        A new dict.

    Raises:
        InputError: as in `body`; or the request, or the field that holds the agent, is no JSON object.
    """
    named = body(agent, engine=engine, session=session)
    if not isinstance(request, Mapping):
        raise InputError(f"request: got {type(request).__name__}, expected a JSON object")
    field = _FIELDS[engine][0]
    arguments = request.get(field)
    if arguments is not None and not isinstance(arguments, Mapping):
        raise InputError(f"{field}: got {type(arguments).__name__}, expected a JSON object")
    kept = {name: value for name, value in request.items() if name not in _CLIENTS_OWN[engine]}
    theirs = {name: value for name, value in (arguments or {}).items() if not str(name).startswith("iet_")}
    return {**kept, **named, field: {**theirs, **named[field]}}


def fields(engine: Engine = "vllm") -> frozenset[str]:
    """Return the fields of a request, at its top level, that decide about its mark.

    >>> sorted(fields("sglang"))
    ['custom_logit_processor', 'custom_params', 'watermark']

    Args:
        engine: as in `body`.

    Raises:
        InputError: another engine.
    """
    field, rest = _FIELDS[_checked_engine(engine)]
    return frozenset({field, *rest, *_CLIENTS_OWN[engine]})


def session_of(request: Mapping[str, Any], *, engine: Engine = "vllm") -> str | None:
    """Return the id of the session that a client's request asks for, None where it asks for none.

    >>> session_of(body("planner", session="run-7"))
    'run-7'

    Args:
        request: as in `enforce`.
        engine: as in `body`.

    Raises:
        InputError: it is no id of a session, or as in `enforce`.
    """
    field = _FIELDS[_checked_engine(engine)][0]
    if not isinstance(request, Mapping):
        raise InputError(f"request: got {type(request).__name__}, expected a JSON object")
    arguments = request.get(field)
    if arguments is not None and not isinstance(arguments, Mapping):
        raise InputError(f"{field}: got {type(arguments).__name__}, expected a JSON object")
    session = (arguments or {}).get(SESSION_FIELD)
    return None if session is None else session_of_request(session)


def session_of_request(session: object) -> str:
    """Return the id of the session of a request, or raise an InputError that names the field."""
    try:
        return checked_session(session)
    except InputError as error:
        raise InputError(f"iet_{error}") from None  # its first word is that of the field


def refuse_lies(
    request: Mapping[str, Any], agent: str, *, engine: Engine = "vllm", session: str | None = None
) -> None:
    """Refuse a request that asks for another mark than this agent's, or for none.

    `enforce` would overwrite what it asks for; this tells the client, for a gateway that would rather know.

    >>> refuse_lies({"vllm_xargs": {"iet_agent": "planner", "session_id": "7"}}, "planner")
    >>> refuse_lies({"vllm_xargs": {"iet_agent": "boss"}}, "planner")
    Traceback (most recent call last):
    iet.errors.InputError: vllm_xargs: got iet_agent 'boss', expected 'planner', whose key it is, or nothing

    Args:
        request: as in `enforce`.
        agent: as in `body`.
        engine: as in `body`.
        session: the only one that it may ask for. None: none.

    Raises:
        InputError: as in `enforce`; or an argument that begins with iet_ says something else than `body`, or
            a field that is the gateway's alone (see `enforce`) does.
    """
    named = body(agent, engine=engine, session=session)
    enforce(request, agent, engine=engine)  # refuses what is no request
    field = _FIELDS[engine][0]
    for name, value in (request.get(field) or {}).items():
        if str(name).startswith("iet_") and (name, value) not in named[field].items():
            expected = f"{agent!r}, whose key it is, or nothing" if name == AGENT_FIELD else "none"
            raise InputError(f"{field}: got {name!s:.40} {value!r:.80}, expected {expected}")
    for name in _CLIENTS_OWN[engine]:
        if request.get(name) is not None and request[name] != named.get(name):
            raise InputError(f"{name}: got one, expected none: it is the gateway's to set")


def _checked_engine(engine: object) -> str:
    if not isinstance(engine, str) or engine not in _FIELDS:
        raise InputError(f"engine: got {engine!r:.80}, expected one of {', '.join(_FIELDS)}")
    return engine
