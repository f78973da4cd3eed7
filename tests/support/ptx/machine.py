"""Threads: their registers, where they stand, and where they meet.

All threads of some blocks run at once, one instruction for all that stand at it. Those at the lowest program
counter run next, so that they meet again where paths join. Lanes are the threads that have not ended, by
number; the first ones of the first block come first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.ptx.decode import Array, Lanes
from tests.support.ptx.faults import Divergence, Fault, OutOfBounds, Trap, Uninitialised
from tests.support.ptx.memory import (
    LOCAL_WINDOW,
    SHARED_WINDOW,
    GlobalMemory,
    LocalMemory,
    SharedMemory,
    check_alignment,
)
from tests.support.ptx.program import BARRIER, BRANCH, EXIT, PLAIN, TABLE, TRAP, Program, Step

WARP = 32
NEVER = 1 << 62


class Machine:
    """Some blocks of a launch."""

    def __init__(
        self,
        program: Program,
        memory: GlobalMemory,
        parameters: Array,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        blocks: Array,
        shared_bytes: int,
    ) -> None:
        self.program, self.memory, self.parameters = program, memory, parameters
        self.grid, self.block_shape, self.blocks = grid, block, blocks
        self.threads = block[0] * block[1] * block[2]
        self.warps = -(-self.threads // WARP)
        n = len(blocks) * self.threads
        self.thread = np.tile(np.arange(self.threads), len(blocks))
        self.block = np.repeat(np.arange(len(blocks)), self.threads)
        self.warp = self.block * self.warps + self.thread // WARP
        self.values: list[Any] = [None] * len(program.kernel.registers)
        self.known: list[Any] = [None] * len(program.kernel.registers)  # True, or which lanes wrote
        # What some lanes wrote last, and is not among the values yet: mostly the same lanes read it again.
        self.latest: list[tuple[Array, Array] | None] = [None] * len(program.kernel.registers)
        self.shared = SharedMemory(len(blocks), shared_bytes, program.granule)
        self.local = LocalMemory(n, program.kernel.sizes.get("local", 0))
        self.copies = Copies(n)
        self.ended = np.zeros(n, bool)
        self.number_ended = 0
        self.ready: dict[int, Lanes] = {0: None}
        self.at_barrier: dict[int, Array] = {}
        self.in_warp: dict[int, Array] = {}
        self._specials: dict[str, Array] = {}
        self._arguments: dict[tuple[int, Any, int], Array] = {}  # parameters that were read

    # ------------------------------------------------------------ lanes

    def __len__(self) -> int:
        return len(self.thread)

    def count(self, lanes: Lanes) -> int:
        return len(self.thread) if lanes is None else len(lanes)

    def indices(self, lanes: Lanes) -> Array:
        return np.arange(len(self.thread)) if lanes is None else lanes

    def one(self, lanes: Lanes, i: int) -> Array:
        return np.array([i]) if lanes is None else lanes[i : i + 1]

    def present(self, warps: Array) -> Array:
        """Return the lanes of these warps that have not ended, a bit each."""
        bits = np.zeros(len(self.blocks) * self.warps, np.uint32)
        alive = np.flatnonzero(~self.ended)
        np.bitwise_or.at(
            bits, self.warp[alive], np.uint32(1) << (self.thread[alive] % WARP).astype(np.uint32)
        )
        return bits[warps]

    def place(self, lane: int) -> str:
        """Say which thread a lane is."""
        x, y, z = _coordinates(self.blocks[self.block[lane]], self.grid)
        tx, ty, tz = _coordinates(self.thread[lane], self.block_shape)
        return f"block ({x}, {y}, {z}), thread ({tx}, {ty}, {tz})"

    # ------------------------------------------------------------ registers

    def read(self, index: int, lanes: Lanes) -> Array:
        """Return a register: an entry a lane, or one for all."""
        latest = self.latest[index]
        if latest is not None:
            if latest[0] is lanes:
                return latest[1]
            self._merge(index, *latest)
        value, known = self.values[index], self.known[index]
        if known is not True:
            if known is None:
                raise Uninitialised("reads a register that was not written", 0)
            unknown = ~(known if lanes is None else known[lanes])
            if unknown.any():
                raise Uninitialised("reads a register that was not written", int(np.argmax(unknown)))
        return value if lanes is None or len(value) == 1 else value[lanes]

    def write(self, index: int, lanes: Lanes, value: Array) -> None:
        """Write a register in some lanes. The array is kept, and never changed."""
        latest = self.latest[index]
        if lanes is None:
            self.values[index], self.known[index], self.latest[index] = value, True, None
            return
        if latest is not None and latest[0] is not lanes:
            self._merge(index, *latest)
        self.latest[index] = lanes, value

    def _merge(self, index: int, lanes: Array, value: Array) -> None:
        """Put what some lanes wrote among the values."""
        self.latest[index] = None
        before, known = self.values[index], self.known[index]
        merged = np.empty(len(self), value.dtype)
        if before is not None:
            merged[:] = before
        merged[lanes] = value
        self.values[index] = merged
        if known is not True:
            now = np.zeros(len(self), bool) if known is None else known.copy()
            now[lanes] = True
            self.known[index] = True if now.all() else now

    def special(self, name: str, lanes: Lanes) -> Array:
        """Return %tid.x and its like."""
        value = self._specials.get(name)
        if value is None:
            value = self._specials[name] = self._special(name)
        return value if lanes is None or len(value) == 1 else value[lanes]

    def _special(self, name: str) -> Array:
        stem, _, axis = name.partition(".")
        lane = (self.thread % WARP).astype(np.uint32)
        one = np.uint32(1) << lane
        if axis and axis in "xyz" and stem in ("%tid", "%ctaid", "%ntid", "%nctaid"):
            i = "xyz".index(axis)
            if stem == "%tid":
                value = _coordinates(self.thread, self.block_shape)[i]
            elif stem == "%ctaid":
                value = _coordinates(self.blocks[self.block], self.grid)[i]
            else:
                value = np.array([(self.block_shape if stem == "%ntid" else self.grid)[i]])
        elif name == "%laneid":
            value = lane
        elif name == "%warpid":
            value = self.thread // WARP
        elif stem.startswith("%lanemask_"):
            below = one - np.uint32(1)
            masks = {"eq": one, "lt": below, "le": below | one, "gt": ~(below | one), "ge": ~below}
            value = masks[stem.removeprefix("%lanemask_")]
        else:
            raise Fault(f"what is {name}?")
        value = np.asarray(value).astype(np.uint32)
        return value[:1] if (value == value[0]).all() else value

    # ------------------------------------------------------------ memory

    def load(
        self,
        space: str,
        lanes: Lanes,
        addresses: Array,
        dtype: Any,
        count: int,
        constant: bool = False,
        atomic: bool = False,
    ) -> Array:
        """Return what lies at addresses of a space: [lanes], or [lanes, count]."""
        if space == "generic":
            space, addresses = _space_of(addresses)
        if space in ("global", "const"):
            return self.memory.load(addresses, dtype, count, constant)
        if space == "param":
            return self._load_parameter(addresses, dtype, count)
        indices = self.indices(lanes)
        addresses = np.broadcast_to(addresses, indices.shape)
        if space == "local":
            return self.local.load(indices, addresses, dtype, count)
        if atomic:
            return self.shared.peek(self.block[indices], addresses, dtype)
        return self.shared.load(self.block[indices], self.thread[indices], addresses, dtype, count)

    def _load_parameter(self, addresses: Array, dtype: Any, count: int) -> Array:
        key = int(addresses[0]), dtype, count
        if len(addresses) == 1 and key in self._arguments:  # nobody writes them
            return self._arguments[key]
        size = np.dtype(dtype).itemsize
        check_alignment(addresses, size * count)
        places = addresses.astype(np.int64)[:, None] + np.arange(size * count)
        if (places >= len(self.parameters)).any():
            raise OutOfBounds(f"reads beyond {len(self.parameters)} bytes of parameters", 0)
        values = np.ascontiguousarray(self.parameters[places]).view(dtype)
        values = values[:, 0] if count == 1 else values
        if len(addresses) == 1:
            self._arguments[key] = values
        return values

    def store(self, space: str, lanes: Lanes, addresses: Array, values: Array, atomic: bool = False) -> None:
        """Write values [lanes] or [lanes, count] to addresses of a space."""
        if space == "generic":
            space, addresses = _space_of(addresses)
        if space == "global":
            self.memory.store(addresses, values)
            return
        if space not in ("shared", "local"):
            raise Fault(f"writes to {space} memory")
        indices = self.indices(lanes)
        addresses = np.broadcast_to(addresses, indices.shape)
        values = np.broadcast_to(values, (len(indices), *values.shape[1:]))
        if space == "local":
            self.local.store(indices, addresses, values)
        else:
            self.shared.store(self.block[indices], self.thread[indices], addresses, values, atomic)

    # ------------------------------------------------------------ running

    def run(self) -> None:
        """Run all threads to their end."""
        while self.number_ended < len(self):
            if self.number_ended * 8 > len(self):
                self._compact()
            if self.ready:
                pc = min(self.ready)
                self._advance(pc, self.ready.pop(pc))
            elif not self._release():
                return

    def _arrive(self, pc: int, lanes: Lanes) -> None:
        others = self.ready.get(pc)
        if pc not in self.ready:
            self.ready[pc] = lanes
        else:
            assert lanes is not None
            assert others is not None
            both = np.concatenate((lanes, others))
            both.sort()
            self.ready[pc] = None if len(both) == len(self) else both

    def _advance(self, pc: int, lanes: Lanes) -> None:
        """Run lanes until they part, wait, end, or come to where others stand."""
        steps, executed = self.program.steps, self.program.executed
        stop = min(self.ready, default=NEVER)
        while pc < stop:
            if pc >= len(steps):
                raise Fault(f"{self.program.kernel.name}: runs beyond its last instruction")
            step = steps[pc]
            executed[pc] = True
            active = lanes
            try:
                if step.guard is not None:
                    chosen = step.guard(self, lanes)
                    if step.kind == BRANCH:
                        pc_or_none = self._branch(step, pc, lanes, chosen)
                        if pc_or_none is None:
                            return
                        pc = pc_or_none
                        continue
                    if not chosen.any():
                        pc += 1
                        continue
                    active = _narrowed(lanes, chosen)
                if step.kind == PLAIN:
                    step.execute(self, active)  # type: ignore[misc]
                    for register in step.frees:
                        self.values[register] = self.known[register] = self.latest[register] = None
                    pc += 1
                    continue
                if step.kind == BRANCH:
                    pc = step.targets[0]
                    continue
                self._special_step(step, pc, lanes, active)
                return
            except Fault as fault:
                raise self._placed(fault, step, active) from None
        self._arrive(pc, lanes)

    def _branch(self, step: Step, pc: int, lanes: Lanes, chosen: Array) -> int | None:
        if chosen.all():
            return step.targets[0]
        if not chosen.any():
            return pc + 1
        self._arrive(step.targets[0], _narrowed(lanes, chosen))
        self._arrive(pc + 1, _narrowed(lanes, ~chosen))
        return None

    def _special_step(self, step: Step, pc: int, lanes: Lanes, active: Lanes) -> None:
        """A step after which not all go on together: whoever it does not concern goes on at once."""
        if active is not lanes:
            rest = np.setdiff1d(self.indices(lanes), self.indices(active), assume_unique=True)
            self._arrive(pc + 1, rest)
        indices = self.indices(active)
        if step.kind == EXIT:
            self.ended[indices] = True
            self.number_ended += len(indices)
        elif step.kind == TRAP:
            raise Trap("stops the kernel", 0)
        elif step.kind == TABLE:
            choice = np.broadcast_to(step.choice(self, active), indices.shape)  # type: ignore[misc]
            if (choice >= len(step.targets)).any():
                raise Fault("a branch to no entry of its table", int(np.argmax(choice >= len(step.targets))))
            for number in np.unique(choice):
                self._arrive(step.targets[number], indices[choice == number])
        elif step.kind == BARRIER:
            waiting = self.at_barrier.get(pc, np.empty(0, np.intp))
            self.at_barrier[pc] = np.union1d(waiting, indices)
        else:
            self._meet_in_warp(step, pc, indices)

    def _meet_in_warp(self, step: Step, pc: int, lanes: Array) -> None:
        """Let those groups go on of which everybody has come who is in its mask and has not ended."""
        lanes = np.union1d(self.in_warp.pop(pc, np.empty(0, np.intp)), lanes)
        mask = np.broadcast_to(step.choice(self, lanes), lanes.shape)  # type: ignore[misc]
        own = np.uint32(1) << (self.thread[lanes] % WARP).astype(np.uint32)
        if (mask & own == 0).any():
            raise Divergence("a thread that is not in its own mask", int(np.argmax(mask & own == 0)))
        came = np.zeros(len(self.blocks) * self.warps, np.uint32)
        np.bitwise_or.at(came, self.warp[lanes], own)
        warp = self.warp[lanes]
        complete = mask & self.present(warp) & ~came[warp] == 0
        if not complete.all():
            self.in_warp[pc] = lanes[~complete]
            lanes = lanes[complete]
        if len(lanes):
            step.execute(self, lanes)  # type: ignore[misc]
            self._arrive(pc + 1, None if len(lanes) == len(self) else lanes)

    def _release(self) -> bool:
        """Nobody can run: let everybody go on who waits at a barrier, and tell whether somebody did."""
        if self.in_warp:
            pc, lanes = next(iter(self.in_warp.items()))
            fault = Divergence("waits for threads of its warp that do not come", 0)
            raise self._placed(fault, self.program.steps[pc], lanes)
        if not self.at_barrier:
            return False
        waiting = np.zeros(len(self.blocks), np.int64)
        for pc, lanes in self.at_barrier.items():
            step = self.program.steps[pc]
            there = np.bincount(self.block[lanes], minlength=len(self.blocks))
            if ((there > 0) & (waiting > 0)).any():
                fault = Divergence("threads of one block wait at different barriers", 0)
                raise self._placed(fault, step, lanes)
            waiting += there
            missing = (there > 0) & (there < self.threads)
            elsewhere = missing & (np.bincount(self.block[~self.ended], minlength=len(self.blocks)) == there)
            if elsewhere.any():
                fault = Divergence("a barrier to which not all threads of the block come: some have ended", 0)
                raise self._placed(fault, step, lanes[elsewhere[self.block[lanes]]])
        partial = (waiting > 0) & (waiting < self.threads)
        if partial.any():
            pc, lanes = next(iter(self.at_barrier.items()))
            fault = Divergence("a barrier to which not all threads of the block come", 0)
            raise self._placed(fault, self.program.steps[pc], lanes[partial[self.block[lanes]]])
        released, self.at_barrier = self.at_barrier, {}
        for pc, lanes in released.items():
            self._reduce(self.program.steps[pc], lanes)
            self.shared.meet(np.flatnonzero(np.bincount(self.block[lanes])))
            self._arrive(pc + 1, None if len(lanes) == len(self) else lanes)
        return True

    def _reduce(self, step: Step, lanes: Array) -> None:
        if not step.reduction:
            return
        said = np.broadcast_to(step.choice(self, lanes), lanes.shape)  # type: ignore[misc]
        block = self.block[lanes]
        yes = np.bincount(block[said], minlength=len(self.blocks))[block]
        result = {"or": yes > 0, "and": yes == self.threads, "popc": yes.astype(np.uint32)}[step.reduction]
        step.result(self, None if len(lanes) == len(self) else lanes, result)

    def _placed(self, fault: Fault, step: Step, lanes: Lanes) -> Fault:
        """The fault with kernel, instruction and thread."""
        where = f"{self.program.kernel.name}, line {step.line}: {step.text}"
        if fault.lane is not None:
            where += f": {self.place(int(self.indices(lanes)[fault.lane]))}"
        return type(fault)(f"{where}: {fault}")

    def _compact(self) -> None:
        """Drop the threads that have ended."""
        for i, latest in enumerate(self.latest):
            if latest is not None:
                self._merge(i, *latest)
        keep = np.flatnonzero(~self.ended)
        new = np.cumsum(~self.ended) - 1
        n = len(self)
        for name in ("thread", "block", "warp", "ended"):
            setattr(self, name, getattr(self, name)[keep])
        for i, value in enumerate(self.values):
            if value is not None and len(value) == n > 1:
                self.values[i] = value[keep]
            known = self.known[i]
            if known is not None and known is not True:
                self.known[i] = True if known[keep].all() else known[keep]
        self.local.keep(keep)
        self.copies.keep(keep)
        for waiting in (self.ready, self.at_barrier, self.in_warp):
            for pc, lanes in waiting.items():
                moved = None if lanes is None else new[lanes]
                if waiting is self.ready and moved is not None and len(moved) == len(keep):
                    moved = None
                waiting[pc] = moved  # type: ignore[assignment]
        self.number_ended = 0
        self._specials = {}


class Copies:
    """Copies to shared memory that are on their way."""

    def __init__(self, lanes: int) -> None:
        self._committed = np.zeros(lanes, np.int64)  # groups of each lane
        self._under_way: list[list[Array]] = []  # lanes, group or -1, addresses, data

    def keep(self, lanes: Array) -> None:
        """Drop what the other lanes started."""
        new = np.full(len(self._committed), -1)
        new[lanes] = np.arange(len(lanes))
        self._committed = self._committed[lanes]
        for entry in self._under_way:
            entry[0] = new[entry[0]]
        self._select(lambda entry: entry[0] >= 0)

    def _select(self, chosen: Any) -> None:
        kept = [[part[chosen(entry)] for part in entry] for entry in self._under_way]
        self._under_way = [entry for entry in kept if len(entry[0])]

    def start(self, machine: Machine, lanes: Array, addresses: Array, data: Array) -> None:
        """Begin to copy data [lanes, words]: until it arrives nobody may read what is there."""
        machine.shared.forget(machine.block[lanes], addresses, 4 * data.shape[1])
        self._under_way.append([lanes, np.full(len(lanes), -1), addresses, data])

    def commit(self, lanes: Array) -> None:
        """Make a group of what each lane started since its last one."""
        for entry in self._under_way:
            mine = np.isin(entry[0], lanes) & (entry[1] < 0)
            entry[1] = np.where(mine, self._committed[entry[0]], entry[1])
        self._committed[lanes] += 1

    def wait(self, machine: Machine, lanes: Array, pending: int | None) -> None:
        """Let all arrive but the `pending` latest groups (None: all, also what is in no group)."""

        def arrives(entry: list[Array]) -> Array:
            mine = np.isin(entry[0], lanes)
            if pending is None:
                return mine
            return mine & (entry[1] >= 0) & (entry[1] < self._committed[entry[0]] - pending)

        for entry in self._under_way:
            now = arrives(entry)
            if now.any():
                who, data = entry[0][now], entry[3][now]
                values = data[:, 0] if data.shape[1] == 1 else data
                machine.shared.store(machine.block[who], machine.thread[who], entry[2][now], values)
        self._select(lambda entry: ~arrives(entry))


def _narrowed(lanes: Lanes, chosen: Array) -> Lanes:
    """Return the lanes that are chosen, of which there are some."""
    if len(chosen) == 1 and chosen[0]:
        return lanes
    return np.flatnonzero(chosen) if lanes is None else lanes[chosen]


def _coordinates(number: Any, shape: tuple[int, int, int]) -> tuple[Any, Any, Any]:
    if shape[1] == shape[2] == 1:
        return number, 0 * number, 0 * number
    return number % shape[0], number // shape[0] % shape[1], number // (shape[0] * shape[1])


def _space_of(addresses: Array) -> tuple[str, Array]:
    """Return the space of generic addresses, and the addresses in it."""
    for space, window in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW)):
        inside = (addresses >= np.uint64(window)) & (addresses < np.uint64(window + (1 << 32)))
        if inside.all():
            return space, addresses - np.uint64(window)
        if inside.any():
            raise Fault("generic addresses of several spaces in one instruction", int(np.argmax(inside)))
    return "global", addresses
