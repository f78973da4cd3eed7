"""A custom gateway in front of vLLM. `Gateway` authenticates requests and sets the agent of each key.

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

# No limit on connections, or one agent's requests would delay those of others.
limits = httpx.Limits(max_connections=None)
engine = httpx.AsyncClient(base_url=os.environ["ENGINE_URL"], timeout=600, limits=limits)


@contextlib.asynccontextmanager
async def closing(app: Any) -> AsyncIterator[None]:
    yield
    await engine.aclose()


routes = FastAPI(lifespan=closing, docs_url=None, redoc_url=None, openapi_url=None)


@routes.api_route("/{path:path}", methods=["GET", "HEAD", "POST"])
async def pass_on(path: str, request: Request) -> Response:
    headers = {
        "content-type": "application/json"
    }  # other headers of the client, such as its key, are dropped
    query = request.scope["query_string"] or None
    url = engine.base_url.copy_with(path=engine.base_url.path + path, query=query)
    upstream_request = engine.build_request(
        request.method, url, content=await request.body(), headers=headers
    )
    sending = asyncio.ensure_future(engine.send(upstream_request, stream=True))
    disconnect = asyncio.ensure_future(request.receive())  # resolves if the client disconnects
    try:
        await asyncio.wait({sending, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not sending.done():
            return Response(status_code=499)  # the client has disconnected, so the engine stops generating
        reply = sending.result()
    except httpx.TransportError as error:
        message = f"the engine does not answer ({type(error).__name__})"
        return JSONResponse({"error": {"message": message, "type": "server_error", "code": 502}}, 502)
    finally:
        sending.cancel()
        disconnect.cancel()

    async def parts() -> AsyncIterator[bytes]:
        async with contextlib.aclosing(reply):
            async for part in reply.aiter_bytes():
                yield part

    reply_headers = {
        name: reply.headers[name] for name in ("content-type", "retry-after") if name in reply.headers
    }
    return StreamingResponse(parts(), reply.status_code, reply_headers)


app = Gateway(routes, os.environ["KEYS"], engine="vllm")
