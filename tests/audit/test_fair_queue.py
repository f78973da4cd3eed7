"""Order of jobs: with two workers or more, no client waits for another client's jobs."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from iet.audit import fair_queue
from iet.audit.fair_queue import FairQueue, QueuedJob


def filled(workers: int, **jobs: int) -> FairQueue:
    made = FairQueue(workers)
    for client, count in jobs.items():
        for number in range(count):
            made.put(client, QueuedJob(f"{client}{number}", Future()))
    return made


def taken(made: FairQueue) -> str:
    entry = made.take()
    assert entry is not None
    return str(entry[1][0])


def test_one_client_has_all_workers() -> None:
    made = filled(3, a=5)
    assert [taken(made) for _ in range(3)] == ["a0", "a1", "a2"]


def test_clients_take_turns_and_leave_a_worker_to_the_others() -> None:
    made = filled(3, a=9, b=2)
    assert [taken(made) for _ in range(3)] == ["a0", "b0", "a1"]
    made.done("b")
    assert taken(made) == "b1"
    made.done("b")
    late = list[str]()
    waiting = threading.Thread(target=lambda: late.append(taken(made)))
    waiting.start()
    made.put("c", QueuedJob("c0", Future()))  # not a2: two of three are at work for a
    waiting.join()
    assert late == ["c0"]
    made.done("a")
    assert taken(made) == "a2"


def test_a_single_worker_is_shared() -> None:
    made = filled(1, a=3, b=1)
    order = list[str]()
    for _ in range(4):
        order.append(taken(made))
        made.done(order[-1][0])
    assert order == ["a0", "b0", "a1", "a2"]


def test_past_clients_keep_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "SHARED_SECONDS", -1.0)
    made = filled(2, b=1)
    assert taken(made) == "b0"
    made.done("b")
    for number in range(2):
        made.put("a", QueuedJob(f"a{number}", Future()))
    assert [taken(made) for _ in range(2)] == ["a0", "a1"]


def test_jobs_that_were_cancelled_do_not_pile_up() -> None:
    made = filled(1, a=300)
    assert taken(made) == "a0"
    for _ in range(10_000):
        job: Future[object] = Future()
        made.put("a", QueuedJob("gone", job))
        job.cancel()
    assert len(made._waiting["a"]) < 700


def test_a_closed_queue_returns_no_job() -> None:
    made = filled(2, a=1)
    made.close()
    assert made.take() is None
