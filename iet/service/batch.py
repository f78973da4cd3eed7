"""A batch: one line of JSON in and one out for each text, in order, answered while the rest still arrives.

The request's body is spooled to a temporary file as fast as the client sends it. Most clients read nothing
before they have sent everything, so a service that waited for them to read would wait forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from iet.service.limits import Limits

READ_BYTES = 1 << 16
MEDIA_TYPE = "application/x-ndjson"

_STOPPING = 503, "the service is stopping: this line and those after it were not read"

AuditLine = Callable[[int, bytes], Awaitable[bytes]]


class BatchBody:
    """The body of a batch while it arrives, in a temporary file without a name.

    Args:
        receive: the ASGI callable, which only this object may call from now on.
        limits: the service's limits.

    Attributes:
        client_gone: whether the client closed the connection.
        failure: HTTP status and message if the body was not read to its end, else None.
    """

    def __init__(self, receive: Callable[[], Awaitable[Any]], limits: Limits) -> None:
        self._receive, self._limits = receive, limits
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed in `close`
        self._written = self._read = 0  # bytes
        self._complete = self._stopping = False
        self._changed = asyncio.Event()
        self.client_gone = False
        self.failure: tuple[int, str] | None = None
        self._task = asyncio.create_task(self._spool())

    def stop(self) -> None:
        """Yield no further line, because the service is stopping."""
        self._stopping = True
        self._changed.set()

    async def close(self) -> None:
        """Receive no more, and delete the file."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._file.close()

    async def _spool(self) -> None:
        try:
            while not self._complete:
                async with asyncio.timeout(self._limits.body_seconds):
                    message = await self._receive()
                if message["type"] == "http.disconnect":
                    self.client_gone = True
                    return
                part = message.get("body", b"")
                if self._written + len(part) > self._limits.batch_bytes:
                    self.failure = 413, f"batch: got more than {self._limits.batch_bytes} bytes"
                    return
                self._file.seek(self._written)
                view = memoryview(part)
                while view:
                    view = view[self._file.write(view) :]
                self._written += len(part)
                self._complete = not message.get("more_body", False)
                self._changed.set()
            await self._receive()  # after the body it returns only when the client disconnects
            self.client_gone = True
        except TimeoutError:
            self.failure = 408, f"batch: nothing came for {self._limits.body_seconds:g} seconds"
        except OSError as error:
            self.failure = 503, f"batch: the service cannot keep it ({error.strerror})"
        finally:
            self._complete = True
            self._changed.set()

    async def lines(self) -> AsyncIterator[tuple[int, bytes | None]]:
        """Yield the number and bytes of every line that is not blank; None in place of one that is too long.

        It ends early if the body fails, the client disconnects or the service stops.
        """
        number, line, is_long = 0, bytearray(), False
        while True:
            while self._read == self._written and not (self._complete or self._stopping):
                self._changed.clear()
                await self._changed.wait()
            if self._read == self._written:
                break
            self._file.seek(self._read)
            part = self._file.read(READ_BYTES)
            self._read += len(part)
            *ends, rest = part.split(b"\n")
            for end in ends:
                line += end
                is_long = is_long or len(line) > self._limits.body_bytes
                if is_long or line.strip():
                    if self.client_gone:
                        return
                    if self._stopping:
                        self.failure = _STOPPING
                        return
                    yield number, None if is_long else bytes(line)
                number, is_long = number + 1, False
                line.clear()
            line += rest
            if len(line) > self._limits.body_bytes:
                line.clear()
                is_long = True
            await asyncio.sleep(0)  # lets other requests run while blank lines are skipped
        if self._stopping and not self._complete:
            self.failure = _STOPPING
        if self.failure is None and not self.client_gone and (is_long or line.strip()):
            yield number, None if is_long else bytes(line)


async def answers(
    body: BatchBody, audit: AuditLine, limits: Limits, ahead: int
) -> AsyncGenerator[bytes, None]:
    """Yield a line of the answer for every line of a batch; close the body at the end.

    Args:
        body: the batch.
        audit: (number, line) -> line of the answer; raises nothing.
        limits: the service's limits.
        ahead: maximum number of lines that are audited at once.
    """
    tasks: asyncio.Queue[asyncio.Future[bytes] | None] = asyncio.Queue()
    unfinished = set[asyncio.Future[bytes]]()
    free, last = asyncio.Semaphore(ahead), -1

    async def start_audits() -> None:
        nonlocal last
        try:
            await free.acquire()
            async for number, line in body.lines():
                last = number
                if line is None:
                    message = f"line: got more than {limits.body_bytes} bytes"
                    task: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
                    task.set_result(_error_line(number, 413, message))
                else:
                    task = asyncio.ensure_future(audit(number, line))
                    unfinished.add(task)
                    task.add_done_callback(unfinished.discard)
                tasks.put_nowait(task)
                await free.acquire()  # before the next line is read, so that `stop` refuses it
        finally:
            tasks.put_nowait(None)

    reader = asyncio.create_task(start_audits())
    try:
        while (task := await tasks.get()) is not None:
            line = await task
            free.release()
            yield line
        await reader
        if body.failure is not None:
            yield _error_line(last + 1, *body.failure)
    finally:
        reader.cancel()
        for task in unfinished:
            task.cancel()
        await body.close()


def _error_line(number: int, status: int, message: str) -> bytes:
    return json.dumps({"line": number, "status": status, "error": message}).encode() + b"\n"
