"""Work in processes of their own: one that dies or takes too long is replaced, and only its job fails."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import dataclasses
import math
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from iet.errors import IetError
from iet.service.turns import Turns

ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "IET_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""What a process sets before it starts workers: each works on one core."""

START_SECONDS = 120.0
"""For a worker to be ready; the first one on a machine compiles its loops."""

LOOK_SECONDS = 0.1
"""Between two looks at a worker's memory."""

_TOO_MUCH = "it takes more memory than a worker has"
_MEMORY_ENDED = 70  # how a worker ends in which an allocation failed

FULL_SECONDS, FULL_BYTES = 1.0, 4 << 20
"""A worker is at its limit of memory if it has been so near to it for so long."""

Work = Callable[[Any], Any]


class WorkFailed(Exception):
    """A job has no result: its worker died, or took too long, or none was free in time.

    Attributes:
        reason: "died", "time", "memory" or "busy".
    """

    def __init__(self, reason: str, said: str) -> None:
        super().__init__(said)
        self.reason = reason


@dataclasses.dataclass
class _Worker:
    process: Any
    connection: multiprocessing.connection.Connection
    ready: bool = False
    data_bytes: int = 0

    def is_full(self) -> bool:
        """Tell whether it holds all memory that it may."""
        if not self.data_bytes:
            return False
        try:
            return _data_bytes(self.process.pid) > self.data_bytes - FULL_BYTES
        except (OSError, IndexError):  # it has ended
            return False

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


class Pool:
    """Processes that do one job each at a time.

    Args:
        make: pickled for each worker, which calls it once; what it returns is called with every job.
        workers: number of processes, started one after another: what the first compiles the others find.
        seconds: for a job, from when a worker has it; then the worker is killed.
        wait: seconds for a job to wait for a worker.
        memory: bytes that a worker may take beyond what it holds when it is ready, by `limit_memory`; one
            that stays at the limit is killed, and one in which a MemoryError leaves a job ends.
        tell: called with a line, from any thread, when a worker was lost or, once for each reason, does not
            start.

    Jobs and results are pickled. A worker ends with the process that started it, however that ends, and takes
    no notice of SIGINT and SIGTERM, which a terminal or an init system sends to all processes at once.
    """

    def __init__(
        self,
        make: Callable[[], Work],
        workers: int,
        *,
        seconds: float,
        wait: float,
        memory: int | None = None,
        tell: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._make, self._seconds, self._wait, self._tell = make, seconds, wait, tell
        self._memory = memory
        self._jobs = Turns(workers)
        self._closing, self._starting, self._counting = threading.Event(), threading.Lock(), threading.Lock()
        self._workers = dict[int, _Worker]()
        self._not_started = dict[int, Any]()  # what was told of it, by number
        self.replaced = 0
        """How many workers were lost so far."""
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"iet-worker-{number}", daemon=True)
            for number in range(workers)
        ]
        atexit.register(self.close)  # before multiprocessing waits for workers to end by themselves
        for thread in self._threads:
            thread.start()

    @property
    def ready(self) -> int:
        """Number of workers that are there, at work or not."""
        return sum(worker.ready and worker.process.is_alive() for worker in list(self._workers.values()))

    async def do(self, job: Any, client: str = "") -> Any:
        """Return what a worker makes of a job. Cancelling the task cancels a job that nobody has yet.

        Args:
            job: of anybody, or of a client: clients take turns (see `iet.service.turns`).
            client: whose.

        Raises:
            WorkFailed: it died, took longer than `seconds` or all memory that it may, or no worker was free
                within `wait` seconds.
        """
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        if self._closing.is_set():
            raise WorkFailed("busy", "the service is stopping")
        self._jobs.put(client, (job, future))
        result = asyncio.wrap_future(future)
        try:
            done, _ = await asyncio.wait({result}, timeout=self._wait)
        except asyncio.CancelledError:
            future.cancel()
            raise
        if not done and future.cancel():
            raise WorkFailed("busy", f"no worker was free within {self._wait:g} seconds")
        return await result

    def close(self) -> None:
        """Kill the workers, with what they are at. Idempotent."""
        self._closing.set()
        atexit.unregister(self.close)
        self._jobs.close()
        for worker in list(self._workers.values()):
            worker.process.kill()
        for thread in self._threads:
            thread.join(10)

    def _run(self, number: int) -> None:
        """Start a worker, pass jobs to it, and start another where it is lost."""
        lost_by: str | None = None
        while not self._closing.is_set():
            worker = self._started(number)
            if lost_by is not None:  # only after that: else it would take the others' worker
                self._jobs.done(lost_by)
                lost_by = None
            if worker is None:
                self._closing.wait(1)
                continue
            try:
                lost_by = self._pass_jobs(worker)
            finally:
                del self._workers[number]
                worker.end()

    def _started(self, number: int) -> _Worker | None:
        with self._starting:
            if self._closing.is_set():
                return None
            spawn = multiprocessing.get_context("spawn")
            ours, theirs = spawn.Pipe()
            process = spawn.Process(
                target=_work,
                args=(theirs, self._make, self._memory),
                name=f"iet-worker-{number}",
                daemon=True,
            )
            if sys.platform != "win32":
                # The process inherits what is blocked here; what multiprocessing starts first unblocks it.
                multiprocessing.resource_tracker.ensure_running()
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
            process.start()
            theirs.close()
            worker = _Worker(process, ours)
            said: Any = f"it is not ready after {START_SECONDS:g} seconds"
            self._workers[number] = worker  # so that `close` ends it
            try:
                if ours.poll(START_SECONDS):
                    said = ours.recv()
            except (EOFError, OSError):
                process.join()
                said = f"it ended with code {process.exitcode}"
            if isinstance(said, int):
                worker.ready, worker.data_bytes = True, said
                self._not_started.pop(number, None)
                return worker
            del self._workers[number]
            worker.end()
            if not self._closing.is_set() and self._not_started.get(number) != said:
                self._not_started[number] = said  # it is tried again every second, and told once
                self._tell(f"worker {number} does not start: {said}")
            return None

    def _pass_jobs(self, worker: _Worker) -> str | None:
        """Return when the worker is lost, with the client whose job was at work, or is to end."""
        while (taken := self._jobs.take()) is not None:
            client, item = taken
            if worker.connection.poll():  # its end, of which nobody knew: the job is not to blame
                self._jobs.put(client, item)
                self._jobs.done(client)
                self._lost("died while it was idle")
                return None
            if item[1].set_running_or_notify_cancel() and not self._worked(worker, *item):
                return client
            self._jobs.done(client)
        return None

    def _worked(self, worker: _Worker, job: Any, future: concurrent.futures.Future[Any]) -> bool:
        """Have a job done; tell whether the worker is still there."""
        done, killed = threading.Event(), list[WorkFailed]()
        # Whoever is killed closes its pipe, so neither sending nor receiving can wait for ever.
        watch = threading.Thread(target=self._watch, args=(worker, done, killed), daemon=True)
        watch.start()
        failure, result = None, None
        try:
            worker.connection.send(job)
            result = worker.connection.recv()
        except (EOFError, OSError, MemoryError):
            failure = WorkFailed("died", "the worker died")
        done.set()
        watch.join()
        how = "died at work"
        if killed:
            failure, how = None if failure is None else killed[0], f"was killed: {killed[0]}"
        elif failure is not None:
            worker.process.join(START_SECONDS)
            if worker.process.exitcode == _MEMORY_ENDED:
                failure = WorkFailed("memory", _TOO_MUCH)
                how = f"ended: {failure}"
        gone = failure is not None or bool(killed)
        if gone and not self._closing.is_set():
            self._lost(how)
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(failure)
        return not gone

    def _watch(self, worker: _Worker, done: threading.Event, killed: list[WorkFailed]) -> None:
        """Kill a worker whose job takes too long, or that does not come out of where its memory ends.

        A failed allocation is an error in Python, after which it may try the same for ever.
        """
        end, full = time.monotonic() + self._seconds, math.inf
        wait = LOOK_SECONDS if worker.data_bytes else self._seconds
        while not done.wait(min(wait, end - time.monotonic())):
            now = time.monotonic()
            full = min(full, now) if worker.is_full() else math.inf
            if now >= end:
                killed.append(WorkFailed("time", f"it took longer than {self._seconds:g} seconds"))
            elif now - full >= FULL_SECONDS:
                killed.append(WorkFailed("memory", _TOO_MUCH))
            if killed:
                worker.process.kill()
                return

    def _lost(self, how: str) -> None:
        with self._counting:
            self.replaced += 1
        self._tell(f"a worker {how}; another one is started")


def limit_memory(more: int) -> int:
    """Let this process take so many bytes more than it holds, on Linux; elsewhere nothing is limited.

    Beyond that an allocation fails: MemoryError in Python, and the end of the process in code that knows no
    other way. What is mapped from files does not count.

    Returns:
        How many bytes it may hold in all; 0: nothing is limited.
    """
    if sys.platform != "linux":
        return 0
    import resource

    wanted = _data_bytes(os.getpid()) + more
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
    return limit


def _data_bytes(process: int) -> int:
    """Return how much memory of its own a process has, in bytes: what RLIMIT_DATA limits."""
    return int(pathlib.Path(f"/proc/{process}/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")


def _work(
    connection: multiprocessing.connection.Connection, make: Callable[[], Work], memory: int | None
) -> None:
    """Do jobs as they come, until the process that started this one goes away."""
    os.environ |= ONE_THREAD
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with(sentinel: int) -> None:  # also while a job is done that never ends
        multiprocessing.connection.wait([sentinel])
        os._exit(0)

    threading.Thread(target=end_with, args=(parent.sentinel,), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        try:
            work = make()
            limit = 0 if memory is None else limit_memory(memory)
        except (IetError, OSError) as error:
            connection.send(str(error))
            os._exit(1)
        connection.send(limit)
        while True:
            try:
                connection.send(work(connection.recv()))
            except MemoryError:  # what is kept of the job could fail the next one
                os._exit(_MEMORY_ENDED)
    os._exit(0)
