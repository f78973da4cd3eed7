"""Medians of functions that run in turn, where a benchmark needs no more than that."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from iet import bench


def interleaved(functions: Mapping[str, Callable[[], object]], rounds: int = 11) -> dict[str, float]:
    """Return name -> median seconds of a call, over `rounds` rounds after one that warms up."""
    samplers = {name: bench.timed(function) for name, function in functions.items()}
    return {name: bench.spread(values).median for name, values in bench.interleaved(samplers, rounds).items()}
