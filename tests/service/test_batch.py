"""The body of a batch while it arrives: line numbers, limits, and a stopping service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from iet.service.batch import READ_BYTES, BatchBody
from iet.service.limits import Limits

LIMITS = Limits(body_bytes=100)


def arriving(*parts: bytes, more: bool = False) -> Callable[[], Any]:
    """Return an ASGI `receive` for a body of these parts; with `more` the body does not end."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages[-1]["more_body"] = more
    iterator = iter(messages)

    async def receive() -> Any:
        message = next(iterator, None)
        return await asyncio.Event().wait() if message is None else message

    return receive


def slowly(part: bytes) -> Callable[[], Any]:
    """Return an ASGI `receive` for an endless body; other tasks run between its parts."""

    async def receive() -> Any:
        for _ in range(5):
            await asyncio.sleep(0)
        return {"type": "http.request", "body": part, "more_body": True}

    return receive


async def lines_of(parts: list[bytes]) -> list[tuple[int, bytes | None]]:
    batch = BatchBody(arriving(*parts), LIMITS)
    try:
        return [line async for line in batch.lines()]
    finally:
        await batch.close()


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b" \n"])
def test_other_tasks_run_while_blank_lines_are_read(blank: bytes) -> None:
    parts = 40

    async def turns() -> int:
        """Return how often another task runs while the lines of a complete body are read."""
        batch, counter, over = (
            BatchBody(arriving(blank * (parts * READ_BYTES // len(blank))), LIMITS),
            0,
            False,
        )

        async def other() -> None:
            nonlocal counter
            while not over:
                counter += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        await asyncio.sleep(0)  # the batch is in its file
        counter = 0
        assert [line async for line in batch.lines()] == []
        over, counted = True, counter
        await task
        await batch.close()
        return counted

    assert asyncio.run(turns()) >= parts - 2


def test_blank_and_long_lines_count() -> None:
    parts = [b"a\n\n \nb", b"c", b"\n" + b"x" * 101, b"\n\n", b"y" * 101 + b"\n", b" " * 101 + b"\nd"]
    expected = [(0, b"a"), (3, b"bc"), (4, None), (6, None), (7, None), (8, b"d")]
    assert asyncio.run(lines_of(parts)) == expected
    assert asyncio.run(lines_of([b"".join(parts)])) == expected


def test_a_batch_that_is_too_long_ends_with_a_failure() -> None:
    async def read() -> tuple[int, object]:
        batch = BatchBody(slowly(b"x" * 39 + b"\n"), Limits(body_bytes=100, batch_bytes=1000))
        lines = [line async for line in batch.lines()]
        await batch.close()
        return len(lines), batch.failure

    assert asyncio.run(read()) == (25, (413, "batch: got more than 1000 bytes"))


def test_an_incomplete_batch_ends_when_the_service_stops() -> None:
    async def stopped() -> tuple[list[tuple[int, bytes | None]], Any]:
        batch = BatchBody(arriving(b"a\nb\nc", more=True), LIMITS)
        lines = []
        async for line in batch.lines():
            lines.append(line)
            if len(lines) == 2:
                batch.stop()
        await batch.close()
        return lines, batch.failure

    lines, failure = asyncio.run(stopped())
    assert lines == [(0, b"a"), (1, b"b")]  # of the third a part came
    assert failure is not None
    assert failure[0] == 503
    assert "the service is stopping" in failure[1]


def test_a_complete_batch_is_not_refused_when_the_service_stops() -> None:
    async def stopped() -> Any:
        batch = BatchBody(arriving(b"a\nb"), LIMITS)
        lines = [line async for line in batch.lines()]
        batch.stop()
        await batch.close()
        return lines, batch.failure

    assert asyncio.run(stopped()) == ([(0, b"a"), (1, b"b")], None)
