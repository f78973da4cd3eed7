"""A launch: what is checked before it, and what the core says that went wrong."""

from __future__ import annotations

import ctypes

import numpy as np

from tests.support.ptx import core, faults, parse
from tests.support.ptx.faults import Fault
from tests.support.ptx.memory import GlobalMemory
from tests.support.ptx.program import Program, decoded

Shape = tuple[int, int, int]
MAX_GRID = ((1 << 31) - 1, 65535, 65535)
MAX_THREADS = 1024
MAX_STATIC, MAX_SHARED = 48 << 10, 227 << 10  # bytes of shared memory
CLASSES = (
    Fault,
    faults.UnknownInstruction,
    faults.OutOfBounds,
    faults.Misaligned,
    faults.Uninitialised,
    faults.Race,
    faults.Divergence,
    faults.Trap,
)


def launch(
    program: Program,
    memory: GlobalMemory,
    parameters: bytes,
    grid: Shape,
    block: Shape,
    shared_bytes: int = 0,
) -> None:
    """Run a kernel over a grid.

    Args:
        program: the kernel.
        memory: what it may touch.
        parameters: its parameters as they lie in memory.
        grid: blocks along x, y, z.
        block: threads along x, y, z.
        shared_bytes: of dynamic shared memory.

    Raises:
        Fault: the launch is refused, or the kernel does what it must not.
    """
    kernel = program.kernel
    threads = block[0] * block[1] * block[2]
    static = kernel.sizes.get("shared", 0)
    if any(not 0 < size <= limit for size, limit in zip(grid, MAX_GRID, strict=True)):
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
    buffers = np.array(
        [(region.address, region.end, False, False, b"") for region in memory.buffers], core.BUFFER
    )
    dynamic = -(-static // 16) * 16 + shared_bytes if shared_bytes else static
    arguments = core.Launch(
        grid=grid,
        block=block,
        shared_bytes=dynamic,
        number_of_buffers=len(buffers),
        buffers=buffers.ctypes.data,
        parameters=parameters,
    )
    failure = core.Failure()
    try:
        if not core.library().iet_ptx_run(
            ctypes.byref(program.handed), ctypes.byref(arguments), ctypes.byref(failure)
        ):
            raise _fault(program, memory, failure, grid, block)
    finally:
        for buffer in variables:
            memory.remove(buffer)


def _fault(program: Program, memory: GlobalMemory, failure: core.Failure, grid: Shape, block: Shape) -> Fault:
    """The fault with kernel, instruction and thread."""
    instruction = program.kernel.instructions[failure.instruction]
    location = f"{program.kernel.name}, line {instruction.line}: {instruction.text}"
    if failure.thread >= 0:
        at, thread = _coordinates(failure.block, grid), _coordinates(failure.thread, block)
        location += f": block {at}, thread {thread}"
    message = failure.message.decode()
    if failure.size:
        message = memory.nowhere(failure.address, failure.size)
    elif failure.buffer >= 0:
        message = f"buffer {memory.buffers[failure.buffer].name!r} {message}"
    return CLASSES[failure.kind](f"{location}: {message}")


def _coordinates(number: int, shape: Shape) -> Shape:
    return number % shape[0], number // shape[0] % shape[1], number // (shape[0] * shape[1])


def programs(text: str) -> dict[str, Program]:
    """Return all kernels of a module, decoded."""
    return {name: decoded(read) for name, read in parse.entries(text).items()}
