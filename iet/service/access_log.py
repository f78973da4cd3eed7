"""The access log and the metrics of the service. Neither holds anything that a client wrote."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, exposition, generate_latest

log = logging.getLogger("iet.service")

METRICS_MEDIA_TYPE = exposition.CONTENT_TYPE_LATEST

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """Prometheus metrics of one service.

    Args:
        gauges: name -> (help text, function that returns the current value).
    """

    def __init__(self, gauges: dict[str, tuple[str, Callable[[], float]]]) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "iet_requests",
            "Requests that were answered, or whose client went.",
            ("path", "status"),
            registry=registry,
        )
        self.request_seconds = Histogram(
            "iet_request_seconds",
            "From the head of a request to its end.",
            ("path",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.audits = Counter(
            "iet_audits", "Texts that workers were given, by outcome.", ("outcome",), registry=registry
        )
        self.audit_seconds = Histogram(
            "iet_audit_seconds", "Of a text, with its wait for a worker.", buckets=_SECONDS, registry=registry
        )
        for name, (description, value) in gauges.items():
            Gauge(name, description, registry=registry).set_function(value)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        text: bytes = generate_latest(self._registry)
        return text


class AccessLog:
    """ASGI middleware that logs and counts every request, and catches the exceptions of the application.

    A line of the log names the route (not the path, which the client wrote), the status, the seconds, the
    client, and for an exception its type and line of code (not its message, which may quote the client).

    Args:
        app: the ASGI application.
        metrics: counts the requests.
    """

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, failure = time.monotonic(), 0, ""

        async def send_and_note_status(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note_status)
        except Exception as error:  # if the answer is incomplete, uvicorn closes the connection
            *_, (frame, line) = traceback.walk_tb(error.__traceback__)
            failure = f" {type(error).__name__} in {frame.f_code.co_filename}, line {line}"
        finally:
            seconds, path = time.monotonic() - start, getattr(scope.get("route"), "path", "other")
            client = scope.get("state", {}).get("client", "-")
            level = logging.ERROR if failure else logging.INFO
            method = scope["method"][:8]
            log.log(level, "%s %s %d %.3fs %s%s", method, path, status, seconds, client, failure)
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.request_seconds.labels(path).observe(seconds)
