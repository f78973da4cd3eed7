"""How much a client may ask of the service, and what it is told beyond that."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Iterator

from iet.errors import check_number

MOST_SECONDS = 86400.0
"""A day: what has no end is no limit."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the service takes.

    Attributes:
        body_bytes: of a request, and of a line of a batch (413).
        batch_bytes: of a batch (413), which lies in a temporary file while it is worked on.
        seconds: for one audit; then its worker is killed (503).
        wait: seconds to wait for a worker (503).
        memory_bytes: that a text may take of a worker, on Linux; then it is not read (503), and a worker
            that stays at the limit for a second is killed.
        requests: at once, of all clients (503); a batch is one.
        per_client: requests at once of the holder of one token (429).
        body_seconds: for a request's body to arrive, and between two parts of a batch (408).
        head_seconds: for a request's head to arrive; then the connection is closed.
        stall_seconds: for a client to take some of what was written for it; then the connection is cut.
        connections: at once, with or without a request (503).

    Raises:
        InputError: one is out of range.
    """

    body_bytes: int = 4 << 20
    batch_bytes: int = 1 << 30
    seconds: float = 60.0
    wait: float = 30.0
    memory_bytes: int = 4 << 30
    requests: int = 64
    per_client: int = 16
    body_seconds: float = 30.0
    head_seconds: float = 10.0
    stall_seconds: float = 30.0
    connections: int = 512

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            whole = isinstance(field.default, int)
            value = getattr(self, field.name)
            if whole:
                check_number(field.name, value, 1)
            else:
                check_number(field.name, value, 0.05, MOST_SECONDS, integer=False)


class Refused(Exception):
    """A request that is not worked on.

    Attributes:
        status: of HTTP.
        said: to the client.
        headers: that go with it.
    """

    def __init__(self, status: int, said: str, **headers: str) -> None:
        super().__init__(said)
        self.status, self.said = status, said
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Places:
    """Counts the requests that are worked on, and refuses those beyond the limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._taken = limits, collections.Counter[str]()

    @property
    def taken(self) -> int:
        """Number of requests that are worked on."""
        return self._taken.total()

    @contextlib.contextmanager
    def place(self, client: str) -> Iterator[None]:
        """Hold a place for a request of a client while the block runs.

        Raises:
            Refused: 429, the client has its share; 503, all places are taken.
        """
        if self._taken[client] >= self._limits.per_client:
            said = f"{client or 'client'}: {self._taken[client]} requests at once, expected at most that"
            raise Refused(429, said, retry_after="1")
        if self.taken >= self._limits.requests:
            raise Refused(503, f"the service is at work on {self.taken} requests", retry_after="1")
        self._taken[client] += 1
        try:
            yield
        finally:
            self._taken[client] -= 1
            if not self._taken[client]:
                del self._taken[client]
