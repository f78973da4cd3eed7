"""What is seen of every request from outside: a line of the log, and numbers."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from iet.service.audits import JSON
from iet.service.metrics import Metrics

log = logging.getLogger("iet.service")


class Observed:
    """Writes a line of the log for every request, counts it, and lets no exception out that could hold text.

    Args:
        app: the routes.
        metrics: that are kept.
    """

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request. What the client wrote into its path is not told: only the route is."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, failure = time.monotonic(), 0, ""

        async def passed_on(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
                # Whoever passed it on may have read another length than we do (RFC 9112, 6.1).
                said = "content-length: got one beside transfer-encoding, expected one of the two"
                await _say(passed_on, 400, said)
            else:
                await self._app(scope, receive, passed_on)
        except Exception as error:
            last = error.__traceback__
            while last is not None and last.tb_next is not None:
                last = last.tb_next
            place = "" if last is None else f" in {last.tb_frame.f_code.co_filename}, line {last.tb_lineno}"
            failure = f" {type(error).__name__}{place}"
            if not status:
                await _say(passed_on, 500, "the service failed")
            elif status != 500:
                raise RuntimeError("the answer was cut off") from None
        finally:
            seconds, path = time.monotonic() - began, getattr(scope.get("route"), "path", "other")
            level = logging.ERROR if failure else logging.INFO
            who = scope.get("state", {}).get("client", "-")
            log.log(level, "%s %s %d %.3fs %s%s", scope["method"][:8], path, status, seconds, who, failure)
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.request_seconds.labels(path).observe(seconds)


async def _say(send: Any, status: int, error: str) -> None:
    """Answer with an error, and close the connection."""
    headers = [(b"content-type", JSON.encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": error}).encode()})
