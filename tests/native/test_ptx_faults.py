"""The PTX interpreter: memory, branches, barriers and warps, and detection of faults."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.support.ptx.faults import (
    Divergence,
    Fault,
    Misaligned,
    OutOfBounds,
    Race,
    Trap,
    Uninitialised,
    UnknownInstruction,
)
from tests.support.ptx.written import run

OWN = "mul.wide.u32 %at, %t, 4; add.s64 %at, %out, %at;"  # address that a thread writes to
PUT = f"{OWN} st.global.u32 [%at], %r0;"
SHARED = ".shared .align 16 .b8 tile[256];"
SLOT = "shl.b32 %r1, %t, 2; mov.u32 %r2, tile; add.s32 %r1, %r1, %r2;"  # of a thread in `tile`


# ---------------------------------------------------------------- what works


def test_thread_indices() -> None:
    body = """mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r0, %r1, %r2, %t;
    mul.wide.u32 %at, %r0, 4; add.s64 %at, %out, %at; mov.u32 %r3, %laneid; shl.b32 %r3, %r3, 16;
    or.b32 %r0, %r0, %r3; st.global.u32 [%at], %r0;"""
    threads = np.arange(40)
    want = np.concatenate([threads + 40 * block | (threads % 32) << 16 for block in range(5)])
    assert run(body, 40, blocks=5).tolist() == want.tolist()


def test_loads_and_stores_of_each_width() -> None:
    body = "ld.global.{0} %r0, [%in+4]; st.global.u32 [%out], %r0;"
    for type_, want in (("u8", 0xFE), ("s8", 0xFFFFFFFE), ("u16", 0x80FE), ("s16", 0xFFFF80FE)):
        assert run(body.format(type_), inputs=np.array([0, 0x780FE], np.uint32)) == [want]
    four = np.arange(100, 104, dtype=np.uint32)
    body = """ld.global.nc.L1::no_allocate.v4.u32 {%r0, %r1, %r2, %r3}, [%in]; add.u32 %r0, %r0, %r3;
    st.global.v2.u32 [%out+8], {%r0, %r1}; st.global.u16 [%out], %r2; st.global.u8 [%out+3], %r3;"""
    actual = run(body, inputs=four, outputs=np.zeros(4, np.uint32))
    assert actual.tolist() == [102 | 103 << 24, 0, 203, 101]
    assert (
        run("add.s64 %at, %in, 8; ld.global.u32 %r0, [%at+-4]; st.global.u32 [%out], %r0;", inputs=four)
        == 101
    )


def test_vectors_are_unpacked_and_packed() -> None:
    body = """mov.b32 %r1, 0xABCD1234;
    {.reg .b16 low, high; mov.b32 {low, high}, %r1; mov.b32 %r0, {high, low};}
    mov.b64 %d0, {%r0, %r1}; mov.b64 {_, %r0}, %d0; st.global.u64 [%out], %d0; st.global.u32 [%out+8], %r0;"""
    actual = run(body, outputs=np.zeros(3, np.uint32))
    assert actual.tolist() == [0x1234ABCD, 0xABCD1234, 0xABCD1234]


def test_variables_of_the_module_are_initialised() -> None:
    module = ".const .align 4 .u32 table[4] = {7, 0x8, 9}; .global .align 4 .b8 bytes[8] = {1, 2};"
    body = f"""mov.u64 %d0, table; mul.wide.u32 %d1, %t, 4; add.s64 %d0, %d0, %d1; ld.const.u32 %r0, [%d0];
    ld.global.u8 %r1, [bytes+1]; add.u32 %r0, %r0, %r1; {PUT}"""
    assert run(body, 4, module=module).tolist() == [9, 10, 11, 2]


def test_local_memory_is_private_to_a_thread() -> None:
    body = f"""mov.u64 %d0, depot; cvta.local.u64 %d1, %d0; st.local.u32 [%d0+4], %t; ld.u32 %r0, [%d1+4];
    {PUT}"""
    assert run(body, 40, declared=".local .align 8 .b8 depot[8];").tolist() == list(range(40))


def test_loops_with_divergent_trip_counts() -> None:
    body = f"""mov.u32 %r0, 0; mov.u32 %r1, 0;
    $again: setp.ge.u32 %p1, %r1, %t; @%p1 bra $done; add.u32 %r0, %r0, %r1; add.u32 %r1, %r1, 1;
    bra.uni $again;
    $done: @!%p1 trap; {PUT}"""
    assert run(body, 70).tolist() == [t * (t - 1) // 2 for t in range(70)]


def test_branch_tables() -> None:
    body = f"""and.b32 %r1, %t, 1; mov.u32 %r0, 0;
    $table: .branchtargets $even, $odd;
    brx.idx %r1, $table;
    $even: mov.u32 %r0, 10; bra $end;
    $odd: mov.u32 %r0, 11;
    $end: {PUT}"""
    assert run(body, 4).tolist() == [10, 11, 10, 11]


def test_predicated_instructions_and_early_ends() -> None:
    body = f"""mov.u32 %r0, 1; setp.eq.u32 %p1, %t, 3; @%p1 mov.u32 %r0, 2; setp.gt.u32 %p2, %t, 40;
    @%p2 ret; {PUT} mul.lo.u32 %r0, %r0, 5; {PUT}"""
    want = [5] * 41 + [0] * 23
    want[3] = 10
    assert run(body, 64).tolist() == want


def test_writes_are_visible_after_a_barrier() -> None:
    body = f"""{SLOT} st.shared.u32 [%r1], %t; bar.sync 0; xor.b32 %r3, %t, 63; shl.b32 %r3, %r3, 2;
    add.s32 %r3, %r3, %r2; ld.shared.u32 %r0, [%r3]; {PUT}"""
    assert run(body, 64, declared=SHARED, blocks=1).tolist() == list(range(63, -1, -1))


@pytest.mark.parametrize(("operation", "want"), [("or", 1), ("and", 0), ("popc", 7)])
def test_barriers_reduce_over_a_block(operation: str, want: int) -> None:
    type_, result = ("u32", "%r0") if operation == "popc" else ("pred", "%p2")
    body = f"setp.lt.u32 %p1, %t, 7; bar.red.{operation}.{type_} {result}, 0, %p1;"
    body += "" if operation == "popc" else "selp.u32 %r0, 1, 0, %p2;"
    assert run(f"{body} {PUT}", 50).tolist() == [want] * 50


def test_atomics_add_up() -> None:
    body = """atom.global.add.u32 %r0, [%out], 2; and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 1;
    @%p1 red.global.max.u32 [%out+4], %t; cvt.u64.u32 %d0, %t; red.global.add.u64 [%out+8], %d0;"""
    actual = run(body, 50, outputs=np.zeros(4, np.uint32))
    assert actual.tolist() == [100, 49, sum(range(50)), 0]
    body = f"atom.global.add.u32 %r0, [%in], 1; {PUT}"
    assert sorted(run(body, 40, inputs=np.zeros(1, np.uint32)).tolist()) == list(range(40))
    body = f"""{SLOT} setp.eq.u32 %p1, %t, 0; @%p1 st.shared.u32 [tile], 5; bar.sync 0;
    atom.shared.add.u32 %r4, [tile], 1; bar.sync 0; ld.shared.u32 %r0, [tile]; {PUT}"""
    assert run(body, 33, declared=SHARED).tolist() == [38] * 33
    body = f"atom.global.cas.b32 %r0, [%in], 7, 9; {PUT}"
    assert sorted(run(body, 3, inputs=np.array([7], np.uint32)).tolist()) == [7, 9, 9]


def test_warps_exchange_and_vote() -> None:
    t = np.arange(64)
    for body, want in (
        ("shfl.sync.bfly.b32 %r0, %t, 5, 31, -1;", t ^ 5),
        ("shfl.sync.idx.b32 %r0, %t, 3, 31, 0xffffffff;", t // 32 * 32 + 3),
        ("shfl.sync.up.b32 %r0|%p1, %t, 2, 0, -1;", np.where(t % 32 < 2, t, t - 2)),
        ("shfl.sync.down.b32 %r0, %t, 1, 0x1c1f, -1;", np.where(t % 4 == 3, t, t + 1)),  # segments of four
        ("setp.lt.u32 %p1, %t, 35; vote.sync.ballot.b32 %r0, %p1, -1;", np.where(t < 32, 0xFFFFFFFF, 7)),
        ("setp.lt.u32 %p1, %t, 35; vote.sync.all.pred %p2, %p1, -1; selp.u32 %r0, 1, 0, %p2;", t < 32),
        ("setp.lt.u32 %p1, %t, 35; vote.sync.any.pred %p2, !%p1, -1; selp.u32 %r0, 1, 0, %p2;", t >= 32),
        ("redux.sync.max.u32 %r0, %t, -1;", t // 32 * 32 + 31),
        ("and.b32 %r1, %t, 1; match.any.sync.b32 %r0, %r1, -1;", np.where(t % 2, 0xAAAAAAAA, 0x55555555)),
        ("activemask.b32 %r0;", np.full(64, 0xFFFFFFFF)),
    ):
        assert run(f"{body} {PUT}", 64).tolist() == want.astype(np.uint32).tolist(), body


def test_warps_synchronise_independently() -> None:
    body = f"""{SLOT} st.shared.u32 [%r1], %t; {{0}} xor.b32 %r3, %t, 31; shl.b32 %r3, %r3, 2;
    add.s32 %r3, %r3, %r2; ld.shared.u32 %r0, [%r3]; {PUT}"""
    actual = run(body.format("bar.warp.sync -1;"), 64, declared=SHARED)
    assert actual.tolist() == [t ^ 31 for t in range(64)]
    with pytest.raises(Race, match="another thread wrote"):
        run(body.format(""), 64, declared=SHARED)
    across = body.format("bar.warp.sync -1;").replace("xor.b32 %r3, %t, 31", "xor.b32 %r3, %t, 63")
    with pytest.raises(Race, match="another thread wrote"):
        run(across, 64, declared=SHARED)


def test_a_warp_waits_for_late_threads() -> None:
    body = f"""mov.u32 %r1, %t; setp.lt.u32 %p1, %t, 16; @%p1 bra $meet; add.u32 %r1, %r1, 100;
    add.u32 %r1, %r1, 100; bra $meet2;
    $meet: add.u32 %r1, %r1, 1;
    $meet2: redux.sync.add.u32 %r0, %r1, -1; {PUT}"""
    assert run(body, 32).tolist() == [sum(range(32)) + 16 + 16 * 200] * 32


def test_asynchronous_copies_need_a_wait() -> None:
    start = f"""{SLOT} mul.wide.u32 %d1, %t, 4; add.s64 %d1, %in, %d1;
    cp.async.ca.shared.global [%r1], [%d1], 4; cp.async.commit_group; {{0}}
    xor.b32 %r3, %t, 63; shl.b32 %r3, %r3, 2; add.s32 %r3, %r3, %r2; ld.shared.u32 %r0, [%r3]; {PUT}"""
    inputs = np.arange(100, 164, dtype=np.uint32)
    for wait in ("cp.async.wait_group 0;", "cp.async.wait_all;"):
        actual = run(start.format(f"{wait} bar.sync 0;"), 64, inputs, declared=SHARED)
        assert actual.tolist() == inputs[::-1].tolist()
        with pytest.raises(Race, match="another thread wrote"):
            run(start.format(wait), 64, inputs, declared=SHARED)
    for wait in ("cp.async.wait_group 1; bar.sync 0;", "bar.sync 0;"):
        with pytest.raises(Uninitialised, match="shared memory"):
            run(start.format(wait), 64, inputs, declared=SHARED)


# ---------------------------------------------------------------- what is found


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ("st.global.u32 [%out+256], %t;", OutOfBounds, "4 bytes at .* nearest, 'out'"),
        ("st.global.u32 [%out+-4], %t;", OutOfBounds, "nearest, 'out'"),
        ("ld.global.u64 %d0, [%in+8];", OutOfBounds, "8 bytes"),
        (f"{OWN} st.global.u32 [%at+4], %t;", OutOfBounds, r"thread \(63, 0, 0\)"),
        ("mov.u64 %d0, 0; ld.global.u32 %r0, [%d0];", OutOfBounds, "at 0x0"),
        ("ld.param.u32 %r0, [kernel_param_1+8];", OutOfBounds, "parameters"),
        ("st.global.u32 [%out+2], %t;", Misaligned, "no multiple of 4"),
        ("st.global.v2.u32 [%out+4], {%t, %t};", Misaligned, "no multiple of 8"),
        ("ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%out+8];", Misaligned, "no multiple of 16"),
        ("ld.param.u64 %d0, [kernel_param_0+4];", Misaligned, "no multiple of 8"),
        ("ld.shared.v4.u32 {%r0, %r1, %r2, %r3}, [tile+8];", Misaligned, "no multiple of 16"),
        ("st.shared.u32 [tile+256], %t;", OutOfBounds, "256 bytes of shared memory"),
        (f"{SLOT} st.shared.u32 [%r1+4], %t;", OutOfBounds, r"thread \(63, 0, 0\)"),
        ("ld.shared.u32 %r0, [tile];", Uninitialised, "shared memory that no thread wrote"),
        ("st.shared.u16 [tile], %h0;", Uninitialised, "a register that was not written"),
        ("add.u32 %r0, %r1, %t;", Uninitialised, "a register that was not written"),
        (
            "setp.gt.u32 %p1, %t, 9; @%p1 mov.u32 %r0, 1; add.u32 %r1, %r0, 1;",
            Uninitialised,
            r"thread \(0, 0, 0\)",
        ),
        ("ld.local.u32 %r0, [depot];", Uninitialised, "local memory"),
        ("mov.u64 %d0, depot; st.local.u32 [%d0+8], %t;", OutOfBounds, "local memory"),
        # shared memory between barriers
        (f"{SLOT} st.shared.u32 [%r1], %t; ld.shared.u32 %r0, [tile+4];", Race, "another thread wrote"),
        (f"{SLOT} st.shared.u32 [tile], %t;", Race, "another value"),
        (
            "setp.eq.u32 %p1, %t, 9; mov.u32 %r0, 4; @%p1 mov.u32 %r0, 5; st.shared.u32 [tile], %r0;",
            Race,
            "another value",
        ),
        (
            f"{SLOT} st.shared.u32 [%r1], %t; bar.sync 0; ld.shared.u32 %r0, [tile]; st.shared.u32 [%r1], 7;",
            Race,
            "another thread read",
        ),
        # barriers
        ("setp.lt.u32 %p1, %t, 32; @%p1 bar.sync 0;", Divergence, "some have ended"),
        ("setp.lt.u32 %p1, %t, 32; @%p1 ret; bar.sync 0;", Divergence, "some have ended"),
        (
            "setp.lt.u32 %p1, %t, 32; @%p1 bra $one; bar.sync 0; bra $end; $one: bar.sync 0; $end:",
            Divergence,
            "different barriers",
        ),
        ("setp.lt.u32 %p1, %t, 7; @%p1 shfl.sync.idx.b32 %r0, %t, 9, 31, 0x7f;", Divergence, "no part"),
        ("shfl.sync.idx.b32 %r0, %t, 0, 31, 1;", Divergence, "not in its own mask"),
        (
            "setp.lt.u32 %p1, %t, 7; @%p1 bra $on; bar.sync 0; bra $end; $on: bar.warp.sync -1; $end:",
            Divergence,
            "do not come",
        ),
        ("trap;", Trap, "stops"),
        ("div.u32 %r0, %t, %t;", Fault, "divides by zero"),
        ("ld.global.nc.u32 %r0, [%out]; st.global.u32 [%out], %r0;", Fault, "constant"),
    ],
)
def test_faults_are_detected(body: str, error: type[Fault], words: str) -> None:
    declared = f"{SHARED} .local .align 8 .b8 depot[8];"
    with pytest.raises(error, match=words) as raised:
        run(body, 64, inputs=np.zeros(1), outputs=np.zeros(64, np.uint32), declared=declared)
    assert re.match(r"kernel, line \d+: ", str(raised.value))


def test_equal_writes_are_no_race() -> None:
    body = f"mov.u32 %r1, 3; st.shared.u32 [tile], %r1; bar.sync 0; ld.shared.u32 %r0, [tile]; {PUT}"
    assert run(body, 64, declared=SHARED).tolist() == [3] * 64


@pytest.mark.parametrize(
    "instruction",
    [
        "frobnicate.u32 %r0, %t;",
        "ex2.approx.f32 %f0, %f1;",
        "add.ftz.f32 %f0, %f1, %f2;",
        "add.rz.f32 %f0, %f1, %f2;",
        "fma.rn.f64 %e0, %e1, %e2, %e3;",
        "add.sat.s32 %r0, %t, %t;",
        "add.u32 %r0, %t;",
        "add.u64 %d0, %t, %d1;",
        "mul.u32 %r0, %t, %t;",
        "prmt.b32.f4e %r0, %t, %t, 0;",
        "bar.sync 0, 32;",
        "bar.arrive 0, 32;",
        "ld.global.b128 %d0, [%in];",
        "ld.global.u32 %r77, [%in];",
        "mov.u32 %r0, nowhere;",
        "bra $nowhere;",
        "cvt.f32.s32 %f0, %t;",
    ],
)
def test_rejects_unknown_instructions(instruction: str) -> None:
    written = np.zeros(1, np.uint32)
    with pytest.raises(UnknownInstruction, match="kernel"):
        run(f"st.global.u32 [%out], 1; {instruction}", outputs=written)
    assert written == [0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threads": 1025}, "1025 threads"),
        ({"blocks": 0}, "a grid"),
        ({"declared": ".shared .align 16 .b8 large[49168];"}, "49168 . 0 bytes of shared"),
        ({"shared_bytes": 1 << 18}, "bytes of shared"),
    ],
)
def test_rejects_invalid_launches(options: Any, words: str) -> None:
    with pytest.raises(Fault, match=words):
        run("", outputs=np.zeros(1), **options)


def test_size_of_dynamic_shared_memory() -> None:
    module = ".extern .shared .align 16 .b8 dynamic[];"
    body = (
        f"st.shared.u32 [tile], 1; st.shared.u32 [dynamic+60], 8; ld.shared.u32 %r0, [dynamic+{{0}}]; {PUT}"
    )
    assert run(body.format(60), module=module, declared=SHARED, shared_bytes=64) == [8]
    with pytest.raises(OutOfBounds, match="320 bytes of shared"):
        run(body.format(64), module=module, declared=SHARED, shared_bytes=64)
