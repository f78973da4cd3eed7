"""The walk through SASS: listings whose way and counts are known, and a kernel that was compiled."""

from __future__ import annotations

import pathlib
import shutil

import pytest

from benchmarks.speed import instructions, sass
from iet.errors import IetError

HEAD = '\t.section\t.text.kernel,"ax",@progbits\n'
LOOP = """
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/                   ULDC.64 UR4, c[0x0][0x210] ;
        /*0020*/                   ISETP.NE.U32.AND P1, PT, RZ, UR4, PT ;
        /*0030*/                   ISETP.NE.AND.EX P1, PT, RZ, UR5, PT, P1 ;
        /*0040*/              @!P1 EXIT ;
        /*0050*/                   HFMA2.MMA R2, -RZ, RZ, 0, 1.1920928955078125e-07 ;
.L_x_0:
        /*0060*/                   IADD3 R0, R0, 0x20, RZ ;
        /*0070*/                   IMAD R2, R2, 0x3, R0 ;
        /*0080*/                   ISETP.GE.U32.AND P0, PT, R0, c[0x0][0x218], PT ;
        /*0090*/              @!P0 BRA `(.L_x_0) ;
        /*00a0*/                   STG.E desc[UR6][R4.64], R2 ;
        /*00b0*/                   EXIT ;
"""


def walk(text: str, *words: int, thread: int = 0) -> dict[int, int]:
    (code,) = sass.kernels(HEAD + text).values()
    constants = b"".join(word.to_bytes(4, "little") for word in words)
    return dict(sass.Thread(code, constants, 0x210, {"SR_TID.X": thread}).run())


@pytest.mark.parametrize(("thread", "limit", "times"), [(0, 32, 1), (0, 33, 2), (31, 100, 3), (5, 320, 10)])
def test_a_loop_is_walked_as_often_as_it_runs(thread: int, limit: int, times: int) -> None:
    executed = walk(LOOP, 0, 1, limit, thread=thread)
    assert executed == {
        0: 1,
        1: 1,
        2: 1,
        3: 1,
        4: 1,
        5: 1,
        **dict.fromkeys(range(6, 10), times),
        10: 1,
        11: 1,
    }


def test_a_pointer_of_64_bits_decides_by_both_halves() -> None:
    for low, high, steps in ((0, 0, 5), (1, 0, 12), (0, 1, 12)):
        assert len(walk(LOOP, low, high, 1)) == steps


def test_what_is_not_computed_decides_nothing() -> None:
    unknown = LOOP.replace("IADD3 R0, R0, 0x20, RZ", "FMUL R0, R0, R0")
    with pytest.raises(IetError, match=r"the way depends on what is not computed.*BRA"):
        walk(unknown, 0, 1, 100)
    with pytest.raises(IetError, match=r"not known here.*QUUX"):
        walk(LOOP.replace("IMAD R2, R2, 0x3, R0", "QUUX R2, R0"), 0, 1, 100)


def test_sums_carry_and_differences_too() -> None:
    text = """
        /*0000*/                   ULDC.64 UR4, c[0x0][0x210] ;
        /*0010*/                   IADD3 R0, P0, UR4, -0x1, RZ ;
        /*0020*/                   IADD3.X R1, UR5, -0x1, RZ, P0, !PT ;
        /*0030*/                   ISETP.GE.AND P1, PT, R1, RZ, PT ;
        /*0040*/               @P1 EXIT ;
        /*0050*/                   EXIT ;
"""
    assert len(walk(text, 1, 0)) == 5  # 1 - 1 is not negative
    assert len(walk(text, 0, 0)) == 6  # 0 - 1 is
    assert len(walk(text, 0, 1)) == 5


def test_the_kernels_stay_within_their_budget(tmp_path: pathlib.Path) -> None:
    if shutil.which("nvcc") is None or shutil.which("nvdisasm") is None:
        pytest.skip("no nvcc, or no nvdisasm")
    kernels = instructions.listings("sm_90", tmp_path)
    for dtype in instructions.DTYPES:
        found = instructions.counted(kernels, "sm_90", dtype, 128256)
        assert 25 < found["chunks 8"] <= 40 < found["chunks 1"] < 50
        assert found["rows_kernel"] < 0.5
