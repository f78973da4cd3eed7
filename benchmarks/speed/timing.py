"""Time several functions in turn, so that a machine that drifts drifts for all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(functions: Mapping[str, Callable[[], object]], rounds: int = 11) -> dict[str, float]:
    """Return name -> median seconds of a call, over `rounds` rounds after one that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for i in range(rounds + 1):
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            if i:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}
