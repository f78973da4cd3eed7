"""The PTX interpreter: results of each instruction, against Python's arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.ptx import parse
from tests.support.ptx.written import run

REGISTER = {"pred": "%p", "16": "%h", "32": "%r", "64": "%d", "f32": "%f", "f64": "%e"}


def register(type_: str) -> str:
    return REGISTER.get(type_) or REGISTER[f"{parse.bits(type_)}"]


def width(type_: str) -> int:
    return parse.bits(type_)


def of(instruction: str, out: str, *operands: tuple[str, int | str]) -> int:
    """Return the result bits of an instruction; each operand is a type and its bits."""
    moves, names = [], []
    for i, (type_, value) in enumerate(operands, 1):
        if type_ == "imm":
            names.append(str(value))
            continue
        name = f"{register(type_)}{i}"
        names.append(name)
        if type_ == "pred":
            moves.append(f"setp.ne.u32 {name}, {value}, 0;")
        else:
            bits = width(type_)
            kind = type_ if type_ in ("f32", "f64") else f"b{bits}"
            text = (
                f"0f{value:08X}" if type_ == "f32" else f"0d{value:016X}" if type_ == "f64" else f"{value:#x}"
            )
            moves.append(f"mov.{kind} {name}, {text};")
    result = f"{register(out)}0"
    end = f"st.global.b{max(width(out), 16)} [%out], {result};"
    if out == "pred":
        end = f"selp.b16 %h0, 1, 0, {result}; st.global.b16 [%out], %h0;"
    body = f"{' '.join(moves)} {instruction} {', '.join([result, *names])}; {end}"
    written = run(body, outputs=np.zeros(1, np.uint64))
    return int(written[0])


def f32(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def f64(value: float) -> int:
    return int(np.float64(value).view(np.uint64))


def f16(value: float) -> int:
    return int(np.float16(value).view(np.uint16))


def pair(low: int, high: int) -> int:
    return low | high << 16


M32, M64 = (1 << 32) - 1, (1 << 64) - 1
A, B = 0xDEADBEEF, 0x12345678
LONG = 0xFEDCBA9876543210


@pytest.mark.parametrize(
    ("instruction", "out", "operands", "want"),
    [
        ("add.u32", "u32", [("u32", M32), ("u32", 2)], 1),
        ("add.s16", "s16", [("s16", 0xFFFF), ("s16", 2)], 1),
        ("add.s64", "s64", [("s64", M64), ("s64", 2)], 1),
        ("add.u16x2", "u16x2", [("u32", 0x0001FFFF), ("u32", 0x00010001)], 0x00020000),
        ("sub.u32", "u32", [("u32", 1), ("u32", 2)], M32),
        ("mul.lo.u32", "u32", [("u32", A), ("u32", B)], A * B & M32),
        ("mul.hi.u32", "u32", [("u32", A), ("u32", B)], A * B >> 32),
        ("mul.hi.s32", "s32", [("s32", A), ("s32", B)], (A - (1 << 32)) * B >> 32 & M32),
        ("mul.hi.u64", "u64", [("u64", LONG), ("u64", LONG - 5)], LONG * (LONG - 5) >> 64),
        ("mul.hi.s64", "s64", [("s64", LONG), ("s64", 12345)], (LONG - (1 << 64)) * 12345 >> 64 & M64),
        ("mul.lo.s64", "s64", [("s64", LONG), ("s64", 12345)], LONG * 12345 & M64),
        ("mul.lo.s16", "s16", [("s16", 0x9E37), ("s16", 0x88B5)], 0x9E37 * 0x88B5 & 0xFFFF),
        ("mul.hi.u16", "u16", [("u16", 0x9E37), ("u16", 0x88B5)], 0x9E37 * 0x88B5 >> 16),
        ("mul.wide.u32", "u64", [("u32", A), ("u32", B)], A * B),
        ("mul.wide.s32", "s64", [("s32", A), ("s32", B)], (A - (1 << 32)) * B & M64),
        ("mul.wide.u16", "u32", [("u16", 0xFFFF), ("u16", 0xFFFF)], 0xFFFF**2),
        ("mad.lo.s32", "s32", [("s32", A), ("s32", B), ("s32", 7)], A * B + 7 & M32),
        ("mad.hi.u32", "u32", [("u32", A), ("u32", B), ("u32", 7)], (A * B >> 32) + 7),
        ("mad.wide.u32", "u64", [("u32", A), ("u32", B), ("u64", 7)], A * B + 7),
        ("div.u32", "u32", [("u32", A), ("u32", 1000)], A // 1000),
        ("div.s32", "s32", [("s32", M32 - 6), ("s32", 2)], M32 - 2),  # -7 / 2 = -3
        ("rem.s32", "s32", [("s32", M32 - 6), ("s32", 2)], M32),  # -7 % 2 = -1
        ("rem.u64", "u64", [("u64", LONG), ("u64", 1000)], LONG % 1000),
        ("min.u32", "u32", [("u32", A), ("u32", B)], B),
        ("min.s32", "s32", [("s32", A), ("s32", B)], A),
        ("max.s64", "s64", [("s64", LONG), ("s64", 1)], 1),
        ("min.u16x2", "u16x2", [("u32", 0x0001FFFF), ("u32", 0xFFFF0001)], 0x00010001),
        ("max.s16x2", "s16x2", [("u32", 0x0001FFFF), ("u32", 0xFFFF0001)], 0x00010001),
        ("neg.s32", "s32", [("s32", 5)], M32 - 4),
        ("abs.s32", "s32", [("s32", M32 - 4)], 5),
        ("not.b64", "b64", [("b64", LONG)], ~LONG & M64),
        ("cnot.b32", "b32", [("b32", 0)], 1),
        ("and.b32", "b32", [("b32", A), ("b32", B)], A & B),
        ("or.b16", "b16", [("b16", 0x0F00), ("b16", 0x00F1)], 0x0FF1),
        ("xor.b64", "b64", [("b64", LONG), ("b64", M64)], LONG ^ M64),
        ("shl.b32", "b32", [("b32", A), ("u32", 4)], A << 4 & M32),
        ("shl.b32", "b32", [("b32", A), ("u32", 32)], 0),
        ("shl.b64", "b64", [("b64", LONG), ("u32", 60)], LONG << 60 & M64),
        ("shr.u32", "u32", [("u32", A), ("u32", 31)], 1),
        ("shr.u32", "u32", [("u32", A), ("u32", 99)], 0),
        ("shr.s32", "s32", [("s32", A), ("u32", 99)], M32),
        ("shr.s64", "s64", [("s64", LONG), ("u32", 60)], M64),
        ("shr.u16", "u16", [("u16", 0xBEEF), ("u32", 8)], 0xBE),
        ("shf.l.wrap.b32", "b32", [("b32", A), ("b32", B), ("u32", 40)], (B << 8 | A >> 24) & M32),
        ("shf.r.wrap.b32", "b32", [("b32", A), ("b32", B), ("u32", 8)], (A >> 8 | B << 24) & M32),
        ("shf.l.clamp.b32", "b32", [("b32", A), ("b32", B), ("u32", 40)], A),
        ("shf.r.clamp.b32", "b32", [("b32", A), ("b32", B), ("u32", 40)], B),
        ("prmt.b32", "b32", [("b32", A), ("b32", B), ("imm", "0x7531")], 0x1256DEBE),
        ("prmt.b32", "b32", [("b32", A), ("b32", B), ("imm", "0xF3B0")], 0x00DEFFEF),
        ("lop3.b32", "b32", [("b32", A), ("b32", B), ("b32", 0xFF00FF), ("imm", "0x96")], A ^ B ^ 0xFF00FF),
        ("lop3.b32", "b32", [("b32", A), ("b32", B), ("b32", 0xFF), ("imm", "0xEA")], A & B | 0xFF),
        ("bfe.u32", "u32", [("u32", A), ("u32", 8), ("u32", 12)], A >> 8 & 0xFFF),
        ("bfe.u32", "u32", [("u32", A), ("u32", 24), ("u32", 32)], A >> 24),
        ("bfe.u32", "u32", [("u32", A), ("u32", 8), ("u32", 0)], 0),
        ("bfe.s32", "s32", [("s32", A), ("u32", 8), ("u32", 8)], 0xFFFFFFBE),
        ("bfe.s32", "s32", [("s32", A), ("u32", 40), ("u32", 8)], M32),
        ("bfe.u64", "u64", [("u64", LONG), ("u32", 60), ("u32", 64)], 0xF),
        ("bfe.s64", "s64", [("s64", LONG), ("u32", 4), ("u32", 8)], 0x21),
        ("bfi.b32", "b32", [("b32", 0xABC), ("b32", A), ("u32", 4), ("u32", 8)], A & ~0xFF0 | 0xBC0),
        ("bfi.b32", "b32", [("b32", 0xABC), ("b32", A), ("u32", 32), ("u32", 8)], A),
        ("bfi.b64", "b64", [("b64", M64), ("b64", 0), ("u32", 60), ("u32", 9)], 0xF << 60),
        ("popc.b32", "b32", [("b32", A)], A.bit_count()),
        ("popc.b64", "b32", [("b64", LONG)], LONG.bit_count()),
        ("clz.b32", "b32", [("b32", B)], 3),
        ("clz.b32", "b32", [("b32", 0)], 32),
        ("clz.b64", "b32", [("b64", 1)], 63),
        ("clz.b64", "b32", [("b64", M64 >> 1)], 1),
        ("bfind.u32", "b32", [("u32", B)], 28),
        ("bfind.u32", "b32", [("u32", 0)], M32),
        ("brev.b32", "b32", [("b32", 0x80000001 | 0x10)], 0x88000001),
        ("brev.b64", "b64", [("b64", 1)], 1 << 63),
        ("dp4a.u32.u32", "u32", [("u32", 0x01020304), ("u32", 0x05060708), ("u32", 9)], 5 + 12 + 21 + 32 + 9),
        ("dp4a.s32.s32", "s32", [("u32", 0x000000FF), ("u32", 0x00000002), ("s32", 0)], M32 - 1),
        # comparison and selection
        ("setp.lt.s32", "pred", [("s32", A), ("s32", B)], 1),
        ("setp.lt.u32", "pred", [("u32", A), ("u32", B)], 0),
        ("setp.ge.u64", "pred", [("u64", LONG), ("u64", LONG)], 1),
        ("setp.ne.s16", "pred", [("s16", 1), ("s16", 1)], 0),
        ("setp.hi.u32", "pred", [("u32", A), ("u32", B)], 1),
        ("setp.ltu.f32", "pred", [("f32", f32(np.nan)), ("f32", 0)], 1),
        ("setp.lt.f32", "pred", [("f32", f32(np.nan)), ("f32", 0)], 0),
        ("setp.ne.f32", "pred", [("f32", f32(np.nan)), ("f32", 0)], 0),
        ("setp.neu.f32", "pred", [("f32", f32(np.nan)), ("f32", 0)], 1),
        ("setp.eq.f32", "pred", [("f32", f32(-0.0)), ("f32", 0)], 1),
        ("setp.nan.f32", "pred", [("f32", f32(np.nan)), ("f32", 0)], 1),
        ("setp.gtu.f64", "pred", [("f64", f64(1.0)), ("f64", f64(2.0))], 0),
        ("setp.lt.and.u32", "pred", [("u32", 1), ("u32", 2), ("pred", 0)], 0),
        ("setp.gt.or.u32", "pred", [("u32", 1), ("u32", 2), ("pred", 1)], 1),
        ("setp.lt.xor.u32", "pred", [("u32", 1), ("u32", 2), ("pred", 1)], 0),
        ("and.pred", "pred", [("pred", 1), ("pred", 0)], 0),
        ("xor.pred", "pred", [("pred", 1), ("pred", 0)], 1),
        ("not.pred", "pred", [("pred", 1)], 0),
        ("selp.b32", "b32", [("b32", A), ("b32", B), ("pred", 1)], A),
        ("selp.f32", "f32", [("f32", A), ("f32", B), ("pred", 0)], B),
        ("set.lt.u32.s32", "u32", [("s32", A), ("s32", B)], M32),
        ("slct.s32.s32", "s32", [("s32", A), ("s32", B), ("s32", M32)], B),
    ],
)
def test_integers(instruction: str, out: str, operands: Any, want: int) -> None:
    assert of(instruction, out, *operands) == want


BF = 0x3F80  # 1 in bfloat16
TINY32, HALF_ULP = f32(2.0**-149), 2.0**-24


@pytest.mark.parametrize(
    ("instruction", "out", "operands", "want"),
    [
        ("add.rn.f32", "f32", [("f32", f32(1)), ("f32", f32(HALF_ULP))], f32(1)),  # a tie goes to even
        (
            "add.rn.f32",
            "f32",
            [("f32", f32(1 + 2 * HALF_ULP)), ("f32", f32(HALF_ULP))],
            f32(1 + 4 * HALF_ULP),
        ),
        ("add.f32", "f32", [("f32", TINY32), ("f32", TINY32)], f32(2.0**-148)),  # nothing is flushed
        ("add.rn.f32", "f32", [("f32", f32(np.inf)), ("f32", f32(-np.inf))], 0x7FFFFFFF),
        ("sub.rn.f32", "f32", [("f32", f32(1)), ("f32", f32(3))], f32(-2)),
        ("mul.rn.f32", "f32", [("f32", f32(1e20)), ("f32", f32(1e20))], f32(np.inf)),
        ("mul.f64", "f64", [("f64", f64(0.1)), ("f64", f64(3.0))], f64(0.1 * 3.0)),
        # 1 + 2^-12 squared, less 1: the product is not rounded before the sum
        (
            "fma.rn.f32",
            "f32",
            [("f32", f32(1 + 2**-12)), ("f32", f32(1 + 2**-12)), ("f32", f32(-1))],
            f32(2**-11 + 2**-24),
        ),
        # double rounding: the product lies just above a tie of float32, too close for float64 to show
        ("fma.rn.f32", "f32", [("f32", f32(2**-40)), ("f32", f32(2**-40)), ("f32", f32(1))], f32(1)),
        (
            "fma.rn.f32",
            "f32",
            [("f32", f32(1 + 2**-23)), ("f32", f32(2.0**-24)), ("f32", f32(1 + 2**-23))],
            f32(1 + 2**-22),
        ),
        (
            "fma.rn.f32",
            "f32",
            [("f32", f32(2.0**-60)), ("f32", f32(2.0**-60)), ("f32", f32(1 + 2**-23))],
            f32(1 + 2**-23),
        ),
        ("div.rn.f32", "f32", [("f32", f32(1)), ("f32", f32(3))], f32(np.float32(1) / np.float32(3))),
        ("sqrt.rn.f32", "f32", [("f32", f32(2))], f32(np.sqrt(np.float32(2)))),
        ("rcp.rn.f32", "f32", [("f32", f32(3))], f32(np.float32(1) / np.float32(3))),
        ("neg.f32", "f32", [("f32", 0)], 0x80000000),
        ("abs.f32", "f32", [("f32", f32(-2.5))], f32(2.5)),
        ("abs.f64", "f64", [("f64", f64(-2.5))], f64(2.5)),
        ("min.f32", "f32", [("f32", f32(np.nan)), ("f32", f32(3))], f32(3)),
        ("min.f32", "f32", [("f32", 0), ("f32", 0x80000000)], 0x80000000),
        ("max.f32", "f32", [("f32", 0x80000000), ("f32", 0)], 0),
        ("add.f16", "f16", [("f16", f16(2048)), ("f16", f16(1))], f16(2048)),
        (
            "add.rn.f16x2",
            "f16x2",
            [("b32", pair(f16(1), f16(3))), ("b32", pair(f16(2), f16(-3)))],
            pair(f16(3), 0),
        ),
        (
            "mul.rn.f16x2",
            "f16x2",
            [("b32", pair(f16(300), f16(3))), ("b32", pair(f16(300), f16(2)))],
            pair(0x7C00, f16(6)),
        ),
        (
            "fma.rn.f16",
            "f16",
            [("f16", f16(1 + 2**-10)), ("f16", f16(1 + 2**-10)), ("f16", f16(-1))],
            f16(2**-9 + 2**-20),
        ),
        ("fma.rn.bf16", "bf16", [("b16", BF), ("b16", BF), ("b16", BF)], 0x4000),
        (
            "fma.rn.bf16x2",
            "bf16x2",
            [("b32", pair(BF, 0x4000)), ("b32", pair(BF, BF)), ("b32", 0)],
            pair(BF, 0x4000),
        ),
        ("neg.bf16x2", "bf16x2", [("b32", pair(BF, 0))], pair(BF | 0x8000, 0x8000)),
        # conversions
        ("cvt.rn.f16.f32", "f16", [("f32", f32(65519.99))], f16(65504)),
        ("cvt.rn.f16.f32", "f16", [("f32", f32(65520.0))], 0x7C00),
        ("cvt.rn.f16.f32", "f16", [("f32", f32(2.0**-25))], 0),
        ("cvt.rn.f16.f32", "f16", [("f32", f32(np.nan))], 0x7FFF),
        ("cvt.rn.f16x2.f32", "f16x2", [("f32", f32(2)), ("f32", f32(1))], pair(f16(1), f16(2))),
        ("cvt.rn.bf16.f32", "bf16", [("f32", 0x3F808000)], 0x3F80),
        ("cvt.rn.bf16.f32", "bf16", [("f32", 0x3F818000)], 0x3F82),
        ("cvt.rn.bf16x2.f32", "bf16x2", [("f32", 0x40000000), ("f32", 0x7F7FFFFF)], pair(0x7F80, 0x4000)),
        ("cvt.f32.f16", "f32", [("f16", 1)], f32(2.0**-24)),
        ("cvt.f32.bf16", "f32", [("b16", BF)], f32(1)),
        ("cvt.f64.f32", "f64", [("f32", f32(0.1))], f64(float(np.float32(0.1)))),
        ("cvt.rn.f32.f64", "f32", [("f64", f64(0.1))], f32(0.1)),
        ("cvt.rz.f32.f64", "f32", [("f64", f64(0.1))], f32(0.1) - 1),
        ("cvt.rp.f32.f64", "f32", [("f64", f64(-0.1))], f32(-0.1) - 1),
        ("cvt.rn.f32.s32", "f32", [("s32", (1 << 24) + 1)], f32(1 << 24)),
        ("cvt.rz.f32.u32", "f32", [("u32", M32)], f32(float(M32 - 255))),
        ("cvt.rm.f32.s32", "f32", [("s32", M32 - (1 << 24))], f32(-float((1 << 24) + 2))),
        ("cvt.rn.f32.u64", "f32", [("u64", M64)], f32(2.0**64)),
        ("cvt.rn.f64.s64", "f64", [("s64", M64)], f64(-1.0)),
        ("cvt.rni.s32.f32", "s32", [("f32", f32(2.5))], 2),
        ("cvt.rni.s32.f32", "s32", [("f32", f32(-3.5))], M32 - 3),
        ("cvt.rzi.s32.f32", "s32", [("f32", f32(-3.5))], M32 - 2),
        ("cvt.rmi.s32.f32", "s32", [("f32", f32(-3.5))], M32 - 3),
        ("cvt.rpi.u32.f32", "u32", [("f32", f32(3.2))], 4),
        ("cvt.rzi.s32.f32", "s32", [("f32", f32(1e20))], M32 >> 1),
        ("cvt.rzi.u32.f32", "u32", [("f32", f32(-5))], 0),
        ("cvt.rzi.s32.f32", "s32", [("f32", f32(np.nan))], 0),
        ("cvt.rni.f32.f32", "f32", [("f32", f32(2.5))], f32(2)),
        ("cvt.u32.u16", "u32", [("u16", 0xBEEF)], 0xBEEF),
        ("cvt.s32.s16", "s32", [("s16", 0xBEEF)], 0xFFFFBEEF),
        ("cvt.u16.u32", "u16", [("u32", A)], 0xBEEF),
        ("cvt.s64.s32", "s64", [("s32", A)], 0xFFFFFFFFDEADBEEF),
        ("cvt.u64.u32", "u64", [("u32", A)], A),
        ("cvt.u32.u64", "u32", [("u64", LONG)], LONG & M32),
        ("cvt.s32.s8", "s32", [("u32", 0xFE)], 0xFFFFFFFE),
        ("cvt.sat.u16.s32", "u16", [("s32", A)], 0),
        ("cvt.sat.s16.u32", "s16", [("u32", A)], 0x7FFF),
    ],
)
def test_floats_and_conversions(instruction: str, out: str, operands: Any, want: int) -> None:
    assert of(instruction, out, *operands) == want
