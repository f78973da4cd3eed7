"""Walk through SASS as one thread does, and say which instructions it executes.

Of what nvdisasm prints, as much is computed as decides which way a thread goes: integers, comparisons, the
kernel's parameters and the thread's indices. A load gives 0. Floating-point numbers are not computed: a
branch that depended on one would raise, as does every instruction that is met and not known here.
"""

from __future__ import annotations

import collections
import math
import re
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from iet.errors import IetError

M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
PARAMETERS = {"sm_80": 0x160, "sm_90": 0x210, "sm_120": 0x380}  # where they begin in constant bank 0
# Nothing that decides a way comes out of them: half and single floats, conversions.
OPAQUE = {"FMUL", "FADD", "FFMA", "I2FP", "I2F", "F2FP", "F2F", "HADD2", "FSEL", "I2I"}
SILENT = {
    "BSSY",
    "BSYNC",
    "NOP",
    "WARPSYNC",
    "STG",
    "STS",
    "BAR",
    "B2R",
    "DEPBAR",
    "MEMBAR",
    "ERRBAR",
    "CCTL",
}


class Instruction(NamedTuple):
    guard: str  # "", or a predicate
    name: str
    flags: tuple[str, ...]
    operands: tuple[str, ...]


class Code(NamedTuple):
    """A kernel: its instructions, and where labels stand."""

    instructions: list[Instruction]
    labels: dict[str, int]


def kernels(listing: str) -> dict[str, Code]:
    """Return the kernels of a listing by their mangled names."""
    found: dict[str, Code] = {}
    code = None
    for line in listing.splitlines():
        if section := re.match(r"\s*\.section\s+\.text\.(\S+?),", line):
            code = found[section[1]] = Code([], {})
        elif line.startswith("\t.section\t"):
            code = None
        elif code is not None and (label := re.match(r"(\.L\w+):", line)):
            code.labels[label[1]] = len(code.instructions)
        elif code is not None and (
            text := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@(!?\w+)\s+)?([\w.]+)\s*(.*?)\s*;", line)
        ):
            name, *flags = text[2].split(".")
            operands = [re.sub(r"\.reuse|\.H0_H0|\.H1_H1", "", o).strip() for o in text[3].split(", ")]
            if name == "R2P":  # R2P PR, R3.B1, 0x7e
                flags += operands[1].split(".")[1:]
                operands[1] = operands[1].split(".")[0]
            code.instructions.append(
                Instruction(text[1] or "", name, tuple(flags), tuple(filter(None, operands)))
            )
    return found


class Thread:
    """One thread on its way.

    Args:
        code: of the kernel.
        constants: its parameters, in bank 0 from `base` on.
        base: see `PARAMETERS`.
        special: special registers, as in {"SR_TID.X": 3}; the others are 0.
    """

    def __init__(self, code: Code, constants: bytes, base: int, special: dict[str, int]) -> None:
        self._code, self._constants, self._base, self._special = code, constants, base, special
        self._registers: dict[str, int | None] = {}
        self.executed: collections.Counter[int] = collections.Counter()  # instruction -> how often

    def run(self) -> collections.Counter[int]:
        """Walk to the exit; return how often each instruction was executed, by its index."""
        at, code = 0, self._code.instructions
        while True:
            instruction = code[at]
            self.executed[at] += 1
            taken = True
            if instruction.guard:
                taken = self._known(self._predicate(instruction.guard), instruction)
            at += 1
            if instruction.name == "BRA":
                if taken and len(instruction.operands) > 1:  # BRA.U !UP0, `(.L_x_0)
                    taken = self._known(self._predicate(instruction.operands[0]), instruction)
                if taken:
                    at = self._code.labels[re.sub(r"[`()]", "", instruction.operands[-1])]
            elif instruction.name == "EXIT":
                if taken:
                    return self.executed
            elif taken:
                self._execute(instruction)

    # ------------------------------------------------------------ operands

    def _known(self, value: bool | None, instruction: Instruction) -> bool:
        if value is None:
            raise IetError(f"the way depends on what is not computed: {instruction}")
        return value

    def _predicate(self, operand: str) -> bool | None:
        name = operand.lstrip("!")
        value = True if name in ("PT", "UPT") else self._registers.get(name)
        return None if value is None else bool(value) != operand.startswith("!")

    def _constant(self, operand: str, size: int) -> int:
        offset = sum(int(part, 0) for part in re.findall(r"0x[0-9a-f]+", operand.split("]")[1])) - self._base
        if not 0 <= offset <= len(self._constants) - size:
            return 0  # what the driver puts there: the stack, the descriptor of memory
        return int.from_bytes(self._constants[offset : offset + size], "little")

    def _value(self, operand: str, size: int = 4) -> int | None:
        """Return an operand of 4 or 8 bytes, two's complement; None: not computed."""
        mask = M32 if size == 4 else M64
        if operand.startswith("-"):
            inner = self._value(operand[1:], size)
            return None if inner is None else -inner & mask
        if operand.startswith("~"):
            inner = self._value(operand[1:], size)
            return None if inner is None else ~inner & mask
        if operand in ("RZ", "URZ", "SRZ"):
            return 0
        if operand.startswith("c["):
            return self._constant(operand, size)
        if register := re.fullmatch(r"(U?R)(\d+)(\.64)?", operand):
            low = self._registers.get(f"{register[1]}{register[2]}")
            if size == 4:
                return low
            high = self._registers.get(f"{register[1]}{int(register[2]) + 1}")
            return None if low is None or high is None else high << 32 | low
        if re.fullmatch(r"0x[0-9a-f]+|\d+", operand):
            return int(operand, 0) & mask
        return None  # a floating-point number

    def _set(self, operand: str, value: int | None, words: int = 1) -> None:
        if operand in ("RZ", "URZ"):
            return
        kind, number = re.fullmatch(r"(U?R)(\d+)", operand).groups()  # type: ignore[union-attr]
        for word in range(words):
            part = None if value is None else value >> 32 * word & M32
            self._registers[f"{kind}{int(number) + word}"] = part

    def _set_predicate(self, operand: str, value: bool | None) -> None:
        if operand not in ("PT", "UPT"):
            self._registers[operand] = value

    # ------------------------------------------------------------ instructions

    def _execute(self, instruction: Instruction) -> None:
        name, flags, operands = instruction.name, instruction.flags, instruction.operands
        plain = name[1:] if name.startswith("U") else name
        if name in ("BAR",) and "RED" in flags:
            self._registers["barrier"] = False
        elif name == "B2R" and "RESULT" in flags:
            self._set_predicate(operands[1], False)  # no thread of a block has anything to say
        elif name in SILENT:
            pass
        elif name in OPAQUE:
            self._set(operands[0], None)
        elif name == "HFMA2":  # 0 * 0 + two constants: a way to load 32 bits
            halves = _halves(operands[3:]) if operands[1:3] == ("-RZ", "RZ") else [math.nan]
            known = not any(map(math.isnan, halves))
            self._set(operands[0], int.from_bytes(struct.pack("2e", *halves), "little") if known else None)
        elif name in ("S2R", "S2UR"):
            self._set(operands[0], self._special.get(operands[1], 0))
        elif name in ("LDG", "LDS", "CS2R") or plain in ("LDC", "LDCU", "MOV", "R2UR"):
            self._move(plain, flags, operands)
        elif name == "FSETP":
            self._compare_floats(flags, operands)
        elif plain in ("ISETP",):
            self._compare(flags, operands)
        elif plain == "PLOP3":
            inputs = [self._predicate(each) for each in operands[2:5]]
            self._set_predicate(operands[0], _lookup(inputs, int(operands[5], 0)))
        elif plain == "LOP3":
            self._logic(operands)
        elif handler := _ARITHMETIC.get(plain):
            handler(self, flags, operands)
        else:
            raise IetError(f"an instruction that is not known here: {instruction}")

    def _move(self, name: str, flags: tuple[str, ...], operands: Sequence[str]) -> None:
        words = next((int(flag) // 32 for flag in flags if flag in ("64", "128")), 1)
        if name == "CS2R":
            words = 1 if "32" in flags else 2
        if name in ("LDC", "LDCU"):
            size = next((int(flag[1:]) // 8 for flag in flags if re.fullmatch(r"[US]\d+", flag)), 4 * words)
            self._set(operands[0], self._constant(operands[1], size), words)
        elif name in ("MOV", "R2UR"):
            self._set(operands[0], self._value(operands[1], 4 * words), words)
        else:
            self._set(operands[0], 0, words)

    def _compare(self, flags: tuple[str, ...], operands: Sequence[str]) -> None:
        size = 8 if {"U64", "S64"} & set(flags) else 4
        a, b = (self._value(operand, size) for operand in operands[2:4])
        unsigned = {"U32", "U64"} & set(flags)
        result: bool | None = None
        if a is not None and b is not None:
            if not unsigned:
                a, b = a ^ 1 << 8 * size - 1, b ^ 1 << 8 * size - 1
            orders = {"LT": a < b, "LE": a <= b, "GT": a > b, "GE": a >= b, "EQ": a == b, "NE": a != b}
            result = orders[flags[0]]
            if "EX" in flags and a == b:  # of the upper halves; the lower ones decide
                result = self._predicate(operands[5])
        self._set_predicate(operands[0], self._combined(result, operands[4], flags))
        self._set_predicate(operands[1], None)

    def _compare_floats(self, flags: tuple[str, ...], operands: Sequence[str]) -> None:
        """Compare two numbers, none of them NaN."""
        a, b = map(self._float, operands[2:4])
        result = None
        if a is not None and b is not None:
            orders = {"LT": a < b, "LE": a <= b, "GT": a > b, "GE": a >= b, "EQ": a == b, "NE": a != b}
            result = orders[flags[0].removesuffix("U")]
        self._set_predicate(operands[0], self._combined(result, operands[4], flags))

    def _float(self, operand: str) -> float | None:
        if re.fullmatch(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?|\+INF", operand):
            return float(operand)
        bits = self._value(operand)
        return None if bits is None else float(struct.unpack("f", struct.pack("I", bits))[0])

    def _combined(self, result: bool | None, operand: str, flags: tuple[str, ...]) -> bool | None:
        """Return what a comparison and a predicate say together."""
        decides = "OR" in flags
        both = result, self._predicate(operand)
        return decides if decides in both else None if None in both else not decides

    def _logic(self, operands: Sequence[str]) -> None:
        predicate = operands[0] if operands[0].lstrip("U").startswith("P") else None
        target, *inputs, table = operands[1 if predicate else 0 :][:5]
        values = [self._value(each) for each in inputs]
        result: int | None = None
        if None not in values:
            result = 0
            for row in range(8):
                if int(table, 0) >> row & 1:
                    parts = [v if row >> 2 - i & 1 else ~v for i, v in enumerate(values) if v is not None]
                    result |= parts[0] & parts[1] & parts[2] & M32
        self._set(target, result)
        if predicate:
            self._set_predicate(predicate, None if result is None else result != 0)

    def _add(self, flags: tuple[str, ...], operands: Sequence[str]) -> None:
        words = 2 if "64" in flags else 1
        carries = [each for each in operands[1:] if re.fullmatch(r"!?U?P[T\d]", each)]
        inputs = [each for each in operands[1:] if each not in carries]
        outputs = []
        for each in operands[1:]:  # carries out stand before the sums, carries in behind them
            if each not in carries:
                break
            outputs.append(each)
        ins = carries[len(outputs) :] if "X" in flags else []
        carry = [self._predicate(each) for each in ins]
        mask = M64 if words == 2 else M32
        values = [self._value(each.removeprefix("-"), 4 * words) for each in inputs]
        # -x is what has to be added to x for one carry, of 0 too.
        total = None
        if None not in values and None not in carry:
            signed = zip(inputs, values, strict=True)
            total = sum(mask + 1 - v if each.startswith("-") else v for each, v in signed if v is not None)
            total += sum(map(bool, carry))
        self._set(operands[0], None if total is None else total & mask, words)
        for number, output in enumerate(outputs, 1):
            self._set_predicate(output, None if total is None else total // (mask + 1) >= number)

    def _multiply(self, flags: tuple[str, ...], operands: Sequence[str]) -> None:
        carries = [each for each in operands[1:] if re.fullmatch(r"!?U?P[T\d]", each)]
        a, b, c = [each for each in operands[1:] if each not in carries][:3]
        wide, high = "WIDE" in flags, "HI" in flags
        x, y = self._value(a), self._value(b)
        z = self._value(c, 8 if wide or high else 4)
        words = 2 if wide else 1
        extra = self._predicate(carries[-1]) if "X" in flags else False
        if x == 0 or y == 0:
            x = y = 0
        if x is None or y is None or z is None or extra is None:
            self._set(operands[0], None, words)
            return
        if "U32" not in flags and (wide or high):
            x, y = ((v ^ 1 << 31) - (1 << 31) for v in (x, y))
        result = x * y + z + extra
        self._set(operands[0], (result >> 32 if high else result) & M64, words)

    def _shift(self, flags: tuple[str, ...], operands: Sequence[str]) -> None:
        low, by, high = (self._value(each) for each in operands[1:4])
        if by is None:
            self._set(operands[0], None)
            return
        if "L" in flags:
            if "HI" in flags or "U64" in flags:
                wide = None if low is None or high is None else (high << 32 | low) << by
                self._set(operands[0], None if wide is None else wide >> 32 * ("HI" in flags) & M32)
            else:
                self._set(operands[0], None if low is None else low << min(by, 32) & M32)
            return
        if "HI" in flags and operands[1] in ("RZ", "URZ"):
            if high is not None and "S32" in flags:
                high = (high ^ 1 << 31) - (1 << 31)
            self._set(operands[0], None if high is None else high >> min(by, 32) & M32)
        elif low is None or high is None:
            self._set(operands[0], None)
        else:
            self._set(operands[0], (high << 32 | low) >> by >> 32 * ("HI" in flags) & M32)

    def _shift_and_add(self, flags: tuple[str, ...], operands: Sequence[str]) -> None:
        carries = [each for each in operands[1:] if re.fullmatch(r"!?U?P[T\d]", each)]
        target, *inputs = [each for each in operands if each not in carries]
        values = [self._value(each) for each in inputs]
        if None in values or "SX32" in flags:
            self._set(target, None)
            if operands[1] in carries:
                self._set_predicate(operands[1], None)
            return
        if "HI" in flags:
            a, b, c, by = (v for v in values if v is not None)
            extra = self._predicate(carries[-1]) if "X" in flags else False
            result = None if extra is None else ((c << 32 | a) >> 32 - by) + b + extra
        else:
            a, b, by = (v for v in values if v is not None)
            result = (a << by & M32) + b
            if operands[1] in carries:
                self._set_predicate(operands[1], result > M32)
        self._set(target, None if result is None else result & M32)

    def _least(self, flags: tuple[str, ...], operands: Sequence[str]) -> None:
        """Take the minimum or maximum of numbers."""
        inputs = [each for each in operands[1:] if not re.fullmatch(r"!?U?P[T\d]", each)]
        least = self._predicate(operands[-1])
        values = [self._value(each) for each in inputs]
        if None in values or least is None:
            self._set(operands[0], None)
            return
        numbers = [v for v in values if v is not None]
        if "SUM" in flags:
            numbers = [(numbers[0] + numbers[1]) & M32, numbers[2]]
        if "U32" not in flags:
            numbers = [(v ^ 1 << 31) - (1 << 31) for v in numbers]
        self._set(operands[0], (min if least else max)(numbers) & M32)

    def _least_of_sum(self, flags: tuple[str, ...], operands: Sequence[str]) -> None:
        self._least((*flags, "SUM"), operands)

    def _bits(self, flags: tuple[str, ...], operands: Sequence[str]) -> None:
        """Set predicates from the bits of a byte."""
        value, mask = self._value(operands[1]), int(operands[2], 0)
        byte = next((int(flag[1]) for flag in flags if re.fullmatch("B[0-3]", flag)), 0)
        for bit in range(7):
            if mask >> bit & 1:
                known = None if value is None else bool(value >> 8 * byte + bit & 1)
                self._set_predicate(f"P{bit}", known)

    def _select(self, flags: tuple[str, ...], operands: Sequence[str]) -> None:
        which = self._predicate(operands[3])
        words = 2 if "64" in flags else 1
        value = None if which is None else self._value(operands[1 if which else 2], 4 * words)
        self._set(operands[0], value, words)

    def _bytes(self, flags: tuple[str, ...], operands: Sequence[str]) -> None:
        low, chosen, high = (self._value(each) for each in operands[1:4])
        if low is None or chosen is None or high is None:
            self._set(operands[0], None)
            return
        result = 0
        for place in range(4):
            which = chosen >> 4 * place & 15
            byte = (high << 32 | low) >> 8 * (which & 7) & 255
            result |= (255 * (byte >> 7) if which & 8 else byte) << 8 * place  # 8: its sign, eight times
        self._set(operands[0], result)


def _halves(operands: Sequence[str]) -> list[float]:
    """Return the low and the high half of a constant, or what is no number as NaN."""
    numbers = [
        float(each) if re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", each) else math.nan for each in operands
    ]
    return numbers[::-1]


def _lookup(inputs: Sequence[bool | None], table: int) -> bool | None:
    """Return what a table of 8 bits says of three predicates; None if it depends on one that is not known."""
    rows = range(8)
    possible = {
        bool(table >> row & 1)
        for row in rows
        if all(known is None or known == bool(row >> 2 - i & 1) for i, known in enumerate(inputs))
    }
    return possible.pop() if len(possible) == 1 else None


_Handler = Callable[[Thread, tuple[str, ...], Sequence[str]], None]
_ARITHMETIC: dict[str, _Handler] = {
    "IADD3": Thread._add,
    "IADD": Thread._add,
    "VIADD": Thread._add,
    "IMAD": Thread._multiply,
    "SHF": Thread._shift,
    "LEA": Thread._shift_and_add,
    "VIMNMX": Thread._least,
    "IMNMX": Thread._least,
    "VIMNMX3": Thread._least,
    "VIADDMNMX": Thread._least_of_sum,
    "SEL": Thread._select,
    "PRMT": Thread._bytes,
    "R2P": Thread._bits,
}


def packed(layout: str, *values: float) -> bytes:
    """Return a structure as the device sees it: each value at a multiple of its own size."""
    return struct.pack(f"@{layout}", *values)
