"""Moves between registers and memory: ld, st, atom, red, cp.async, and what addresses are made of."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.ptx import core, parse
from tests.support.ptx.decode import WIDTHS, Code
from tests.support.ptx.memory import LOCAL_WINDOW, SHARED_WINDOW

SPACES = {
    "global": core.GLOBAL,
    "shared": core.SHARED,
    "local": core.LOCAL,
    "param": core.PARAMETERS,
    "const": core.CONSTANT,
}
# Who may see an access when, and what a cache may do with it: in order, and to the same bytes, all are alike.
HINTS = (
    *("weak", "volatile", "relaxed", "acquire", "release", "cta", "gpu", "sys", "unified"),
    *("ca", "cg", "cs", "lu", "cv", "wb", "wt"),
)
WIDEST = 32  # bytes of an access


def _space(code: Code) -> int:
    for hint in list(code.modifiers):
        if hint in HINTS or hint.startswith(("L1::", "L2::128B", "L2::64B", "L2::256B", "L2::evict")):
            code.modifiers.remove(hint)
    return SPACES.get(code.take(*SPACES) or "", core.GENERIC)


def _count(code: Code) -> int:
    return int((code.take("v2", "v4", "v8") or "v1")[1:])


def _parts(code: Code, number: int, count: int) -> list[parse.Operand]:
    operand = code.operands[number]
    if count == 1:
        return [operand]
    if not isinstance(operand, parse.Vector) or len(operand.parts) != count:
        raise code.unknown(f"no vector of {count}")
    return list(operand.parts)


def _width(code: Code, type_: str, count: int) -> int:
    width = parse.bits(type_)
    if width not in WIDTHS or width // 8 * count > WIDEST:
        raise code.unknown(f"{count} of {type_}")
    return width


def load(code: Code) -> None:
    """Decode `ld`: a float has its own width, an integer is extended to that of the register."""
    space, constant, count = _space(code), code.take("nc") is not None, _count(code)
    type_ = code.take_type()
    width = _width(code, type_, count)
    base, offset = code.address(1)
    kind = type_[0] if type_[0] in "su" else "b"
    targets = [code.target(part, width, kind) for part in _parts(code, 0, count)]
    code.step(core.LOAD, targets, (base,), space=space, bytes=width // 8, constant=constant, offset=offset)


def store(code: Code) -> None:
    """Decode `st`."""
    space, count = _space(code), _count(code)
    type_ = code.take_type()
    width = _width(code, type_, count)
    if space in (core.PARAMETERS, core.CONSTANT):
        raise code.unknown("writes to what is constant")
    sources = [code.source(part, width) for part in _parts(code, 1, count)]
    base, offset = code.address(0)
    code.step(core.STORE, (), (base, *sources), space=space, bytes=width // 8, offset=offset)


def convert_address(code: Code) -> None:
    """Decode `cvta`: generic addresses of shared and local memory lie in windows of their own."""
    to, space = code.take("to"), code.take(*SPACES)
    type_ = code.take_type()
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space or "", 0)
    if len(code.operands) != 2 or type_ not in ("u32", "u64") or (type_ != "u64" and window):
        raise code.unknown()
    width = parse.bits(type_)
    address = code.source(1, width)
    by = code.constant(window, width)
    code.lanes(f"{'sub' if to else 'add'}.{type_}", code.target(0, width), (address, by))


ATOMIC = ("add", "min", "max", "and", "or", "xor", "exch", "cas")  # as the core numbers them


def _atomic(returns: bool) -> Callable[[Code], None]:
    def decode(code: Code) -> None:
        space = _space(code)
        operation = code.take(*ATOMIC)
        type_ = code.take_type()
        width = parse.bits(type_)
        if operation is None or type_ not in ("u32", "s32", "b32", "u64", "s64", "b64"):
            raise code.unknown()
        if space not in (core.GENERIC, core.GLOBAL, core.SHARED):
            raise code.unknown("an atomic operation there")
        first = 1 if returns else 0
        operands = [code.source(i, width) for i in range(first + 1, len(code.operands))]
        if len(operands) != (2 if operation == "cas" else 1):
            raise code.unknown(f"{len(code.operands)} operands")
        base, offset = code.address(first)
        code.step(
            core.ATOMIC,
            [code.target(0, width)] if returns else [],
            (base, *operands),
            ATOMIC.index(operation),
            space=space,
            bytes=width // 8,
            signed=type_[0] == "s",
            offset=offset,
        )

    return decode


def copy(code: Code) -> None:
    """Decode `cp.async` and its waits. A copy arrives when it is waited for: as late as it may."""
    if code.take("async") is None:
        raise code.unknown()
    if code.take("commit_group"):
        code.step(core.COMMIT)
    elif code.take("wait_all"):
        code.step(core.WAIT, operation=-1)
    elif code.take("wait_group"):
        (operand,) = code.operands
        assert isinstance(operand, parse.Immediate)
        code.step(core.WAIT, operation=operand.value)
    else:
        _copy(code)


def _copy(code: Code) -> None:
    if code.take("ca", "cg") is None or code.take("shared") is None or code.take("global") is None:
        raise code.unknown()
    for hint in list(code.modifiers):
        if hint.startswith("L2::") and hint.endswith("B"):
            code.modifiers.remove(hint)
    code.finish()
    size = code.operands[2]
    if not isinstance(size, parse.Immediate) or size.value not in (4, 8, 16) or len(code.operands) > 4:
        raise code.unknown()
    (to, to_offset), (from_, from_offset) = code.address(0), code.address(1)
    if from_offset:
        at = code.temporary(64)
        code.lanes("add.u64", at, (from_, code.constant(from_offset, 64)))
        from_ = at
    source_size = [code.source(3, 32)] if len(code.operands) == 4 else []
    code.step(core.COPY, (), (to, from_, *source_size), bytes=size.value, offset=to_offset)


def nothing(code: Code) -> None:
    """Decode what is about order and speed: one thread's accesses happen in order here."""
    code.step(core.NOTHING)


OPERATIONS: dict[str, Callable[[Code], None]] = {
    "ld": load,
    "ldu": load,
    "st": store,
    "cvta": convert_address,
    "atom": _atomic(returns=True),
    "red": _atomic(returns=False),
    "cp": copy,
    **dict.fromkeys(("membar", "fence", "prefetch", "prefetchu", "nanosleep", "griddepcontrol"), nothing),
}
