"""`iet serve --public`: the detector that anyone may ask, without a token, as an ASGI application."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import fastapi
from fastapi import Request
from fastapi.responses import JSONResponse, Response

from iet.service import requests
from iet.service.app import ERRORS, AuditService, new_app
from iet.service.audits import HTML, AuditFiles
from iet.service.detection import FORM, Answer, Question, page
from iet.service.limits import Limits, RateLimiter, address_group
from iet.service.requests import JSON, PLAIN

DETECT = "/v1/detect"

LIMITS = {"body_bytes": 1 << 18, "per_client": 4}
"""Defaults of `iet.service.limits.Limits` that differ for the public detector."""

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none';"
    " form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class PublicService(AuditService):
    """The state of the public detector: clients are groups of addresses, and have a rate limit.

    Args:
        files: what the workers read.
        limits: limits of the requests.
        workers: number of processes.
    """

    hint = ""

    def __init__(self, files: AuditFiles, limits: Limits, workers: int) -> None:
        super().__init__(files, None, limits, workers)
        self._rates = RateLimiter(limits.rate, limits.total_rate)
        self._key = secrets.token_bytes(32)

    def client(self, request: Request) -> str:
        """Count a question, and return a pseudonym of the client's address: the log holds no address.

        Raises:
            RequestRefused: 429 or 503, this address or all addresses have asked too much.
        """
        group = address_group(request.client.host if request.client else "")
        client = hashlib.blake2b(group.encode(), key=self._key, digest_size=8).hexdigest()
        self._rates.count(client)
        return client


def application(service: PublicService) -> fastapi.FastAPI:
    """Return the application: the page, one call, and the state of the service."""

    async def refuse(request: Request, refused: Any) -> Response:
        content = {"error": refused.message}
        if requests.prefers_html(request):
            headers = {**(refused.headers or {}), **_HEADERS}
            return Response(page(content), refused.status, headers, HTML)
        return JSONResponse(content, refused.status, refused.headers)

    app = new_app(service, "iet serve --public", "Whether a text carries a mark of this service.", refuse)
    admission = service.admission((JSON, PLAIN, FORM), service.limits.body_bytes)
    schema = {"type": "string"}
    content = {JSON: {"schema": Question.model_json_schema()}, PLAIN: {"schema": schema}}

    @app.post(
        DETECT,
        summary="Ask whether a text carries a mark",
        response_class=Response,
        responses={
            200: {"model": Answer, "description": "The result; a page if Accept prefers text/html."},
            **{status: ERRORS[status] for status in (400, 408, 413, 415, 422, 429, 500, 503)},
        },
        openapi_extra={"requestBody": {"required": True, "content": content}},
    )
    async def detect(request: Request, client: str = admission) -> Response:
        requests.refuse_query(request)
        response = await service.answer(request, client, question=requests.media_type(request))
        response.headers.update(_HEADERS)
        return response

    @app.get("/", include_in_schema=False)
    async def show_page() -> Response:
        return Response(page(), media_type=HTML, headers=_HEADERS)

    return app
