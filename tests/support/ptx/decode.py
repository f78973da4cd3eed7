"""An instruction into a function of a machine and its active threads.

A value is an array of one entry a thread, or of a single entry where all threads have the same: NumPy
broadcasts. Registers hold unsigned integers of their width (predicates: bool), and are viewed as what an
instruction says that they are. Arrays are never written to once they are in a register.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tests.support.ptx import parse
from tests.support.ptx.faults import UnknownInstruction
from tests.support.ptx.memory import UNSIGNED

if TYPE_CHECKING:
    from tests.support.ptx.machine import Machine

Array = NDArray[Any]
Lanes = Array | None  # indices of the active threads, ascending; None: all
Source = Callable[["Machine", Lanes], Array]
Target = Callable[["Machine", Lanes, Array], None]
Execute = Callable[["Machine", Lanes], None]

SIGNED: dict[int, Any] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOATS: dict[int, Any] = {16: np.float16, 32: np.float32, 64: np.float64}


@functools.cache
def dtype(type_: str) -> Any:
    """Return what NumPy calls a type; bfloat16 and packed types are bits to it."""
    width = parse.bits(type_)
    if type_[0] == "s" and not type_.endswith("x2"):
        return SIGNED[width]
    if type_ in ("f16", "f32", "f64"):
        return FLOATS[width]
    if width not in UNSIGNED:
        raise UnknownInstruction(f"{type_} is not implemented")
    return UNSIGNED[width]


class Code:
    """One instruction while it is decoded: its words, its operands, and what reads and writes them."""

    def __init__(
        self, kernel: parse.Kernel, instruction: parse.Instruction, addresses: dict[str, int]
    ) -> None:
        self.kernel, self.instruction = kernel, instruction
        self.addresses = addresses  # of variables in global memory
        self.name, *self.modifiers = instruction.parts
        self.operands = instruction.operands

    def unknown(self, why: str = "") -> UnknownInstruction:
        """Return what is raised where this is not implemented."""
        return UnknownInstruction(f"{self.instruction.opcode} is not implemented{why and ': ' + why}")

    def take(self, *options: str) -> str | None:
        """Take one of these modifiers away, wherever it stands."""
        for option in options:
            if option in self.modifiers:
                self.modifiers.remove(option)
                return option
        return None

    def take_type(self) -> str:
        """Take the last modifier, which is the type, and see that nothing else is left."""
        if not self.modifiers:
            raise self.unknown("no type")
        type_ = self.modifiers.pop()
        self.finish()
        return type_

    def finish(self) -> None:
        """See that no modifier is left."""
        if self.modifiers:
            raise self.unknown(f"what is .{self.modifiers[0]}?")

    # ------------------------------------------------------------ operands

    def source(self, operand: parse.Operand | int, type_: str) -> Source:
        """Return what reads an operand, or operand number i, as a type."""
        if isinstance(operand, int):
            operand = self.operands[operand]
        as_ = dtype(type_)
        if isinstance(operand, parse.Register):
            return _register(operand, as_)
        if isinstance(operand, parse.Special):
            return _special(operand.name, as_)
        if isinstance(operand, parse.Immediate):
            return _constant(_immediate(operand, type_, as_))
        if isinstance(operand, parse.Symbol):
            return _constant(np.array([self.symbol(operand)], np.uint64).astype(UNSIGNED[parse.bits(type_)]))
        if isinstance(operand, parse.Vector):
            return self._packed(operand, type_)
        raise self.unknown(f"what is read at {operand}?")

    def _packed(self, operand: parse.Vector, type_: str) -> Source:
        width = parse.bits(type_) // len(operand.parts)
        whole = UNSIGNED[parse.bits(type_)]
        parts = [self.source(part, f"b{width}") for part in operand.parts]

        def read(machine: Machine, lanes: Lanes) -> Array:
            value = np.zeros(1, whole)
            for i, part in enumerate(parts):
                value = value | part(machine, lanes).astype(whole) << whole(i * width)
            return value

        return read

    def target(self, operand: parse.Operand | int, type_: str) -> Target:
        """Return what writes a value of a type to an operand, or operand number i."""
        if isinstance(operand, int):
            operand = self.operands[operand]
        if isinstance(operand, parse.Sink):
            return lambda machine, lanes, value: None
        if isinstance(operand, parse.Vector):
            return self._unpacked(operand, type_)
        if not isinstance(operand, parse.Register):
            raise self.unknown(f"what is written to {operand}?")
        index, width = operand.index, parse.bits(type_)
        if width == operand.bits:
            unsigned = UNSIGNED[width]
            return lambda machine, lanes, value: machine.write(index, lanes, value.view(unsigned))
        if width > operand.bits or type_[0] == "f":
            raise self.unknown(f"{type_} into {operand.bits} bits")
        wide = (SIGNED if type_[0] == "s" else UNSIGNED)[operand.bits]
        unsigned = UNSIGNED[operand.bits]
        return lambda machine, lanes, value: machine.write(index, lanes, value.astype(wide).view(unsigned))

    def _unpacked(self, operand: parse.Vector, type_: str) -> Target:
        width = parse.bits(type_) // len(operand.parts)
        part = UNSIGNED[width]
        parts = [self.target(each, f"b{width}") for each in operand.parts]

        def write(machine: Machine, lanes: Lanes, value: Array) -> None:
            value = value.view(UNSIGNED[value.dtype.itemsize * 8])
            for i, each in enumerate(parts):
                each(machine, lanes, (value >> value.dtype.type(i * width)).astype(part))

        return write

    def symbol(self, operand: parse.Symbol) -> int:
        """Return the address of a variable in its own space."""
        if operand.name in self.addresses:
            return self.addresses[operand.name] + operand.offset
        found = self.kernel.variables.get(operand.name) or self.kernel.parameters.get(operand.name)
        if found is None:
            raise self.unknown(f"no variable {operand.name}")
        return found.offset + operand.offset

    def address(self, operand: parse.Operand | int) -> Source:
        """Return what reads the address that an operand is."""
        if isinstance(operand, int):
            operand = self.operands[operand]
        if not isinstance(operand, parse.Address):
            raise self.unknown(f"no address: {operand}")
        if isinstance(operand.base, parse.Symbol):
            whole = parse.Symbol(operand.base.name, operand.base.offset + operand.offset)
            return _constant(np.array([self.symbol(whole)], np.uint64))
        if isinstance(operand.base, parse.Immediate):
            return _constant(np.array([operand.base.value + operand.offset], np.uint64))
        base = _register(operand.base, UNSIGNED[operand.base.bits])
        offset = np.uint64(operand.offset % (1 << 64))
        return lambda machine, lanes: base(machine, lanes).astype(np.uint64) + offset

    # ------------------------------------------------------------ what most instructions are

    def pure(self, out: str, ins: tuple[str, ...] | list[str], function: Callable[..., Array]) -> Execute:
        """Return what writes a function of the operands from number 1 on to operand 0."""
        if len(self.operands) != len(ins) + 1:
            raise self.unknown(f"{len(self.operands)} operands")
        write = self.target(0, out)
        sources = [self.source(i + 1, type_) for i, type_ in enumerate(ins)]
        if len(sources) == 1:
            (one,) = sources
            return lambda machine, lanes: write(machine, lanes, function(one(machine, lanes)))
        if len(sources) == 2:
            one, two = sources
            return lambda machine, lanes: write(
                machine, lanes, function(one(machine, lanes), two(machine, lanes))
            )
        return lambda machine, lanes: write(
            machine, lanes, function(*(source(machine, lanes) for source in sources))
        )


def _register(operand: parse.Register, as_: Any) -> Source:
    index, width = operand.index, np.dtype(as_).itemsize * 8
    if operand.bits == 1:
        if operand.negated:
            return lambda machine, lanes: ~machine.read(index, lanes)
        return lambda machine, lanes: machine.read(index, lanes)
    if width == operand.bits:
        return lambda machine, lanes: machine.read(index, lanes).view(as_)
    if width > operand.bits:
        raise UnknownInstruction(f"{operand.bits} bits read as {width}")
    narrow = UNSIGNED[width]
    return lambda machine, lanes: machine.read(index, lanes).astype(narrow).view(as_)


def _special(name: str, as_: Any) -> Source:
    return lambda machine, lanes: machine.special(name, lanes).astype(as_)


def _constant(value: Array) -> Source:
    return lambda machine, lanes: value


def _immediate(operand: parse.Immediate, type_: str, as_: Any) -> Array:
    if type_ == "pred":
        return np.array([operand.value != 0])
    width = np.dtype(as_).itemsize * 8
    if operand.bits and operand.bits != width:
        raise UnknownInstruction(f"a constant of {operand.bits} bits where {width} are read")
    return np.array([operand.value % (1 << width)], UNSIGNED[width]).view(as_)
