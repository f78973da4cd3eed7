"""A pool of worker processes: if a worker dies or exceeds a limit, only its job fails, and it is replaced."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
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
import types
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal

from iet.audit.fair_queue import FairQueue, QueuedJob
from iet.errors import IetError

ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "IET_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Environment of a process that starts workers, and of the workers: each works on one core."""

START_SECONDS, RETRY_SECONDS = 120.0, 1.0
"""Timeout for a worker's start, and pause after a failed one. The first start may compile loops."""

MEMORY_CHECK_SECONDS, FULL_SECONDS, FULL_BYTES = 0.1, 1.0, 4 << 20
"""Memory is checked at this interval; a worker that stays this close to its limit this long is killed."""

_OUT_OF_MEMORY = 70
"""Exit code of a worker after a MemoryError: what remains of the job could fail the next one."""

Work = Callable[[Any], Any]


class WorkFailed(Exception):
    """A job has no result, or a worker was lost.

    Attributes:
        reason: "died", "time" or "memory" for a worker that was lost at work, "idle" for one that died
            between jobs, "start" for one that did not start; "busy" if no worker took the job.
        exit_code: of the worker, if it ended by itself.
    """

    def __init__(self, reason: str, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.reason, self.exit_code = reason, exit_code


class WorkerPool:
    """Worker processes that do one job at a time.

    Jobs and results are pickled. If the work is a generator, each value that it yields is reported as
    progress, and its return value is the result. An `IetError` or `OSError` of the work becomes the job's
    exception; any other exception ends the worker. Workers end if their parent ends for any reason. They
    ignore SIGINT and SIGTERM, which terminals and init systems send to whole process groups.

    Args:
        make_work: pickled for each worker, which calls it once and calls the result with every job.
        workers: number of workers to start at once.
        seconds: time limit of a job, from when a worker has it; then the worker is killed.
        wait: maximum seconds until a worker takes a job of `do`.
        memory: bytes that a worker may allocate beyond what it holds at its start (see `limit_memory`).
        on_lost: called from any thread if a worker is lost or does not start, which is retried.
    """

    def __init__(
        self,
        make_work: Callable[[], Work],
        workers: int = 0,
        *,
        seconds: float = math.inf,
        wait: float = math.inf,
        memory: int | None = None,
        on_lost: Callable[[WorkFailed], object] = lambda failure: None,
    ) -> None:
        self._make_work, self._seconds, self._wait = make_work, seconds, wait
        self._memory, self._on_lost = memory, on_lost
        self._jobs = FairQueue()
        self._closing, self._count_lock = threading.Event(), threading.Lock()
        self._workers = dict[int, _Worker]()
        self._threads = list[threading.Thread]()
        self.replaced = 0
        """Number of workers that were lost after they had started."""
        atexit.register(self.close)  # multiprocessing would wait for the workers to end by themselves
        self.start(workers)

    def start(self, count: int) -> None:
        """Start workers until there are `count`."""
        self._jobs.workers = max(self._jobs.workers, count)
        for number in range(len(self._threads), count):
            name = f"iet-worker-{number}"
            self._threads.append(threading.Thread(target=self._run, args=(number,), name=name, daemon=True))
            self._threads[-1].start()

    @property
    def ready(self) -> int:
        """Number of workers that have started, busy or idle."""
        return sum(worker.ready and worker.process.is_alive() for worker in list(self._workers.values()))

    def submit(
        self, content: Any, client: str = "", report_progress: Callable[[Any], object] = lambda value: None
    ) -> Future[Any]:
        """Queue a job and return its future, whose exception is `WorkFailed` if its worker is lost.

        Args:
            content: what the work is called with.
            client: clients share the workers fairly (`FairQueue`).
            report_progress: called from another thread with every value that the work yields.
        """
        future: Future[Any] = Future()
        if self._closing.is_set():
            raise WorkFailed("busy", "the service is stopping")
        self._jobs.put(client, QueuedJob(content, future, report_progress))
        return future

    async def do(self, content: Any, client: str = "") -> Any:
        """Return the result of a job. A job that no worker has taken yet is cancelled with the task.

        Raises:
            WorkFailed: the worker was lost, or no worker was free within `wait` seconds.
        """
        future = self.submit(content, client)
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
        """Kill the workers. Idempotent."""
        self._closing.set()
        atexit.unregister(self.close)
        self._jobs.close()
        for worker in list(self._workers.values()):
            worker.process.kill()
        for thread in self._threads:
            thread.join(10)

    def _run(self, number: int) -> None:
        """Start a worker, pass jobs to it, and replace it if it is lost."""
        if sys.platform != "win32":
            # Workers inherit this thread's mask; the resource tracker, if it started later, would clear it.
            multiprocessing.resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        lost_by: str | None = None
        while not self._closing.is_set():
            worker = self._workers[number] = _Worker(self._make_work, self._memory, f"iet-worker-{number}")
            failure = WorkFailed("busy", "the pool is closed") if self._closing.is_set() else worker.started()
            if lost_by is not None:  # until here the client occupied the worker that its job had ended
                self._jobs.done(lost_by)
                lost_by = None
            if failure is None:
                lost_by = self._pass_jobs(worker)
            elif not self._closing.is_set():
                self._on_lost(failure)
            del self._workers[number]
            worker.end()
            if failure is not None:
                self._closing.wait(RETRY_SECONDS)

    def _pass_jobs(self, worker: _Worker) -> str | None:
        """Pass jobs to a worker until it is lost; return the client whose job it had, if any."""
        while (entry := self._jobs.take()) is not None:
            client, job = entry
            if worker.connection.poll():  # it died while idle, so the job is not at fault
                self._jobs.put(client, job)
                self._jobs.done(client)
                self._lose(WorkFailed("idle", "it died while it was idle"))
                return None
            if job.future.set_running_or_notify_cancel() and not self._do(worker, job):
                return client
            self._jobs.done(client)
        return None

    def _do(self, worker: _Worker, job: QueuedJob) -> bool:
        """Have a job done and set its result; return whether the worker can take another one."""
        done, failure = threading.Event(), None
        watch = threading.Thread(target=self._watch, args=(worker, done), daemon=True)
        watch.start()
        try:
            worker.connection.send(job.content)
            while (message := worker.connection.recv())[0] == "progress":
                job.report_progress(message[1])
        except (EOFError, OSError, MemoryError):  # the worker's end closes its side of the pipe
            worker.process.kill()
            worker.process.join()
            code = worker.process.exitcode
            failure = WorkFailed("died", "the worker died", code)
            if code == _OUT_OF_MEMORY:
                failure = WorkFailed("memory", _TOO_MUCH_MEMORY, code)
        done.set()
        watch.join()
        failure = worker.killed_for or failure
        if failure is not None:
            if not self._closing.is_set():
                self._lose(failure)
            job.future.set_exception(failure)
        elif message[0] == "error":
            job.future.set_exception(message[1])
        else:
            job.future.set_result(message[1])
        return failure is None

    def _watch(self, worker: _Worker, done: threading.Event) -> None:
        """Kill a worker whose job exceeds its time limit, or that stays at its memory limit.

        A failed allocation is an exception in Python, and code may catch it and try again forever.
        """
        deadline, full_since = time.monotonic() + self._seconds, math.inf
        interval = MEMORY_CHECK_SECONDS if worker.data_bytes else threading.TIMEOUT_MAX
        while not done.wait(min(interval, deadline - time.monotonic())):
            time_now = time.monotonic()
            full_since = min(full_since, time_now) if worker.is_full() else math.inf
            if time_now >= deadline:
                worker.killed_for = WorkFailed("time", f"it took longer than {self._seconds:g} seconds")
            elif time_now - full_since >= FULL_SECONDS:
                worker.killed_for = WorkFailed("memory", _TOO_MUCH_MEMORY)
            if worker.killed_for is not None:
                worker.process.kill()
                return

    def _lose(self, failure: WorkFailed) -> None:
        with self._count_lock:
            self.replaced += 1
        self._on_lost(failure)


_TOO_MUCH_MEMORY = "it takes more memory than a worker has"


class _Worker:
    """The parent's side of a worker process."""

    def __init__(self, make_work: Callable[[], Work], memory: int | None, name: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.connection, theirs = spawn.Pipe()
        self.process: Any = spawn.Process(
            target=_serve, args=(theirs, make_work, memory), name=name, daemon=True
        )
        self.process.start()
        theirs.close()
        self.ready, self.data_bytes = False, 0
        self.killed_for: WorkFailed | None = None

    def started(self) -> WorkFailed | None:
        """Wait until the worker is ready; return why it is not."""
        message: Any = f"it is not ready after {START_SECONDS:g} seconds"
        try:
            if self.connection.poll(START_SECONDS):
                message = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            message = f"it ended with exit code {self.process.exitcode}"
        if isinstance(message, str):
            return WorkFailed("start", f"a worker does not start: {message}", self.process.exitcode)
        self.ready, self.data_bytes = True, message
        return None

    def is_full(self) -> bool:
        """Tell whether the worker holds all the memory that it may."""
        try:
            return self.data_bytes > 0 and _data_bytes(self.process.pid) > self.data_bytes - FULL_BYTES
        except (OSError, IndexError):  # it has ended
            return False

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def limit_memory(more: int) -> int:
    """Let this process allocate `more` bytes than it holds now; only Linux has such a limit.

    Beyond the limit, allocations fail: Python raises MemoryError, and native code may end the process.
    Memory-mapped files do not count.

    Returns:
        The limit on all of the process's data in bytes; 0: unlimited.
    """
    if sys.platform != "linux":
        return 0
    import resource

    wanted = _data_bytes(os.getpid()) + more
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    limit = wanted if hard_limit == resource.RLIM_INFINITY else min(wanted, hard_limit)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard_limit))
    return limit


def _data_bytes(process: int) -> int:
    """Return the bytes of a process that RLIMIT_DATA limits."""
    return int(pathlib.Path(f"/proc/{process}/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")


_Message = tuple[Literal["progress", "result", "error"], Any]


def _serve(
    connection: multiprocessing.connection.Connection, make_work: Callable[[], Work], memory: int | None
) -> None:
    """Do jobs in a worker process until its parent ends or closes the pipe."""
    os.environ |= ONE_THREAD
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_with(sentinel: int) -> None:  # also during a job that never ends
        multiprocessing.connection.wait([sentinel])
        os._exit(0)

    threading.Thread(target=exit_with, args=(parent.sentinel,), daemon=True).start()

    def answer(content: Any) -> _Message:
        try:
            result = work(content)
            if not isinstance(result, types.GeneratorType):
                return "result", result
            while True:
                try:
                    connection.send(("progress", next(result)))
                except StopIteration as end:
                    return "result", end.value
        except (IetError, OSError) as error:
            return "error", error

    with contextlib.suppress(EOFError, OSError):
        try:
            work = make_work()
            limit = 0 if memory is None else limit_memory(memory)
        except (IetError, OSError) as error:
            connection.send(str(error))
            os._exit(1)
        connection.send(limit)
        while True:
            try:
                connection.send(answer(connection.recv()))
            except MemoryError:
                os._exit(_OUT_OF_MEMORY)
    os._exit(0)  # without the interpreter's shutdown, which takes 0.2 s
