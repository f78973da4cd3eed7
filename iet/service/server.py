"""The service as a process: its socket, its connections, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from iet.errors import InputError, check_number
from iet.service.app import Service, application
from iet.service.limits import Limits
from iet.service.observed import Observed, log

GRACE_SECONDS = 5.0
"""Beyond the seconds of an audit, for answers to be taken, between SIGTERM and the end."""

SPARE_CONNECTIONS = 128
"""Beyond the limit, to be told that there are too many; more are closed without a word."""

CHUNKS_AT_ONCE = 64
"""Of one connection, before others have a turn: each takes some 12 µs of Python, however short it is."""


def bound(host: str, port: int, *, loopback: bool) -> socket.socket:
    """Return a listening socket.

    Args:
        host: name or address.
        port: 0 for any that is free, to 65535.
        loopback: whether only addresses that no other machine reaches will do.

    Raises:
        InputError: the host has no address, or is no loopback address where it must be, or no such port is,
            or it is taken.
    """
    check_number("port", port, 0, 65535)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InputError(f"host: got {host!r:.80}, which has no address ({error.strerror})") from None
    except UnicodeError:  # of Python's codec for names in other letters, whatever letters these are
        raise InputError(
            f"host: got {host!r:.80}, expected an address, or a name with 1 to 63 letters between dots"
        ) from None
    if loopback and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise InputError(
            f"host: got {host!r:.80} and --no-auth, expected 127.0.0.1 or ::1: other machines reach it"
        )
    listening = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise InputError(
            f"host, port: got {host!r:.80}, {port}, where this process cannot listen ({error.strerror})"
        ) from None
    except BaseException:
        listening.close()
        raise
    return listening


def run(service: Service, listening: socket.socket, started: Callable[[str], object]) -> None:
    """Serve until SIGTERM or SIGINT: then nothing new is taken, and what is at work is finished.

    Args:
        service: what is served.
        listening: from `bound`; closed at the end.
        started: called with the address when connections are taken.
    """
    config = uvicorn.Config(
        Observed(application(service), service.metrics),
        http=_protocol(service.limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # it would show paths as they came
        server_header=False,
        proxy_headers=False,
        limit_concurrency=service.limits.connections,
        timeout_keep_alive=round(max(1, service.limits.head_seconds)),
        timeout_graceful_shutdown=round(service.limits.seconds + service.limits.wait + GRACE_SECONDS),
        backlog=min(2048, service.limits.connections),
        h11_max_incomplete_event_size=1 << 14,
    )
    host, port = listening.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    server = _Server(config, service, lambda: started(address))
    server.run(sockets=[listening])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], object]) -> None:
        super().__init__(config)
        self._service, self._tell = service, started

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._tell()

    async def shutdown(self, sockets: Any = None) -> None:
        self._service.stop()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.stopping = True
        if sig == signal.SIGINT or not self.should_exit:
            super().handle_exit(sig, frame)
        self._captured_signals.clear()  # the process ends by itself, with code 0


class _Connection(h11.Connection):
    """HTTP that says there is no more for now after some chunks of a body.

    Attributes:
        turn: chunks that may be read before that.
        event: the last one that was there.
    """

    turn = 0
    event: Any = None

    def next_event(self) -> Any:
        if not self.turn:
            return h11.NEED_DATA
        self.event = super().next_event()
        self.turn -= isinstance(self.event, h11.Data)
        return self.event


class _Flow(FlowControl):
    """Reading that goes on only when what was read has been understood."""

    behind = False

    def resume_reading(self) -> None:
        if not self.behind:
            super().resume_reading()


def _protocol(limits: Limits) -> type[H11Protocol]:
    """Return HTTP/1.1 for clients that may be slow on purpose, or send what takes long to read.

    uvicorn waits for ever for the head of a first request, and for a client that does not read; and it reads
    all chunks that have come before anybody else has a turn, which may be tens of thousands of a byte each.
    """

    class Protocol(H11Protocol):
        _waiting: asyncio.TimerHandle | None = None
        _stalled: asyncio.TimerHandle | None = None
        _left = _received = _before = 0

        def __init__(self, config: uvicorn.Config, *args: Any, **options: Any) -> None:
            super().__init__(config, *args, **options)
            size = config.h11_max_incomplete_event_size
            self.conn: _Connection = _Connection(h11.SERVER, *([] if size is None else [size]))

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.flow: _Flow = _Flow(transport)
            if len(self.connections) > limits.connections + SPARE_CONNECTIONS:
                transport.abort()
            else:
                self._wait_for_head()

        def data_received(self, data: bytes) -> None:
            # A head that came in pieces is waited for from its first byte on, however often some arrive.
            self._received += len(data)
            super().data_received(data)
            if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
                self._wait_for_head()
            else:
                self._cancel("_waiting")

        def handle_events(self) -> None:
            self.conn.turn = CHUNKS_AT_ONCE
            super().handle_events()
            if not self.conn.turn and not self.transport.is_closing():
                self.flow.behind = True
                self.flow.pause_reading()
                self.loop.call_soon(self._go_on)

        def _go_on(self) -> None:
            """Read more of what has come, and then from the socket, where nothing else speaks against it."""
            self.flow.behind = False
            if self.transport.is_closing():
                return
            self.handle_events()
            full = self.cycle is not None and len(self.cycle.body) > HIGH_WATER_LIMIT
            if self.conn.turn and self.conn.event is not h11.PAUSED and not full:
                self.flow.resume_reading()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.get_write_buffer_size():
                self._wait_for_reader()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._wait_for_reader()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._cancel("_stalled")

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel("_waiting")
            self._cancel("_stalled")
            super().connection_lost(exc)

        def _unsupported_upgrade_warning(self) -> None:
            """Say nothing: the request is answered as if it asked for no upgrade, and has its line."""

        def _wait_for_head(self) -> None:
            if self._waiting is None:
                self._waiting = self.loop.call_later(limits.head_seconds, self.transport.abort)

        def _wait_for_reader(self) -> None:
            self._cancel("_stalled")
            self._left, self._before = _not_taken(self.transport), self._received
            self._stalled = self.loop.call_later(limits.stall_seconds, self._cut_if_stalled)

        def _cut_if_stalled(self) -> None:
            self._stalled = None
            if not self.transport.get_write_buffer_size():
                return
            # Slow, but not stalled; or it sends all before it reads anything, as most clients do.
            if _not_taken(self.transport) < self._left or self._received > self._before:
                self._wait_for_reader()
                return
            log.warning(
                "a client took nothing for %g seconds: it was cut, with an answer that is not whole",
                limits.stall_seconds,
            )
            self.transport.abort()

        def _cancel(self, name: str) -> None:
            timer = getattr(self, name)
            if timer is not None:
                timer.cancel()
                setattr(self, name, None)

    return Protocol


def _not_taken(transport: asyncio.Transport) -> int:
    """Return how many bytes the other end has not taken yet: here, and in the system's buffer on Linux.

    The system makes room for what is here once a third of its buffer is free, which may be a megabyte.
    """
    size = transport.get_write_buffer_size()
    if sys.platform == "linux":
        import fcntl
        import termios

        with contextlib.suppress(OSError, ValueError):  # it is closed
            sent = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
            size += int.from_bytes(sent, sys.byteorder)
    return size


def log_to_stderr() -> None:
    """Write the log to stderr, a line each, without what a client wrote."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name, level in (("iet.service", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers, logger.propagate = [handler], False
