"""The memory of a device: buffers that a kernel may touch. An address is that of this process."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

SHARED_WINDOW = 1 << 62  # where generic addresses of shared memory begin, as in core/memory.h
LOCAL_WINDOW = 1 << 61


class Buffer:
    """A stretch of this process's memory that kernels may touch."""

    def __init__(self, address: int, size: int, name: str, owner: object = None) -> None:
        self.address, self.end, self.name = address, address + size, name
        self.owner = owner  # kept alive


class GlobalMemory:
    """The buffers."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []

    def add(self, address: int, size: int, name: str = "", owner: object = None) -> Buffer:
        """Let kernels touch these bytes."""
        buffer = Buffer(address, size, name, owner)
        if size:
            self.buffers.append(buffer)
        return buffer

    def add_array(self, array: NDArray[Any], name: str = "") -> int:
        """Let kernels touch an array that is contiguous, and return its address."""
        assert array.flags.c_contiguous
        return self.add(array.ctypes.data, array.nbytes, name, array).address

    def remove(self, buffer: Buffer) -> None:
        if buffer in self.buffers:
            self.buffers.remove(buffer)

    def nowhere(self, address: int, size: int) -> str:
        """Say that these bytes are in no buffer, and which is the nearest."""
        text = f"{size} bytes at {address:#x} are in no buffer"
        if self.buffers:
            near = min(self.buffers, key=lambda buffer: max(buffer.address - address, address - buffer.end))
            text += f"; the nearest, {near.name!r}, is [{near.address:#x}, {near.end:#x})"
        return text
