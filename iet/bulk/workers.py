"""Audit chunks in worker processes, and find the record at which workers die."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pickle
import queue
import sys
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from typing import Any

import pyarrow as pa

from iet.audit.auditor import Auditor
from iet.audit.worker_pool import WorkerPool, WorkFailed
from iet.bulk.inputs import Chunk
from iet.bulk.job import Job
from iet.errors import IetError

MOST_DEATHS = 20
"""Maximum number of workers that are replaced before a run fails."""


@dataclasses.dataclass(eq=False)
class _Task:
    """A chunk that is at work or waits for a worker.

    Attributes:
        chunk: its records.
        singly: whether records are audited one by one, to find the one at which workers die.
        suspect: the record at which the last worker died.
        audited: number of records that this worker has audited.
        reported: number of records that were reported so far, by workers that died as well.
        started: whether a worker has started with it. If the worker dies earlier, no record is to blame.
    """

    chunk: Chunk
    singly: bool = False
    suspect: int | None = None
    audited: int = 0
    reported: int = 0
    started: bool = False


def audited(
    auditor: Auditor, packed: bytes, job: Job, stream: Iterator[Chunk], workers: int
) -> Generator[tuple[int, int]]:
    """Audit the chunks; yield repeatedly the index of one, and how many more of its records are done.

    If a worker dies, another one audits its chunk record by record. The record at which a second and a third
    worker die is refused (`Chunk.refusing`), and the others are audited.

    Args:
        auditor: of this process.
        packed: the pickled auditor, for the workers.
        job: audits and commits a chunk.
        stream: the chunks, read as workers become free.
        workers: maximum number of processes; with 1, this process does the work.

    Raises:
        IetError: more than `MOST_DEATHS` workers died, or one died after all records of its chunk or before
            any worker began with a chunk; or the registry file changed, which each worker reads again.
    """
    if workers == 1:
        for chunk in stream:
            try:
                for count in job.audit(auditor, chunk):
                    yield chunk.index, count
            except MemoryError:
                raise _out_of_memory(job, chunk) from None
        return
    # Progress of a task, the end of one, or a worker that does not start.
    events = queue.SimpleQueue[tuple[_Task, int] | Future[None] | WorkFailed]()
    pool = WorkerPool(
        functools.partial(_make_work, packed, auditor.configuration, job),
        on_lost=lambda failure: events.put(failure) if failure.reason == "start" else None,
    )
    at_work, waiting = dict[Future[None], _Task](), list[_Task]()
    deaths, any_started = 0, False
    with contextlib.closing(pool):
        while True:
            while len(at_work) <= workers:  # one task more than workers, so that none waits for the reader
                task = waiting.pop() if waiting else next(map(_Task, stream), None)
                if task is None:
                    break
                pool.start(min(workers, len(at_work) + 1))
                report = functools.partial(lambda task, count: events.put((task, count)), task)
                future = pool.submit((task.chunk, task.singly), report_progress=report)
                at_work[future] = task
                future.add_done_callback(events.put)
            if not at_work:
                return
            event = events.get()
            if isinstance(event, tuple):
                task, count = event
                any_started = task.started = True
                task.audited += count
                if task.audited > task.reported:
                    more, task.reported = task.audited - task.reported, task.audited
                    yield task.chunk.index, more
                continue
            task = None if isinstance(event, WorkFailed) else at_work.pop(event)
            error = event if isinstance(event, WorkFailed) else event.exception()
            if error is None:
                continue
            if not isinstance(error, WorkFailed):
                raise error
            deaths += 1
            death = f"worker died (exit code {error.exit_code})"
            if not any_started:  # all others would, too
                raise IetError(
                    f"a {death} before it took up a chunk; what it printed says why (a program that starts"
                    ' workers needs `if __name__ == "__main__":` around its code), or memory is short'
                )
            if deaths > MOST_DEATHS or (task and task.singly and task.audited == len(task.chunk)):
                location = f" It had {job.location(task.chunk)}." if task else ""
                raise IetError(
                    f"a {death}, number {deaths} of this run; the chunks that are done stay, and a run with"
                    f" resume continues.{location} If workers die there again, memory is short: resume with"
                    " fewer workers or a lower --max-text"
                )
            if task is not None:
                waiting.append(_retried(task, f"the {death} at this record, twice; perhaps memory is short"))


def _retried(task: _Task, reason: str) -> _Task:
    """Return the task for the next worker; `reason` is why the record is refused if it is the suspect."""
    chunk, suspect = task.chunk, task.suspect
    if not task.started:
        return dataclasses.replace(task)
    if task.singly and task.audited == suspect:
        chunk, suspect = chunk.refusing(task.audited, reason), None
    elif task.singly:
        suspect = task.audited
    return _Task(chunk, singly=True, suspect=suspect, reported=task.reported)


def _make_work(packed: bytes, expected: dict[str, Any], job: Job) -> Callable[[Any], Iterator[int]]:
    """Return what a worker does with a chunk. The auditor is loaded with the first one."""
    without_pandas()
    auditor: Auditor | None = None

    def work(task: tuple[Chunk, bool]) -> Iterator[int]:
        nonlocal auditor
        chunk, singly = task
        try:
            auditor = auditor or _loaded(packed, expected)
            yield 0  # the chunk has started
            yield from job.audit(auditor, chunk, singly=singly)
        except MemoryError:
            raise _out_of_memory(job, chunk) from None

    return work


def without_pandas() -> None:
    """Keep pyarrow from importing pandas, which takes longer than all other imports of a worker.

    At its first array, pyarrow imports pandas to recognise its types, and nothing here uses them. An explicit
    conversion to pandas still works afterwards, but arrays made from a Series are made element by element.
    So call this only in workers and on the command line.
    """
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([""])  # pyarrow looks once, and remembers
    finally:
        sys.meta_path.remove(_NoPandas)


class _NoPandas:
    @classmethod
    def find_spec(cls, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _out_of_memory(job: Job, chunk: Chunk) -> IetError:
    return IetError(f"out of memory with {job.location(chunk)}; resume with a lower --max-text")


def _loaded(packed: bytes, expected: dict[str, Any]) -> Auditor:
    """Unpickle a worker's auditor.

    Raises:
        IetError: its configuration differs from that of the first process.
    """
    auditor: Auditor = pickle.loads(packed)
    configuration = auditor.configuration
    changed = [name for name, value in expected.items() if configuration[name] != value]
    if changed:
        was, current = expected[changed[0]], configuration[changed[0]]
        if changed[0] == "published":
            raise IetError(
                "published: texts were added to the index since the run began, and nothing was read under the"
                " new one; audit with a copy of the index that does not change, into another folder"
            )
        raise IetError(
            f"{changed[0]}: was {was!s:.20} when the run began, is {current!s:.20} in a worker: the registry"
            " has changed, and nothing was read under the new one; restore the old one and resume, or audit"
            " into another folder"
        )
    return auditor
