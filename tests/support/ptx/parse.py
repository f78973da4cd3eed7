"""PTX text into kernels.

The grammar is that of nvcc's output and of inline assembly: statements that end in a semicolon, scopes in
braces, labels. Operands are resolved here, registers to numbers, so that nothing later looks at names.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator

from tests.support.ptx.faults import UnknownInstruction

NAME = r"[A-Za-z_$%][\w$]*"


@functools.cache
def bits(type_: str) -> int:
    """Return the bits of a type such as `u32`, `bf16x2` or `pred`."""
    if type_ == "pred":
        return 1
    digits = re.fullmatch(r"[busf]f?(\d+)(x2)?", type_)
    if digits is None:
        raise UnknownInstruction(f"no type: {type_!r}")
    return int(digits[1]) * (2 if digits[2] else 1)


# ---------------------------------------------------------------- operands


@dataclasses.dataclass(frozen=True)
class Register:
    """A register, by its number."""

    index: int
    bits: int
    negated: bool = False


@dataclasses.dataclass(frozen=True)
class Immediate:
    """A constant: `bits` is 0 for an integer, which has no width of its own, else 32 or 64 of a float."""

    value: int
    bits: int = 0


@dataclasses.dataclass(frozen=True)
class Special:
    """A register that the machine fills, such as %tid.x."""

    name: str


@dataclasses.dataclass(frozen=True)
class Symbol:
    """A variable, a parameter or a label."""

    name: str
    offset: int = 0


@dataclasses.dataclass(frozen=True)
class Sink:
    """`_`, the target of an unused result."""


@dataclasses.dataclass(frozen=True)
class Address:
    """`[base + offset]`."""

    base: Register | Symbol | Immediate
    offset: int


@dataclasses.dataclass(frozen=True)
class Pair:
    """`p|q`: two results."""

    first: Operand
    second: Operand


@dataclasses.dataclass(frozen=True)
class Vector:
    """`{a, b, ..}`."""

    parts: tuple[Operand, ...]


Operand = Register | Immediate | Special | Symbol | Sink | Address | Pair | Vector


def registers(operand: Operand) -> Iterator[int]:
    """Yield the registers in an operand."""
    if isinstance(operand, Register):
        yield operand.index
    elif isinstance(operand, Address):
        yield from registers(operand.base)
    elif isinstance(operand, Pair):
        yield from registers(operand.first)
        yield from registers(operand.second)
    elif isinstance(operand, Vector):
        for part in operand.parts:
            yield from registers(part)


# ---------------------------------------------------------------- kernels


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of code: `@guard opcode operands;`."""

    line: int
    text: str
    guard: Register | None
    opcode: str
    operands: tuple[Operand, ...]

    @functools.cached_property
    def parts(self) -> list[str]:
        """`ld.shared.v4.u32` as its four words; `.shared::cta` is `.shared`."""
        return self.opcode.replace("::cta", "").split(".")


@dataclasses.dataclass(frozen=True)
class Variable:
    """Memory that the text declares. Its bytes are None if the text does not initialise it."""

    space: str
    offset: int
    size: int
    content: bytes | None = None


@dataclasses.dataclass
class Kernel:
    """An entry of a module."""

    name: str
    target: str
    parameters: dict[str, Variable]
    parameter_bytes: int
    variables: dict[str, Variable]
    sizes: dict[str, int]  # space -> bytes of the variables in it
    registers: list[int]  # their bits
    labels: dict[str, int]
    tables: dict[str, tuple[str, ...]]  # of branches
    instructions: list[Instruction]
    max_threads: int | None


def entries(text: str) -> dict[str, Callable[[], Kernel]]:
    """Return what reads each kernel of a module, by the names that the text has: mangled ones."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), text, flags=re.S)
    target = re.search(r"\.target\s+(\w+)", text)
    outside, kernels = [], []
    end = 0
    for match in re.finditer(rf"\.(entry|func)\s+(?:\([^)]*\)\s*)?({NAME})\s*\(", text):
        if match.start() < end:
            continue
        close = text.index(")", match.end())
        brace = re.search(r"[{;]", text[close : close + 1000])
        assert brace is not None
        outside.append(text[end : match.start()])
        begin = close + brace.start()
        end = _closing(text, begin) if brace[0] == "{" else begin + 1
        if match[1] == "entry":
            kernels.append((match[2], text[match.end() : close], text[close:begin], begin + 1, end - 1))
    outside.append(text[end:])

    def read(name: str, parameters: str, directives: str, begin: int, end: int) -> Kernel:
        reader = _Reader(name, target[1] if target else "", "".join(outside), parameters, directives)
        return reader.read(text[begin:end], text.count("\n", 0, begin) + 1)

    return {entry[0]: functools.partial(read, *entry) for entry in kernels}


def _closing(text: str, begin: int) -> int:
    """Return the place after the brace that closes the one at `begin`."""
    depth = 0
    for match in re.compile("[{}]").finditer(text, begin):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    raise ValueError("a brace is not closed")


INSTRUCTION = re.compile(rf"(?:@(!?)\s*({NAME})\s+)?([\w.:]+)\s*(.*)", re.S)
BRANCH_TARGETS = re.compile(rf"({NAME}):\s*\.branchtargets\s+(.*)", re.S)
FLOAT, DOUBLE = re.compile(r"0[fF][\da-fA-F]{8}"), re.compile(r"0[dD][\da-fA-F]{16}")
INTEGER, OFFSET = re.compile(r"-?\d\w*"), re.compile(r"(.*?)\s*\+\s*(-?\w+)")
PART = re.compile(r"\s*((?:\{[^}]*\}|\[[^\]]*\]|[^,{\[])+)\s*,?")
DECLARATION = re.compile(
    rf"\.(shared|local|global|const)\s+(?:\.attribute\([^)]*\)\s*)?(?:\.align\s+(\d+)\s+)?"
    rf"(?:\.(v[248])\s+)?\.(\w+)\s+({NAME})\s*((?:\[\s*\d*\s*\])*)\s*(?:=\s*(.*))?$",
    re.S,
)
PARAMETER = re.compile(
    rf"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s*(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?)?({NAME})"
    rf"(?:\[(\d+)\])?"
)


class _Reader:
    """One entry: its declarations, then its statements one after another."""

    def __init__(self, name: str, target: str, outside: str, parameters: str, directives: str) -> None:
        threads = re.search(r"\.maxntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", directives)
        size_limit = None
        if threads:
            size_limit = int(threads[1]) * int(threads[2] or 1) * int(threads[3] or 1)
        self.kernel = Kernel(name, target, {}, 0, {}, {}, [], {}, {}, [], size_limit)
        for match in PARAMETER.finditer(parameters):
            width = bits(match[2]) // 8
            align, size = int(match[1] or width), width * int(match[4] or 1)
            offset = -(-self.kernel.parameter_bytes // align) * align
            self.kernel.parameters[match[3]] = Variable("param", offset, size)
            self.kernel.parameter_bytes = offset + size
        self.scopes: list[dict[str, Register]] = [{}]
        dynamic = []
        for statement in outside.split(";"):
            declaration = re.search(r"(\.extern\s+)?(\.(?:shared|global|const)\s.*)", statement, re.S)
            if declaration and declaration[1]:
                dynamic.append(declaration[2].strip())
            elif declaration:
                self._variable(declaration[2].strip())
        self.dynamic = dynamic

    def read(self, body: str, line: int) -> Kernel:
        """Read the statements of the body, whose first line is number `line` of the text."""
        for number, statement in _statements(body, line):
            self._statement(number, statement)
        shared = self.kernel.sizes.get("shared", 0)
        for declaration in self.dynamic:  # all of them begin at the end of the static ones
            self._variable(declaration, extern=True)
        self.kernel.sizes["shared"] = shared
        return self.kernel

    def _statement(self, line: int, text: str) -> None:
        if text == "{":
            self.scopes.append({})
        elif text == "}":
            self.scopes.pop()
        elif text.endswith(":"):
            self.kernel.labels[text[:-1]] = len(self.kernel.instructions)
        elif text.startswith(".reg"):
            self._registers(text)
        elif text.startswith((".shared", ".local", ".global", ".const")):
            self._variable(text)
        elif match := BRANCH_TARGETS.match(text):
            self.kernel.tables[match[1]] = tuple(label.strip() for label in match[2].split(","))
        elif not text.startswith((".pragma", ".loc", ".file", ".section")):
            self._instruction(line, text)

    def _registers(self, text: str) -> None:
        type_, names = re.match(r"\.reg\s+\.(\w+)\s+(.*)", text, re.S).groups()  # type: ignore[union-attr]
        for name in names.split(","):
            several = re.fullmatch(rf"({NAME})<(\d+)>", name.strip())
            for register in (
                [f"{several[1]}{i}" for i in range(int(several[2]))] if several else [name.strip()]
            ):
                self.scopes[-1][register] = Register(len(self.kernel.registers), bits(type_))
                self.kernel.registers.append(bits(type_))

    def _variable(self, text: str, extern: bool = False) -> None:
        match = DECLARATION.match(text)
        if match is None:
            raise UnknownInstruction(f"{self.kernel.name}: {text}")
        space, align, vector, type_, name, dimensions, values = match.groups()
        width = bits(type_) // 8 * int(vector[1:] if vector else 1)
        count = 1
        for size in re.findall(r"\[\s*(\d*)\s*\]", dimensions):
            count *= int(size or 0)
        content = None
        if values is not None:
            numbers = [int(number, 0) for number in re.findall(r"-?\b(?:0[xX][\da-fA-F]+|\d+)\b", values)]
            content = b"".join((number % (1 << 8 * width)).to_bytes(width, "little") for number in numbers)
            content = content.ljust(width * count, b"\0")
        begin = self.kernel.sizes.get(space, 0)
        offset = -(-begin // int(align or width)) * int(align or width)
        self.kernel.variables[name] = Variable(space, offset, width * count, content)
        if not extern:
            self.kernel.sizes[space] = offset + width * count

    def _instruction(self, line: int, text: str) -> None:
        match = INSTRUCTION.match(text)
        if match is None:
            raise UnknownInstruction(f"{self.kernel.name}, line {line}: {text}")
        negated, guard, opcode, arguments = match.groups()
        register = None
        if guard:
            register = dataclasses.replace(self._lookup(guard), negated=bool(negated))
        simple = "{" not in arguments and "[" not in arguments
        parts = filter(None, map(str.strip, arguments.split(","))) if simple else _split(arguments)
        operands = tuple(map(self._operand, parts))
        one_line = " ".join(text.split())
        self.kernel.instructions.append(Instruction(line, one_line, register, opcode, operands))

    def _lookup(self, name: str) -> Register:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise UnknownInstruction(f"{self.kernel.name}: no register {name}")

    def _operand(self, text: str) -> Operand:
        for scope in reversed(self.scopes):
            if text in scope:
                return scope[text]
        if text == "_":
            return Sink()
        if text.startswith("{"):
            return Vector(tuple(self._operand(part) for part in _split(text[1:-1])))
        if text.startswith("["):
            base, offset = _with_offset(text[1:-1].strip())
            inner = self._operand(base)
            assert isinstance(inner, Register | Symbol | Immediate)
            return Address(inner, offset)
        if "|" in text:
            first, second = text.split("|")
            return Pair(self._operand(first.strip()), self._operand(second.strip()))
        if text.startswith("!"):
            return dataclasses.replace(self._lookup(text[1:].strip()), negated=True)
        if FLOAT.fullmatch(text):
            return Immediate(int(text[2:], 16), 32)
        if DOUBLE.fullmatch(text):
            return Immediate(int(text[2:], 16), 64)
        if text == "WARP_SZ":
            return Immediate(32)
        if INTEGER.fullmatch(text):
            return Immediate(int(text.rstrip("U"), 0) if text != "0" else 0)
        return Special(text) if text.startswith("%") else Symbol(*_with_offset(text))


def _with_offset(text: str) -> tuple[str, int]:
    match = OFFSET.fullmatch(text)
    return (match[1], int(match[2], 0)) if match else (text, 0)


def _split(text: str) -> Iterator[str]:
    """Split at the commas outside braces and brackets."""
    for part in PART.findall(text):
        if part.strip():
            yield part.strip()


def _statements(body: str, line: int) -> Iterator[tuple[int, str]]:
    """Yield braces of scopes, labels with their colon and what ends in a semicolon, with their lines."""
    pattern = re.compile(
        rf"\s*(?:(?P<brace>[{{}}])|(?P<directive>\.(?:loc|file)\b[^\n]*)"
        rf"|(?P<label>{NAME})\s*:(?!\s*\.branchtargets)|(?P<statement>[^;]+);)"
    )
    position, end = 0, len(body.rstrip())
    while position < end:
        match = pattern.match(body, position)
        if match is None:
            raise ValueError(f"line {line}: {body[position : position + 80]!r}")
        kind = match.lastgroup or ""
        begin = line + body.count("\n", position, match.start(kind))
        if kind == "label":
            yield begin, f"{match[kind]}:"
        elif kind != "directive":
            yield begin, match[kind].strip()
        line += body.count("\n", position, match.end())
        position = match.end()
