"""Instructions into steps of the core: which operation, on which operands.

The core defines the opcodes and their arithmetic. This module resolves their operands: registers, constants,
addresses, and the widths that fit each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.ptx import core, parse
from tests.support.ptx.faults import UnknownInstruction

WIDTHS = (8, 16, 32, 64)
SPECIALS = {
    name: number
    for number, name in enumerate(
        (
            *(f"%{stem}.{axis}" for stem in ("tid", "ctaid", "ntid", "nctaid") for axis in "xyz"),
            *("%laneid", "%warpid"),
            *(f"%lanemask_{which}" for which in ("eq", "lt", "le", "gt", "ge")),
        )
    )
}
PACKED = {
    (32, 2): ("pack.b32", "part.b32"),
    (64, 2): ("pack.b64", "part.b64"),
    (64, 4): ("pack4.b64", "part4.b64"),
}

REGISTER, TEMPORARY, SPECIAL, FIXED = range(4)
Key = tuple[
    int, int, int, bool, bool
]  # which of these, number or value, bits, negated, extended with its sign


class Code:
    """A kernel while it is decoded.

    Attributes:
        name: the first word of the instruction at hand.
        modifiers: those of its other words that were not taken yet.
        operands: what it names.
        keys: the operands of the core, by what they are, with their numbers.
        steps: as core.STEP, but for what is not known before all of them are.
        lists: numbers of operands, or of instructions that a table names.
        starts: the first step of each instruction.
    """

    def __init__(self, kernel: parse.Kernel, addresses: dict[str, int]) -> None:
        self.kernel = kernel
        self.addresses = addresses  # of variables in global memory
        self.keys: dict[Key, int] = {}
        self.steps: list[tuple[int, ...]] = []
        self.lists: list[int] = []
        self.starts: list[int] = []
        self._known = core.operations()
        self._temporaries = 0

    def begin(self, instruction: parse.Instruction) -> None:
        """Go on to the next instruction."""
        self.instruction = instruction
        self.operands = instruction.operands
        self.starts.append(len(self.steps))
        guard = instruction.guard
        self._guard = core.ALWAYS if guard is None else self.source(guard, 1)

    def words(self) -> None:
        """Take the opcode apart: most need not."""
        self.name, *self.modifiers = self.instruction.parts

    def unknown(self, why: str = "") -> UnknownInstruction:
        """Return what is raised where this is not implemented."""
        return UnknownInstruction(f"{self.instruction.opcode} is not implemented{why and ': ' + why}")

    def take(self, *options: str) -> str | None:
        """Remove one of these modifiers, at any position."""
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

    def key(self, *key: *Key) -> int:
        """Return the number of an operand."""
        return self.keys.setdefault(key, len(self.keys))

    def constant(self, value: int, width: int) -> int:
        """Return the operand that is a constant."""
        return self.key(FIXED, value % (1 << width), width, False, False)

    def temporary(self, width: int) -> int:
        """Return an operand that only this instruction knows."""
        self._temporaries += 1
        return self.key(TEMPORARY, self._temporaries, width, False, False)

    def source(self, operand: parse.Operand | int, width: int) -> int:
        """Return the source of an operand, or of operand number i, at a width; a predicate is one bit."""
        if isinstance(operand, int):
            operand = self.operands[operand]
        if isinstance(operand, parse.Register):
            if operand.bits < width or (operand.bits != width and width == 1):
                raise UnknownInstruction(f"{operand.bits} bits read as {width}")
            return self.key(REGISTER, operand.index, operand.bits, operand.negated, False)
        if isinstance(operand, parse.Immediate):
            if operand.bits and operand.bits != width:
                raise UnknownInstruction(f"a constant of {operand.bits} bits where {width} are read")
            return self.constant(operand.value if width > 1 else operand.value != 0, width)
        if isinstance(operand, parse.Special):
            if operand.name not in SPECIALS or not 1 < width <= 32:
                raise self.unknown(f"what is {operand.name}?")
            return self.key(SPECIAL, SPECIALS[operand.name], 32, False, False)
        if isinstance(operand, parse.Symbol):
            return self.constant(self.symbol(operand), width)
        if isinstance(operand, parse.Vector):
            count = len(operand.parts)
            packed = self.temporary(width)
            if (width, count) not in PACKED:
                raise self.unknown(f"{count} parts of {width} bits")
            parts = [self.source(part, width // count) for part in operand.parts]
            self.lanes(PACKED[width, count][0], packed, parts)
            return packed
        raise self.unknown(f"what is read at {operand}?")

    def target(self, operand: parse.Operand | int, width: int, kind: str = "u") -> int:
        """Return the target of a kind (a type's first letter) and width for an operand or its number."""
        if isinstance(operand, int):
            operand = self.operands[operand]
        if isinstance(operand, parse.Register):
            if width > operand.bits or (width < operand.bits and (kind == "f" or width == 1)):
                raise self.unknown(f"{width} bits into {operand.bits}")
            extended = kind == "s" and width < operand.bits
            return self.key(REGISTER, operand.index, operand.bits, False, extended)
        if isinstance(operand, parse.Sink):
            return core.NOWHERE
        raise self.unknown(f"what is written to {operand}?")

    def symbol(self, operand: parse.Symbol) -> int:
        """Return the address of a variable in its own space."""
        if operand.name in self.addresses:
            return self.addresses[operand.name] + operand.offset
        variable = self.kernel.variables.get(operand.name) or self.kernel.parameters.get(operand.name)
        if variable is None:
            raise self.unknown(f"no variable {operand.name}")
        return variable.offset + operand.offset

    def address(self, number: int) -> tuple[int, int]:
        """Return the operand that an address begins with, and what is added."""
        operand = self.operands[number]
        if not isinstance(operand, parse.Address):
            raise self.unknown(f"no address: {operand}")
        if isinstance(operand.base, parse.Register):
            return self.source(operand.base, operand.base.bits), operand.offset
        base = operand.base.value if isinstance(operand.base, parse.Immediate) else self.symbol(operand.base)
        return self.constant(base, 64), operand.offset

    # ------------------------------------------------------------ steps

    def step(
        self,
        kind: int,
        outs: Sequence[int] = (),
        ins: Sequence[int] = (),
        operation: int = 0,
        space: int = 0,
        bytes: int = 0,
        signed: bool = False,
        constant: bool = False,
        target: int = 0,
        offset: int = 0,
    ) -> None:
        """Add one."""
        at = len(self.lists)
        self.lists += outs
        self.lists += ins
        number = len(self.starts) - 1
        ahead = at, len(outs), at + len(outs), len(ins)
        details = space, bytes, signed, constant, target, offset
        self.steps.append((kind, operation, number, 0, self._guard, *ahead, *details))
        self._guard = core.SAME

    def lanes(self, name: str, out: int, ins: Sequence[int]) -> None:
        """Add an operation of each lane for itself."""
        self.step(core.LANES, (out,), ins, self._known[name].index)

    def operation(self, name: str) -> core.Operation:
        """Return an operation of lanes, by its opcode."""
        operation = self._known.get(name)
        if operation is None:
            raise self.unknown()
        return operation

    def pure(self, name: str) -> None:
        """Add what writes an operation of the operands from number 1 on to operand 0."""
        operation = self.operation(name)
        if len(self.operands) != len(operation.operands) + 1:
            raise self.unknown(f"{len(self.operands)} operands")
        ins = [self.source(i, width) for i, width in enumerate(operation.operands, 1)]
        first = self.operands[0]
        if isinstance(first, parse.Vector):
            self._take_apart(first, operation, ins)
        else:
            self.step(core.LANES, (self.target(first, operation.bits, operation.kind),), ins, operation.index)

    def _take_apart(self, vector: parse.Vector, operation: core.Operation, ins: list[int]) -> None:
        width, count = operation.bits, len(vector.parts)
        if (width, count) not in PACKED:
            raise self.unknown(f"{count} parts of {width} bits")
        joined = self.temporary(width)
        self.step(core.LANES, (joined,), ins, operation.index)
        for i, part in enumerate(vector.parts):
            by = self.constant(width // count * i, 32)
            self.lanes(PACKED[width, count][1], self.target(part, width // count), (joined, by))
