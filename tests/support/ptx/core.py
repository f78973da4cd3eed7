"""The part in C++, compiled when it is first asked for: its operations, and the layouts that it shares."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import pathlib
import platform
import subprocess

from tests.support.cuda_on_host import compiled_into, host_compiler

HERE = pathlib.Path(__file__).parent / "core"
FLAGS = [
    *("-std=c++20", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-format-security"),
    *(["-march=native"] if platform.machine() in ("x86_64", "AMD64") else []),  # vectors and fma
    # Every operation rounds by itself, and registers are read as what an instruction says that they are.
    *("-ffp-contract=off", "-fno-strict-aliasing"),
]
SLOWER = {"conversions": "-O1"}  # many operations that hardly run: half the time to compile


@functools.cache
def library() -> ctypes.CDLL:
    """Compile the core once; skip the test if there is no C++ compiler."""
    compiler, folder = host_compiler(), compiled_into()
    sources = sorted(HERE.glob("*.cpp"))
    objects = [folder / f"ptx_{source.stem}.o" for source in sources]
    running = [
        subprocess.Popen([compiler, *FLAGS, SLOWER.get(source.stem, "-O2"), "-c", source, "-o", target])
        for source, target in zip(sources, objects, strict=True)
    ]
    assert [process.wait() for process in running] == [0] * len(running)
    linked = folder / "libptx.so"
    subprocess.run([compiler, "-shared", *objects, "-o", linked], check=True)
    loaded = ctypes.CDLL(os.fspath(linked))
    loaded.iet_ptx_operations.restype = ctypes.c_char_p
    return loaded


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of each lane: the kinds (u, s, f, b, or p for a predicate) and bits of its values."""

    index: int
    kind: str
    bits: int
    operands: tuple[int, ...]  # their bits


@functools.cache
def operations() -> dict[str, Operation]:
    """Return the operations of lanes, by their opcodes."""
    operations_ = {}
    for index, line in enumerate(library().iet_ptx_operations().decode().splitlines()):
        name, result, *operands = line.split(" ")
        assert name not in operations_, name
        operations_[name] = Operation(
            index, result[0], int(result[1:]), tuple(int(operand[1:]) for operand in operands)
        )
    return operations_


# ---------------------------------------------------------------- as in core/program.h

LANES, BRANCH, TABLE, END, TRAP, BARRIER, LOAD, STORE, ATOMIC, COPY, COMMIT, WAIT, NOTHING, HERE_NOW = range(
    14
)
SHUFFLE, VOTE, REDUCE, MATCH, MEET = range(14, 19)
GENERIC, GLOBAL, SHARED, LOCAL, PARAMETERS, CONSTANT = range(6)
ALWAYS, SAME, NOWHERE = -1, -2, -1

STEP = [
    *((name, "i4") for name in ("kind", "operation", "instruction", "next", "guard")),
    *((name, "i4") for name in ("outs_at", "outs", "ins_at", "ins")),
    *((name, "i4") for name in ("space", "bytes", "is_signed", "constant", "target")),
    ("offset", "i8"),
]
OPERAND = [
    ("offset", "i8"),
    ("tracked", "i4"),
    *((name, "u1") for name in ("bytes", "constant", "negated", "is_signed")),
]
CONSTANTS = [("value", "u8"), ("bytes", "i8")]
SPECIALS = [("which", "i4"), ("unused", "i4"), ("offset", "i8")]
BUFFER = [("begin", "u8"), ("end", "u8"), ("written", "u1"), ("assumed_constant", "u1"), ("unused", "V6")]


class Program(ctypes.Structure):
    """A kernel."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("steps", "operands", "lists", "constants", "specials")),
        *((f"number_of_{name}", ctypes.c_int64) for name in ("steps", "operands", "constants", "specials")),
        *(
            (name, ctypes.c_int64)
            for name in ("register_bytes", "tracked", "granule", "local_bytes", "parameter_bytes")
        ),
        ("executed", ctypes.c_void_p),
    ]


class Launch(ctypes.Structure):
    """Arguments of a launch other than the kernel."""

    _fields_ = [
        ("grid", ctypes.c_int32 * 3),
        ("block", ctypes.c_int32 * 3),
        ("shared_bytes", ctypes.c_int64),
        ("number_of_buffers", ctypes.c_int64),
        ("buffers", ctypes.c_void_p),
        ("parameters", ctypes.c_char_p),
    ]


class Failure(ctypes.Structure):
    """Description of an error."""

    _fields_ = [
        ("kind", ctypes.c_int32),
        ("instruction", ctypes.c_int32),
        ("block", ctypes.c_int64),
        ("thread", ctypes.c_int64),
        ("address", ctypes.c_uint64),
        ("size", ctypes.c_int64),
        ("buffer", ctypes.c_int64),
        ("message", ctypes.c_char * 160),
    ]
