"""Moves between registers and memory: mov, ld, st, atom, red, cp.async."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.ptx import parse
from tests.support.ptx.decode import Array, Code, Execute, Lanes, Target, dtype
from tests.support.ptx.memory import LOCAL_WINDOW, SHARED_WINDOW, UNSIGNED

SPACES = ("global", "shared", "local", "param", "const")
# Who may see an access when, and what a cache may do with it: in order, and to the same bytes, all are alike.
HINTS = (
    *("weak", "volatile", "relaxed", "acquire", "release", "cta", "gpu", "sys", "unified"),
    *("ca", "cg", "cs", "lu", "cv", "wb", "wt"),
)


def _space(code: Code) -> str:
    for hint in list(code.modifiers):
        if hint in HINTS or hint.startswith(("L1::", "L2::128B", "L2::64B", "L2::256B", "L2::evict")):
            code.modifiers.remove(hint)
    return code.take(*SPACES) or "generic"


def _count(code: Code) -> int:
    return int((code.take("v2", "v4", "v8") or "v1")[1:])


def _parts(code: Code, number: int, count: int) -> list[parse.Operand]:
    operand = code.operands[number]
    if count == 1:
        return [operand]
    if not isinstance(operand, parse.Vector) or len(operand.parts) != count:
        raise code.unknown(f"no vector of {count}")
    return list(operand.parts)


def _bits(type_: str) -> str:
    """What is loaded of a type, before it is extended."""
    return f"u{parse.bits(type_)}"


def load(code: Code) -> Execute:
    """Return what `ld` does."""
    space, constant, count = _space(code), code.take("nc") is not None, _count(code)
    type_ = code.take_type()
    address = code.address(1)
    as_ = dtype(_bits(type_))
    # A float has its own width; an integer is extended to that of the register.
    out = type_ if type_[0] in "su" else f"b{parse.bits(type_)}"
    signed = dtype(out)
    targets = [code.target(part, out) for part in _parts(code, 0, count)]

    def execute(machine: Any, lanes: Lanes) -> None:
        values = machine.load(space, lanes, address(machine, lanes), as_, count, constant)
        if count == 1:
            targets[0](machine, lanes, values.view(signed))
        else:
            for i, write in enumerate(targets):
                write(machine, lanes, np.ascontiguousarray(values[:, i]).view(signed))

    return execute


def store(code: Code) -> Execute:
    """Return what `st` does."""
    space, count = _space(code), _count(code)
    type_ = code.take_type()
    address = code.address(0)
    sources = [code.source(part, _bits(type_)) for part in _parts(code, 1, count)]

    def execute(machine: Any, lanes: Lanes) -> None:
        values = [source(machine, lanes) for source in sources]
        if count == 1:
            (data,) = values
        else:
            length = max(len(value) for value in values)
            data = np.empty((length, count), values[0].dtype)
            for i, value in enumerate(values):
                data[:, i] = value
        machine.store(space, lanes, address(machine, lanes), data)

    return execute


def move(code: Code) -> Execute:
    """Return what `mov` does; of vectors it packs and unpacks."""
    type_ = code.take_type()
    return code.pure(type_, (type_,), lambda value: value)


def convert_address(code: Code) -> Execute:
    """Return what `cvta` does: generic addresses of shared and local memory lie in windows of their own."""
    to, space = code.take("to"), code.take(*SPACES)
    type_ = code.take_type()
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space or "", 0)
    if type_ != "u64" and window:
        raise code.unknown()
    by = np.uint64(window)
    return code.pure(type_, (type_,), (lambda x: x - by) if to else (lambda x: x + by))


_ATOMIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, new: old + new,
    "min": min,
    "max": max,
    "and": lambda old, new: old & new,
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
    "exch": lambda old, new: new,
}

_AT_ONCE = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}


def _atomic(returns: bool) -> Callable[[Code], Execute]:
    def build(code: Code) -> Execute:
        space = _space(code)
        operation = code.take(*_ATOMIC, "cas")
        type_ = code.take_type()
        if operation is None or type_[0] not in "usb" or parse.bits(type_) < 32 or type_.startswith("bf"):
            raise code.unknown()
        first = 1 if returns else 0
        address = code.address(first)
        operands = [code.source(i, type_) for i in range(first + 1, len(code.operands))]
        if len(operands) != (2 if operation == "cas" else 1):
            raise code.unknown(f"{len(code.operands)} operands")
        write: Target = code.target(0, type_) if returns else lambda machine, lanes, value: None
        as_ = dtype(type_)
        wanted = returns and any(code.kernel.uses[each] > 1 for each in parse.registers(code.operands[0]))

        def execute(machine: Any, lanes: Lanes) -> None:
            count = machine.count(lanes)
            where = _spread(address(machine, lanes), count)
            if space == "global" and operation in _AT_ONCE and not wanted:
                machine.memory.update(where, _spread(operands[0](machine, lanes), count), _AT_ONCE[operation])
                return
            values = [_spread(operand(machine, lanes), count) for operand in operands]
            before = np.empty(count, as_)
            # One thread after another, in the order of their numbers: any order is allowed.
            for i in range(count):
                one = machine.one(lanes, i)
                old = machine.load(
                    space, one, where[i : i + 1], UNSIGNED[8 * before.itemsize], 1, atomic=True
                )
                before[i : i + 1] = old.view(as_)
                if operation == "cas":
                    new = values[1][i : i + 1] if before[i] == values[0][i] else before[i : i + 1]
                else:
                    result = _ATOMIC[operation](int(before[i]), int(values[0][i]))
                    new = np.array([result % (1 << 8 * before.itemsize)], old.dtype)
                machine.store(space, one, where[i : i + 1], new.view(old.dtype), atomic=True)
            write(machine, lanes, before)

        return execute

    return build


def _spread(value: Array, count: int) -> Array:
    return np.repeat(value, count) if len(value) < count else value


def copy(code: Code) -> Execute:
    """Return what `cp.async` and its waits do. A copy arrives when it is waited for: as late as it may."""
    if code.take("async") is None:
        raise code.unknown()
    if code.take("commit_group"):
        return lambda machine, lanes: machine.copies.commit(machine.indices(lanes))
    if code.take("wait_all"):
        return lambda machine, lanes: machine.copies.wait(machine, machine.indices(lanes), None)
    if code.take("wait_group"):
        (operand,) = code.operands
        assert isinstance(operand, parse.Immediate)
        pending = operand.value
        return lambda machine, lanes: machine.copies.wait(machine, machine.indices(lanes), pending)
    return _copy(code)


def _copy(code: Code) -> Execute:
    if code.take("ca", "cg") is None or code.take("shared") is None or code.take("global") is None:
        raise code.unknown()
    for hint in list(code.modifiers):
        if hint.startswith("L2::") and hint.endswith("B"):
            code.modifiers.remove(hint)
    code.finish()
    to, from_, size = code.address(0), code.address(1), code.operands[2]
    if not isinstance(size, parse.Immediate) or size.value not in (4, 8, 16) or len(code.operands) > 4:
        raise code.unknown()
    source_size = code.source(3, "u32") if len(code.operands) == 4 else None

    def execute(machine: Any, lanes: Lanes) -> None:
        count = machine.count(lanes)
        where = _spread(to(machine, lanes), count)
        whole = size.value // 4
        if source_size is not None:
            sizes = source_size(machine, lanes)
            if ((sizes != 0) & (sizes != size.value)).any():
                raise code.unknown("part of a copy")
            taken = np.flatnonzero(_spread(sizes, count))
        else:
            taken = np.arange(count)
        data = np.zeros((count, whole), np.uint32)
        if len(taken):
            places = _spread(from_(machine, lanes), count)[taken]
            active = machine.indices(lanes)[taken]
            data[taken] = machine.load("global", active, places, np.uint32, whole).reshape(-1, whole)
        machine.copies.start(machine, machine.indices(lanes), where, data)

    return execute


def nothing(code: Code) -> Execute:
    """Order and speed: one thread's accesses happen in order here."""
    return lambda machine, lanes: None


OPERATIONS: dict[str, Callable[[Code], Execute]] = {
    "mov": move,
    "ld": load,
    "ldu": load,
    "st": store,
    "cvta": convert_address,
    "atom": _atomic(returns=True),
    "red": _atomic(returns=False),
    "cp": copy,
    **dict.fromkeys(("membar", "fence", "prefetch", "prefetchu", "nanosleep", "griddepcontrol"), nothing),
}
