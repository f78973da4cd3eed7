"""Waiting for what other threads and processes do, on a machine that may be busy with anything else."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 300.0
"""Seconds, for what happens at once on an idle machine: only what would never happen takes longer."""


def wait_until(
    happened: Callable[[], object], describe: Callable[[], object] = lambda: "", pause: float = 0.01
) -> None:
    """Return once `happened` returns something true; if it never does, fail with what `describe` returns."""
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, describe()
        time.sleep(pause)
