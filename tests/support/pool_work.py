"""Work for a process pool that fails on request."""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

from iet.errors import IetError


def make() -> Callable[[Any], Any]:
    return work


def refuse() -> Callable[[Any], Any]:
    raise IetError("nothing to work with")


def begin_in(folder: pathlib.Path) -> Callable[[Any], Any]:
    """Count the start of a worker in `tries`; fail if the file `refuse` exists."""
    with (folder / "tries").open("a") as tries:
        tries.write("x")
    return refuse() if (folder / "refuse").exists() else work


def work(job: Any) -> Any:
    if job == "die":
        os._exit(7)
    if isinstance(job, float):
        time.sleep(job)
    if isinstance(job, pathlib.Path):  # of a folder: say in it who has the job, and wait until it is let go
        (job / str(os.getpid())).touch()
        while not (job / "go").exists():
            time.sleep(0.01)
    if job == "fill":  # what memory there is, and never come out of it
        buffers: list[bytearray] = []
        while True:
            with contextlib.suppress(MemoryError):
                buffers.append(bytearray(1 << 20))
    if isinstance(job, tuple):
        return len(bytearray(*job))
    return os.getpid(), job
