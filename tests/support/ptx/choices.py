"""Comparison and selection in forms that are several operations: setp with a logic operation, set, slct."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.ptx import core, parse
from tests.support.ptx.decode import Code

LOGIC = ("and", "or", "xor")


def set_predicate(code: Code) -> None:
    """Decode `setp` of two results, or combined with a third operand."""
    combined = code.take(*LOGIC)
    comparison = code.operation(f"setp.{'.'.join(code.modifiers)}")
    operand = code.operands[0]
    pair = (operand.first, operand.second) if isinstance(operand, parse.Pair) else (operand,)
    if len(code.operands) != (4 if combined else 3):
        raise code.unknown(f"{len(code.operands)} operands")
    ins = [code.source(i, width) for i, width in enumerate(comparison.operands, 1)]
    other = [code.source(3, 1)] if combined else []
    targets = [code.target(each, 1) for each in pair]
    said = code.temporary(1)
    code.step(core.LANES, (said,), ins, comparison.index)
    results = [said]
    if len(pair) == 2:
        results.append(code.temporary(1))
        code.lanes("not.pred", results[1], (said,))
    if other and len(pair) == 2:  # a target may be what the second result needs
        kept = code.temporary(1)
        code.lanes("mov.pred", kept, other)
        other = [kept]
    for target, result in zip(targets, results, strict=True):
        code.lanes(f"{combined}.pred" if combined else "mov.pred", target, (result, *other))


def set_(code: Code) -> None:
    """Decode `set`."""
    if len(code.modifiers) != 3 or code.modifiers[1] not in ("u32", "s32", "f32"):
        raise code.unknown()
    name, to, from_ = code.modifiers
    comparison = code.operation(f"setp.{name}.{from_}")
    if len(code.operands) != 3:
        raise code.unknown(f"{len(code.operands)} operands")
    ins = [code.source(i, width) for i, width in enumerate(comparison.operands, 1)]
    said = code.temporary(1)
    code.step(core.LANES, (said,), ins, comparison.index)
    true = code.constant(0x3F800000 if to == "f32" else 0xFFFFFFFF, 32)
    code.lanes("selp.b32", code.target(0, 32), (true, code.constant(0, 32), said))


def select_by_sign(code: Code) -> None:
    """Decode `slct`."""
    if len(code.modifiers) != 2 or code.modifiers[1] not in ("s32", "f32") or len(code.operands) != 4:
        raise code.unknown()
    type_, by = code.modifiers
    selection = code.operation(f"selp.{type_}")
    sources = [code.source(i, selection.bits) for i in (1, 2)]
    said = code.temporary(1)
    code.lanes(f"setp.ge.{by}", said, (code.source(3, 32), code.constant(0, 32)))
    code.step(
        core.LANES,
        (code.target(0, selection.bits, selection.kind),),
        (*sources, said),
        selection.index,
    )


OPERATIONS: dict[str, Callable[[Code], None]] = {"setp": set_predicate, "set": set_, "slct": select_by_sign}
