"""A gateway of one's own before vLLM: authentication, and the agent of each key, are `Gateway`'s.

KEYS=keys.txt ENGINE_URL=http://127.0.0.1:8000 uvicorn gateway:app --port 4000
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from iet.service.gateway import Gateway

engine = httpx.AsyncClient(base_url=os.environ["ENGINE_URL"], timeout=600)


@contextlib.asynccontextmanager
async def closing(app: Any) -> AsyncIterator[None]:
    yield
    await engine.aclose()


routes = FastAPI(lifespan=closing, docs_url=None, redoc_url=None, openapi_url=None)


@routes.api_route("/{path:path}", methods=["GET", "POST"])
async def pass_on(path: str, request: Request) -> StreamingResponse:
    headers = {"content-type": "application/json"}  # and nothing else of the client's, such as its key
    asked = engine.build_request(request.method, f"/{path}", content=await request.body(), headers=headers)
    answer = await engine.send(asked, stream=True)

    async def parts() -> AsyncIterator[bytes]:
        async with contextlib.aclosing(answer):
            async for part in answer.aiter_bytes():
                yield part

    media = answer.headers.get("content-type")
    return StreamingResponse(parts(), answer.status_code, media_type=media)


app = Gateway(routes, os.environ["KEYS"], engine="vllm")
