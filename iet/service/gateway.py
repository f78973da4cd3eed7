"""The gateway in front of an engine: a request is marked as the agent that holds its API key.

    from iet.service.gateway import Gateway

    app = Gateway(app, "keys.txt", engine="vllm")  # app passes requests on to the engine

`keys.txt` holds hashes of API keys and the agents that hold them (see `iet.service.credentials`). The
gateway for LiteLLM's proxy is `iet.service.litellm`.
"""

from __future__ import annotations

import asyncio
import collections
import errno
import json
import os
import pathlib
import threading
from collections.abc import Mapping
from typing import Any

from iet.errors import IetError, InputError
from iet.generation.agents import Engine, enforce, refuse_lies, session_of
from iet.marks.files import alone_in
from iet.marks.names import checked_session
from iet.service.credentials import Credentials, bearer
from iet.service.limits import ConcurrencyLimiter, RequestRefused, read_body

ENDPOINTS: Mapping[str, frozenset[str]] = {
    "vllm": frozenset({"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"}),
    "sglang": frozenset({"/v1/completions", "/v1/chat/completions"}),
}
"""Engine -> endpoints that read the agent from the fields that `enforce` writes."""

BODY_BYTES = 16 << 20
BODY_SECONDS = 60.0
BODY_SYNTAX_BYTES = 1 << 20
"""Maximum bytes of a body outside of strings. While they are parsed, up to 0.5 s, other requests wait."""
AGENT_BYTES, ALL_BYTES = 64 << 20, 1 << 30
"""Bodies in memory at once, of one agent and of all: a body is held until the engine has answered."""

MAX_SESSIONS = 1_000_000
"""Maximum number of ids in a list of sessions: an audit reads the keys of all of them."""
MAX_NEW_SESSIONS = 100_000
"""Maximum number of ids that one agent adds while a process runs, so that no agent fills the list alone."""


class SessionList:
    """The ids of the sessions that a gateway has passed on, one in each line of a file.

    `iet audit --sessions` reads the file: marks of a session are found only if the auditor knows its id. So
    an id is on the disk before its request reaches the engine. Several processes may share a file.

    Args:
        path: of the file, which is created, mode 0600, with the first id.

    Raises:
        InputError: The file cannot be read, or a line is not an id.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self._lock = pathlib.Path(path), threading.Lock()
        self._added = collections.Counter[str]()
        try:
            lines = self._path.read_bytes().decode().split("\n") if self._path.exists() else []
            self._known = {checked_session(line) for line in lines if line}
        except (OSError, UnicodeDecodeError, InputError) as error:
            raise InputError(f"{path}: no list of sessions ({error}), expected ids, one a line") from None

    def __contains__(self, session: str) -> bool:
        return session in self._known

    def add(self, session: str, agent: str) -> None:
        """Write an id to the disk, unless the list has it.

        Args:
            session: a valid id.
            agent: the agent that named it. The file does not hold agents, so `MAX_NEW_SESSIONS` counts from
                the start of the process.

        Raises:
            RequestRefused: The agent has added too many ids (429), or the list is full or cannot be written
                (503).
        """
        with self._lock:
            if session in self._known:
                return
            if len(self._known) >= MAX_SESSIONS:
                message = f"iet_session: the list holds {MAX_SESSIONS} sessions, and takes no more"
                raise RequestRefused(503, message)
            if self._added[agent] >= MAX_NEW_SESSIONS:
                raise RequestRefused(
                    429,
                    f"iet_session: {agent} has named {MAX_NEW_SESSIONS} new sessions since the gateway"
                    " started, expected at most that; a session that was named before still passes",
                )
            try:
                # The line break comes first, as a process may have died while it wrote a line.
                line = f"\n{session}\n".encode()
                with alone_in(self._path.parent), open(self._path, "ab", 0, opener=_open_private) as file:
                    size = file.tell()
                    if file.write(line) < len(line):
                        file.truncate(size)
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(file.fileno())
            except OSError as error:
                message = f"iet_session: the list of sessions cannot be written ({error.strerror})"
                raise RequestRefused(503, message) from None
            self._known.add(session)
            self._added[agent] += 1


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def with_agent(
    request: Any, agent: str, engine: Engine, sessions: SessionList | None
) -> tuple[dict[str, Any], str | None]:
    """Return a client's request as it goes to the engine, with its agent, and its session.

    The session must be recorded before the request is sent on.

    Raises:
        RequestRefused: The request is not a JSON object (400), or it names another agent, asks for no mark,
            sets fields of the gateway, or names a session although there is no list of them (403).
    """
    if not isinstance(request, Mapping):
        raise RequestRefused(400, "body: expected a JSON object")
    try:
        session = None if sessions is None else session_of(request, engine=engine)
        refuse_lies(request, agent, engine=engine, session=session)
        return enforce(request, agent, engine=engine, session=session), session
    except InputError as error:
        raise RequestRefused(403, str(error)) from None


async def record(sessions: SessionList | None, session: str | None, agent: str) -> None:
    """Add a session, if there is one, to the list; raises as `SessionList.add`."""
    if sessions is not None and session is not None and session not in sessions:
        await asyncio.to_thread(sessions.add, session, agent)  # other requests do not wait for the disk


class Gateway:
    """ASGI middleware that names the agent in every request that generates text.

    Args:
        app: passes requests on to the engine; the agent's name is in scope["state"]["iet_agent"].
        keys: file of the hashes of API keys and the agents that hold them, read again after it changed.
        engine: "vllm" or "sglang".
        also: paths that `app` answers itself; they need no key.
        sessions: file for the ids of the sessions that clients name (`iet.agents.body(session=)`), which are
            written before their requests are passed on. None: a request that names a session is refused.

    POST is allowed only to the engine's endpoints for completions and chats (with vLLM also responses and
    messages), GET and HEAD everywhere, both with a key. A request is parsed once and sent on as it was
    parsed, so that a duplicate field has one meaning. A body is refused (413) if it has more than 16 MiB, or
    more than 1 MiB outside of its strings. It is also refused while the agent has more than 64 MiB of
    unanswered requests (429), or all agents have more than 1 GiB (503).

    Raises:
        InputError: A file cannot be read, or the engine is unknown.
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
        self._memory = ConcurrencyLimiter(AGENT_BYTES, ALL_BYTES, "bytes of requests")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or answer it with an error."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http" or scope["path"] in self._also:
            await self._app(scope, receive, send)
            return
        try:
            agent = self._agent(scope)
            scope = {**scope, "state": {**scope.get("state", {}), "iet_agent": agent}}
            with self._memory.share(agent) as hold:
                if scope["method"] not in ("GET", "HEAD"):
                    self._check_endpoint(scope)
                    body = await read_body(receive, BODY_BYTES, BODY_SECONDS, on_bytes=hold)
                    body = await self._with_agent(body, agent)
                    scope, receive = _replaced(scope, receive, body)
                await self._app(scope, receive, send)
        except RequestRefused as refused:
            await _answer(send, refused)

    def _agent(self, scope: Any) -> str:
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
            # A proxy may have read another length than this server does (RFC 9112, 6.1).
            message = "content-length: got one beside transfer-encoding, expected one of them"
            raise RequestRefused(400, message)
        try:
            agent = self._keys.name_of(bearer(scope["headers"]))
        except (IetError, OSError):
            raise RequestRefused(503, "the gateway cannot read its keys") from None
        if agent is None:
            raise RequestRefused(401, "authorization: expected a key that is an agent's")
        return agent

    def _check_endpoint(self, scope: Any) -> None:
        endpoints = ENDPOINTS[self._engine]
        if scope["method"] != "POST" or scope["path"] not in endpoints:
            raise RequestRefused(404, f"path: expected POST to one of {', '.join(sorted(endpoints))}")
        if any(name == b"content-encoding" for name, _ in scope["headers"]):
            raise RequestRefused(415, "content-encoding: expected none")

    async def _with_agent(self, body: bytes, agent: str) -> bytes:
        syntax = _syntax_bytes(body)
        if syntax > BODY_SYNTAX_BYTES:
            raise RequestRefused(
                413, f"body: got {syntax:,} bytes outside of strings, expected at most {BODY_SYNTAX_BYTES:,}"
            )
        try:
            request = json.loads(body.decode("utf-8-sig"))  # `_syntax_bytes` cannot count UTF-16
            marked, session = with_agent(request, agent, self._engine, self._sessions)
            body = json.dumps(marked, allow_nan=False).encode()  # refuses 1e999, which JSON cannot express
        except (ValueError, RecursionError):
            raise RequestRefused(400, "body: expected JSON") from None
        await record(self._sessions, session, agent)
        return body


def _replaced(scope: Any, receive: Any, body: bytes) -> tuple[Any, Any]:
    """Return the scope and receive of a request with another body, which is JSON."""
    replaced = (b"content-length", b"transfer-encoding", b"content-type")
    headers = [(name, value) for name, value in scope["headers"] if name not in replaced]
    headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_replaced() -> Any:
        return messages.pop() if messages else await receive()

    return {**scope, "headers": headers}, receive_replaced


def _syntax_bytes(body: bytes) -> int:
    """Return the number of bytes of JSON in UTF-8 outside of strings, with the quotation marks.

    A body with too many strings is not split any further, and the rest of it is counted in full.
    """
    if len(body) <= BODY_SYNTAX_BYTES:
        return len(body)
    parts = body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"', BODY_SYNTAX_BYTES)
    return sum(map(len, parts[::2])) + len(parts) - 1


async def _answer(send: Any, refused: RequestRefused) -> None:
    # OpenAI's form of errors, which its clients show.
    error = {"message": refused.message, "type": "invalid_request_error", "code": refused.status}
    body = json.dumps({"error": error}).encode()
    headers = {"content-type": "application/json", "connection": "close", **refused.headers}
    headers["content-length"] = str(len(body))
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
