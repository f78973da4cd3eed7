"""Integer arithmetic, bits, comparison and selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.ptx import parse
from tests.support.ptx.decode import Array, Code, Execute
from tests.support.ptx.faults import Fault
from tests.support.ptx.memory import UNSIGNED

U64 = np.uint64


def halves(value: Array) -> Array:
    """Return 32-bit values as pairs of 16 bits, the low ones first."""
    return np.ascontiguousarray(value).view(np.uint16).reshape(-1, 2)


def joined(pairs: Array) -> Array:
    return np.ascontiguousarray(pairs).view(np.uint32).reshape(-1)


def _packed(code: Code, type_: str, function: Callable[[Array, Array], Array]) -> Execute:
    """`function` of 16-bit numbers, two to a register."""
    as_ = np.int16 if type_[0] == "s" else np.uint16
    return code.pure(
        type_,
        (type_, type_),
        lambda x, y: joined(function(halves(x).view(as_), halves(y).view(as_)).view(np.uint16)),
    )


def _binary(function: Callable[[Array, Array], Array]) -> Callable[[Code], Execute]:
    def build(code: Code) -> Execute:
        type_ = code.take_type()
        if type_.endswith("x2"):
            return _packed(code, type_, function)
        return code.pure(type_, (type_, type_), function)

    return build


def _unary(function: Callable[[Array], Array]) -> Callable[[Code], Execute]:
    def build(code: Code) -> Execute:
        type_ = code.take_type()
        return code.pure(type_, (type_,), function)

    return build


def _wide(value: Array) -> Array:
    """The same numbers in twice the bits."""
    kind, size = value.dtype.kind, value.dtype.itemsize
    return value.astype(f"{kind}{2 * size}")


def _high(x: Array, y: Array) -> Array:
    """The upper half of the product."""
    if x.dtype.itemsize < 8:
        bits = 8 * x.dtype.itemsize
        return (_wide(x) * _wide(y) >> bits).astype(x.dtype)
    a, b = x.view(U64), y.view(U64)
    low, half = U64(0xFFFFFFFF), U64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    first = a1 * b0 + (a0 * b0 >> half)
    second = a0 * b1 + (first & low)
    high = a1 * b1 + (first >> half) + (second >> half)
    if x.dtype.kind == "i":
        high = high - np.where(x < 0, b, U64(0)) - np.where(y < 0, a, U64(0))
    return high.view(x.dtype)


def _mul(code: Code) -> Execute:
    part = code.take("lo", "hi", "wide")
    type_ = code.take_type()
    if part == "wide":
        return code.pure(_twice(type_), (type_, type_), lambda x, y: _wide(x) * _wide(y))
    if part is None:
        raise code.unknown(".lo, .hi or .wide")
    return code.pure(type_, (type_, type_), np.multiply if part == "lo" else _high)


def _mad(code: Code) -> Execute:
    part = code.take("lo", "hi", "wide")
    type_ = code.take_type()
    if part == "wide":
        twice = _twice(type_)
        return code.pure(twice, (type_, type_, twice), lambda x, y, z: _wide(x) * _wide(y) + z)
    if part is None:
        raise code.unknown(".lo, .hi or .wide")
    product = np.multiply if part == "lo" else _high
    return code.pure(type_, (type_,) * 3, lambda x, y, z: product(x, y) + z)


def _twice(type_: str) -> str:
    return f"{type_[0]}{2 * parse.bits(type_)}"


def _truncated(x: Array, y: Array) -> Array:
    """Division towards zero, as C has it."""
    if (y == 0).any():
        raise Fault("divides by zero")
    if x.dtype.kind == "u":
        return x // y
    quotient = np.abs(x).view(UNSIGNED[8 * x.dtype.itemsize]) // np.abs(y).view(
        UNSIGNED[8 * x.dtype.itemsize]
    )
    return np.where((x < 0) ^ (y < 0), -quotient.view(x.dtype), quotient.view(x.dtype))


def _shift(left: bool) -> Callable[[Code], Execute]:
    def build(code: Code) -> Execute:
        type_ = code.take_type()
        bits = parse.bits(type_)
        signed = type_[0] == "s"

        def shift(x: Array, count: Array) -> Array:
            if len(count) == 1 and count[0] < bits:
                by = x.dtype.type(count[0])
                return x << by if left else x >> by
            within = np.minimum(count, bits - 1).astype(x.dtype)
            if signed:
                return x >> within
            return np.where(count < bits, x << within if left else x >> within, x.dtype.type(0))

        return code.pure(type_, (type_, "u32"), shift)

    return build


def _funnel(code: Code) -> Execute:
    direction, mode = code.take("l", "r"), code.take("wrap", "clamp")
    if direction is None or mode is None or code.take_type() != "b32":
        raise code.unknown()

    def shift(low: Array, high: Array, count: Array) -> Array:
        if len(count) == 1 and 0 < count[0] < 32:
            by, rest = np.uint32(count[0]), np.uint32(32 - count[0])
            return high << by | low >> rest if direction == "l" else low >> by | high << rest
        both = high.astype(U64) << U64(32) | low
        by = (count & 31 if mode == "wrap" else np.minimum(count, 32)).astype(U64)
        moved = (both << by) >> U64(32) if direction == "l" else both >> by
        return moved.astype(np.uint32)

    return code.pure("b32", ("b32", "b32", "u32"), shift)


def _mask(length: Array) -> Array:
    """As many ones as `length` says, in 64 bits."""
    within = np.minimum(length, 63).astype(U64)
    return np.where(length < 64, (U64(1) << within) - U64(1), ~U64(0))


def _bit_field_extract(code: Code) -> Execute:
    type_ = code.take_type()
    bits = parse.bits(type_)
    unsigned = UNSIGNED[bits]

    def extract(x: Array, start: Array, length: Array) -> Array:
        start, length = start & 0xFF, np.minimum(length & 0xFF, bits)
        within = np.minimum(start, 63)
        if type_[0] == "u":
            value = np.where(start < 64, x.astype(U64) >> within.astype(U64), U64(0))
            return (value & _mask(length)).astype(unsigned)
        value = x.astype(np.int64) >> within.astype(np.int64)
        rest = np.minimum(64 - length, 63).astype(np.int64)
        return np.where(length == 0, 0, (value << rest) >> rest).astype(x.dtype)

    return code.pure(type_, (type_, "u32", "u32"), extract)


def _bit_field_insert(code: Code) -> Execute:
    type_ = code.take_type()
    unsigned = UNSIGNED[parse.bits(type_)]

    def insert(x: Array, into: Array, start: Array, length: Array) -> Array:
        start, length = start & 0xFF, length & 0xFF
        within = np.minimum(start, 63).astype(U64)
        mask = np.where(start < 64, _mask(length) << within, U64(0))
        return (into & ~mask | x.astype(U64) << within & mask).astype(unsigned)

    return code.pure(type_, (type_, type_, "u32", "u32"), insert)


def _permute_bytes(code: Code) -> Execute:
    if code.take_type() != "b32":
        raise code.unknown()

    def permute(x: Array, y: Array, selection: Array) -> Array:
        both = y.astype(U64) << U64(32) | x
        value = np.zeros(1, U64)
        for i in range(4):
            nibble = selection.astype(U64) >> U64(4 * i)
            byte = both >> (nibble & U64(7)) * U64(8) & U64(0xFF)
            sign = np.where(byte & U64(0x80), U64(0xFF), U64(0))
            value = value | np.where(nibble & U64(8), sign, byte) << U64(8 * i)
        return value.astype(np.uint32)

    return code.pure("b32", ("b32", "b32", "b32"), permute)


def _lop3(code: Code) -> Execute:
    table = code.operands[4]
    if code.take_type() != "b32" or not isinstance(table, parse.Immediate):
        raise code.unknown()

    def look_up(x: Array, y: Array, z: Array, _: Array) -> Array:
        value = np.zeros(1, np.uint32)
        for i in range(8):
            if table.value >> i & 1:
                value = value | (x if i & 4 else ~x) & (y if i & 2 else ~y) & (z if i & 1 else ~z)
        return value

    return code.pure("b32", ("b32",) * 4, look_up)


_ONES = np.array([bin(i).count("1") for i in range(256)], np.uint32)
_REVERSED = np.array([int(f"{i:08b}"[::-1], 2) for i in range(256)], np.uint8)


def _bytes(value: Array) -> Array:
    return np.ascontiguousarray(value).view(np.uint8).reshape(-1, value.dtype.itemsize)


def _length(value: Array) -> Array:
    """The bits up to the highest one that is set."""
    half = value.astype(U64) >> U64(32)
    high, low = (np.frexp(part.astype(np.float64))[1] for part in (half, value.astype(U64) & U64(0xFFFFFFFF)))
    return np.where(half != 0, high + 32, low).astype(np.uint32)


def _population(code: Code) -> Execute:
    type_ = code.take_type()
    return code.pure("b32", (type_,), lambda x: _ONES[_bytes(x)].sum(axis=1, dtype=np.uint32))


def _leading_zeros(code: Code) -> Execute:
    type_ = code.take_type()
    return code.pure("b32", (type_,), lambda x: np.uint32(parse.bits(type_)) - _length(x))


def _highest_bit(code: Code) -> Execute:
    type_ = code.take_type()
    if type_[0] != "u":
        raise code.unknown()
    return code.pure("b32", (type_,), lambda x: _length(x) - np.uint32(1))


def _reverse(code: Code) -> Execute:
    type_ = code.take_type()
    as_ = UNSIGNED[parse.bits(type_)]
    return code.pure(
        type_, (type_,), lambda x: np.ascontiguousarray(_REVERSED[_bytes(x)][:, ::-1]).view(as_).reshape(-1)
    )


def _dot_product(code: Code) -> Execute:
    first, second = code.modifiers
    code.modifiers.clear()
    if first[1:] != "32" or second[1:] != "32":
        raise code.unknown()

    def signed(type_: str) -> Any:
        return np.int8 if type_[0] == "s" else np.uint8

    def dot(x: Array, y: Array, z: Array) -> Array:
        products = _bytes(x).view(signed(first)).astype(np.int32) * _bytes(y).view(signed(second))
        return z + products.sum(axis=1, dtype=np.int32).view(z.dtype)

    out = "s32" if "s" in first + second else "u32"
    return code.pure(out, ("b32", "b32", out), dot)


# ---------------------------------------------------------------- comparison and selection

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: (x != y) & (x == x) & (y == y),
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "lo": lambda x, y: x < y,
    "ls": lambda x, y: x <= y,
    "hi": lambda x, y: x > y,
    "hs": lambda x, y: x >= y,
    "equ": lambda x, y: (x == y) | (x != x) | (y != y),
    "neu": lambda x, y: x != y,
    "ltu": lambda x, y: ~(x >= y),
    "leu": lambda x, y: ~(x > y),
    "gtu": lambda x, y: ~(x <= y),
    "geu": lambda x, y: ~(x < y),
    "num": lambda x, y: (x == x) & (y == y),
    "nan": lambda x, y: (x != x) | (y != y),
}
LOGIC: dict[str, Callable[[Any, Any], Any]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _comparison(code: Code) -> tuple[Callable[[Any, Any], Any], str | None, str]:
    name = code.modifiers.pop(0)
    compare = COMPARISONS.get(name)
    combined = code.take(*LOGIC)
    type_ = code.take_type()
    if compare is None or type_ in ("bf16", "f16x2", "bf16x2", "pred"):
        raise code.unknown()
    return np.not_equal if name == "ne" and type_[0] != "f" else compare, combined, type_


def _set_predicate(code: Code) -> Execute:
    compare, combined, type_ = _comparison(code)
    operand = code.operands[0]
    pair = (operand.first, operand.second) if isinstance(operand, parse.Pair) else (operand,)
    targets = [code.target(each, "pred") for each in pair]
    sources = code.source(1, type_), code.source(2, type_)
    other = code.source(3, "pred") if combined else None
    if len(code.operands) != (4 if combined else 3):
        raise code.unknown(f"{len(code.operands)} operands")

    def execute(machine: Any, lanes: Any) -> None:
        result = compare(sources[0](machine, lanes), sources[1](machine, lanes))
        for write, value in zip(targets, (result, ~result), strict=False):
            if other is not None:
                value = LOGIC[combined or ""](value, other(machine, lanes))
            write(machine, lanes, value)

    return execute


def _set(code: Code) -> Execute:
    from_ = code.modifiers.pop()
    to = code.modifiers.pop()
    compare = COMPARISONS.get(code.modifiers.pop(0))
    code.finish()
    if compare is None or to not in ("u32", "s32", "f32"):
        raise code.unknown()
    true = np.uint32(0x3F800000 if to == "f32" else 0xFFFFFFFF)
    return code.pure("b32", (from_, from_), lambda x, y: np.where(compare(x, y), true, np.uint32(0)))


def _select(code: Code) -> Execute:
    type_ = code.take_type()
    return code.pure(type_, (type_, type_, "pred"), lambda x, y, chosen: np.where(chosen, x, y))


def _select_by_sign(code: Code) -> Execute:
    by = code.modifiers.pop()
    type_ = code.take_type()
    if by not in ("s32", "f32"):
        raise code.unknown()
    return code.pure(type_, (type_, type_, by), lambda x, y, sign: np.where(sign >= 0, x, y))


def _not(code: Code) -> Execute:
    type_ = code.take_type()
    return code.pure(type_, (type_,), np.invert)


OPERATIONS: dict[str, Callable[[Code], Execute]] = {
    "mul": _mul,
    "mad": _mad,
    "add": _binary(np.add),
    "sub": _binary(np.subtract),
    "min": _binary(np.minimum),
    "max": _binary(np.maximum),
    "div": _binary(_truncated),
    "rem": _binary(lambda x, y: x - _truncated(x, y) * y),
    "and": _binary(np.bitwise_and),
    "or": _binary(np.bitwise_or),
    "xor": _binary(np.bitwise_xor),
    "not": _not,
    "cnot": _unary(lambda x: (x == 0).astype(x.dtype)),
    "neg": _unary(np.negative),
    "abs": _unary(np.abs),
    "shl": _shift(left=True),
    "shr": _shift(left=False),
    "shf": _funnel,
    "bfe": _bit_field_extract,
    "bfi": _bit_field_insert,
    "prmt": _permute_bytes,
    "lop3": _lop3,
    "popc": _population,
    "clz": _leading_zeros,
    "bfind": _highest_bit,
    "brev": _reverse,
    "dp4a": _dot_product,
    "setp": _set_predicate,
    "set": _set,
    "selp": _select,
    "slct": _select_by_sign,
}
