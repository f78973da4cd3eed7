"""The one line that names an agent in a request, and its counterpart at the gateway.

    client.chat.completions.create(..., extra_body=iet.agents.body("planner"))

A request carries the agent's name; the keys are on the server, in the registry that `IET_REGISTRY` names. A
name proves nothing: if clients are not trusted, the gateway that authenticates them calls `enforce`.
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
"""Field of the agent's name, in the arguments that an engine passes to its processors."""

SESSION_FIELD = "iet_session"
"""Field of the session's id in these arguments (`Registry.session`)."""

UNMARKED_FIELD = "iet_unmarked"
"""Field that asks vLLM for text without a mark."""

# A pickle that holds a name only: writing it needs neither dill nor SGLang, and it carries no code.
SGLANG_PROCESSOR = json.dumps({"callable": b"ciet.generation.sglang\nIETLogitsProcessor\n.".hex()})
"""`iet.generation.sglang.IETLogitsProcessor` in a request, in the format of SGLang's `to_str`."""

# Engine -> the field with the arguments of processors, and the other fields that ask for the mark.
_FIELDS: dict[str, tuple[str, dict[str, str]]] = {
    "vllm": ("vllm_xargs", {}),
    "sglang": ("custom_params", {"custom_logit_processor": SGLANG_PROCESSOR}),
}
# Fields with which a client could change or avoid the mark. SGLang's server runs the code of
# `custom_logit_processor`; its `watermark` holds a key. The text of a beam search has no mark.
_BEAMS = "use_beam_search"
_GATEWAY_FIELDS: dict[str, tuple[str, ...]] = {
    "vllm": (_BEAMS,),
    "sglang": (_BEAMS, "custom_logit_processor", "watermark"),
}


def body(agent: str, *, engine: Engine = "vllm", session: str | None = None) -> dict[str, Any]:
    """Return the fields of a request to an OpenAI-compatible server that ask for this agent's mark.

    Pass them as the frameworks' `extra_body`, which adds them at the top level of the request.

    >>> body("planner")
    {'vllm_xargs': {'iet_agent': 'planner'}}
    >>> body("planner", engine="sglang")["custom_params"]
    {'iet_agent': 'planner'}

    Args:
        agent: its name in the server's registry. The server refuses unknown names.
        engine: "vllm" (served with `--logits-processors iet.generation.vllm:IETLogitsProcessor`) or "sglang"
            (served with `--enable-custom-logit-processor --disable-overlap-schedule`).
        session: id of the session whose keys mark the text. None: the agent's own keys.

    Returns:
        A new dict that JSON can hold, without keys.

    Raises:
        InputError: the name, the id or the engine is invalid.
    """
    field, remaining = _FIELDS[_checked_engine(engine)]
    named = {AGENT_FIELD: checked_name(agent)}
    if session is not None:
        named[SESSION_FIELD] = checked_session(session)
    return {field: named, **remaining}


def enforce(
    request: Mapping[str, Any], agent: str, *, engine: Engine = "vllm", session: str | None = None
) -> dict[str, Any]:
    """Return a client's request with this agent in it, whatever agent the client named.

    For the gateway, which knows the agent from the authenticated identity (an API key, a client certificate).
    The client's arguments that start with iet_ are removed, such as an opt-out or a session: text of a
    session is attributed only if the auditor knows the session's id. SGLang's `custom_logit_processor`,
    which could run the client's code on the server, `watermark` and `use_beam_search` are removed too. All
    other fields are kept.

    >>> enforce({"model": "m", "vllm_xargs": {"iet_agent": "boss", "session_id": "7"}}, "planner")
    {'model': 'm', 'vllm_xargs': {'session_id': '7', 'iet_agent': 'planner'}}

    Args:
        request: the JSON body of the request. It is not changed.
        agent: as in `body`.
        engine: as in `body`.
        session: as in `body`.

    Returns:
        A new dict.

    Raises:
        InputError: as in `body`; or the request, or the field with the agent, is not a JSON object.
    """
    named = body(agent, engine=engine, session=session)
    field = _FIELDS[engine][0]
    arguments = _arguments(request, field)
    fields = {name: value for name, value in request.items() if name not in _GATEWAY_FIELDS[engine]}
    other_fields = {name: value for name, value in arguments.items() if not str(name).startswith("iet_")}
    return {**fields, **named, field: {**other_fields, **named[field]}}


def fields(engine: Engine = "vllm") -> frozenset[str]:
    """Return the top-level fields of a request that determine its mark.

    >>> sorted(fields("sglang"))
    ['custom_logit_processor', 'custom_params', 'use_beam_search', 'watermark']

    Args:
        engine: as in `body`.

    Raises:
        InputError: the engine is unknown.
    """
    field, remaining = _FIELDS[_checked_engine(engine)]
    return frozenset({field, *remaining, *_GATEWAY_FIELDS[engine]})


def session_of(request: Mapping[str, Any], *, engine: Engine = "vllm") -> str | None:
    """Return the id of the session that a client's request asks for, or None.

    >>> session_of(body("planner", session="run-7"))
    'run-7'

    Args:
        request: as in `enforce`.
        engine: as in `body`.

    Raises:
        InputError: the id is invalid, or as in `enforce`.
    """
    session = _arguments(request, _FIELDS[_checked_engine(engine)][0]).get(SESSION_FIELD)
    return None if session is None else session_of_request(session)


def session_of_request(session: object) -> str:
    """Return the id of a session if it is valid, or raise an InputError that names the request's field."""
    try:
        return checked_session(session)
    except InputError as error:
        raise InputError(f"iet_{error}") from None  # the message starts with "session"


def refuse_lies(
    request: Mapping[str, Any], agent: str, *, engine: Engine = "vllm", session: str | None = None
) -> None:
    """Raise an error for a request that asks for another mark than this agent's, or for no mark.

    `enforce` would overwrite these fields silently; use this function to report them to the client.

    >>> refuse_lies({"vllm_xargs": {"iet_agent": "planner", "session_id": "7"}}, "planner")
    >>> refuse_lies({"vllm_xargs": {"iet_agent": "boss"}}, "planner")
    Traceback (most recent call last):
    iet.errors.InputError: vllm_xargs: got iet_agent 'boss', expected 'planner', whose key it is, or nothing

    Args:
        request: as in `enforce`.
        agent: as in `body`.
        engine: as in `body`.
        session: the only session that it may ask for. None: it may not ask for one.

    Raises:
        InputError: as in `enforce`; or an argument that starts with iet_, or a field that only the gateway
            may set (see `enforce`), differs from `body`; or it asks for a beam search, which has no mark.
    """
    named = body(agent, engine=engine, session=session)
    field = _FIELDS[engine][0]
    for name, value in _arguments(request, field).items():
        if str(name).startswith("iet_") and (name, value) not in named[field].items():
            expected = f"{agent!r}, whose key it is, or nothing" if name == AGENT_FIELD else "none"
            raise InputError(f"{field}: got {name!s:.40} {value!r:.80}, expected {expected}")
    for name in _GATEWAY_FIELDS[engine]:
        if request.get(name) not in (None, False, named.get(name)):
            why = "the text of a beam search has no mark" if name == _BEAMS else "it is the gateway's to set"
            raise InputError(f"{name}: got one, expected none: {why}")


def _arguments(request: object, field: str) -> Mapping[str, Any]:
    if not isinstance(request, Mapping):
        raise InputError(f"request: got {type(request).__name__}, expected a JSON object")
    arguments = request.get(field)
    if arguments is not None and not isinstance(arguments, Mapping):
        raise InputError(f"{field}: got {type(arguments).__name__}, expected a JSON object")
    return arguments or {}


def _checked_engine(engine: object) -> str:
    if not isinstance(engine, str) or engine not in _FIELDS:
        raise InputError(f"engine: got {engine!r:.80}, expected one of {', '.join(_FIELDS)}")
    return engine
