"""Audit chunks in processes of their own, which end with the process that started them."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from multiprocessing import resource_tracker
from typing import Any, Protocol

import pyarrow as pa

from iet.audit.auditor import Auditor
from iet.bulk.inputs import Chunk
from iet.errors import IetError

ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "IET_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""The environment of a worker: as many processes as cores, each with one thread."""


MOST_DEATHS = 20
"""Workers that may die before a run ends; each of them is replaced."""


class Job(Protocol):
    """What is done with a chunk. It is pickled for each worker."""

    def audit(
        self, auditor: Auditor, chunk: Chunk, alive: Callable[[], bool] = ..., *, singly: bool = False
    ) -> Iterator[int]:
        """Audit a chunk and commit it, unless `alive` says that nobody waits for it any more.

        With `singly` nothing is read of a record before the one in front of it is counted.

        Yields:
            The number of records that were audited since the last time; they are committed at the end.
        """

    def where(self, chunk: Chunk) -> str:
        """Return what a chunk was read from, in words."""


@dataclasses.dataclass
class _Task:
    """A chunk that a worker has, and how far it and those before it came.

    `begun` tells whether this worker has taken it up: where it died sooner, no record is to blame.
    """

    chunk: Chunk
    singly: bool = False
    suspect: int | None = None
    audited: int = 0
    told: int = 0
    begun: bool = False


def audited(
    auditor: Auditor, packed: bytes, job: Job, stream: Iterator[Chunk], workers: int
) -> Generator[tuple[int, int]]:
    """Audit the chunks, and yield again and again the index of one and how many more of its records are done.

    Where a worker dies, another one takes its chunk, record by record; the record at which two die then is
    refused (`Chunk.refusing`), and the others are done.

    Raises:
        IetError: more than `MOST_DEATHS` workers died, or one behind all records of its chunk, or before any
            took up a chunk; or one read other keys than `auditor` has: each reads the registry's file again.
    """
    if workers == 1:
        for chunk in stream:
            try:
                for count in job.audit(auditor, chunk):
                    yield chunk.index, count
            except MemoryError:
                raise _out_of_memory(job, chunk) from None
        return
    crew = _Crew(auditor, packed, job)
    idle, at_work = list[_Connection](), dict[_Connection, _Task]()
    waiting, upcoming = list[_Task](), next(stream, None)
    try:
        while waiting or upcoming is not None or at_work:
            # No more are hired than there are chunks.
            while (waiting or upcoming is not None) and (idle or len(at_work) < workers):
                connection = idle.pop() if idle else crew.hired()
                if waiting:
                    task = waiting.pop()
                elif upcoming is not None:
                    task, upcoming = _Task(upcoming), next(stream, None)
                at_work[connection] = task
                with contextlib.suppress(OSError):  # what died is found to have when it is asked for counts
                    connection.send((task.chunk, task.singly))
            for ready in multiprocessing.connection.wait(list(at_work)):
                assert isinstance(ready, multiprocessing.connection.Connection)
                task = at_work[ready]
                try:
                    said = ready.recv()
                except (EOFError, OSError):
                    waiting.append(crew.taken_over(ready, at_work.pop(ready)))
                    continue
                if isinstance(said, Exception):
                    raise said
                if said is None:
                    del at_work[ready]
                    idle.append(ready)
                else:
                    crew.begun = task.begun = True
                    task.audited += said
                    if task.audited > task.told:
                        more, task.told = task.audited - task.told, task.audited
                        yield task.chunk.index, more
    except (KeyboardInterrupt, GeneratorExit):  # at once: a kill does no harm
        crew.terminate()
        raise
    finally:
        crew.dismiss()


_Connection = multiprocessing.connection.Connection


class _Crew:
    """The workers of a run.

    Workers of concurrent.futures would wait for ever for a parent that was killed. Here the death of the
    parent closes the only other end of a worker's pipe.
    """

    def __init__(self, auditor: Auditor, packed: bytes, job: Job) -> None:
        self._expected, self._packed, self._job = auditor.configuration, packed, job
        self._processes = dict[_Connection, Any]()
        self._hired, self._deaths = 0, 0
        self.begun = False  # whether one of them has taken up a chunk

    def hired(self) -> _Connection:
        """Start a worker."""
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(
            target=_work,
            args=(theirs, self._packed, self._expected, self._job),
            name=f"iet-audit-{self._hired}",
            daemon=True,
        )
        with _undisturbed():
            process.start()
        theirs.close()
        self._hired += 1
        self._processes[ours] = process
        return ours

    def taken_over(self, connection: _Connection, task: _Task) -> _Task:
        """Return what is left to do of a worker that died."""
        process = self._processes.pop(connection)
        connection.close()
        process.join()
        self._deaths += 1
        chunk, at, said = task.chunk, task.audited, f"the worker died (exit code {process.exitcode})"
        if not self.begun:  # as all others would
            raise IetError(
                f"{process.name}: {said} before it took up a chunk; what it printed says why (a program that"
                ' starts workers needs `if __name__ == "__main__":` around what it does), or memory is short'
            )
        if self._deaths > MOST_DEATHS or (task.singly and at == len(chunk)):
            raise IetError(
                f"{process.name}: {said}, number {self._deaths} of this run; the chunks that are done stay,"
                f" and a run with resume goes on. It had {self._job.where(chunk)}; where it dies there"
                " again, memory is short: resume with fewer workers or a lower --max-record"
            )
        if not task.begun:
            return dataclasses.replace(task)
        if not task.singly:
            return _Task(chunk, singly=True, told=task.told)
        if at != task.suspect:
            return _Task(chunk, singly=True, suspect=at, told=task.told)
        chunk = chunk.refusing(at, f"{said} at this record, twice; perhaps memory is short")
        return _Task(chunk, singly=True, told=task.told)

    def terminate(self) -> None:
        for process in self._processes.values():
            process.terminate()

    def dismiss(self) -> None:
        """Let each worker end, and wait for it."""
        for connection in self._processes:
            connection.close()
        for process in self._processes.values():
            process.join()


def without_pandas() -> None:
    """Keep pyarrow from importing pandas, where it is installed, to see whether what it is given is of it.

    That takes longer than all other imports of a worker together, and nothing here is. What asks pyarrow for
    pandas by name gets it afterwards, but an array that another part of the process makes of a Series is made
    of its elements: so this is for workers and a command line.
    """
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([""])  # pyarrow asks at its first array, and remembers
    finally:
        sys.meta_path.remove(_NoPandas)


class _NoPandas:
    @classmethod
    def find_spec(cls, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


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


def _work(
    connection: multiprocessing.connection.Connection, packed: bytes, expected: dict[str, Any], job: Job
) -> None:
    """Audit chunks as they come, until the parent goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the run
    os.environ |= ONE_THREAD
    without_pandas()
    parent = os.getppid()
    auditor: Auditor | None = None
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            chunk, singly = connection.recv()
            try:
                auditor = auditor or _loaded(packed, expected)
                connection.send(0)
                for count in job.audit(auditor, chunk, lambda: os.getppid() == parent, singly=singly):
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
        if changed[0] == "published":
            raise IetError(
                "published: texts were added to the index since the run began, and nothing was read under the"
                " new one; audit with a copy of the index to which nobody adds, into another folder"
            )
        raise IetError(
            f"{changed[0]}: was {was!s:.20} when the run began, is {now!s:.20} in a worker: the registry has"
            " changed, and nothing was read under the new one; put the old one back and resume, or audit into"
            " another folder"
        )
    return auditor
