"""Whose job is next: clients take turns, and none of several holds all workers."""

from __future__ import annotations

import collections
import concurrent.futures
import threading
import time
from typing import Any

SHARED_SECONDS = 600.0
"""After another client asked, one worker is kept free of each client for so long."""

_MANY = 256
"""Of a client's jobs that wait, from which on those that were cancelled are looked for."""

Item = tuple[Any, concurrent.futures.Future[Any]]


class Turns:
    """Jobs that wait for a worker, by client. Methods may be called from any thread.

    The next job is one of the client with the fewest at work; of several such, of the one that waits for its
    turn the longest. Where two clients or more asked in the last ten minutes, and there are two workers or
    more, each leaves one to the others: whoever asks for much waits for itself. A worker that a client's job
    has cost counts as the client's until there is another.

    Args:
        workers: number of workers that take jobs.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._waiting = dict[str, collections.deque[Item]]()  # in the order of turns; none is empty
        self._at_work = collections.Counter[str]()
        self._asked = dict[str, float]()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, client: str, item: Item) -> None:
        """Add a job behind the client's others."""
        with self._changed:
            now = time.monotonic()
            self._asked.pop(client, None)
            self._asked = {name: at for name, at in self._asked.items() if now - at < SHARED_SECONDS}
            self._asked[client] = now
            waiting = self._waiting.setdefault(client, collections.deque())
            if len(waiting) >= _MANY:
                kept = [each for each in waiting if not each[1].cancelled()]
                waiting.clear()
                waiting.extend(kept)
            waiting.append(item)
            self._changed.notify_all()

    def take(self) -> tuple[str, Item] | None:
        """Return client and job as soon as there is one, whose end is told by `done`; None: no more come."""
        with self._changed:
            while not self._closed:
                client = self._next()
                if client is not None:
                    waiting = self._waiting.pop(client)
                    item = waiting.popleft()
                    if waiting:
                        self._waiting[client] = waiting  # behind the others
                    self._at_work[client] += 1
                    return client, item
                self._changed.wait()
            return None

    def done(self, client: str) -> None:
        """Say that a job of the client is no longer at work."""
        with self._changed:
            self._at_work[client] -= 1
            if not self._at_work[client]:
                del self._at_work[client]
            self._changed.notify_all()

    def close(self) -> None:
        """Let every `take` return None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next(self) -> str | None:
        since = time.monotonic() - SHARED_SECONDS
        asking = {name for name, at in self._asked.items() if at >= since} | self._at_work.keys()
        most = self._workers - 1 if len(asking) > 1 and self._workers > 1 else self._workers
        free = [client for client in self._waiting if self._at_work[client] < most]
        return min(free, key=lambda client: self._at_work[client], default=None)
