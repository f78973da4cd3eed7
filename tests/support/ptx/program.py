"""A kernel decoded: its steps, and which registers nobody reads after a step."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.support.ptx import conversions, floats, integers, moves, parse, warps
from tests.support.ptx.decode import Code, Execute, Source
from tests.support.ptx.faults import UnknownInstruction

PLAIN, BRANCH, TABLE, EXIT, TRAP, BARRIER, TOGETHER = range(7)
_FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
_NO_RESULT = ("st", "red", "cp", "bra", "ret", "exit", "bar", "barrier", "trap", "membar", "fence")


@dataclasses.dataclass(slots=True)
class Step:
    """One instruction, decoded."""

    line: int
    text: str
    kind: int
    guard: Source | None = None
    execute: Execute | None = None
    targets: tuple[int, ...] = ()  # of a branch
    choice: Source | None = None  # which of them; or the mask of a warp; or what a barrier reduces
    reduction: str = ""  # of a barrier
    result: Any = None  # of a barrier: what writes it
    frees: tuple[int, ...] = ()


class Program:
    """A kernel that can be launched.

    Attributes:
        kernel: as it was parsed.
        steps: one for each instruction.
        executed: bool [steps], which of them ever ran.
        granule: bytes of the smallest access to shared memory.
        variables: arrays of what the module keeps in global and constant memory.
    """

    def __init__(self, kernel: parse.Kernel) -> None:
        self.kernel = kernel
        self.variables = {
            name: np.frombuffer(bytearray(each.content or bytes(each.size)), np.uint8)
            for name, each in kernel.variables.items()
            if each.space in ("global", "const")
        }
        addresses = {name: array.ctypes.data for name, array in self.variables.items()}
        with _uncollected():
            self.steps = list(_steps(kernel, addresses))
        self.executed = np.zeros(len(self.steps), bool)
        self.granule = min(_shared_widths(kernel), default=4)
        _free(self)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Collect no garbage meanwhile: of a hundred thousand closures there is none, and looking takes long."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _steps(kernel: parse.Kernel, addresses: dict[str, int]) -> Iterator[Step]:
    for instruction in kernel.instructions:
        try:
            yield _step(kernel, instruction, addresses)
        except UnknownInstruction as unknown:
            where = f"{kernel.name}, line {instruction.line}: {instruction.text}"
            raise UnknownInstruction(f"{where}: {unknown}") from None


def _shared_widths(kernel: parse.Kernel) -> Iterator[int]:
    for instruction in kernel.instructions:
        parts = instruction.parts
        if parts[0] in ("ld", "st", "atom", "red") and ("shared" in parts or "global" not in parts):
            if "param" not in parts and "local" not in parts:
                yield parse.bits(parts[-1]) // 8
        elif parts[0] == "cp" and "shared" in parts:
            yield 4


def _step(kernel: parse.Kernel, instruction: parse.Instruction, addresses: dict[str, int]) -> Step:
    code = Code(kernel, instruction, addresses)
    guard = code.source(instruction.guard, "pred") if instruction.guard else None
    step = Step(instruction.line, instruction.text, PLAIN, guard)
    name = code.name
    if name == "bra":
        code.take("uni")
        code.finish()
        step.kind, step.targets = BRANCH, (_label(code, code.operands[0]),)
    elif name == "brx" and code.take("idx"):
        code.take("uni")
        table = code.operands[1]
        assert isinstance(table, parse.Symbol)
        step.kind, step.choice = TABLE, code.source(0, "u32")
        step.targets = tuple(kernel.labels[label] for label in kernel.tables[table.name])
    elif name in ("ret", "exit"):
        code.take("uni")
        code.finish()
        step.kind = EXIT
    elif name == "trap":
        step.kind = TRAP
    elif name in ("bar", "barrier"):
        _barrier(code, step)
    elif name in warps.TOGETHER:
        step.kind, (step.choice, step.execute) = TOGETHER, warps.TOGETHER[name](code)
    else:
        step.execute = _operation(code)
    return step


def _operation(code: Code) -> Execute:
    is_float = bool(code.modifiers) and code.modifiers[-1] in _FLOATS
    tables = (moves, conversions, warps, *((floats, integers) if is_float else (integers,)))
    for table in tables:
        if code.name in table.OPERATIONS:
            if table is integers and is_float and code.name not in ("setp", "set", "selp", "slct"):
                break
            return table.OPERATIONS[code.name](code)
    raise code.unknown()


def _label(code: Code, operand: parse.Operand) -> int:
    if not isinstance(operand, parse.Symbol) or operand.name not in code.kernel.labels:
        raise code.unknown(f"no label: {operand}")
    return code.kernel.labels[operand.name]


def _barrier(code: Code, step: Step) -> None:
    if code.take("warp"):
        if code.take("sync") is None:
            raise code.unknown()
        step.kind, (step.choice, step.execute) = TOGETHER, warps.meet(code)
        return
    step.kind = BARRIER
    code.take("cta")
    code.take("aligned")
    operands = list(code.operands)
    if code.take("red"):
        reduction = code.take("and", "or", "popc")
        type_ = code.take_type()
        step.reduction = reduction or ""
        step.result = code.target(operands.pop(0), type_)
        step.choice = code.source(operands.pop(), "pred")
        if (reduction, type_) not in (("and", "pred"), ("or", "pred"), ("popc", "u32")):
            raise code.unknown()
    elif code.take("sync") is None:
        raise code.unknown()
    code.finish()
    if len(operands) != 1 or not isinstance(operands[0], parse.Immediate):
        raise code.unknown("a barrier of some threads, or one that is not named by a number")


# ---------------------------------------------------------------- registers that are done with


def _registers(operands: tuple[parse.Operand, ...]) -> list[int]:
    found: list[int] = []
    for operand in operands:
        if type(operand) is parse.Register:  # most are
            found.append(operand.index)
        elif type(operand) is not parse.Immediate:
            found.extend(parse.registers(operand))
    return found


def _free(program: Program) -> None:
    """Note after which step a register is not needed: one that begins and ends between two branches."""
    kernel = program.kernel
    begins = {0, *kernel.labels.values()}
    for i, step in enumerate(program.steps):
        if step.kind != PLAIN:
            begins.add(i + 1)
    block, blocks, last = -1, {}, {}
    shared: set[int] = set()  # by several blocks, or not written first of all
    for i, instruction in enumerate(kernel.instructions):
        block += i in begins
        operands = instruction.operands
        no_result = instruction.parts[0] in _NO_RESULT or not operands
        writes = [] if no_result else _registers(operands[:1])
        reads = _registers(operands if no_result else operands[1:])
        if instruction.guard:
            reads.append(instruction.guard.index)
        for register in reads:
            if blocks.get(register) != block:
                shared.add(register)
        for register in writes:
            first = blocks.setdefault(register, block)
            if first != block or (instruction.guard and register not in last):
                shared.add(register)
        for register in (*reads, *writes):
            last[register] = i
    frees: dict[int, list[int]] = {}
    for register, i in last.items():
        if register not in shared:
            frees.setdefault(i, []).append(register)
    for i, registers in frees.items():
        program.steps[i].frees = tuple(registers)
