"""Hosted models as an OpenAI-compatible server whose answers carry the mark of the authenticated agent.

    # hosted.toml
    registry = "team.json"
    [models.writer]                               # the name that clients ask for
    base_url = "https://api.deepseek.com/beta"
    model = "deepseek-chat"
    provider = "deepseek"
    mark = "select"                               # or "walk"
    candidates = 8                                # m, for "select"
    chunk_tokens = 16                             # L
    api_key_env = "DEEPSEEK_API_KEY"              # variable with the provider's key

    IET_HOSTED=hosted.toml IET_GATEWAY_KEYS=keys.txt uvicorn --factory iet.service.hosted:gateway

`upstream` serves the models without the gateway, on loopback for LiteLLM's proxy and `iet.service.litellm`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import time
import tomllib
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

import openai
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from iet.errors import IetError, InputError, RegistryError, shown
from iet.generation.agents import AGENT_FIELD, SESSION_FIELD
from iet.generation.hosted import Answer, HostedModel
from iet.marks.registry import Registry
from iet.service.gateway import Gateway
from iet.service.reloading import ReloadingFile

CONFIGURATION, KEYS, SESSIONS = "IET_HOSTED", "IET_GATEWAY_KEYS", "IET_GATEWAY_SESSIONS"

_SETTINGS = frozenset(
    {
        "base_url",
        "model",
        "provider",
        "mark",
        "candidates",
        "chunk_tokens",
        "retries",
        "timeout",
        "api_key_env",
    }
)
_PASSED_ON = frozenset({400, 404, 408, 413, 422, 429})  # faults of a request, or of the moment


def gateway() -> Gateway:
    """Return the models with authentication, by the variables IET_HOSTED, IET_GATEWAY_KEYS and -SESSIONS.

    Raises:
        InputError: A variable or a file is missing or invalid.
    """
    return Gateway(upstream(), _variable(KEYS), sessions=os.environ.get(SESSIONS) or None)


def upstream() -> FastAPI:
    """Return the models of the file that IET_HOSTED names, for requests that a gateway has authenticated."""
    return application(_variable(CONFIGURATION))


def application(path: str | os.PathLike[str]) -> FastAPI:
    """Return an ASGI application that answers completions and chats with marked text.

    Requests name their agent as for vLLM (`iet.agents.body`): a gateway has to set it. `usage` in an answer
    counts the tokens of all candidates, which is what the provider charges. A changed registry is read again.

    Args:
        path: of the configuration, see the head of this module. `registry` is relative to it.

    Raises:
        InputError, RegistryError: The configuration or the registry cannot be read, or a setting is invalid.
    """
    registry, models = _load(pathlib.Path(path))
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/v1/models")
    async def listed() -> Any:
        return {"object": "list", "data": [{"id": name, "object": "model"} for name in models]}

    @app.post("/v1/chat/completions")
    @app.post("/v1/completions")
    async def complete(request: Request) -> Response:
        try:
            return await _complete(request, registry, models)
        except (IetError, openai.OpenAIError) as error:
            return _refused(*_error(error))

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def unknown(path: str) -> Response:
        return _refused(404, "path: expected /v1/chat/completions or /v1/completions")

    return app


async def _complete(
    request: Request, registry: ReloadingFile[Registry], models: Mapping[str, HostedModel]
) -> Response:
    try:
        body = json.loads(await request.body())
    except ValueError:
        raise InputError("body: expected JSON") from None
    if not isinstance(body, dict):
        raise InputError("body: expected a JSON object")
    name, named = body.get("model"), body.pop("vllm_xargs", None)
    if not isinstance(name, str) or name not in models:
        raise InputError(f"model: got {shown(name)}, expected one of {', '.join(models)}")
    if not isinstance(named, dict) or not isinstance(named.get(AGENT_FIELD), str):
        raise InputError(f"{AGENT_FIELD}: got none, expected the agent's name, which the gateway sets")
    chat = request.url.path.endswith("/chat/completions")
    if ("messages" in body) != chat:
        raise InputError(f"body: expected {'messages' if chat else 'a prompt'}")
    model = models[name]
    try:
        model.registry = registry.get()
    except (IetError, OSError):
        return _refused(503, "the gateway cannot read its registry")
    answers = model.stream(named[AGENT_FIELD], body, named.get(SESSION_FIELD))
    form = _Form(name, chat)
    if not body.get("stream"):
        return await _unless_disconnected(request, _whole(answers, form)) or Response(status_code=499)
    # The first part is awaited, so that a refused request gets its status.
    first = await _unless_disconnected(request, anext(answers))
    if first is None:
        return Response(status_code=499)
    options = body.get("stream_options")
    with_usage = isinstance(options, dict) and bool(options.get("include_usage"))
    return StreamingResponse(_events(first, answers, form, with_usage), media_type="text/event-stream")


async def _whole(answers: AsyncIterator[Answer], form: _Form) -> Response:
    async for answer in answers:  # noqa: B007  the last one is whole
        pass
    return JSONResponse(form.whole(answer))


async def _unless_disconnected(request: Request, work: Any) -> Any:
    """Return the result of work, or None and stop it if the client has left: candidates cost money."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(request.receive())  # resolves if the client disconnects
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()


async def _events(first: Answer, answers: Any, form: _Form, with_usage: bool) -> AsyncIterator[str]:
    """Yield the parts of a streamed answer as server-sent events."""
    answer, sent, role = first, 0, {"role": "assistant"}
    async with contextlib.aclosing(answers):
        try:
            while True:
                yield _event(form.part(role, answer.text[sent:], answer.finish_reason))
                sent, role = len(answer.text), {}
                if answer.finish_reason is not None:
                    break
                answer = await anext(answers)
            if with_usage:
                yield _event({**form.head(".chunk"), "choices": [], "usage": _usage(answer)})
        except (IetError, openai.OpenAIError) as error:
            yield _event(_body(*_error(error)))
    yield "data: [DONE]\n\n"


def _event(content: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


class _Form:
    """The JSON of an answer, in OpenAI's form."""

    def __init__(self, model: str, chat: bool) -> None:
        self._model, self._chat = model, chat
        self._id, self._created = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}", int(time.time())

    def head(self, suffix: str = "") -> dict[str, Any]:
        """Return the fields that do not depend on the text."""
        kind = f"chat.completion{suffix}" if self._chat else "text_completion"
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def whole(self, answer: Answer) -> dict[str, Any]:
        """Return an answer in one piece."""
        message = {"role": "assistant", "content": answer.text}
        text = {"message": message} if self._chat else {"text": answer.text}
        choice = {"index": 0, **text, "finish_reason": answer.finish_reason, "logprobs": None}
        return {**self.head(), "choices": [choice], "usage": _usage(answer)}

    def part(self, role: Mapping[str, str], text: str, finish_reason: str | None) -> dict[str, Any]:
        """Return a part of a streamed answer."""
        content: Any = {"delta": {**role, "content": text}} if self._chat else {"text": text}
        choice = {"index": 0, **content, "finish_reason": finish_reason}
        return {**self.head(".chunk"), "choices": [choice]}


def _usage(answer: Answer) -> dict[str, int]:
    prompt, completion = answer.usage.prompt_tokens, answer.usage.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _error(error: Exception) -> tuple[int, str]:
    """Return the status and the message of an answer to a request that failed."""
    status, message = 502, str(error)
    if isinstance(error, (InputError, RegistryError)):
        status = 400 if isinstance(error, InputError) else 403
    elif isinstance(error, openai.APIStatusError):
        status = error.status_code if error.status_code in _PASSED_ON else 502
        reason = f": {error.message:.300}" if status != 502 else ""
        message = f"the provider refused the request with status {error.status_code}{reason}"
    elif isinstance(error, openai.APITimeoutError):
        status, message = 504, "the provider does not answer in time"
    elif isinstance(error, openai.OpenAIError):
        message = "the provider cannot be reached"
    return status, message


def _body(status: int, message: str) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "code": status}}


def _refused(status: int, message: str) -> Response:
    return JSONResponse(_body(status, message), status)


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise InputError(f"{name}: got none, expected the path of a file")
    return value


def _load(path: pathlib.Path) -> tuple[ReloadingFile[Registry], dict[str, HostedModel]]:
    """Return the registry and the models of a configuration."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: no configuration of hosted models ({error}), expected TOML") from None
    location, tables = content.get("registry"), content.get("models")
    if not isinstance(location, str) or not isinstance(tables, dict) or not tables:
        raise InputError(f"{path}: expected registry, a path, and a table models.NAME for every model")
    file = path.parent / location
    registry = ReloadingFile(file, lambda: Registry.load(file))
    models = {}
    for name, table in tables.items():
        try:
            models[name] = _model(table, registry.last)
        except InputError as error:
            raise InputError(f"{path}: models.{name}: {error}") from None
    return registry, models


def _model(table: object, registry: Registry) -> HostedModel:
    if not isinstance(table, dict) or not {"base_url", "model", "provider"} <= set(table):
        raise InputError("expected a table with base_url, model and provider")
    if unknown := sorted(set(table) - _SETTINGS):
        raise InputError(f"{unknown[0]}: no such setting, expected some of {', '.join(sorted(_SETTINGS))}")
    options = dict(table)
    variable = options.pop("api_key_env", None)
    if variable is not None:
        options["api_key"] = os.environ.get(str(variable))
        if not options["api_key"]:
            raise InputError(f"api_key_env: the variable {shown(variable)} is not set")
    return HostedModel(options.pop("base_url"), options.pop("model"), registry, **options)
