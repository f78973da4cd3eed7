"""The memory of a device: buffers that a kernel may touch, and the shared memory of blocks.

Every address is checked: it lies in one buffer, and is a multiple of what is accessed. Shared memory knows
which of its parts were written, by whom, and who read them, since the last barrier.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.ptx.faults import Fault, Misaligned, OutOfBounds, Race, Uninitialised

Array = NDArray[Any]
UNSIGNED: dict[int, Any] = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SHARED_WINDOW = 1 << 62  # where generic addresses of shared memory begin
LOCAL_WINDOW = 1 << 61
_ALIGNED = 32  # bytes: no access is wider


def check_alignment(addresses: Array, size: int) -> None:
    wrong = (addresses & np.uint64(size - 1)) != 0
    if wrong.any():
        lane = int(np.argmax(wrong))
        raise Misaligned(f"address {int(addresses[lane]):#x} is no multiple of {size}", lane)


class Buffer:
    """A stretch of this process's memory that kernels may touch."""

    def __init__(self, address: int, size: int, name: str, owner: object = None) -> None:
        self.address, self.end, self.name = address, address + size, name
        self.owner = owner  # kept alive
        self.written = self.assumed_constant = False
        self._views: dict[tuple[Any, int], Array] = {}

    def view(self, dtype: Any, count: int) -> tuple[Array, int]:
        """Return the buffer as elements of `count` values, from an aligned address on, and that address."""
        begin = self.address & -_ALIGNED
        found = self._views.get((dtype, count))
        if found is None:
            size = np.dtype(dtype).itemsize * count
            memory = (ctypes.c_ubyte * (self.end - begin)).from_address(begin)
            usable = (self.end - begin) // size
            flat = np.frombuffer(memory, dtype=dtype, count=usable * count)
            found = flat if count == 1 else flat.reshape(-1, count)
            self._views[dtype, count] = found
        return found, begin


class GlobalMemory:
    """The buffers. An address is that of this process."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []

    def add(self, address: int, size: int, name: str = "", owner: object = None) -> Buffer:
        """Let kernels touch these bytes."""
        buffer = Buffer(address, size, name, owner)
        if size:
            self.buffers.append(buffer)
        return buffer

    def add_array(self, array: Array, name: str = "") -> int:
        """Let kernels touch an array that is contiguous, and return its address."""
        assert array.flags.c_contiguous
        return self.add(array.ctypes.data, array.nbytes, name, array).address

    def remove(self, buffer: Buffer) -> None:
        if buffer in self.buffers:
            self.buffers.remove(buffer)

    def begin_launch(self) -> None:
        """Forget what the kernel before did."""
        for buffer in self.buffers:
            buffer.written = buffer.assumed_constant = False

    def locate(self, addresses: Array, size: int) -> list[tuple[Buffer, Array | None]]:
        """Return the buffers that hold these bytes, each with a mask over the addresses (None: all)."""
        check_alignment(addresses, size)
        low, high = int(addresses.min()), int(addresses.max()) + size
        for i, buffer in enumerate(self.buffers):
            if buffer.address <= low and high <= buffer.end:
                if i:  # it will be asked for again
                    self.buffers.insert(0, self.buffers.pop(i))
                return [(buffer, None)]
        found: list[tuple[Buffer, Array | None]] = []
        missing = np.ones(addresses.shape, bool)
        for buffer in self.buffers:
            inside = missing & (addresses >= buffer.address)
            inside &= addresses <= np.uint64(max(buffer.end - size, 0))
            if inside.any():
                found.append((buffer, inside))
                missing &= ~inside
        if missing.any():
            lane = int(np.argmax(missing))
            raise OutOfBounds(self._nearest(int(addresses[lane]), size), lane)
        return found

    def _nearest(self, address: int, size: int) -> str:
        text = f"{size} bytes at {address:#x} are in no buffer"
        if self.buffers:
            near = min(self.buffers, key=lambda each: max(each.address - address, address - each.end))
            text += f"; the nearest, {near.name!r}, is [{near.address:#x}, {near.end:#x})"
        return text

    def load(self, addresses: Array, dtype: Any, count: int, constant: bool = False) -> Array:
        """Return what lies there: [lanes], or [lanes, count]."""
        size = np.dtype(dtype).itemsize * count
        places = self.locate(addresses, size)
        result = None
        for buffer, mask in places:
            self._note(buffer, constant=constant)
            view, begin = buffer.view(dtype, count)
            chosen = addresses if mask is None else addresses[mask]
            values = view[((chosen - np.uint64(begin)) // np.uint64(size)).astype(np.intp)]
            if mask is None:
                return values
            if result is None:
                result = np.empty(addresses.shape + values.shape[1:], dtype)
            result[mask] = values
        assert result is not None
        return result

    def store(self, addresses: Array, values: Array) -> None:
        """Write values [lanes] or [lanes, count]."""
        count = values.shape[1] if values.ndim > 1 else 1
        size = values.dtype.itemsize * count
        lanes = max(len(addresses), len(values))
        if len(addresses) < lanes:
            addresses = np.repeat(addresses, lanes)
        for buffer, mask in self.locate(addresses, size):
            self._note(buffer, written=True)
            view, begin = buffer.view(values.dtype.type, count)
            chosen = addresses if mask is None else addresses[mask]
            data = values if mask is None or len(values) == 1 else values[mask]
            view[((chosen - np.uint64(begin)) // np.uint64(size)).astype(np.intp)] = data

    def update(self, addresses: Array, values: Array, function: Any) -> None:
        """Apply a ufunc such as np.add to what lies there, one lane after another."""
        for buffer, mask in self.locate(addresses, values.dtype.itemsize):
            self._note(buffer, written=True)
            view, begin = buffer.view(values.dtype.type, 1)
            chosen, data = (addresses, values) if mask is None else (addresses[mask], values[mask])
            place = ((chosen - np.uint64(begin)) // np.uint64(values.dtype.itemsize)).astype(np.intp)
            function.at(view, place, data)

    def _note(self, buffer: Buffer, written: bool = False, constant: bool = False) -> None:
        buffer.written |= written
        buffer.assumed_constant |= constant
        if buffer.written and buffer.assumed_constant:
            raise Fault(f"buffer {buffer.name!r} is read as constant (.nc) and written by the same kernel")


NOBODY, SEVERAL_WARPS = -1, -2
# Below: -3 - 2w, threads of warp w that have not met since; and -4 - 2w, that have.


def _joined(who: Array, thread: Array, warp: Array) -> Array:
    """Return who it is when a thread comes to those that it was."""
    met = -4 - 2 * warp
    beside = ((who >= 0) & (who >> 5 == warp)) | (who == met + 1)
    others = np.where(beside, met + 1, SEVERAL_WARPS)
    return np.where((who == NOBODY) | (who == thread) | (who == met), thread, others).astype(np.int32)


def _others(who: Array, thread: Array, warp: Array) -> Array:
    """Tell where it was another thread, with no barrier since."""
    return (who != NOBODY) & (who != thread) & (who != -4 - 2 * warp)


class SharedMemory:
    """That of many blocks. `granule` is the smallest access of the kernel, in bytes."""

    def __init__(self, blocks: int, size: int, granule: int) -> None:
        self.size, self.granule = size, granule
        self.stride = -(-max(size, 1) // _ALIGNED) * _ALIGNED
        self.data = np.zeros(blocks * self.stride // 8, np.uint64)
        self._granules = self.stride // granule
        shape = blocks * self._granules
        self._ready = np.zeros(shape, bool)
        self._atomic = np.zeros(shape, bool)
        self._writer = np.full(shape, NOBODY, np.int32)
        self._reader = np.full(shape, NOBODY, np.int32)

    def _places(self, block: Array, addresses: Array, size: int) -> tuple[Array, Array]:
        """Return the index of each access in units of its size, and those of its granules [lanes, ..]."""
        check_alignment(addresses, size)
        outside = addresses > np.uint64(max(self.size - size, 0))
        if outside.any() or self.size < size:
            lane = int(np.argmax(outside))
            raise OutOfBounds(
                f"{size} bytes at {int(addresses[lane])} of {self.size} bytes of shared memory", lane
            )
        place = addresses.astype(np.int64) + block * self.stride
        granules = (place // self.granule)[:, None] + np.arange(max(size // self.granule, 1))
        return place // size, granules

    @staticmethod
    def _record(who: Array, granules: Array, thread: Array, warp: Array) -> None:
        before = who[granules]
        joins = (before != SEVERAL_WARPS) & (before != thread)
        if not joins.any():
            return
        granules, before = granules[joins], before[joins]
        thread, warp = (np.broadcast_to(each, joins.shape)[joins] for each in (thread, warp))
        while True:  # several threads may come to one place at once: two to four times around
            after = _joined(before, thread, warp)
            changed = before != after
            if not changed.any():
                return
            # Who is among those that a place names stays among them, whoever else comes.
            granules, thread, warp = granules[changed], thread[changed], warp[changed]
            who[granules] = after[changed]
            before = who[granules]

    def load(self, block: Array, thread: Array, addresses: Array, dtype: Any, count: int) -> Array:
        """Return what lies there [lanes] or [lanes, count], for threads of blocks."""
        place, granules = self._places(block, addresses, np.dtype(dtype).itemsize * count)
        _raise(~self._ready[granules], Uninitialised, "reads shared memory that nobody wrote", addresses)
        at, warp = thread[:, None], (thread >> 5)[:, None]
        raced = _others(self._writer[granules], at, warp)
        _raise(raced, Race, "reads shared memory that another thread wrote since the barrier", addresses)
        self._record(self._reader, granules, at, warp)
        view = self.data.view(dtype)
        return view[place] if count == 1 else view.reshape(-1, count)[place]

    def store(
        self, block: Array, thread: Array, addresses: Array, values: Array, atomic: bool = False
    ) -> None:
        """Write values [lanes] or [lanes, count] for threads of blocks."""
        count = values.shape[1] if values.ndim > 1 else 1
        place, granules = self._places(block, addresses, values.dtype.itemsize * count)
        at, warp = thread[:, None], (thread >> 5)[:, None]
        raced = _others(self._reader[granules], at, warp)
        _raise(raced, Race, "writes shared memory that another thread read since the barrier", addresses)
        view = self.data.view(values.dtype)
        view = view if count == 1 else view.reshape(-1, count)
        rewritten = _others(self._writer[granules], at, warp) & ~(self._atomic[granules] & atomic)
        if atomic:
            self._atomic[granules] = True
        else:  # the same value again harms nobody
            differs = (view[place] != values).reshape(len(place), -1).any(1)[:, None]
            rewritten = rewritten & differs & self._ready[granules]
        message = "writes another value to shared memory than another thread since the barrier"
        _raise(rewritten, Race, message, addresses)
        view[place] = values
        if not atomic:
            _raise((view[place] != values).reshape(len(place), -1), Race, message, addresses)
        self._ready[granules] = True
        self._record(self._writer, granules, at, warp)

    def peek(self, block: Array, addresses: Array, dtype: Any) -> Array:
        """Return what lies there for an atomic operation, which races with nobody but plain accesses."""
        place, granules = self._places(block, addresses, np.dtype(dtype).itemsize)
        _raise(~self._ready[granules], Uninitialised, "reads shared memory that nobody wrote", addresses)
        return self.data.view(dtype)[place]

    def forget(self, block: Array, addresses: Array, size: int) -> None:
        """Take what lies there for not written: a copy to it is on its way."""
        self._ready[self._places(block, addresses, size)[1]] = False

    def meet(self, blocks: Array) -> None:
        """All threads of these blocks have met at a barrier."""
        for who in (self._reader, self._writer):
            who.reshape(-1, self._granules)[blocks] = NOBODY
        self._atomic.reshape(-1, self._granules)[blocks] = False

    def meet_warps(self, blocks: Array, warps: Array) -> None:
        """All threads of one warp in each of these blocks have met."""
        for who in (self._reader, self._writer):
            rows = who.reshape(-1, self._granules)
            for block, warp in zip(blocks, warps, strict=True):
                row = rows[block]
                row[((row >= 0) & (row >> 5 == warp)) | (row == -3 - 2 * warp)] = -4 - 2 * warp


def _raise(wrong: Array, kind: type[Fault], message: str, addresses: Array) -> None:
    if wrong.any():
        lane = int(np.argmax(wrong.any(axis=1)))
        raise kind(f"{message}, at {int(addresses[lane])}", lane)


class LocalMemory:
    """That of single threads."""

    def __init__(self, lanes: int, size: int) -> None:
        self.size = size
        self.data, self._ready = np.zeros((lanes, size), np.uint8), np.zeros((lanes, size), bool)

    def keep(self, lanes: Array) -> None:
        """Drop the others."""
        self.data, self._ready = self.data[lanes], self._ready[lanes]

    def _bytes(self, addresses: Array, size: int, each: int) -> Array:
        check_alignment(addresses, each)
        outside = addresses > np.uint64(max(self.size - size, 0))
        _raise(outside[:, None], OutOfBounds, f"{size} bytes beyond {self.size} of local memory", addresses)
        return addresses.astype(np.int64)[:, None] + np.arange(size)

    def load(self, lanes: Array, addresses: Array, dtype: Any, count: int) -> Array:
        size = np.dtype(dtype).itemsize * count
        places = self._bytes(addresses, size, size)
        unwritten = ~self._ready[lanes[:, None], places]
        _raise(unwritten, Uninitialised, "reads local memory that was not written", addresses)
        values = np.ascontiguousarray(self.data[lanes[:, None], places]).view(dtype)
        return values[:, 0] if count == 1 else values

    def store(self, lanes: Array, addresses: Array, values: Array) -> None:
        data = np.ascontiguousarray(values).view(np.uint8).reshape(len(lanes), -1)
        places = self._bytes(addresses, data.shape[1], data.shape[1])
        self.data[lanes[:, None], places] = data
        self._ready[lanes[:, None], places] = True
