"""A queue of jobs that shares workers fairly between clients."""

from __future__ import annotations

import collections
import concurrent.futures
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

SHARED_SECONDS = 600.0
"""Seconds since a client's last request during which it counts as active."""

_PRUNE_LENGTH = 256
"""Cancelled jobs are removed from a client's queue if it is at least this long."""


class QueuedJob(NamedTuple):
    """A job that waits for a worker.

    Attributes:
        content: what the worker receives.
        future: takes the result.
        report_progress: called with each value that the work yields.
    """

    content: Any
    future: concurrent.futures.Future[Any]
    report_progress: Callable[[Any], object] = lambda value: None


class FairQueue:
    """Jobs of several clients. All methods are thread-safe.

    The next job belongs to the client with the fewest running jobs. Ties go to the client that has waited
    longest for its turn. If at least two clients were active in the last ten minutes and there are at least
    two workers, no client may occupy all workers. A worker that a client's job has ended counts as occupied
    by that client until it is replaced.

    Attributes:
        workers: number of workers that take jobs.
    """

    def __init__(self, workers: int = 0) -> None:
        self.workers = workers
        self._waiting = dict[str, collections.deque[QueuedJob]]()  # in the order of turns; none is empty
        self._running = collections.Counter[str]()
        self._last_request = dict[str, float]()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, client: str, job: QueuedJob) -> None:
        """Append a job to the client's queue."""
        with self._changed:
            time_now = time.monotonic()
            self._last_request.pop(client, None)
            self._last_request = {
                name: at for name, at in self._last_request.items() if time_now - at < SHARED_SECONDS
            }
            self._last_request[client] = time_now
            waiting = self._waiting.setdefault(client, collections.deque())
            if len(waiting) >= _PRUNE_LENGTH:
                pending = [queued for queued in waiting if not queued.future.cancelled()]
                waiting.clear()
                waiting.extend(pending)
            waiting.append(job)
            self._changed.notify_all()

    def take(self) -> tuple[str, QueuedJob] | None:
        """Wait for the next job; return it with its client, or None if the queue is closed.

        The caller reports the end of the job with `done`.
        """
        with self._changed:
            while not self._closed:
                client = self._next_client()
                if client is not None:
                    waiting = self._waiting.pop(client)
                    job = waiting.popleft()
                    if waiting:
                        self._waiting[client] = waiting  # after the other clients
                    self._running[client] += 1
                    return client, job
                self._changed.wait()
            return None

    def done(self, client: str) -> None:
        """Record that one of the client's jobs no longer runs."""
        with self._changed:
            self._running[client] -= 1
            if not self._running[client]:
                del self._running[client]
            self._changed.notify_all()

    def close(self) -> None:
        """Make every `take` return None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next_client(self) -> str | None:
        since = time.monotonic() - SHARED_SECONDS
        active = {name for name, at in self._last_request.items() if at >= since} | self._running.keys()
        limit = self.workers - 1 if len(active) > 1 and self.workers > 1 else self.workers
        eligible = [client for client in self._waiting if self._running[client] < limit]
        return min(eligible, key=lambda client: self._running[client], default=None)
