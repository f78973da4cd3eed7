"""A kernel decoded: the steps of the core, and where its registers lie."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.ptx import choices, core, moves, parse, warps
from tests.support.ptx.decode import FIXED, REGISTER, SPECIAL, TEMPORARY, WIDTHS, Code
from tests.support.ptx.faults import UnknownInstruction

LANES = 32


class Program:
    """A kernel that can be launched.

    Attributes:
        kernel: as it was parsed.
        executed: int64 [instructions], how often warps have run each.
        variables: arrays of what the module keeps in global and constant memory.
        handed: what the core gets.
    """

    def __init__(self, kernel: parse.Kernel) -> None:
        self.kernel = kernel
        self.variables = {
            name: np.frombuffer(bytearray(variable.content or bytes(variable.size)), np.uint8)
            for name, variable in kernel.variables.items()
            if variable.space in ("global", "const")
        }
        self.executed = np.zeros(len(kernel.instructions), np.int64)
        code = Code(kernel, {name: array.ctypes.data for name, array in self.variables.items()})
        for instruction in kernel.instructions:
            try:
                _decode(code, instruction)
            except UnknownInstruction as unknown:
                location = f"{kernel.name}, line {instruction.line}: {instruction.text}"
                raise UnknownInstruction(f"{location}: {unknown}") from None
        registers = _Registers(code)
        self._arrays = {
            "steps": _steps(code),
            "operands": np.array(registers.operands, core.OPERAND),
            "lists": np.array(code.lists, np.int32),
            "constants": np.array(registers.constants, core.CONSTANTS),
            "specials": np.array(registers.specials, core.SPECIALS),
        }
        self.handed = core.Program(
            **{name: array.ctypes.data for name, array in self._arrays.items()},
            **{f"number_of_{name}": len(array) for name, array in self._arrays.items() if name != "lists"},
            register_bytes=registers.bytes,
            tracked=registers.tracked,
            granule=min(_shared_widths(kernel), default=4),
            local_bytes=kernel.sizes.get("local", 0),
            parameter_bytes=kernel.parameter_bytes,
            executed=self.executed.ctypes.data_as(ctypes.c_void_p),
        )


def decoded(read: Callable[[], parse.Kernel]) -> Program:
    """Read a kernel and decode it, and look for garbage afterwards: of its many small objects none is."""
    was = gc.isenabled()
    gc.disable()
    try:
        return Program(read())
    finally:
        if was:
            gc.enable()


def _shared_widths(kernel: parse.Kernel) -> Iterator[int]:
    for instruction in kernel.instructions:
        if not instruction.opcode.startswith(("ld", "st", "atom", "red", "cp")):
            continue
        parts = instruction.parts
        if parts[0] in ("ld", "st", "atom", "red") and ("shared" in parts or "global" not in parts):
            if "param" not in parts and "local" not in parts:
                yield parse.bits(parts[-1]) // 8
        elif parts[0] == "cp" and "shared" in parts:
            yield 4


# ---------------------------------------------------------------- instructions


def _decode(code: Code, instruction: parse.Instruction) -> None:
    code.begin(instruction)
    if instruction.opcode in core.operations() and not (
        instruction.opcode.startswith("setp") and isinstance(code.operands[0], parse.Pair)
    ):
        code.pure(instruction.opcode)
        return
    code.words()
    for table in (moves.OPERATIONS, choices.OPERATIONS, warps.OPERATIONS, OPERATIONS):
        if code.name in table:
            table[code.name](code)
            return
    raise code.unknown()


def _branch(code: Code) -> None:
    code.take("uni")
    code.finish()
    (operand,) = code.operands
    if not isinstance(operand, parse.Symbol) or operand.name not in code.kernel.labels:
        raise code.unknown(f"no label: {operand}")
    code.step(core.BRANCH, target=code.kernel.labels[operand.name])


def _branch_by_table(code: Code) -> None:
    if code.take("idx") is None:
        raise code.unknown()
    code.take("uni")
    code.finish()
    table = code.operands[1]
    assert isinstance(table, parse.Symbol)
    targets = [code.kernel.labels[label] for label in code.kernel.tables[table.name]]
    code.step(core.TABLE, targets, (code.source(0, 32),))


def _end(code: Code) -> None:
    code.take("uni")
    code.finish()
    code.step(core.END)


REDUCTIONS = (("and", "pred"), ("or", "pred"), ("popc", "u32"))  # as the core numbers them


def _barrier(code: Code) -> None:
    if code.take("warp"):
        warps.meet(code)
        return
    code.take("cta")
    code.take("aligned")
    operands = list(code.operands)
    outs, ins, reduction, width = [], [], 0, 0
    if code.take("red"):
        kind = code.take("and", "or", "popc") or "", code.take_type()
        if kind not in REDUCTIONS:
            raise code.unknown()
        reduction, width = REDUCTIONS.index(kind), parse.bits(kind[1])
        outs.append(code.target(operands.pop(0), width))
        ins.append(code.source(operands.pop(), 1))
    elif code.take("sync") is None:
        raise code.unknown()
    code.finish()
    if len(operands) != 1 or not isinstance(operands[0], parse.Immediate):
        raise code.unknown("a barrier of some threads, or one that is not named by a number")
    code.step(core.BARRIER, outs, ins, reduction, bytes=-(-width // 8))


OPERATIONS = {
    "bra": _branch,
    "brx": _branch_by_table,
    "ret": _end,
    "exit": _end,
    "trap": lambda code: code.step(core.TRAP),
    "bar": _barrier,
    "barrier": _barrier,
}


def _steps(code: Code) -> NDArray[Any]:
    """Return the steps, with branch targets converted from instructions to steps."""
    steps = np.array(code.steps, core.STEP)
    starts = np.array([*code.starts, len(steps)], np.int32)
    steps["next"] = starts[steps["instruction"] + 1]
    branches = steps["kind"] == core.BRANCH
    steps["target"][branches] = starts[steps["target"][branches]]
    for at in np.flatnonzero(steps["kind"] == core.TABLE):
        begin, count = steps["outs_at"][at], steps["outs"][at]
        code.lists[begin : begin + count] = starts[code.lists[begin : begin + count]].tolist()
    return steps


# ---------------------------------------------------------------- registers


class _Registers:
    """Locations of the operands of a kernel.

    A register that lives between two branches and is written before it is read can share its location
    with other registers, and needs no check that it was written. The core tracks writes to all others.
    """

    def __init__(self, code: Code) -> None:
        self.bytes = self.tracked = 0  # bytes of all registers of a warp; how many are tracked
        self.constants: list[tuple[int, int]] = []
        self.specials: list[tuple[int, int, int]] = []
        self.operands: list[tuple[int, ...]] = []
        keys = list(code.keys)
        # Of each operand: the register or temporary that it is, by one number for both, or -1.
        registers = len(code.kernel.registers)
        values = [
            key[1] if key[0] == REGISTER else registers + key[1] if key[0] == TEMPORARY else -1
            for key in keys
        ]
        widths = {value: key[2] for key, value in zip(keys, values, strict=True) if value >= 0}
        lives, shared = _lives(code, values)
        offsets: dict[int, tuple[int, int]] = {}
        for value in sorted(shared):
            offsets[value] = self._place(widths[value]), self.tracked
            self.tracked += 1
        ends: dict[int, list[int]] = {}
        begins: dict[int, list[int]] = {}
        for value, (first, last) in lives.items():
            if value not in shared:
                begins.setdefault(first, []).append(value)
                ends.setdefault(last, []).append(value)
        free: dict[int, list[int]] = {}
        for i in sorted({*begins, *ends}):
            for value in begins.get(i, ()):
                unused = free.setdefault(widths[value], [])
                offsets[value] = unused.pop() if unused else self._place(widths[value]), -1
            for value in ends.get(i, ()):
                free[widths[value]].append(offsets[value][0])
        for (kind, number, width, negated, is_signed), value in zip(keys, values, strict=True):
            size = -(-width // 8)
            if kind == FIXED:
                self.operands.append((len(self.constants), -1, size, True, False, False))
                self.constants.append((number, size))
            elif kind == SPECIAL:
                offset = self._place(width)
                self.operands.append((offset, -1, size, False, False, False))
                self.specials.append((number, 0, offset))
            else:
                self.operands.append((*offsets[value], size, False, negated, is_signed))

    def _place(self, width: int) -> int:
        if width not in (1, *WIDTHS):
            raise UnknownInstruction(f"a register of {width} bits")
        self.bytes += LANES * -(-width // 8)
        return self.bytes - LANES * -(-width // 8)


def _lives(code: Code, values: list[int]) -> tuple[dict[int, tuple[int, int]], set[int]]:
    """Return the first and the last instruction of each value, and which are not of one stretch of code."""
    begins = {0, *code.kernel.labels.values()}
    registers = len(code.kernel.registers)  # temporaries follow them
    lives: dict[int, tuple[int, int]] = {}
    stretches: dict[int, int] = {}
    shared: set[int] = set()
    stretch, previous, guarded = -1, -1, False
    for kind, _, number, _, guard, outs_at, outs, ins_at, ins, *_ in code.steps:
        if number != previous:
            stretch += number in begins
            previous, guarded = number, guard != core.ALWAYS
        read = code.lists[ins_at : ins_at + ins]
        if guard >= 0:
            read.append(guard)
        for operand in read:
            value = values[operand]
            if value >= 0:
                if stretches.get(value) != stretch:
                    shared.add(value)
                lives[value] = lives[value][0] if value in lives else number, number
        for operand in code.lists[outs_at : outs_at + outs] if kind != core.TABLE else ():
            if operand == core.NOWHERE:
                continue
            value = values[operand]
            perhaps = guarded and value not in lives and value < registers
            if stretches.setdefault(value, stretch) != stretch or perhaps:
                shared.add(value)
            lives[value] = lives[value][0] if value in lives else number, number
        if kind != core.LANES and not core.LOAD <= kind <= core.HERE_NOW:
            begins.add(number + 1)
    return lives, shared
