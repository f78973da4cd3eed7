"""Workers that die, hang or do not start: only their job fails, and another one takes their place."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from iet.service.pool import Pool, WorkFailed
from tests.support import pool_work
from tests.support.conditions import posix

pytestmark = posix


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(pool_work.make, 2, seconds=2, wait=30)
    while made.ready < 2:
        time.sleep(0.01)
    yield made
    made.close()
    assert made.ready == 0


def do(pool: Pool, *jobs: Any) -> list[Any]:
    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*map(pool.do, jobs), return_exceptions=True)

    return asyncio.run(all_of_them())


def test_jobs_are_spread_and_answered(pool: Pool) -> None:
    answers = do(pool, 0.3, 0.3, "a", b"\0" * 3_000_000)
    assert [job for _, job in answers] == [0.3, 0.3, "a", b"\0" * 3_000_000]
    assert len({pid for pid, _ in answers}) == 2
    assert os.getpid() not in {pid for pid, _ in answers}


@pytest.mark.parametrize(("poison", "reason"), [("die", "died"), (60.0, "time")])
def test_a_worker_that_is_lost_takes_its_job_alone(pool: Pool, poison: Any, reason: str) -> None:
    before = pool.replaced
    failure, *others = do(pool, poison, "a", "b", "c")
    assert isinstance(failure, WorkFailed)
    assert failure.reason == reason
    assert [job for _, job in others] == ["a", "b", "c"]
    assert pool.replaced == before + 1
    while len({pid for pid, _ in do(pool, 0.2, 0.2)}) < 2:
        pass
    assert pool.ready == 2


def test_a_job_too_big_for_a_worker_that_stands_still_ends_in_time(pool: Pool) -> None:
    (pid, _), *_ = do(pool, "a")
    os.kill(pid, signal.SIGSTOP)
    first, second = do(pool, b"\0" * 3_000_000, b"\1" * 3_000_000)
    failed = [each for each in (first, second) if isinstance(each, WorkFailed)]
    assert [each.reason for each in failed] == ["time"]


def test_a_worker_that_dies_between_jobs_costs_none(pool: Pool) -> None:
    pids = set[int]()
    while len(pids) < 2:  # the one that a test before has lost may be starting
        pids = {pid for pid, _ in do(pool, 0.2, 0.2)}
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    while pool.ready:
        time.sleep(0.01)
    assert [job for _, job in do(pool, "a", "b", "c")] == ["a", "b", "c"]


def test_a_worker_that_a_client_has_cost_is_its_own_until_there_is_another(pool: Pool) -> None:
    while pool.ready < 2:
        time.sleep(0.01)

    async def lost() -> None:
        with pytest.raises(WorkFailed):
            await pool.do("die", "mallory")

    asyncio.run(lost())
    assert pool._jobs._at_work["mallory"] == 1 or pool.ready == 2
    while pool.ready < 2 or pool._jobs._at_work["mallory"]:
        time.sleep(0.01)


def test_what_no_worker_takes_in_time_is_refused_and_never_done(pool: Pool) -> None:
    slow = Pool(pool_work.make, 1, seconds=30, wait=0.2)
    try:
        while isinstance(do(slow, "a")[0], WorkFailed):  # until it has started
            time.sleep(0.05)
        taken, refused = do(slow, 1.0, "late")
        assert taken[1] == 1.0
        assert isinstance(refused, WorkFailed)
        assert refused.reason == "busy"
    finally:
        slow.close()


def test_a_cancelled_job_that_nobody_has_is_dropped(pool: Pool) -> None:
    async def cancelled() -> list[Any]:
        at_work = [asyncio.create_task(pool.do(0.5)) for _ in range(2)]
        await asyncio.sleep(0.1)
        waiting = asyncio.create_task(pool.do("die"))
        await asyncio.sleep(0.1)
        waiting.cancel()
        return await asyncio.gather(*at_work, waiting, return_exceptions=True)

    before = pool.replaced
    *done, dropped = asyncio.run(cancelled())
    assert [job for _, job in done] == [0.5, 0.5]
    assert isinstance(dropped, asyncio.CancelledError)
    assert {job for _, job in do(pool, 0.2, 0.2)} == {0.2}
    assert pool.replaced == before


def test_a_worker_that_cannot_start_is_told_and_closing_does_not_wait() -> None:
    told: list[str] = []
    pool = Pool(pool_work.refuse, 1, seconds=1, wait=0.1, tell=told.append)
    end = time.monotonic() + 60
    while not told and time.monotonic() < end:
        time.sleep(0.05)
    assert told[0] == "worker 0 does not start: nothing to work with"
    (failure,) = do(pool, "a")
    assert failure.reason == "busy"
    pool.close()
    (failure,) = do(pool, "a")
    assert str(failure) == "the service is stopping"
