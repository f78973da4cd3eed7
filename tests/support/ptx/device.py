"""A device that is not there: launches of the module that `build` made run here.

Tensors of the CPU are its memory. A kernel may only touch tensors that its caller passed: while `watching`,
every tensor whose address is read becomes a buffer, from its first to its last element.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Iterator
from typing import Any

from tests.support.ptx import parse
from tests.support.ptx.build import Built
from tests.support.ptx.faults import Fault
from tests.support.ptx.launch import launch
from tests.support.ptx.memory import Buffer, GlobalMemory
from tests.support.ptx.program import Program, decoded

_THREE = ctypes.POINTER(ctypes.c_uint)
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, _THREE, _THREE, ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t
)
_MEMORY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)
_LAUNCH_FAILURE = 719


class Device:
    """Runs the kernels of a module in the PTX of one target.

    Attributes:
        module: what takes the place of iet.native._cuda.
        target: the one in use, such as "80".
        memory: what kernels may touch.
        launches: how often each kernel ran, by target and name.
    """

    def __init__(self, built: Built) -> None:
        self.memory = GlobalMemory()
        self.module = built.module
        self.target = next(iter(built.ptx))
        self.launches: dict[tuple[str, str], int] = {}
        self._entries = {
            target: {name: read for text in texts for name, read in parse.entries(text).items()}
            for target, texts in built.ptx.items()
        }
        self._programs: dict[tuple[str, str], Program] = {}
        self._tensors: dict[int, tuple[Any, Buffer]] = {}
        self._allocated: dict[int, Buffer] = {}
        self._library = ctypes.CDLL(str(built.library))
        self._callbacks = _LAUNCH(self._launch), _MEMORY(self._allocate)  # as long as they may be called
        self._library.iet_ptx_connect(*self._callbacks)

    def program(self, name: str) -> Program:
        """Return a kernel, decoded on first use."""
        program = self._programs.get((self.target, name))
        if program is None:
            program = self._programs[self.target, name] = decoded(self._entries[self.target][name])
        return program

    def instructions(self) -> dict[str, int]:
        """Return how many instructions the warps of each kernel of the target have run."""
        return {
            name: int(program.executed.sum())
            for (target, name), program in self._programs.items()
            if target == self.target
        }

    def summary(self) -> Iterator[str]:
        """Yield one line of launch counts for each target."""
        for target, entries in self._entries.items():
            ran = [self._programs[target, name] for name in entries if self.launches.get((target, name))]
            count = sum(number for (device, _), number in self.launches.items() if device == target)
            steps, executed = (
                sum(map(part, ran))
                for part in (lambda p: len(p.executed), lambda p: int((p.executed > 0).sum()))
            )
            yield (
                f"PTX of sm_{target}: {count:,} launches, {len(ran)} of {len(entries)} kernels,"
                f" {executed:,} of their {steps:,} instructions"
            )

    def _launch(self, name: bytes, grid: Any, block: Any, arguments: Any, shared_bytes: int) -> int:
        try:
            program = self.program(name.decode())
            parameters = bytearray(program.kernel.parameter_bytes)
            for i, parameter in enumerate(program.kernel.parameters.values()):
                parameters[parameter.offset : parameter.offset + parameter.size] = ctypes.string_at(
                    arguments[i], parameter.size
                )
            shape, threads = tuple(grid[:3]), tuple(block[:3])
            launch(program, self.memory, bytes(parameters), shape, threads, shared_bytes)
        except Fault as fault:
            self._library.iet_ptx_fail(f"{type(fault).__name__}: {fault}".encode())
            return _LAUNCH_FAILURE
        except Exception as error:  # nothing may be raised through the module
            self._library.iet_ptx_fail(f"the interpreter failed: {error!r}".encode())
            return _LAUNCH_FAILURE
        key = self.target, name.decode()
        self.launches[key] = self.launches.get(key, 0) + 1
        return 0

    def _allocate(self, address: int, size: int) -> None:
        if address in self._allocated:
            self.memory.remove(self._allocated.pop(address))
        if size:
            self._allocated[address] = self.memory.add(address, size, "allocated")

    def tell(self, tensor: Any, address: int) -> None:
        """Let kernels touch a tensor, for as long as it is alive."""
        key = id(tensor)
        size = 0
        if tensor.numel():
            extents = zip(tensor.shape, tensor.stride(), strict=True)
            size = (1 + sum((length - 1) * stride for length, stride in extents)) * tensor.element_size()
        stored = self._tensors.get(key)
        if stored is not None and (stored[1].address, stored[1].end) == (address, address + size):
            return
        self._forget(key)
        buffer = self.memory.add(address, size, f"{tensor.dtype} {list(tensor.shape)}")
        self._tensors[key] = weakref.ref(tensor, lambda _: self._forget(key)), buffer

    def _forget(self, key: int) -> None:
        tensor = self._tensors.pop(key, None)
        if tensor is not None:
            self.memory.remove(tensor[1])

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Let kernels touch every tensor that is asked for its address."""
        import torch

        original = torch.Tensor.data_ptr

        def data_ptr(tensor: Any) -> int:
            address = original(tensor)
            self.tell(tensor, address)
            return address

        torch.Tensor.data_ptr = data_ptr  # type: ignore[assignment]
        try:
            yield
        finally:
            torch.Tensor.data_ptr = original  # type: ignore[method-assign]
