"""Operations of a warp: votes, exchanges, reductions. The last operand is the mask of its threads."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.ptx import core, parse
from tests.support.ptx.decode import Code

# As the core numbers them.
SHUFFLES = ("up", "down", "bfly", "idx")
VOTES = ("all", "any", "uni", "ballot")
REDUCTIONS = ("add", "min", "max", "and", "or", "xor")


def _synchronous(code: Code, operands: int) -> None:
    if code.take("sync") is None:
        raise code.unknown()
    if len(code.operands) != operands:
        raise code.unknown(f"{len(code.operands)} operands")


def shuffle(code: Code) -> None:
    """Decode `shfl.sync`."""
    mode = code.take(*SHUFFLES)
    _synchronous(code, 5)
    if mode is None or code.take_type() != "b32":
        raise code.unknown()
    operand = code.operands[0]
    pair = isinstance(operand, parse.Pair)
    targets = [code.target(operand.first if pair else operand, 32)]
    if pair:
        targets.append(code.target(operand.second, 1))
    ins = [code.source(i, 32) for i in (1, 2, 3, 4)]
    code.step(core.SHUFFLE, targets, ins, SHUFFLES.index(mode))


def vote(code: Code) -> None:
    """Decode `vote.sync`."""
    mode = code.take(*VOTES)
    _synchronous(code, 3)
    if mode is None or code.take_type() != ("b32" if mode == "ballot" else "pred"):
        raise code.unknown()
    target = code.target(0, 32 if mode == "ballot" else 1)
    ins = code.source(1, 1), code.source(2, 32)
    code.step(core.VOTE, (target,), ins, VOTES.index(mode), bytes=4 if mode == "ballot" else 1)


def reduce(code: Code) -> None:
    """Decode `redux.sync`."""
    name = code.take(*REDUCTIONS)
    _synchronous(code, 3)
    type_ = code.take_type()
    if name is None or type_ not in ("u32", "s32", "b32"):
        raise code.unknown()
    ins = code.source(1, 32), code.source(2, 32)
    code.step(core.REDUCE, (code.target(0, 32),), ins, REDUCTIONS.index(name), signed=type_ == "s32")


def match(code: Code) -> None:
    """Decode `match.any.sync`."""
    any_ = code.take("any")
    _synchronous(code, 3)
    type_ = code.take_type()
    if any_ is None or type_ not in ("b32", "b64"):
        raise code.unknown()
    ins = code.source(1, parse.bits(type_)), code.source(2, 32)
    code.step(core.MATCH, (code.target(0, 32),), ins)


def meet(code: Code) -> None:
    """Decode `bar.warp.sync`: what its threads wrote to shared memory is there for them."""
    _synchronous(code, 1)
    code.finish()
    code.step(core.MEET, (), (code.source(0, 32),))


def active(code: Code) -> None:
    """Decode `activemask`: those who are here. A device may say that fewer are."""
    if code.take_type() != "b32":
        raise code.unknown()
    code.step(core.HERE_NOW, (code.target(0, 32),))


OPERATIONS: dict[str, Callable[[Code], None]] = {
    "shfl": shuffle,
    "vote": vote,
    "redux": reduce,
    "match": match,
    "activemask": active,
}
