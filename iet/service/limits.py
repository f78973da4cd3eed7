"""The limits of a service or gateway: how much one client and all clients may use at once."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import ipaddress
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from iet.errors import check_number

MAX_SECONDS = 86400.0
"""Upper bound of every time limit: one day."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of `iet serve`. The status in parentheses is the answer to a request beyond the limit.

    Attributes:
        body_bytes: size of a request, and of one line of a batch (413).
        batch_bytes: size of a batch (413), which is spooled to a temporary file.
        seconds: time for one audit; then its worker is killed (503).
        wait: seconds to wait for a free worker (503).
        memory_bytes: memory that one audit may take, on Linux; a worker that needs more is replaced (503).
        requests: concurrent requests of all clients (503). A batch is one request.
        per_client: concurrent requests of one client, i.e. one token's holder (429).
        body_seconds: time for a request's body to arrive, and between two parts of a batch (408).
        connections: concurrent connections, idle ones included (503).
        rate: questions an hour of one address to the public detector (429).
        total_rate: questions an hour of all addresses to the public detector (503).

    Raises:
        InputError: A limit is out of range.
    """

    body_bytes: int = 4 << 20
    batch_bytes: int = 1 << 30
    seconds: float = 60.0
    wait: float = 30.0
    memory_bytes: int = 4 << 30
    requests: int = 64
    per_client: int = 16
    body_seconds: float = 30.0
    connections: int = 512
    rate: int = 60
    total_rate: int = 6000

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, int):
                check_number(field.name, value, 1)
            else:
                check_number(field.name, value, 0.05, MAX_SECONDS, integer=False)


class RequestRefused(Exception):
    """A request that is answered with an error and not worked on.

    Attributes:
        status: HTTP status of the answer.
        message: error message for the client.
        headers: additional HTTP headers of the answer; keyword arguments with `_` in place of `-`.
    """

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class ConcurrencyLimiter:
    """Limits what the requests in progress use at once, so that one client leaves room for the others.

    Args:
        per_client: maximum for one client (429 beyond it).
        total: maximum for all clients together (503 beyond it).
        unit: name of what is counted, for error messages.
    """

    def __init__(self, per_client: int, total: int, unit: str = "requests") -> None:
        self._per_client, self._total, self._unit = per_client, total, unit
        self._in_use = collections.Counter[str]()

    @property
    def in_use(self) -> int:
        """Amount that all clients use now."""
        return self._in_use.total()

    @contextlib.contextmanager
    def share(self, client: str) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts an amount for the client until the block ends.

        The function raises RequestRefused (429 or 503), and counts nothing, if a limit would be exceeded.
        """
        own_amount = 0

        def add(amount: int) -> None:
            nonlocal own_amount
            used = self._in_use[client]
            if used + amount > self._per_client:
                message = f"{client or 'client'}: {used:,} {self._unit} at once, expected at most that"
                raise RequestRefused(429, message, retry_after="1")
            if self.in_use + amount > self._total:
                message = f"the service is at work on {self.in_use:,} {self._unit}"
                raise RequestRefused(503, message, retry_after="1")
            self._in_use[client] += amount
            own_amount += amount

        try:
            yield add
        finally:
            self._in_use[client] -= own_amount
            if not self._in_use[client]:
                del self._in_use[client]


class RateLimiter:
    """Limits how many requests each client, and all clients together, may begin in a period.

    The table of clients is cleared at the end of each period, so it holds at most `total` clients, and a
    client can begin twice its number around that moment.

    Args:
        per_client: maximum for one client (429 beyond it).
        total: maximum for all clients together (503 beyond it).
        seconds: the period.
        clock: returns seconds.
    """

    def __init__(
        self, per_client: int, total: int, seconds: int = 3600, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_client, self._total, self._seconds, self._clock = per_client, total, seconds, clock
        self._period, self._used, self._counts = -1.0, 0, collections.Counter[str]()

    def count(self, client: str) -> None:
        """Count a request of the client, or raise RequestRefused (429 or 503) and count nothing."""
        period, elapsed = divmod(self._clock(), self._seconds)
        if period != self._period:
            self._period, self._used = period, 0
            self._counts.clear()
        retry_after = str(math.ceil(self._seconds - elapsed))
        if self._counts[client] >= self._per_client:
            message = f"address: got more than {self._per_client:,} requests in {self._seconds:,} seconds"
            raise RequestRefused(429, f"{message}, expected at most these", retry_after=retry_after)
        if self._used >= self._total:
            message = f"the service got more than {self._total:,} requests in {self._seconds:,} seconds"
            raise RequestRefused(503, message, retry_after=retry_after)
        self._counts[client] += 1
        self._used += 1


def address_group(host: str) -> str:
    """Return the addresses that count as one client: an IPv4 address, or an IPv6 network of 64 bits.

    All hosts that are no address, such as those of Unix sockets, are one group, the empty string.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


async def read_body(
    receive: Callable[[], Awaitable[Any]],
    max_bytes: int,
    seconds: float,
    on_bytes: Callable[[int], object] = lambda size: None,
    hint: str = "",
) -> bytes:
    """Return the body of an ASGI request.

    Args:
        receive: the ASGI callable.
        max_bytes: maximum size.
        seconds: time for the whole body to arrive.
        on_bytes: called with the size of each part before it is stored; it may raise RequestRefused.
        hint: end of the message that the body is too long.

    Raises:
        RequestRefused: The body is too long (413) or too slow (408), or the client disconnected (400).
    """
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RequestRefused(400, "the client disconnected before its request was complete")
                part = message.get("body", b"")
                on_bytes(len(part))
                body += part
                if len(body) > max_bytes:
                    raise RequestRefused(413, too_long(max_bytes, hint))
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        message = f"body: got a part of it in {seconds:g} seconds"
        raise RequestRefused(408, message, connection="close") from None


def too_long(max_bytes: int, hint: str = "") -> str:
    """Return the message that a body has more than `max_bytes` bytes."""
    return f"body: got more than {max_bytes:,} bytes, expected at most these{hint}"
