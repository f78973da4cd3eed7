"""A launch: what is checked before it, and its blocks, some at a time."""

from __future__ import annotations

import numpy as np

from tests.support.ptx import parse
from tests.support.ptx.faults import Fault
from tests.support.ptx.machine import Machine
from tests.support.ptx.memory import GlobalMemory
from tests.support.ptx.program import Program

Shape = tuple[int, int, int]
MAX_GRID = ((1 << 31) - 1, 65535, 65535)
MAX_THREADS = 1024
MAX_STATIC, MAX_SHARED = 48 << 10, 227 << 10  # bytes of shared memory
LANES = 8192  # threads at once: enough to hide NumPy's own cost, few enough for a cache


def launch(
    program: Program,
    memory: GlobalMemory,
    parameters: bytes,
    grid: Shape,
    block: Shape,
    shared_bytes: int = 0,
    lanes: int = LANES,
) -> None:
    """Run a kernel over a grid.

    Args:
        program: the kernel.
        memory: what it may touch.
        parameters: its parameters as they lie in memory.
        grid: blocks along x, y, z.
        block: threads along x, y, z.
        shared_bytes: of dynamic shared memory.
        lanes: threads that run at once, in whole blocks.

    Raises:
        Fault: the launch is refused, or the kernel does what it must not.
    """
    kernel = program.kernel
    threads = block[0] * block[1] * block[2]
    static = kernel.sizes.get("shared", 0)
    if any(not 0 < size <= most for size, most in zip(grid, MAX_GRID, strict=True)):
        raise Fault(f"{kernel.name}: a grid of {grid} blocks")
    if not 0 < threads <= min(MAX_THREADS, kernel.max_threads or MAX_THREADS):
        raise Fault(f"{kernel.name}: {threads} threads a block, at most {kernel.max_threads or MAX_THREADS}")
    if static > MAX_STATIC or static + shared_bytes > MAX_SHARED:
        raise Fault(f"{kernel.name}: {static} + {shared_bytes} bytes of shared memory")
    if len(parameters) != kernel.parameter_bytes:
        raise Fault(f"{kernel.name}: {len(parameters)} bytes of parameters, takes {kernel.parameter_bytes}")
    variables = [
        memory.add(array.ctypes.data, array.nbytes, name, array) for name, array in program.variables.items()
    ]
    memory.begin_launch()
    dynamic = -(-static // 16) * 16 + shared_bytes if shared_bytes else static
    count = grid[0] * grid[1] * grid[2]
    at_once = max(1, lanes // threads)
    try:
        with np.errstate(all="ignore"):
            for first in range(0, count, at_once):
                blocks = np.arange(first, min(first + at_once, count))
                data = np.frombuffer(parameters, np.uint8)
                Machine(program, memory, data, grid, block, blocks, dynamic).run()
    finally:
        for buffer in variables:
            memory.remove(buffer)


def programs(text: str) -> dict[str, Program]:
    """Return all kernels of a module, decoded."""
    return {name: Program(read()) for name, read in parse.entries(text).items()}
