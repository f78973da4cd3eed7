"""Workers that die, hang or do not start: only their job fails, and another one takes their place.

A job that is a folder stays at work until the file `go` is there: no test depends on how fast workers are.
"""

from __future__ import annotations

import asyncio
import functools
import os
import pathlib
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from iet.audit.worker_pool import WorkerPool, WorkFailed
from tests.support import pool_work
from tests.support.conditions import posix
from tests.support.waiting import PATIENCE, wait_until

pytestmark = posix


def of_two(seconds: float) -> Iterator[WorkerPool]:
    made = WorkerPool(pool_work.make, 2, seconds=seconds, wait=PATIENCE)
    wait_until(lambda: made.ready == 2)
    yield made
    made.close()
    assert made.ready == 0


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """A pool without a practical time limit."""
    yield from of_two(PATIENCE)


@pytest.fixture(scope="module")
def hurried() -> Iterator[WorkerPool]:
    """A pool with a time limit of three seconds for a job."""
    yield from of_two(3)


def do(pool: WorkerPool, *jobs: Any) -> list[Any]:
    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*map(pool.do, jobs), return_exceptions=True)

    return asyncio.run(all_of_them())


async def both_at_work(pool: WorkerPool, folder: pathlib.Path) -> list[asyncio.Task[Any]]:
    """Have each worker take the job `folder`, for a client of its own, as none has both for long."""
    tasks = [asyncio.create_task(pool.do(folder, client)) for client in ("one", "two")]
    await asyncio.to_thread(wait_until, lambda: len(list(folder.iterdir())) == 2)
    return tasks


def workers(pool: WorkerPool, folder: pathlib.Path) -> set[int]:
    """Process ids of both workers, once both have started."""

    async def asked() -> set[int]:
        tasks = await both_at_work(pool, folder)
        (folder / "go").touch()
        return {pid for pid, _ in await asyncio.gather(*tasks)}

    folder.mkdir()
    return asyncio.run(asked())


def test_jobs_are_distributed_and_answered(pool: WorkerPool, tmp_path: pathlib.Path) -> None:
    answers = do(pool, 0.3, "a", b"\0" * 3_000_000)
    assert [job for _, job in answers] == [0.3, "a", b"\0" * 3_000_000]
    pids = workers(pool, tmp_path / "both")
    assert len(pids) == 2
    assert {pid for pid, _ in answers} <= pids
    assert os.getpid() not in pids


@pytest.mark.parametrize(("name", "poison", "reason"), [("pool", "die", "died"), ("hurried", 600.0, "time")])
def test_a_lost_worker_fails_only_its_job(
    name: str, poison: Any, reason: str, tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> None:
    pool: WorkerPool = request.getfixturevalue(name)
    earlier = pool.replaced
    failure, *others_done = do(pool, poison, "a", "b", "c")
    assert isinstance(failure, WorkFailed)
    assert failure.reason == reason
    assert [job for _, job in others_done] == ["a", "b", "c"]
    assert pool.replaced == earlier + 1
    wait_until(lambda: pool.ready == 2)
    assert len(workers(pool, tmp_path / "both")) == 2


def test_a_job_for_a_stalled_worker_times_out(hurried: WorkerPool) -> None:
    wait_until(lambda: hurried.ready == 2)
    (pid, _), *_ = do(hurried, "a")
    os.kill(pid, signal.SIGSTOP)
    failed = list[WorkFailed]()
    while not failed:  # until it has taken one
        answers = do(hurried, b"\0" * 3_000_000, b"\1" * 3_000_000)
        failed = [failure for failure in answers if isinstance(failure, WorkFailed)]
    assert [failure.reason for failure in failed] == ["time"]


def test_a_worker_that_dies_between_jobs_loses_no_job(pool: WorkerPool, tmp_path: pathlib.Path) -> None:
    for pid in workers(pool, tmp_path / "both"):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: pool.ready == 0)  # their death is noticed at the next job
    assert [job for _, job in do(pool, "a", "b", "c")] == ["a", "b", "c"]


def test_a_lost_worker_counts_against_its_client_until_replaced(pool: WorkerPool) -> None:
    wait_until(lambda: pool.ready == 2)

    async def lost() -> None:
        with pytest.raises(WorkFailed):
            await pool.do("die", "mallory")

    asyncio.run(lost())
    assert pool._jobs._running["mallory"] == 1 or pool.ready == 2
    wait_until(lambda: pool.ready == 2 and not pool._jobs._running["mallory"])


def test_a_client_whose_worker_cannot_restart_uses_the_other_workers(
    tmp_path: pathlib.Path,
) -> None:
    pool = WorkerPool(functools.partial(pool_work.begin_in, tmp_path), 2, seconds=PATIENCE, wait=PATIENCE)

    async def ask() -> Any:
        await pool.do("a", "bob")  # another client, so that one worker is reserved for it
        (tmp_path / "refuse").touch()
        with pytest.raises(WorkFailed):
            await pool.do("die", "mallory")
        return await pool.do("b", "mallory")

    try:
        wait_until(lambda: pool.ready == 2)
        assert asyncio.run(ask())[1] == "b"
    finally:
        pool.close()


def test_job_without_a_free_worker_is_rejected_after_the_timeout(tmp_path: pathlib.Path) -> None:
    slow = WorkerPool(pool_work.make, 1, seconds=PATIENCE, wait=0.2)

    async def taken_and_late() -> Any:
        running = asyncio.create_task(slow.do(tmp_path))
        while not list(tmp_path.iterdir()):
            await asyncio.sleep(0.01)
            if running.done():  # it has not started yet
                running = asyncio.create_task(slow.do(tmp_path))
        with pytest.raises(WorkFailed) as refused:
            await slow.do("die")
        assert refused.value.reason == "busy"
        (tmp_path / "go").touch()
        return await running

    try:
        assert asyncio.run(taken_and_late())[1] == tmp_path
        assert slow.replaced == 0
    finally:
        slow.close()


def test_a_cancelled_waiting_job_is_dropped(pool: WorkerPool, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "held"
    folder.mkdir()

    async def cancelled() -> list[Any]:
        at_work = await both_at_work(pool, folder)
        waiting = asyncio.create_task(pool.do("die"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        (folder / "go").touch()
        return await asyncio.gather(*at_work)

    earlier = pool.replaced
    assert [job for _, job in asyncio.run(cancelled())] == [folder, folder]
    assert len(workers(pool, tmp_path / "both")) == 2
    assert pool.replaced == earlier


@pytest.mark.skipif(sys.platform != "linux", reason="nothing else limits what a process allocates")
def test_a_worker_stays_within_its_memory_limit() -> None:
    pool = WorkerPool(pool_work.make, 1, seconds=PATIENCE, wait=PATIENCE, memory=50_000_000)
    try:
        assert do(pool, (20_000_000,)) == [20_000_000]
        (failure,) = do(pool, (100_000_000,))
        assert isinstance(failure, WorkFailed)
        assert failure.reason == "memory"
        assert pool.replaced == 1  # what it keeps of that job could fail the next one
        assert do(pool, (20_000_000,)) == [20_000_000]
    finally:
        pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="nothing else limits what a process allocates")
def test_a_worker_that_stays_at_its_memory_limit_is_killed() -> None:
    lost = list[WorkFailed]()
    pool = WorkerPool(
        pool_work.make, 1, seconds=PATIENCE, wait=PATIENCE, memory=50_000_000, on_lost=lost.append
    )
    try:
        (failure,) = do(pool, "fill")  # which would take all of its time
        assert isinstance(failure, WorkFailed)
        assert failure.reason == "memory"
        assert do(pool, (20_000_000,)) == [20_000_000]
        assert list(map(str, lost)) == ["it takes more memory than a worker has"]
        assert pool.replaced == 1
    finally:
        pool.close()


def test_workers_that_do_not_start_are_tried_again(tmp_path: pathlib.Path) -> None:
    def begun() -> int:
        return len(tries.read_text()) if tries.exists() else 0

    def wait_for(more: int) -> None:
        """Wait until `more` further workers have started; all but the last have then ended."""
        expected = begun() + more
        wait_until(lambda: begun() >= expected)

    lost, refuse, tries = list[WorkFailed](), tmp_path / "refuse", tmp_path / "tries"
    refuse.touch()
    make = functools.partial(pool_work.begin_in, tmp_path)
    pool = WorkerPool(make, 1, seconds=PATIENCE, wait=PATIENCE, on_lost=lost.append)
    try:
        wait_for(3)
        assert {(failure.reason, str(failure)) for failure in lost} == {
            ("start", "a worker does not start: nothing to work with")
        }
        assert len(lost) >= 2
        refuse.unlink()
        assert do(pool, (5,)) == [5]
        refuse.touch()
        lost.clear()
        do(pool, "die")
        wait_for(2)
        assert [failure.reason for failure in lost[:2]] == ["died", "start"]
        assert lost[0].exit_code == 7
    finally:
        pool.close()


def test_a_worker_that_cannot_start_is_reported_and_closing_does_not_wait() -> None:
    lost = list[WorkFailed]()
    pool = WorkerPool(pool_work.refuse, 1, seconds=1, wait=0.1, on_lost=lost.append)
    wait_until(lambda: lost)
    assert str(lost[0]) == "a worker does not start: nothing to work with"
    (failure,) = do(pool, "a")
    assert failure.reason == "busy"
    pool.close()
    (failure,) = do(pool, "a")
    assert str(failure) == "the service is stopping"
