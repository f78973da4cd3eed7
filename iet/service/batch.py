"""A batch: lines of JSON in, lines of JSON out, in their order, while the rest still arrives.

What arrives goes to a temporary file, as fast as the client sends it: most clients read nothing until they
have sent all, and would wait for ever for a service that waits for them to read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from iet.service.limits import Limits

READ_BYTES = 1 << 16
MEDIA = "application/x-ndjson"

_STOPPING = 503, "the service is stopping: this line and those after it were not read"

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
AuditLine = Callable[[bytes, int], Awaitable[bytes]]


class ClientGone(Exception):
    """The client closed the connection: nobody reads an answer."""


class Arriving:
    """The body of a request as it arrives, in a file that has no name.

    Args:
        receive: of ASGI. Nobody else may call it.
        limits: of the service.
    """

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive, self._limits = receive, limits
        # Unbuffered: what is written can be read at once, and nothing is left to be written at its end.
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed in `close`
        self._arrived = self._written = self._read = 0  # bytes before those in the file, and of those
        self._ended, self._news = False, asyncio.Event()
        self.gone = False
        self.failure: tuple[int, str] | None = None
        """Why the body is not whole: status and words."""
        self._task = asyncio.create_task(self._fill())

    def stop(self) -> None:
        """Wait for no more of the body, as the service is stopping."""
        if not self._ended:
            self.failure, self._ended = _STOPPING, True
            self._news.set()
            self._task.cancel()

    async def close(self) -> None:
        """Take no more, and delete the file."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._file.close()

    async def _fill(self) -> None:
        try:
            while not self._ended:
                async with asyncio.timeout(self._limits.body_seconds):
                    message = await self._receive()
                if message["type"] == "http.disconnect":
                    self.gone = True
                    return
                part = message.get("body", b"")
                if self._arrived + self._written + len(part) > self._limits.batch_bytes:
                    self.failure = 413, f"batch: got more than {self._limits.batch_bytes} bytes"
                    return
                self._append(part)
                self._ended = not message.get("more_body", False)
                self._news.set()
            await self._receive()  # nothing else comes but that the client goes
            self.gone = True
        except TimeoutError:
            self.failure = 408, f"batch: nothing came for {self._limits.body_seconds:g} seconds"
        except OSError as error:
            self.failure = 503, f"batch: the service cannot keep it ({error.strerror})"
        finally:
            self._ended = True
            self._news.set()

    def _append(self, part: bytes) -> None:
        self._file.seek(self._written)
        view = memoryview(part)
        while view:
            view = view[self._file.write(view) :]
        self._written += len(part)

    async def lines(self) -> AsyncIterator[tuple[int, bytes | None]]:
        """Yield number and bytes of every line that is not blank, None for one that is too long.

        Raises:
            ClientGone: it is.
        """
        number, line, long = 0, bytearray(), False
        while True:
            while self._read == self._written and not self._ended:
                self._news.clear()
                await self._news.wait()
            if self.gone:
                raise ClientGone
            if self._read == self._written:
                break
            self._file.seek(self._read)
            part = self._file.read(READ_BYTES)
            self._read += len(part)
            if self._read == self._written:  # what was read takes no room
                self._file.truncate(0)
                self._arrived, self._read, self._written = self._arrived + self._written, 0, 0
            *whole, rest = part.split(b"\n")
            for piece in whole:
                found = bytes(line + piece) if line else piece
                if long or len(found) > self._limits.body_bytes:
                    yield number, None
                elif found.strip():
                    yield number, found
                number, long = number + 1, False
                line.clear()
            line += rest
            if len(line) > self._limits.body_bytes:
                line.clear()
                long = True
            await asyncio.sleep(0)  # else nobody else would have a turn while there are blank lines
        if self.failure is None and (long or line.strip()):
            yield number, None if long else bytes(line)


async def answer(
    arriving: Arriving, send: Send, audit: AuditLine, ahead: int, stopping: Callable[[], bool], limit: int
) -> None:
    """Send a line for every line that arrives.

    Args:
        arriving: the batch.
        send: of ASGI, after the head of the answer; it waits for a client that reads slowly.
        audit: (line, number) -> line of the answer; raises nothing.
        ahead: maximum number of lines that are worked on at once.
        stopping: tells whether the service takes no more work; then the rest is refused by one line.
        limit: bytes of a line.

    Raises:
        ExceptionGroup: of `ClientGone`.
    """
    at_work: asyncio.Queue[asyncio.Future[bytes] | None] = asyncio.Queue()
    free, jobs = asyncio.Semaphore(ahead), set[asyncio.Future[bytes]]()

    async def pass_on() -> None:
        while (job := await at_work.get()) is not None:
            line = await job
            jobs.discard(job)
            free.release()
            if arriving.gone:
                raise ClientGone
            await send({"type": "http.response.body", "body": line, "more_body": True})

    refused, last = None, -1
    try:
        async with asyncio.TaskGroup() as group:  # what one of the two raises ends the other
            group.create_task(pass_on())
            async for number, line in arriving.lines():
                await free.acquire()
                if stopping():
                    refused = _STOPPING
                    break
                last = number
                if line is None:
                    said: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
                    said.set_result(_error(number, 413, f"line: got more than {limit} bytes"))
                else:
                    said = asyncio.ensure_future(audit(line, number))
                jobs.add(said)
                at_work.put_nowait(said)
            at_work.put_nowait(None)
    finally:
        for job in jobs:
            job.cancel()
    refused = refused or arriving.failure
    end = b"" if refused is None else _error(last + 1, *refused)
    await send({"type": "http.response.body", "body": end, "more_body": False})


def _error(number: int, status: int, said: str) -> bytes:
    return json.dumps({"line": number, "status": status, "error": said}).encode() + b"\n"
