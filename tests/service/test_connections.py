"""Connections of clients that send what takes long to read, or read late: real sockets, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from iet.service.app import _Held
from iet.service.audits import Answer
from iet.service.limits import Limits
from iet.service.server import CHUNKS_AT_ONCE, _protocol
from tests.support.conditions import posix
from tests.support.waiting import PATIENCE

pytestmark = posix

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"


protocols: list[Any] = []
"""Of the connections, the last one last."""


@contextlib.asynccontextmanager
async def served(app: Callable[..., Awaitable[None]], limits: Limits) -> AsyncIterator[int]:
    config = uvicorn.Config(app, lifespan="off", log_config=None, h11_max_incomplete_event_size=1 << 14)
    config.load()
    protocols.clear()
    state, loop = ServerState(), asyncio.get_running_loop()
    make = _protocol(limits)

    def made() -> Any:
        protocols.append(make(config, state, {}))
        return protocols[-1]

    server = await loop.create_server(made, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def answered(send: Any, body: bytes) -> None:
    head = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": False})


@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
def test_others_have_their_turn_while_a_body_of_tiny_chunks_is_read(close: bytes) -> None:
    chunks, turns, most, got = 100_000, 0, 0, []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = bytearray(), True
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
            await asyncio.sleep(1e-4)  # so that it asks for more after a turn of what reads it
        got.append((bytes(body), turns))
        await answered(send, b"whole")

    async def other() -> None:
        nonlocal turns, most
        while not got:
            turns += 1
            most = max(most, len(protocols[-1].conn.trailing_data[0]))
            await asyncio.sleep(0)

    async def main() -> bytes:
        async with served(app, Limits()) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while not protocols or protocols[-1].transport is None:
                await asyncio.sleep(0)
            counting = asyncio.create_task(other())
            writer.write(HEAD + close + b"\r\n" + b"1\r\nx\r\n" * chunks + b"0\r\n\r\n")
            said = await reader.readuntil(b"whole")
            await counting
            if not close:  # the connection goes on
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                said += await reader.readuntil(b"whole")
            writer.close()
            return said

    said = asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert got[0][0] == b"x" * chunks
    assert got[0][1] >= chunks // CHUNKS_AT_ONCE
    assert most <= 1 << 18  # one read of the socket: no more is taken from it before that is understood
    assert said.count(b"HTTP/1.1 200") == (1 if close else 2)


def test_a_body_that_nobody_takes_is_not_read_on() -> None:
    # What was read is held here: tiny chunks are no way around the limit of what is.
    sent, held = 0, []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        nonlocal sent
        async with served(app, Limits()) as port:
            loop = asyncio.get_running_loop()
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.setblocking(False)
                await loop.sock_sendall(client, HEAD + b"\r\n")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(3):
                        while sent < 64 << 20:
                            part = b"1\r\nx\r\n" * 10_000
                            await loop.sock_sendall(client, part)
                            sent += len(part)
            held.append(sent)

    asyncio.run(main())
    assert held[0] < 32 << 20  # the system's buffers, and little more


def test_who_sends_all_before_it_reads_is_not_stalled_while_it_sends() -> None:
    seconds, parts, size = 0.5, 20, 1 << 20

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        message: Any = {"more_body": True}
        while message.get("more_body"):
            message = await receive()
            if message.get("body"):
                await send(
                    {
                        "type": "http.response.body",
                        "body": b"y" * size * len(message["body"]),
                        "more_body": True,
                    }
                )
        await send({"type": "http.response.body", "body": b"end", "more_body": False})

    async def main() -> bytes:
        async with served(app, Limits(stall_seconds=seconds)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 12)
            writer.write(HEAD + b"\r\n")
            for _ in range(parts):  # of which the answers fill all buffers by far, while nothing is read
                writer.write(b"1\r\nx\r\n")
                await asyncio.sleep(4 * seconds / parts)
            writer.write(b"0\r\n\r\n")
            said = bytearray()
            while not said.endswith(b"0\r\n\r\n") and (part := await reader.read(1 << 20)):
                said += part
            return bytes(said)

    said = asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert said.count(b"y") == parts * size
    assert said.endswith(b"0\r\n\r\n")


def test_an_answer_that_is_not_taken_holds_its_place() -> None:
    given_back = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with contextlib.ExitStack() as place:
            place.callback(given_back.set)
            held = _Held(Answer(200, "text/plain", b"y" * (32 << 20)), place.pop_all())
        await held(scope, receive, send)

    async def main() -> int:
        async with served(app, Limits()) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 12)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"content-length: 33554432" in head.lower()
            with pytest.raises(TimeoutError):  # there is more than fits into buffers
                await asyncio.wait_for(given_back.wait(), 0.5)
            got = len(await reader.readexactly(32 << 20))
            await asyncio.wait_for(given_back.wait(), PATIENCE)
            writer.close()
            return got

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE)) == 32 << 20
