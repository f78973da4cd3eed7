"""Time on a GPU: contestants whose samples are seconds of the device, for the same suites as on a CPU."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

import iet
from benchmarks.timing import Sampler
from iet.errors import BackendUnavailable

BEYOND_CACHE = 256 << 20  # bytes of the buffers that take turns


def require(device: str) -> None:
    backends = iet.backends()
    if device == "cuda" and (backends.cuda_devices == 0 or not torch.cuda.is_available()):
        seen = "sees a device" if torch.cuda.is_available() else "sees no device"
        raise BackendUnavailable(
            f"no GPU can be used here. iet: {backends.cuda}. torch: built for CUDA"
            f" {torch.version.cuda}, {seen}"
        )


def described(device: str) -> dict[str, object]:
    if device == "cpu":
        return {"device": "the CPU, to try the suite out"}
    return {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def captured(
    call: Callable[[int], object], count: int, device: str, refresh: Callable[[], object]
) -> Sampler:
    """Return a sampler of the seconds of call(0) to call(count - 1), in one CUDA graph between two events.

    The graph is captured at the first sample. `refresh` runs before each, untimed. On the CPU the calls are
    made one by one, to try a suite out without a GPU.
    """

    def several() -> None:
        for number in range(count):
            call(number)

    @functools.cache
    def replay() -> Callable[[], object]:
        several()
        if device == "cpu":
            return several
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            several()
        return graph.replay

    def sample() -> float:
        run = replay()
        refresh()
        if device == "cpu":
            started = time.perf_counter()
            run()
            return time.perf_counter() - started
        event: Any = torch.cuda.Event  # not typed
        begin, end = (event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return sample


def waited(call: Callable[[], object], device: str, refresh: Callable[[], object] = lambda: None) -> Sampler:
    """Return a sampler of the seconds until the device is done with a call, which may allocate or check."""

    def sample() -> float:
        refresh()
        synchronize(device)
        started = time.perf_counter()
        call()
        synchronize(device)
        return time.perf_counter() - started

    return sample


def returned(call: Callable[[], object], count: int, device: str) -> Sampler:
    """Return a sampler of the host's seconds for `count` calls, if the device never makes it wait."""

    def sample() -> float:
        synchronize(device)
        started = time.perf_counter()
        for _ in range(count):
            call()
        return time.perf_counter() - started

    return sample
