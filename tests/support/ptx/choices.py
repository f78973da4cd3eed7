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
    predicate = [code.source(3, 1)] if combined else []
    targets = [code.target(name, 1) for name in pair]
    predicate_value = code.temporary(1)
    code.step(core.LANES, (predicate_value,), ins, comparison.index)
    results = [predicate_value]
    if len(pair) == 2:
        results.append(code.temporary(1))
        code.lanes("not.pred", results[1], (predicate_value,))
    if predicate and len(pair) == 2:  # a target may be what the second result needs
        copy = code.temporary(1)
        code.lanes("mov.pred", copy, predicate)
        predicate = [copy]
    for target, result in zip(targets, results, strict=True):
        code.lanes(f"{combined}.pred" if combined else "mov.pred", target, (result, *predicate))


def set_(code: Code) -> None:
    """Decode `set`."""
    if len(code.modifiers) != 3 or code.modifiers[1] not in ("u32", "s32", "f32"):
        raise code.unknown()
    name, to, from_ = code.modifiers
    comparison = code.operation(f"setp.{name}.{from_}")
    if len(code.operands) != 3:
        raise code.unknown(f"{len(code.operands)} operands")
    ins = [code.source(i, width) for i, width in enumerate(comparison.operands, 1)]
    predicate_value = code.temporary(1)
    code.step(core.LANES, (predicate_value,), ins, comparison.index)
    true = code.constant(0x3F800000 if to == "f32" else 0xFFFFFFFF, 32)
    code.lanes("selp.b32", code.target(0, 32), (true, code.constant(0, 32), predicate_value))


def select_by_sign(code: Code) -> None:
    """Decode `slct`."""
    if len(code.modifiers) != 2 or code.modifiers[1] not in ("s32", "f32") or len(code.operands) != 4:
        raise code.unknown()
    type_, by = code.modifiers
    selection = code.operation(f"selp.{type_}")
    sources = [code.source(i, selection.bits) for i in (1, 2)]
    comparison = code.temporary(1)
    code.lanes(f"setp.ge.{by}", comparison, (code.source(3, 32), code.constant(0, 32)))
    code.step(
        core.LANES,
        (code.target(0, selection.bits, selection.kind),),
        (*sources, comparison),
        selection.index,
    )


OPERATIONS: dict[str, Callable[[Code], None]] = {"setp": set_predicate, "set": set_, "slct": select_by_sign}
