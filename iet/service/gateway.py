"""The gateway before an engine: whoever holds a key writes as its agent, whatever the request says.

    from iet.service.gateway import Gateway

    app = Gateway(app, "keys.txt", engine="vllm")  # app passes requests on to the engine

`keys.txt` holds hashes of API keys and the agents that hold them (see `iet.service.credentials`). The same
for LiteLLM's proxy is `iet.service.litellm`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from iet.errors import IetError, InputError
from iet.generation.agents import Engine, enforce, refuse_lies, session_of
from iet.service.credentials import Credentials, bearer
from iet.service.sessions import FullList, SessionList, ShareTaken

ENDPOINTS: Mapping[str, frozenset[str]] = {
    "vllm": frozenset({"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"}),
    "sglang": frozenset({"/v1/completions", "/v1/chat/completions"}),
}
"""By engine: where the agent stands in the body as `enforce` writes it. Others take it elsewhere."""

BODY_BYTES = 16 << 20
BODY_SECONDS = 60.0
BODY_VALUES = 250_000
"""Of JSON, in a body: parsing and writing them takes time in which nobody else is served."""
BODY_NUMBERS = 2 << 20
"""Bytes of a body outside of strings, for the same reason: a number takes as long as it has digits."""
AGENT_BYTES, ALL_BYTES = 64 << 20, 1 << 30
"""Of bodies that are held at once, of one agent and of all: until the engine has answered."""


class Forbidden(Exception):
    """A request that is not passed on.

    Attributes:
        status: of HTTP.
        said: to the client.
    """

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status, self.said = status, said


async def marked(
    request: Any, agent: str, engine: Engine, sessions: SessionList | None = None
) -> dict[str, Any]:
    """Return a client's request as it goes to the engine: with its agent, and without a lie.

    Its session is passed on, and kept, where there is a list of them.

    Raises:
        Forbidden: it is no JSON object (400), or asks for another agent, for no mark, or for what is the
            gateway's to set (403); or its session cannot be kept (429: the agent has named too many, 503).
    """
    named, session = _named(request, agent, engine, sessions)
    if sessions is not None and session is not None:
        await keep(sessions, session, agent)
    return named


def _named(
    request: Any, agent: str, engine: Engine, sessions: SessionList | None
) -> tuple[dict[str, Any], str | None]:
    """Return the request as it goes to the engine, and its session, which is to be kept before that."""
    if not isinstance(request, Mapping):
        raise Forbidden(400, "body: expected a JSON object")
    try:
        session = None if sessions is None else session_of(request, engine=engine)
        refuse_lies(request, agent, engine=engine, session=session)
        return enforce(request, agent, engine=engine, session=session), session
    except InputError as error:
        raise Forbidden(403, str(error)) from None


async def keep(sessions: SessionList, session: str, agent: str) -> None:
    """Keep a session that an agent names, or raise Forbidden (429: it has named too many, or 503)."""
    if session in sessions:
        return
    try:
        # On a thread: a new one waits for the disk, and nobody else should.
        await asyncio.to_thread(sessions.keep, session, agent)
    except FullList as full:
        raise Forbidden(429 if isinstance(full, ShareTaken) else 503, f"iet_session: {full}") from None


class Gateway:
    """ASGI middleware that names the agent in every request that makes text.

    Args:
        app: passes on to the engine what it is given; the agent's name is in scope["state"]["iet_agent"].
        keys: file of the hashes of API keys and the agents that hold them, read again when it is changed.
        engine: "vllm" or "sglang".
        also: paths that `app` answers by itself, which are not touched: no key is asked for there.
        sessions: file of the ids of sessions that clients name (`iet.agents.body(session=)`): an id is in it
            before its request is passed on. None: a request that names a session is refused.

    POST goes to the engine's endpoints for completions and chats (and, with vLLM, responses and messages) and
    nowhere else; GET and HEAD go everywhere for whoever holds a key. A request is parsed once and sent on as
    it was understood, so that a field that stands there twice cannot mean two things. One of more than
    16 MiB, or of more than 250,000 values of JSON, or 2 MiB outside of its strings, is refused (413), and so
    is one with which an agent has more than 64 MiB of requests that are not answered yet (429), or all have
    more than 1 GiB (503).

    Raises:
        InputError: the file cannot be read, or the engine is unknown.
    """

    def __init__(
        self,
        app: Any,
        keys: str | os.PathLike[str],
        *,
        engine: Engine = "vllm",
        also: tuple[str, ...] = (),
        sessions: str | os.PathLike[str] | None = None,
    ) -> None:
        if engine not in ENDPOINTS:
            raise InputError(f"engine: got {engine!r:.80}, expected one of {', '.join(ENDPOINTS)}")
        self._app, self._keys, self._engine, self._also = app, Credentials(keys), engine, also
        self._sessions = None if sessions is None else SessionList(sessions)
        self._held: Counter[str] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http" or scope["path"] in self._also:
            await self._app(scope, receive, send)
            return
        held = _Held(self._held)
        try:
            try:
                if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
                    # Whoever passed it on may have read another length (RFC 9112, 6.1).
                    raise Forbidden(
                        400, "content-length: got one beside transfer-encoding, expected one of them"
                    )
                agent = self._agent(scope)
                scope = {**scope, "state": {**scope.get("state", {}), "iet_agent": agent}}
                if scope["method"] not in ("GET", "HEAD"):
                    scope, receive = await self._marked(scope, receive, held, agent)
            except Forbidden as refused:
                await _answer(send, refused)
                return
            await self._app(scope, receive, send)
        finally:
            held.give_back()

    def _agent(self, scope: Any) -> str:
        try:
            agent = self._keys.name_of(bearer(scope["headers"]))
        except (IetError, OSError):
            raise Forbidden(503, "the gateway cannot read its keys") from None
        if agent is None:
            raise Forbidden(401, "authorization: expected a key that is an agent's")
        return agent

    async def _marked(self, scope: Any, receive: Any, held: _Held, agent: str) -> tuple[Any, Any]:
        if scope["method"] != "POST" or scope["path"] not in ENDPOINTS[self._engine]:
            raise Forbidden(
                404, f"path: expected POST to one of {', '.join(sorted(ENDPOINTS[self._engine]))}"
            )
        if any(name == b"content-encoding" for name, _ in scope["headers"]):
            raise Forbidden(415, "content-encoding: expected none")
        body = await _body(receive, held, agent)
        values, numbers = _values(body)
        if values > BODY_VALUES:
            raise Forbidden(413, f"body: got {values:,} values of JSON, expected at most {BODY_VALUES:,}")
        if numbers > BODY_NUMBERS:
            raise Forbidden(
                413, f"body: got {numbers:,} bytes outside of strings, expected at most {BODY_NUMBERS:,}"
            )
        try:
            request = json.loads(body.decode("utf-8-sig"))  # in UTF-16 `_values` would count something else
            named, session = _named(request, agent, self._engine, self._sessions)
            body = json.dumps(named, allow_nan=False).encode()  # 1e999 is no number that JSON could pass on
        except (ValueError, RecursionError):
            raise Forbidden(400, "body: expected JSON") from None
        if self._sessions is not None and session is not None:
            await keep(self._sessions, session, agent)
        kept = (b"content-length", b"transfer-encoding", b"content-type")
        headers = [(name, value) for name, value in scope["headers"] if name not in kept]
        headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        whole = [{"type": "http.request", "body": body, "more_body": False}]

        async def replaced() -> Any:
            return whole.pop() if whole else await receive()

        return {**scope, "headers": headers}, replaced


def _values(body: bytes) -> tuple[int, int]:
    """Return of JSON in UTF-8 how many values it holds at most, and how many bytes outside of strings.

    A value begins after each comma and opening bracket.
    """

    def begin(part: bytes) -> int:
        return part.count(b",") + part.count(b"[") + part.count(b"{")

    found = begin(body)
    if found <= BODY_VALUES and len(body) <= BODY_NUMBERS:
        return found, len(body)
    # Most of them may be punctuation of a long text: what stands in strings is left out. With more quotation
    # marks than this there are too many strings, and what is left is counted as it is.
    parts = body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"', 4 * BODY_VALUES + 2)
    outside = b"".join(parts[::2])
    return begin(outside), len(outside)


class _Held:
    """What is counted of the bytes of one request while it is there."""

    def __init__(self, of: Counter[str]) -> None:
        self._of, self._bytes, self._agent = of, 0, ""

    def take(self, agent: str, size: int) -> None:
        """Count bytes of an agent's request, or raise Forbidden (429 or 503) where these are too many."""
        self._agent = agent
        if self._of[agent] + size > AGENT_BYTES:
            raise Forbidden(
                429, f"body: {agent!r} has {AGENT_BYTES:,} bytes of requests that are not answered"
            )
        if self._of.total() + size > ALL_BYTES:
            raise Forbidden(503, f"body: the gateway holds {ALL_BYTES:,} bytes of requests")
        self._of[agent] += size
        self._bytes += size

    def give_back(self) -> None:
        """Count them no more."""
        self._of[self._agent] -= self._bytes
        if not self._of[self._agent]:
            del self._of[self._agent]
        self._bytes = 0


async def _body(receive: Any, held: _Held, agent: str) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Forbidden(400, "the client went")
                part = message.get("body", b"")
                held.take(agent, len(part))
                body += part
                if len(body) > BODY_BYTES:
                    raise Forbidden(413, f"body: got more than {BODY_BYTES} bytes")
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise Forbidden(408, f"body: got a part of it in {BODY_SECONDS:g} seconds") from None


async def _answer(send: Any, refused: Forbidden) -> None:
    # The form of OpenAI's errors, which its clients show.
    error = {"message": refused.said, "type": "invalid_request_error", "code": refused.status}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
