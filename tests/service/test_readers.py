"""Clients that read slowly are waited for; one that reads nothing is cut, and the log says so."""

from __future__ import annotations

import contextlib
import io
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.service import Upstream, uvicorn

from iet.service import server  # isort: skip - where the extra is installed
from iet.service.limits import Limits  # isort: skip


class Loop:
    """Timers that run out when the test says so."""

    def __init__(self) -> None:
        self.waiting = dict[object, Callable[[], None]]()

    def call_later(self, seconds: float, run: Callable[[], None]) -> Any:
        timer = Timer(self)
        self.waiting[timer] = run
        return timer

    def pass_time(self) -> None:
        for timer, run in list(self.waiting.items()):
            del self.waiting[timer]
            run()


class Timer:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def cancel(self) -> None:
        self._loop.waiting.pop(self, None)


class Transport:
    """What is written to a connection, of which `size` bytes are kept here."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.size, self.aborted = connection, 0, False

    def get_write_buffer_size(self) -> int:
        return self.size

    def get_extra_info(self, name: str) -> Any:
        return self.connection if name == "socket" else None

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection: the service's end, and the client's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
    ):
        connection, _ = listening.accept()
        with connection:
            yield connection, client


def waiting(loop: Loop, connection: socket.socket) -> Transport:
    """One whose client has not taken 100,000 bytes, beside what the system keeps."""
    config = uvicorn.Config(Upstream(), ws="none", lifespan="off", log_config=None)
    made: Any = Transport(connection)
    protocol = server._protocol(Limits(stall_seconds=30))(
        config,
        uvicorn.server.ServerState(),
        {},
        _loop=loop,  # type: ignore[arg-type]
    )
    protocol.connection_made(made)
    loop.waiting.clear()  # for a head
    made.size = 100_000
    protocol.pause_writing()
    return made  # type: ignore[no-any-return]


def test_who_takes_a_part_is_waited_for(
    ends: tuple[socket.socket, socket.socket], logged: io.StringIO
) -> None:
    loop = Loop()
    transport = waiting(loop, ends[0])
    for left in (99_000, 98_999, 70_000):  # never so little that more is written
        transport.size = left
        loop.pass_time()
        assert not transport.aborted
    assert logged.getvalue() == ""
    loop.pass_time()
    assert transport.aborted
    assert "a client took nothing for 30 seconds: it was cut" in logged.getvalue()
    assert loop.waiting == {}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is not asked what the system keeps")
def test_what_the_system_keeps_is_taken_first(ends: tuple[socket.socket, socket.socket]) -> None:
    connection, client = ends
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
    connection.setblocking(False)
    for _ in range(20):  # what was sent and arrives makes room for some more
        with contextlib.suppress(BlockingIOError):
            while True:
                connection.send(bytes(1 << 16))
        time.sleep(0.02)
    loop = Loop()
    transport = waiting(loop, connection)
    kept = server._not_taken(transport)  # type: ignore[arg-type]
    assert kept > transport.size
    while server._not_taken(transport) == kept:  # type: ignore[arg-type]
        assert client.recv(1 << 16)
    loop.pass_time()
    assert not transport.aborted
    loop.pass_time()
    assert transport.aborted
