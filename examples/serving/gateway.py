"""A gateway of one's own before vLLM: authentication, and the agent of each key, are `Gateway`'s.

KEYS=keys.txt ENGINE_URL=http://127.0.0.1:8000 uvicorn gateway:app --port 4000
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from iet.service.gateway import Gateway

# As many connections as there are requests: else one agent's would keep the others' waiting.
limits = httpx.Limits(max_connections=None)
engine = httpx.AsyncClient(base_url=os.environ["ENGINE_URL"], timeout=600, limits=limits)


@contextlib.asynccontextmanager
async def closing(app: Any) -> AsyncIterator[None]:
    yield
    await engine.aclose()


routes = FastAPI(lifespan=closing, docs_url=None, redoc_url=None, openapi_url=None)


@routes.api_route("/{path:path}", methods=["GET", "HEAD", "POST"])
async def pass_on(path: str, request: Request) -> Response:
    headers = {"content-type": "application/json"}  # and nothing else of the client's, such as its key
    query = request.scope["query_string"] or None
    url = engine.base_url.copy_with(path=engine.base_url.path + path, query=query)
    asked = engine.build_request(request.method, url, content=await request.body(), headers=headers)
    answering = asyncio.ensure_future(engine.send(asked, stream=True))
    leaving = asyncio.ensure_future(request.receive())  # after the body: that the client has gone
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            return Response(status_code=499)  # which nobody reads; the engine stops writing
        answer = answering.result()
    except httpx.TransportError as error:
        said = f"the engine does not answer ({type(error).__name__})"
        return JSONResponse({"error": {"message": said, "type": "server_error", "code": 502}}, 502)
    finally:
        answering.cancel()
        leaving.cancel()

    async def parts() -> AsyncIterator[bytes]:
        async with contextlib.aclosing(answer):
            async for part in answer.aiter_bytes():
                yield part

    kept = {name: answer.headers[name] for name in ("content-type", "retry-after") if name in answer.headers}
    return StreamingResponse(parts(), answer.status_code, kept)


app = Gateway(routes, os.environ["KEYS"], engine="vllm")
