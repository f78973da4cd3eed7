"""Work for a pool of processes that goes wrong when it is told to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from iet.errors import IetError


def make() -> Callable[[Any], Any]:
    return work


def refuse() -> Callable[[Any], Any]:
    raise IetError("nothing to work with")


def work(job: Any) -> Any:
    if job == "die":
        os._exit(7)
    if isinstance(job, float):
        time.sleep(job)
    return os.getpid(), job
