"""Floating-point arithmetic, every operation rounded once to nearest even, as the device rounds it.

float16 and bfloat16 are computed in float64 and rounded once from there. What a device only approximates
(ex2.approx and the like) is not here: no result of this project may depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.ptx import parse
from tests.support.ptx.decode import Array, Code, Execute
from tests.support.ptx.integers import halves, joined
from tests.support.ptx.memory import UNSIGNED

NAN = {"f16": np.uint16(0x7FFF), "bf16": np.uint16(0x7FFF), "f32": np.uint32(0x7FFFFFFF)}


def to_bfloat16(value: Array) -> Array:
    """Round float32 or float64 to the bits of bfloat16, once. float64 must be exact, or rounded to odd."""
    single = value if value.dtype == np.float32 else _narrowed_to_odd(value)
    bits = single.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(single), NAN["bf16"], rounded).astype(np.uint16)


def from_bfloat16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_float16(value: Array) -> Array:
    """Round float32 or float64 to float16, NaN as the device has it."""
    return with_nan(value.astype(np.float16), "f16")


def with_nan(value: Array, type_: str) -> Array:
    """The device has one NaN."""
    nan = np.isnan(value)
    if type_ == "f64" or not nan.any():
        return value
    return np.where(nan, NAN[type_].view(value.dtype), value)


def exact_sum(x: Array, y: Array) -> Array:
    """x + y in float64, rounded to odd: rounded once more, to fewer bits, it is rounded as if only once."""
    total = x + y
    back = total - x
    error = (x - (total - back)) + (y - back)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & (bits & 1 == 0)
    away = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact, bits + away, bits).view(np.float64)


def _narrowed_to_odd(value: Array) -> Array:
    single = value.astype(np.float32)
    bits = single.view(np.int32)
    back = single.astype(np.float64)
    inexact = (back != value) & np.isfinite(value) & (bits & 1 == 0)
    away = np.where(np.abs(back) < np.abs(value), 1, -1)
    return np.where(inexact, bits + away, bits).astype(np.int32).view(np.float32)


def _from_double(value: Array, type_: str) -> Array:
    if type_ == "bf16":
        return to_bfloat16(value)
    return to_float16(value) if type_ == "f16" else with_nan(value.astype(np.float32), "f32")


def _to_double(value: Array, type_: str) -> Array:
    return (from_bfloat16(value) if type_ == "bf16" else value).astype(np.float64)


def _through_double(code: Code, type_: str, count: int, function: Callable[..., Array]) -> Execute:
    """`function` of float64, whose result is exact or rounded to odd."""
    if not type_.endswith("x2"):
        return code.pure(
            type_,
            (type_,) * count,
            lambda *values: _from_double(function(*(_to_double(each, type_) for each in values)), type_),
        )
    half = type_[:-2]
    as_ = np.float16 if half == "f16" else np.uint16

    def packed(*values: Array) -> Array:
        wide = (_to_double(halves(each).view(as_), half) for each in values)
        return joined(_from_double(function(*wide), half).view(np.uint16))

    return code.pure(type_, (type_,) * count, packed)


def _arithmetic(
    native: Callable[..., Array], exact: Callable[..., Array] | None
) -> Callable[[Code], Execute]:
    def build(code: Code) -> Execute:
        code.take("rn")
        type_ = code.take_type()
        if type_ in ("f32", "f64"):
            return code.pure(type_, (type_, type_), lambda x, y: with_nan(native(x, y), type_))
        if exact is None:
            raise code.unknown()
        return _through_double(code, type_, 2, exact)

    return build


def _fused(code: Code) -> Execute:
    if code.take("rn") is None:
        raise code.unknown("only .rn")
    type_ = code.take_type()
    if type_ == "f64":
        raise code.unknown("float64")
    return _through_double(code, type_, 3, lambda x, y, z: exact_sum(x * y, z))


def _sign(change: Callable[[Array, Any], Array]) -> Callable[[Code], Execute]:
    """What touches nothing but signs."""

    def build(code: Code) -> Execute:
        type_ = code.take_type()
        as_ = UNSIGNED[parse.bits(type_)]
        sign = as_(0x80008000) if type_.endswith("x2") else as_(1 << parse.bits(type_) - 1)
        bits = f"b{parse.bits(type_)}"
        return code.pure(bits, (bits,), lambda x: change(x, sign))

    return build


def _extreme(largest: bool) -> Callable[[Code], Execute]:
    def build(code: Code) -> Execute:
        type_ = code.take_type()
        if type_ not in ("f32", "f64"):
            raise code.unknown()
        choose = np.fmax if largest else np.fmin

        def of(x: Array, y: Array) -> Array:
            value = choose(x, y)
            signs = np.signbit(x) & np.signbit(y) if largest else np.signbit(x) | np.signbit(y)
            zero = np.where(signs, value.dtype.type(-0.0), value.dtype.type(0.0))
            return with_nan(np.where((x == 0) & (y == 0), zero, value), type_)

        return code.pure(type_, (type_, type_), of)

    return build


def _rounded(function: Callable[[Array], Array]) -> Callable[[Code], Execute]:
    def build(code: Code) -> Execute:
        if code.take("rn") is None:
            raise code.unknown("only .rn is the same to the bit everywhere")
        type_ = code.take_type()
        if type_ not in ("f32", "f64"):
            raise code.unknown()
        return code.pure(type_, (type_,), lambda x: with_nan(function(x), type_))

    return build


def _divide(code: Code) -> Execute:
    if "rn" not in code.modifiers:
        raise code.unknown("only .rn is the same to the bit everywhere")
    return _arithmetic(np.divide, None)(code)


OPERATIONS: dict[str, Callable[[Code], Execute]] = {
    "add": _arithmetic(np.add, exact_sum),
    "sub": _arithmetic(np.subtract, lambda x, y: exact_sum(x, -y)),
    "mul": _arithmetic(np.multiply, np.multiply),
    "fma": _fused,
    "mad": _fused,
    "div": _divide,
    "sqrt": _rounded(np.sqrt),
    "rcp": _rounded(np.reciprocal),
    "neg": _sign(lambda x, sign: x ^ sign),
    "abs": _sign(lambda x, sign: x & ~sign),
    "min": _extreme(largest=False),
    "max": _extreme(largest=True),
}
