"""Audit chunks in processes of their own, which end with the process that started them."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from multiprocessing import resource_tracker
from typing import Any, Protocol

from iet.audit.auditor import Auditor
from iet.bulk.inputs import Chunk
from iet.errors import IetError

ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "IET_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""The environment of a worker: as many processes as cores, each with one thread."""


class Job(Protocol):
    """What is done with a chunk. It is pickled for each worker."""

    def audit(self, auditor: Auditor, chunk: Chunk, alive: Callable[[], bool] = ...) -> Iterator[int]:
        """Audit a chunk and commit it, unless `alive` says that nobody waits for it any more.

        Yields:
            The number of records that were audited since the last time; they are committed at the end.
        """

    def where(self, chunk: Chunk) -> str:
        """Return what a chunk was read from, in words."""


def audited(
    auditor: Auditor, packed: bytes, job: Job, stream: Iterator[Chunk], workers: int
) -> Generator[tuple[int, int]]:
    """Audit the chunks, and yield again and again the index of one and how many more of its records are done.

    Raises:
        IetError: a worker died, or read other keys than `auditor` has: each reads the registry's file again.
    """
    if workers == 1:
        for chunk in stream:
            try:
                for count in job.audit(auditor, chunk):
                    yield chunk.index, count
            except MemoryError:
                raise _out_of_memory(job, chunk) from None
        return
    # Workers of concurrent.futures would wait for ever for a parent that was killed. Here the death of the
    # parent closes the only other end of a worker's pipe.
    spawn = multiprocessing.get_context("spawn")
    running = dict[multiprocessing.connection.Connection, Any]()
    at_work = dict[multiprocessing.connection.Connection, tuple[int, str]]()
    try:
        for number in range(workers):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(
                target=_work,
                args=(theirs, packed, auditor.configuration, job),
                name=f"iet-audit-{number}",
                daemon=True,
            )
            with _undisturbed():
                process.start()
            theirs.close()
            running[ours] = process
        idle, upcoming = list(running), next(stream, None)
        while upcoming is not None or at_work:
            while idle and upcoming is not None:
                connection = idle.pop()
                where = job.where(upcoming)
                at_work[connection] = upcoming.index, where
                _passed_on(running[connection], where, connection.send, upcoming)
                upcoming = next(stream, None)
            for ready in multiprocessing.connection.wait(list(at_work)):
                assert isinstance(ready, multiprocessing.connection.Connection)
                index, where = at_work[ready]
                said = _passed_on(running[ready], where, ready.recv)
                if isinstance(said, Exception):
                    raise said
                if said is None:
                    del at_work[ready]
                    idle.append(ready)
                else:
                    yield index, said
    except (KeyboardInterrupt, GeneratorExit):  # at once: a kill does no harm
        for process in running.values():
            process.terminate()
        raise
    finally:
        for connection in running:
            connection.close()
        for process in running.values():
            process.join()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold Ctrl-C back: here for a moment, and for ever in a process that is started meanwhile."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # the first process to be started starts it, and would let Ctrl-C in
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _passed_on(process: Any, where: str, call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except (EOFError, OSError):
        process.join()
        raise IetError(
            f"{process.name}: the worker died (exit code {process.exitcode}); the chunks that are done stay,"
            f" and a run with resume goes on. It had {where}; where it dies there again, memory is short:"
            " resume with a lower --max-record"
        ) from None


def _work(
    connection: multiprocessing.connection.Connection, packed: bytes, expected: dict[str, Any], job: Job
) -> None:
    """Audit chunks as they come, until the parent goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the run
    os.environ |= ONE_THREAD
    parent = os.getppid()
    auditor: Auditor | None = None
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            chunk = connection.recv()
            try:
                auditor = auditor or _loaded(packed, expected)
                for count in job.audit(auditor, chunk, lambda: os.getppid() == parent):
                    connection.send(count)
                connection.send(None)
            except (IetError, OSError) as error:
                connection.send(error)
            except MemoryError:
                connection.send(_out_of_memory(job, chunk))
    os._exit(0)  # all is on disk; to take the interpreter down would let the parent wait for 0.2 s


def _out_of_memory(job: Job, chunk: Chunk) -> IetError:
    return IetError(f"out of memory with {job.where(chunk)}; resume with a lower --max-record")


def _loaded(packed: bytes, expected: dict[str, Any]) -> Auditor:
    """Return this worker's auditor, if it reads what the first process reads."""
    auditor: Auditor = pickle.loads(packed)
    found = auditor.configuration
    changed = [name for name, value in expected.items() if found[name] != value]
    if changed:
        was, now = expected[changed[0]], found[changed[0]]
        raise IetError(
            f"{changed[0]}: was {was!s:.20} when the run began, is {now!s:.20} in a worker: the registry has"
            " changed, and nothing was read under the new one; put the old one back and resume, or audit into"
            " another folder"
        )
    return auditor
