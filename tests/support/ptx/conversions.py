"""cvt: from each type to each other, with the rounding that the instruction names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.ptx import parse
from tests.support.ptx.decode import FLOATS, SIGNED, Array, Code, Execute
from tests.support.ptx.floats import from_bfloat16, to_bfloat16, to_float16, with_nan
from tests.support.ptx.integers import joined
from tests.support.ptx.memory import UNSIGNED

TO_INTEGER: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
_NARROW = {"f16": to_float16, "bf16": to_bfloat16}


def _is_float(type_: str) -> bool:
    return type_[0] == "f" or type_.startswith("bf")


def convert(code: Code) -> Execute:
    """Return what `cvt` does."""
    *modifiers, to, from_ = code.modifiers
    code.modifiers = modifiers
    rounding = code.take("rn", "rz", "rm", "rp", *TO_INTEGER)
    saturate = code.take("sat") is not None
    code.finish()
    if to in ("f16x2", "bf16x2") and from_ == "f32" and rounding == "rn" and not saturate:
        narrow = _NARROW[to[:-2]]
        # The first operand is the upper half.
        return code.pure(to, ("f32", "f32"), lambda high, low: _pair(narrow(low), narrow(high)))
    function = _function(code, to, from_, rounding, saturate)
    return code.pure(to, (from_,), function)


def _pair(low: Array, high: Array) -> Array:
    shape = np.broadcast_shapes(low.shape, high.shape)
    halves = (np.broadcast_to(each.view(np.uint16), shape) for each in (low, high))
    return joined(np.stack(list(halves), axis=1))


def _function(
    code: Code, to: str, from_: str, rounding: str | None, saturate: bool
) -> Callable[[Array], Array]:
    if not _is_float(to) and not _is_float(from_):
        return _between_integers(code, to, from_, rounding, saturate)
    if not _is_float(to):
        if rounding not in TO_INTEGER or from_ == "bf16":
            raise code.unknown()
        return _to_integer(to, TO_INTEGER[rounding])
    if saturate:
        raise code.unknown(".sat")
    if not _is_float(from_):
        return _from_integer(code, to, from_, rounding)
    return _between_floats(code, to, from_, rounding)


def _between_integers(
    code: Code, to: str, from_: str, rounding: str | None, saturate: bool
) -> Callable[[Array], Array]:
    if rounding:
        raise code.unknown()
    width = parse.bits(to)
    out = (SIGNED if to[0] == "s" else UNSIGNED)[width]
    if not saturate:  # sign extended if the source has a sign
        step = (SIGNED if from_[0] == "s" else UNSIGNED)[width]
        return lambda x: x.astype(step).view(out)
    low, high = np.iinfo(out).min, np.iinfo(out).max
    source = np.iinfo((SIGNED if from_[0] == "s" else UNSIGNED)[parse.bits(from_)])
    return lambda x: np.clip(x, max(low, source.min), min(high, source.max)).astype(out)


def _to_integer(to: str, rounded: Callable[[Array], Array]) -> Callable[[Array], Array]:
    width = parse.bits(to)
    info = np.iinfo((SIGNED if to[0] == "s" else UNSIGNED)[width])

    def of(x: Array) -> Array:
        value = rounded(x.astype(np.float64))
        # What does not fit becomes the nearest that does; NaN becomes 0 below 64 bits.
        nan = 0 if width < 64 and x.dtype != np.float64 else -(1 << 63) if to[0] == "s" else 1 << 63
        above, below = value >= float(info.max), value <= float(info.min)
        inside = np.where(np.isnan(value) | above | below, 0, value).astype(info.dtype)
        clipped = np.where(
            above, info.dtype.type(info.max), np.where(below, info.dtype.type(info.min), inside)
        )
        return np.where(np.isnan(value), info.dtype.type(nan), clipped).astype(info.dtype)

    return of


def _from_integer(code: Code, to: str, from_: str, rounding: str | None) -> Callable[[Array], Array]:
    if rounding != "rn" and not (rounding in ("rz", "rm", "rp") and to == "f32" and parse.bits(from_) <= 32):
        raise code.unknown()
    if to in _NARROW:
        if parse.bits(from_) > 32:
            raise code.unknown()
        return lambda x: _NARROW[to](x.astype(np.float64))
    if rounding == "rn":
        return lambda x: x.astype(FLOATS[parse.bits(to)])
    return lambda x: _directed(x.astype(np.float64), rounding or "")


def _directed(value: Array, rounding: str) -> Array:
    """Round float64 to float32 towards zero, down or up."""
    single = value.astype(np.float32)
    back = single.astype(np.float64)
    if rounding == "rz":
        return np.where(np.abs(back) > np.abs(value), np.nextafter(single, np.float32(0)), single)
    if rounding == "rm":
        return np.where(back > value, np.nextafter(single, np.float32(-np.inf)), single)
    return np.where(back < value, np.nextafter(single, np.float32(np.inf)), single)


def _between_floats(code: Code, to: str, from_: str, rounding: str | None) -> Callable[[Array], Array]:
    widening = parse.bits(to) > parse.bits(from_)
    if rounding in TO_INTEGER and to == from_ and to != "bf16":
        return lambda x: with_nan(TO_INTEGER[rounding or ""](x), to)
    if widening and rounding is None:
        if from_ == "bf16":
            return lambda x: with_nan(from_bfloat16(x), to).astype(FLOATS[parse.bits(to)])
        return lambda x: with_nan(x.astype(FLOATS[parse.bits(to)]), to)
    if rounding == "rn" and to in _NARROW and from_ in ("f32", "f64") and (to, from_) != ("bf16", "f64"):
        return _NARROW[to]
    if to == "f32" and from_ == "f64":
        if rounding == "rn":
            return lambda x: with_nan(x.astype(np.float32), "f32")
        if rounding in ("rz", "rm", "rp"):
            return lambda x: with_nan(_directed(x, rounding or ""), "f32")
    raise code.unknown()


OPERATIONS: dict[str, Callable[[Code], Execute]] = {"cvt": convert}
