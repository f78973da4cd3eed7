"""The service as an ASGI application: authentication, limits, routes, and the answers to failed requests."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import json
import logging
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import fastapi
import pydantic.json_schema
from fastapi import Depends, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from iet import __version__
from iet.audit.worker_pool import WorkerPool, WorkFailed
from iet.errors import IetError
from iet.service import batch, page, requests
from iet.service.access_log import METRICS_MEDIA_TYPE, Metrics
from iet.service.audits import HTML, AuditFiles, AuditJob, AuditResponse, json_response
from iet.service.credentials import Credentials, bearer
from iet.service.limits import ConcurrencyLimiter, Limits, RequestRefused, read_body, too_long
from iet.service.requests import JSON, PLAIN

log = logging.getLogger("iet.service")

AUDIT = "/v1/audit"

_TOO_LONG_HINT = (
    "; a longer text is cut at line ends, and sent as a batch or audited with iet audit parts/ -o OUT/"
)
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "description": "What is wrong, and what is accepted."}},
}
ERRORS: Any = {
    status: {"description": description, "content": {JSON: {"schema": _ERROR_SCHEMA}}}
    for status, description in {
        400: "not HTTP or JSON that can be read",
        401: "no token, or one that is not known",
        403: "the service asks for no tokens, and Host is no name of its machine",
        408: "the body came too slowly",
        413: "too much",
        415: "a type that is not taken, or that nothing is installed to read",
        422: "content that asks for nothing that can be done, or that cannot be read",
        429: "too many requests of this client",
        500: "the service failed",
        503: "too much at once, too long, or the service is stopping",
    }.items()
}
_SECURITY = [
    Depends(HTTPBearer(auto_error=False, description="`iet serve --tokens FILE --add-token NAME` makes one."))
]
_HTML_SCHEMA = {"text/html": {"schema": {"type": "string"}}}
_NO_STORE = {"cache-control": "no-store"}


class AuditService:
    """The state that the routes share.

    Attributes:
        hint: end of the message that a body is too long.

    Args:
        files: what the workers read.
        credentials: the clients' tokens; None lets every request in whose Host is a name of this machine.
        limits: limits of the requests.
        workers: number of processes.
    """

    hint = _TOO_LONG_HINT

    def __init__(
        self, files: AuditFiles, credentials: Credentials | None, limits: Limits, workers: int
    ) -> None:
        self.limits, self.workers = limits, workers
        self._files, self._credentials = files, credentials
        self._limiter = ConcurrencyLimiter(limits.per_client, limits.requests)
        self._batches = weakref.WeakSet[batch.BatchBody]()
        self._pool: WorkerPool | None = None
        self._stopping = False
        self._problems = dict[str, str]()
        self.metrics = Metrics(
            {
                "iet_requests_at_work": ("Requests that are worked on.", lambda: self._limiter.in_use),
                "iet_workers": ("Workers that are running.", lambda: self._pool.ready if self._pool else 0),
                "iet_workers_lost": (
                    "Workers that died or were killed, and were replaced.",
                    lambda: self._pool.replaced if self._pool else 0,
                ),
            }
        )

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """Run the workers while the block runs."""
        self._pool = WorkerPool(
            self._files,
            self.workers,
            seconds=self.limits.seconds,
            wait=self.limits.wait,
            memory=self.limits.memory_bytes,
            on_lost=self._log_loss,
        )
        try:
            yield
        finally:
            self.stop()
            await asyncio.to_thread(self._pool.close)

    def stop(self) -> None:
        """Refuse new requests, and the lines of batches that no worker has."""
        self._stopping = True
        for body in self._batches:
            body.stop()

    @property
    def state(self) -> str:
        """Whether requests are answered: "ok", "starting" or "stopping"."""
        if self._stopping:
            return "stopping"
        return "ok" if self._pool is not None and self._pool.ready else "starting"

    def client(self, request: Request) -> str:
        """Return the name of the client, empty if the service has no tokens.

        Raises:
            RequestRefused: 401 or 403, the client may not use the service.
        """
        if self._credentials is None:
            # A web page in a browser of this machine could send requests under a host name of its own.
            if not requests.is_for_this_machine(request):
                raise RequestRefused(
                    403, "host: expected a name of this machine, as the service asks for no tokens"
                )
            return ""
        try:
            name = self._credentials.name_of(bearer(request.scope["headers"]))
        except (IetError, OSError) as error:
            self._log_once("tokens", f"all tokens are refused: {error}")
            raise RequestRefused(503, "the service cannot read its tokens") from None
        self._log_once("tokens", "")
        if name is None:
            message = "authorization: expected a bearer token of this service"
            raise RequestRefused(401, message, www_authenticate="Bearer")
        return name

    def admission(self, media_types: Sequence[str], max_bytes: int) -> Any:
        """Return a dependency that admits a request, before its body is read, until its answer is sent.

        Its value is the name of the client.

        Args:
            media_types: accepted types of the body.
            max_bytes: maximum size of the body.
        """

        async def admitted(request: Request) -> AsyncIterator[str]:
            client = self.client(request)
            request.state.client = client or "-"  # for the access log
            if self._stopping:
                raise RequestRefused(503, "the service is stopping")
            self._check_type(request, media_types)
            length = request.headers.get("content-length")
            if length is not None and "transfer-encoding" in request.headers:
                # A proxy may have read another length than this server does (RFC 9112, 6.1).
                message = "content-length: got one beside transfer-encoding, expected one of the two"
                raise RequestRefused(400, message, connection="close")
            if length is not None and int(length) > max_bytes:
                raise RequestRefused(413, too_long(max_bytes, self.hint))
            with self._limiter.share(client) as add:
                add(1)
                yield client

        return Depends(admitted)

    @staticmethod
    def _check_type(request: Request, media_types: Sequence[str]) -> None:
        media, is_audit = requests.media_type(request), request.url.path == AUDIT
        if media not in media_types:
            lacking = is_audit and len(requests.readable_documents()) < len(requests.DOCUMENT_SUFFIXES)
            more = '; the extra "documents" adds PDF, Word, HTML and mail' if lacking else ""
            raise RequestRefused(415, f"content-type: expected {' or '.join(media_types)}{more}")
        if is_audit and media == PLAIN and "origin" in request.headers:
            # A page of another origin can send it without a CORS preflight.
            raise RequestRefused(415, f"content-type: got {PLAIN} from a browser's page, expected {JSON}")

    async def answer(self, request: Request, client: str, **options: Any) -> Response:
        """Return the answer to a request with one text, conversation or document."""
        body = await read_body(
            request.receive, self.limits.body_bytes, self.limits.body_seconds, hint=self.hint
        )
        response = await self._do(AuditJob(body, html=requests.prefers_html(request), **options), client)

        async def parts() -> AsyncIterator[bytes]:
            yield response.body

        # Streamed, because its last part, which is empty, is not sent before the client has taken the others:
        # until then the request counts against the client's limit.
        headers = {**_NO_STORE, "content-length": str(len(response.body))}
        return StreamingResponse(parts(), response.status, headers, response.media_type)

    def batch_answers(self, request: Request, client: str) -> AsyncGenerator[bytes, None]:
        """Return the lines of the answer to a batch."""

        async def audit(number: int, line: bytes) -> bytes:
            return (await self._do(AuditJob(line, line=number), client)).body

        body = batch.BatchBody(request.receive, self.limits)
        self._batches.add(body)
        # Other clients get their turn because no more lines than workers are audited at once.
        return batch.answers(body, audit, self.limits, self.workers)

    async def _do(self, job: AuditJob, client: str) -> AuditResponse:
        """Return a worker's response, or a response with the reason why no worker gave one."""
        assert self._pool is not None
        start, outcome = time.monotonic(), "cancelled"
        try:
            response: AuditResponse = await self._pool.do(job, client)
            outcome = "read" if response.status == 200 else "refused" if response.status < 500 else "failed"
            self._log_once("files", response.file_problem)
            if response.failure:
                self._log_once("text", response.failure)
            return response
        except WorkFailed as failure:
            outcome = failure.reason
            return json_response(job, 503, {"error": f"the text was not read: {failure}"})
        finally:
            self.metrics.audits.labels(outcome).inc()
            self.metrics.audit_seconds.observe(time.monotonic() - start)

    def _log_loss(self, failure: WorkFailed) -> None:
        """Log the loss of a worker. A failed start, which is retried every second, is logged once."""
        if failure.reason == "start":
            self._log_once("workers", str(failure))
        else:
            log.warning("a worker was lost: %s; another one is started", failure)
            self._log_once("workers", "")

    def _log_once(self, subject: str, problem: str) -> None:
        """Log a problem when it occurs or changes; an empty one ends it."""
        if problem and problem != self._problems.get(subject):
            log.error("%s", problem)
        self._problems[subject] = problem


class _BatchResponse(StreamingResponse):
    """An answer that is sent while the request is received, so that it must not listen for a disconnect."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with contextlib.aclosing(self.body_iterator):  # type: ignore[type-var]
            await self.stream_response(send)


def new_app(service: AuditService, title: str, description: str, refuse: Any) -> fastapi.FastAPI:
    """Return an application with the route that shows the service's state.

    Args:
        service: runs while the application runs.
        title, description: for OpenAPI.
        refuse: exception handler of RequestRefused.
    """
    app = fastapi.FastAPI(
        title=title,
        version=__version__,
        description=description,
        lifespan=service.lifespan,
        docs_url=None,  # these pages load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,  # the redirect's host is the one that the client names
        exception_handlers={RequestRefused: refuse, HTTPException: _refuse_path, Exception: _fail},
    )

    @app.get(
        "/healthz",
        summary="Whether texts are read",
        response_class=Response,
        responses={200: {"description": "They are."}, 503: {"description": "The service starts or stops."}},
    )
    async def healthz() -> Response:
        return JSONResponse({"status": service.state}, 200 if service.state == "ok" else 503)

    return app


def application(service: AuditService) -> fastapi.FastAPI:
    """Return the application."""
    app = new_app(service, "iet serve", "Who wrote which part of a text, from keyed marks.", _refuse)
    readable = requests.readable_documents()
    limits = service.limits
    audit_admission = service.admission((JSON, PLAIN, *readable), limits.body_bytes)
    check_admission = service.admission((JSON,), limits.body_bytes)
    batch_admission = service.admission((batch.MEDIA_TYPE,), limits.batch_bytes)
    documents: Any = {media: {} for media in (PLAIN, *readable)}

    @app.post(
        AUDIT,
        summary="Audit a text, token ids, a chat, or a document",
        **_described(
            "The report: JSON, or the page where Accept prefers text/html.",
            {JSON: {"schema": _schema("Report")}, **_HTML_SCHEMA},
            {JSON: {"schema": _schema("AuditRequest")}, **documents},
            "JSON, or a document as it is, with options in the query.",
            parameters=requests.openapi_parameters(),
        ),
    )
    async def audit(request: Request, client: str = audit_admission) -> Response:
        upload = None
        if requests.media_type(request) == JSON:
            requests.refuse_query(request)
        else:
            query = request.scope["query_string"].decode("latin-1")
            upload = requests.Upload(request.headers["content-type"], query, limits.body_bytes)
        return await service.answer(request, client, document=upload)

    @app.post(
        "/v1/check",
        summary="Check who a conversation says wrote its messages",
        **_described(
            "A verdict for each message, as `iet.claims/1`, or the page where Accept prefers text/html.",
            {JSON: {"schema": {"type": "object"}}, **_HTML_SCHEMA},
            {JSON: {"schema": _schema("CheckRequest")}},
        ),
    )
    async def check(request: Request, client: str = check_admission) -> Response:
        requests.refuse_query(request)
        return await service.answer(request, client, check=True)

    @app.post(
        "/v1/audit/batch",
        summary="Audit lines of JSON, one after another",
        **_described(
            "A line for each that is not blank, in their order: line, status, id if given,"
            " and report or error. Where the batch ends early, the last line says why.",
            {batch.MEDIA_TYPE: {"schema": {"type": "string"}}},
            {batch.MEDIA_TYPE: {"schema": _schema("AuditRequest")}},
        ),
    )
    async def audit_batch(request: Request, client: str = batch_admission) -> Response:
        requests.refuse_query(request)
        lines = service.batch_answers(request, client)
        return _BatchResponse(lines, headers=_NO_STORE, media_type=batch.MEDIA_TYPE)

    @app.get(
        "/metrics",
        summary="For Prometheus",
        dependencies=_SECURITY,
        response_class=Response,
        responses={status: ERRORS[status] for status in (401, 403, 503)},
    )
    async def show_metrics(request: Request) -> Response:
        service.client(request)
        return Response(service.metrics.exposition(), media_type=METRICS_MEDIA_TYPE)

    @app.get("/", include_in_schema=False)
    async def show_page() -> Response:
        return Response(page.PAGE, media_type=HTML, headers=page.HEADERS)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            _, models = pydantic.json_schema.models_json_schema(
                [(requests.AuditRequest, "validation"), (requests.CheckRequest, "validation")],
                ref_template="#/components/schemas/{model}",
            )
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            report = importlib.resources.files("iet.report").joinpath("schema.json").read_text("utf-8")
            schemas |= models["$defs"] | {"Report": json.loads(report)}
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def _schema(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _described(
    answer: str, answer_content: Any, request_content: Any, request: str | None = None, **openapi: Any
) -> dict[str, Any]:
    """Return the arguments of a POST route that describe its request and answers for OpenAPI."""
    description = {} if request is None else {"description": request}
    openapi["requestBody"] = {"required": True, **description, "content": request_content}
    return {
        "dependencies": _SECURITY,
        "response_class": Response,
        "responses": {200: {"description": answer, "content": answer_content}, **ERRORS},
        "openapi_extra": openapi,
    }


async def _refuse(request: Request, refused: Any) -> Response:
    # The connection stays open: uvicorn reads and drops the rest of the body, so that a client that is still
    # sending gets this answer and not a reset connection.
    return JSONResponse({"error": refused.message}, refused.status, refused.headers)


async def _refuse_path(request: Request, error: Any) -> Response:
    allowed = (error.headers or {}).get("Allow", "another")
    messages = {
        404: "path: not found; GET /openapi.json lists the paths",
        405: f"method: got {request.method}, expected {allowed} for this path",
    }
    message = messages.get(error.status_code, "the request is refused")
    return JSONResponse({"error": message}, error.status_code, error.headers)


async def _fail(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the service failed"}, 500)
