"""The service as an ASGI application: who may ask, what is taken, and what is said where something fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import Any

import fastapi
import pydantic.json_schema
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from iet import __version__
from iet.errors import IetError
from iet.service import batch, documents, heads, metrics, page, requests
from iet.service.audits import HTML, JSON, Answer, Audits, Job
from iet.service.credentials import Credentials, bearer
from iet.service.limits import Limits, Places, Refused
from iet.service.pool import Pool, WorkFailed

log = logging.getLogger("iet.service")

LINGER_SECONDS, LINGER_BYTES = 2.0, 16 << 20
"""For a client to send the rest of a body that was refused: it reads the answer after that."""

AUDIT = "/v1/audit"

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "description": "What is wrong, and what is accepted."}},
}
_SAID = {
    400: "not HTTP or JSON that can be read",
    401: "no token, or one that is not known",
    403: "the service asks for no tokens, and Host is no name of its machine",
    408: "the body came too slowly",
    413: "too much",
    415: "a type that is not taken, or that nothing is installed to read",
    422: "JSON that asks for nothing that can be done, or a document that cannot be read",
    429: "this client has its share of requests at work",
    500: "the service failed",
    503: "too much at once, too long, or the service is stopping",
}
_SECURED = HTTPBearer(auto_error=False, description="`iet serve --tokens FILE --add-token NAME` makes one.")


class Service:
    """What the routes share.

    Args:
        audits: what workers read with.
        credentials: who may ask; None: everybody who reaches the service under a name of this machine.
        limits: what is taken.
        workers: number of processes.
    """

    def __init__(self, audits: Audits, credentials: Credentials | None, limits: Limits, workers: int) -> None:
        self._audits, self._credentials, self.limits, self._count = audits, credentials, limits, workers
        self.stopping = False
        """Whether no more work is taken."""
        self.places = Places(limits)
        self.arriving = set[batch.Arriving]()
        """Batches that are answered."""
        self._pool: Pool | None = None
        self._told = dict[str, str]()
        self.metrics = metrics.Metrics(
            lambda: 0 if self._pool is None else self._pool.ready,
            lambda: 0 if self._pool is None else self._pool.replaced,
            lambda: self.places.taken,
        )

    @contextlib.asynccontextmanager
    async def running(self, app: Any = None) -> AsyncIterator[None]:
        """Run the workers while the block runs."""
        self._pool = Pool(
            self._audits,
            self._count,
            seconds=self.limits.seconds,
            wait=self.limits.wait,
            memory=self.limits.memory_bytes,
            tell=lambda line: log.warning("%s", line),
        )
        try:
            yield
        finally:
            self.stopping = True
            await asyncio.to_thread(self._pool.close)

    def stop(self) -> None:
        """Take no more work, and wait for no more of a batch."""
        self.stopping = True
        for arriving in self.arriving:
            arriving.stop()

    @property
    def ready(self) -> bool:
        """Whether a text that came now would be read."""
        return not self.stopping and self._pool is not None and self._pool.ready > 0

    def client(self, request: fastapi.Request) -> str:
        """Return who asks.

        Raises:
            Refused: nobody who may.
        """
        if self._credentials is None:
            # Else a stranger's page in a browser of this machine could ask, under a host of its own.
            if not heads.is_for_this_machine(request):
                raise Refused(403, "host: expected a name of this machine, as the service asks for no tokens")
            return ""
        try:
            name = self._credentials.name_of(bearer(request.scope["headers"]))
        except (IetError, OSError) as error:
            self._tell("tokens", f"nobody is let in: {error}")
            raise Refused(503, "the service cannot read its tokens") from None
        self._tell("tokens", "")
        if name is None:
            raise Refused(
                401, "authorization: expected a bearer token of this service", www_authenticate="Bearer"
            )
        return name

    @contextlib.contextmanager
    def admitted(self, request: fastapi.Request, media: Sequence[str], limit: int) -> Iterator[str]:
        """Hold a place for a request while the block runs, before anything of its body is read.

        Yields:
            Who asks.

        Raises:
            Refused: nobody may ask this, or not now, or not so much.
        """
        client = self.client(request)
        request.scope.setdefault("state", {})["client"] = client or "-"
        if self.stopping:
            raise Refused(503, "the service is stopping")
        given = heads.media(request)
        if given not in media:  # what a page of a stranger's can send without asking is none of these
            lacking = given in documents.MEDIA and request.url.path == AUDIT
            why = "; the service lacks the extra documents, which reads this type" if lacking else ""
            raise Refused(415, f"content-type: expected {' or '.join(media)}{why}")
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and (len(length) > 15 or int(length) > limit):
            raise _too_long(limit)
        with self.places.place(client):
            yield client

    async def do(self, job: Job, client: str) -> Answer:
        """Return a worker's answer to a client, or why there is none."""
        assert self._pool is not None
        began, outcome = time.monotonic(), "failed"
        try:
            answer: Answer = await self._pool.do(job, client)
            outcome = "read" if answer.status == 200 else "refused" if answer.status < 500 else "failed"
            self._tell("files", answer.damage)
            if answer.note:
                self._tell("text", answer.note)
            return answer
        except WorkFailed as failure:
            outcome = failure.reason
            said = {"error": f"the text was not read: {failure}"}
            if job.line is not None:
                said = {"line": job.line, "status": 503, **said}  # type: ignore[dict-item]
            return Answer(503, JSON, json.dumps(said).encode() + b"\n")
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self.metrics.audits.labels(outcome).inc()
            self.metrics.audit_seconds.observe(time.monotonic() - began)

    @property
    def ahead(self) -> int:
        """Number of lines of a batch that are worked on at once: no more, so that others get a turn."""
        return self._count

    def _tell(self, of: str, note: str) -> None:
        """Write to the log what is wrong with something: once, and again after nothing was."""
        if note and note != self._told.get(of):
            log.error("%s", note)
        self._told[of] = note


def application(service: Service) -> fastapi.FastAPI:
    """Return the routes."""
    app = fastapi.FastAPI(
        title="iet serve",
        version=__version__,
        description="Who wrote which part of a text, from keyed marks.",
        lifespan=service.running,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # it would lead to whatever host the client names
        exception_handlers={Refused: _refuse, HTTPException: _refuse_path},
    )
    errors: Any = {
        status: {"description": said, "content": {JSON: {"schema": _ERROR}}} for status, said in _SAID.items()
    }
    report = {"$ref": "#/components/schemas/Report"}
    asked = {"$ref": "#/components/schemas/AuditRequest"}
    claims = {"$ref": "#/components/schemas/CheckRequest"}
    secured = [fastapi.Depends(_SECURED)]
    readable = documents.accepted()

    @app.post(
        AUDIT,
        summary="Audit a text, token ids, a chat, or a document",
        dependencies=secured,
        response_class=Response,
        responses={
            200: {
                "description": "The report: JSON, or the page where Accept prefers text/html.",
                "content": {JSON: {"schema": report}, "text/html": {"schema": {"type": "string"}}},
            },
            **errors,
        },
        openapi_extra={
            "parameters": requests.parameters(),
            "requestBody": {
                "required": True,
                "description": "JSON, or a document as it is, with options in the query.",
                "content": {JSON: {"schema": asked}} | {media: {} for media in readable},
            },
        },
    )
    async def audit(request: fastapi.Request) -> Response:
        limit = service.limits.body_bytes
        with contextlib.ExitStack() as place:
            client = place.enter_context(service.admitted(request, (JSON, *readable), limit))
            upload = None
            if heads.media(request) == JSON:
                heads.refuse_query(request)
            else:
                query = request.scope["query_string"].decode("latin-1")
                upload = documents.Upload(request.headers["content-type"], query, limit)
            body = await _body(request, service.limits)
            job = Job(body, html=heads.wants_page(request), document=upload)
            answer = await _unless_gone(request, service.do(job, client))
            return _Held(answer, place.pop_all())

    @app.post(
        "/v1/check",
        summary="Check who a conversation says wrote its messages",
        dependencies=secured,
        response_class=Response,
        responses={
            200: {
                "description": "A verdict for each message, as `iet.claims/1`, or the page where Accept"
                " prefers text/html.",
                "content": {
                    JSON: {"schema": {"type": "object"}},
                    "text/html": {"schema": {"type": "string"}},
                },
            },
            **errors,
        },
        openapi_extra={"requestBody": {"required": True, "content": {JSON: {"schema": claims}}}},
    )
    async def check(request: fastapi.Request) -> Response:
        with contextlib.ExitStack() as place:
            client = place.enter_context(service.admitted(request, (JSON,), service.limits.body_bytes))
            heads.refuse_query(request)
            body = await _body(request, service.limits)
            job = Job(body, check=True, html=heads.wants_page(request))
            answer = await _unless_gone(request, service.do(job, client))
            return _Held(answer, place.pop_all())

    @app.post(
        "/v1/audit/batch",
        summary="Audit lines of JSON, one after another",
        dependencies=secured,
        response_class=Response,
        responses={
            200: {
                "description": "A line for each that is not blank, in their order: line, status, id if given,"
                " and report or error. Where the batch ends early, the last line says why.",
                "content": {batch.MEDIA: {"schema": {"type": "string"}}},
            },
            **errors,
        },
        openapi_extra={"requestBody": {"required": True, "content": {batch.MEDIA: {"schema": asked}}}},
    )
    async def audit_batch(request: fastapi.Request) -> Response:
        return _Batch(service, request)

    @app.get(
        "/healthz",
        summary="Whether texts are read",
        response_class=Response,
        responses={200: {"description": "They are."}, 503: {"description": "The service starts or stops."}},
    )
    async def healthz() -> Response:
        state = "ok" if service.ready else "stopping" if service.stopping else "starting"
        return JSONResponse({"status": state}, 200 if service.ready else 503)

    @app.get(
        "/metrics",
        summary="For Prometheus",
        dependencies=secured,
        response_class=Response,
        responses={status: errors[status] for status in (401, 403, 503)},
    )
    async def show_metrics(request: fastapi.Request) -> Response:
        service.client(request)
        return Response(service.metrics.show(), media_type=metrics.MEDIA)

    @app.get("/", include_in_schema=False)
    async def show_page() -> Response:
        return Response(page.PAGE, media_type=HTML, headers=page.HEADERS)

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            _, models = pydantic.json_schema.models_json_schema(
                [(requests.AuditRequest, "validation"), (requests.CheckRequest, "validation")],
                ref_template="#/components/schemas/{model}",
            )
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            schemas |= models["$defs"] | {"Report": page.report_schema()}
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]
    return app


class _Held(Response):
    """An answer that holds its request's place until the client has taken it, all but what is in buffers."""

    def __init__(self, answer: Answer, place: contextlib.ExitStack) -> None:
        super().__init__(answer.body, answer.status, {"cache-control": "no-store"}, answer.media)
        self._place = place

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._place:
            head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            await send(head)
            await send({"type": "http.response.body", "body": self.body, "more_body": True})
            # Before this, which holds nothing, the server waits for the client to take what came before it.
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Batch(Response):
    """Reads the request while it answers, which Starlette's streams do not allow."""

    def __init__(self, service: Service, request: fastapi.Request) -> None:
        super().__init__()
        self._service, self._request = service, request

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._service.admitted(
            self._request, (batch.MEDIA,), self._service.limits.batch_bytes
        ) as client:
            heads.refuse_query(self._request)
            await self._answer(receive, send, client)

    async def _answer(self, receive: Any, send: Any, client: str) -> None:
        service = self._service

        async def audit(line: bytes, number: int) -> bytes:
            return (await service.do(Job(line, line=number), client)).body

        arriving = batch.Arriving(receive, service.limits)
        service.arriving.add(arriving)
        try:
            head = [(b"content-type", batch.MEDIA.encode()), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await batch.answer(
                arriving, send, audit, service.ahead, lambda: service.stopping, service.limits.body_bytes
            )
        except* batch.ClientGone:
            pass
        finally:
            service.arriving.discard(arriving)
            await arriving.close()


async def _body(request: fastapi.Request, limits: Limits) -> bytes:
    """Return the body.

    Raises:
        Refused: it is too long, or too slow, or the client went.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, "the client went before its request was whole")
                body += message.get("body", b"")
                if len(body) > limits.body_bytes:
                    raise _too_long(limits.body_bytes)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise Refused(408, f"body: got a part of it in {limits.body_seconds:g} seconds") from None


async def _unless_gone(request: fastapi.Request, work: Awaitable[Answer]) -> Answer:
    """Return the answer; work that nobody has begun is dropped when the client goes."""
    job, gone = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({job, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            job.cancel()
            await asyncio.wait({job})
        return Answer(499, JSON, b"") if job.cancelled() else job.result()
    finally:
        job.cancel()
        gone.cancel()


def _too_long(limit: int) -> Refused:
    return Refused(
        413,
        f"body: got more than {limit:,} bytes, expected at most these; a longer text is cut at line ends, and"
        " sent as a batch or audited with iet audit parts/ -o OUT/",
    )


async def _refuse(request: fastapi.Request, refused: Any) -> Response:
    """Return what is said, after a moment in which the client can send what it was about to send.

    It would see a broken connection in place of the answer if that was closed at once.
    """
    message: dict[str, Any]
    with contextlib.suppress(TimeoutError, RuntimeError):
        if request.method == "POST" and "expect" not in request.headers:
            async with asyncio.timeout(LINGER_SECONDS):
                message, size = {"more_body": True}, 0
                while message.get("more_body", False) and size < LINGER_BYTES:
                    message = dict(await request.receive())
                    size += len(message.get("body", b""))
    headers = {**refused.headers, "connection": "close"}
    return JSONResponse({"error": refused.said}, refused.status, headers)


async def _refuse_path(request: fastapi.Request, error: Any) -> Response:
    known = {404: "path: nothing is there", 405: "method: the path takes another one"}
    said = Refused(error.status_code, known.get(error.status_code, "the request is refused"))
    said.headers |= error.headers or {}
    return await _refuse(request, said)
