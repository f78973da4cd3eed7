"""What the threads of a warp do together: votes, exchanges, reductions.

Each function gets whole groups of threads: those of a warp that an instruction's mask names have all arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.ptx import parse
from tests.support.ptx.decode import Array, Code, Execute, Source, dtype
from tests.support.ptx.faults import Divergence

if TYPE_CHECKING:
    from tests.support.ptx.machine import Machine

WARP = 32
Together = tuple[Source, Execute]  # the mask of those who take part, and what they do


class Group:
    """The threads at hand, by warp and mask."""

    def __init__(self, machine: Machine, lanes: Array, mask: Array) -> None:
        key = machine.warp[lanes].astype(np.int64) << 32 | mask
        self.keys, self.of = np.unique(key, return_inverse=True)
        self.lane = machine.thread[lanes] % WARP

    def each(self, function: Any, values: Array, start: Any) -> Array:
        """Return ufunc `function` over the values of each group, for each of its threads."""
        result = np.full(len(self.keys), start, values.dtype)
        function.at(result, self.of, values)
        return result[self.of]

    def bits(self, chosen: Array) -> Array:
        """Return the lanes of the group that are chosen, a bit each."""
        one = np.where(chosen, np.uint32(1) << self.lane.astype(np.uint32), np.uint32(0))
        return self.each(np.bitwise_or, one, 0)


def _spread(value: Array, lanes: Array) -> Array:
    return np.repeat(value, len(lanes)) if len(value) < len(lanes) else value


def _with_mask(code: Code, mask: int, work: Callable[[Machine, Array, Group], None]) -> Together:
    read = code.source(mask, "b32")

    def execute(machine: Machine, lanes: Any) -> None:
        work(machine, lanes, Group(machine, lanes, _spread(read(machine, lanes), lanes)))

    return read, execute


def shuffle(code: Code) -> Together:
    """Return what `shfl.sync` does."""
    mode = code.take("up", "down", "bfly", "idx")
    if code.take("sync") is None or mode is None or code.take_type() != "b32":
        raise code.unknown()
    operand = code.operands[0]
    value, predicate = (operand.first, operand.second) if isinstance(operand, parse.Pair) else (operand, None)
    write = code.target(value, "b32")
    tell = code.target(predicate, "pred") if predicate else None
    sources = [code.source(i, "b32") for i in (1, 2, 3)]

    def work(machine: Machine, lanes: Array, group: Group) -> None:
        mine, by, limits = (_spread(source(machine, lanes), lanes).astype(np.int64) for source in sources)
        lane = group.lane.astype(np.int64)
        by, clamp, segment = by & 31, limits & 31, limits >> 8 & 31
        last = lane & segment | clamp & ~segment
        from_ = {
            "up": lane - by,
            "down": lane + by,
            "bfly": lane ^ by,
            "idx": lane & segment | by & ~segment,
        }[mode or ""]
        inside = from_ >= last if mode == "up" else from_ <= last
        from_ = np.where(inside, from_, lane)
        table = np.full((len(group.keys), WARP), -1, np.int64)
        table[group.of, lane] = mine
        got = table[group.of, from_]
        if (got < 0).any():
            raise Divergence("reads from a lane that takes no part", int(np.argmax(got < 0)))
        write(machine, lanes, got.astype(np.uint32))
        if tell is not None:
            tell(machine, lanes, inside)

    return _with_mask(code, 4, work)


def vote(code: Code) -> Together:
    """Return what `vote.sync` does."""
    mode = code.take("all", "any", "uni", "ballot")
    if (
        code.take("sync") is None
        or mode is None
        or code.take_type() != ("b32" if mode == "ballot" else "pred")
    ):
        raise code.unknown()
    write, source = code.target(0, "b32" if mode == "ballot" else "pred"), code.source(1, "pred")

    def work(machine: Machine, lanes: Array, group: Group) -> None:
        said = _spread(source(machine, lanes), lanes)
        if mode == "ballot":
            write(machine, lanes, group.bits(said))
            return
        every, some = group.each(np.logical_and, said, True), group.each(np.logical_or, said, False)
        write(machine, lanes, {"all": every, "any": some, "uni": every | ~some}[mode or ""])

    return _with_mask(code, 2, work)


_REDUCTIONS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "add": (np.add, lambda info: 0),
    "min": (np.minimum, lambda info: info.max),
    "max": (np.maximum, lambda info: info.min),
    "and": (np.bitwise_and, lambda info: info.max),
    "or": (np.bitwise_or, lambda info: 0),
    "xor": (np.bitwise_xor, lambda info: 0),
}


def reduce(code: Code) -> Together:
    """Return what `redux.sync` does."""
    name = code.take(*_REDUCTIONS)
    if code.take("sync") is None or name is None:
        raise code.unknown()
    type_ = code.take_type()
    function, start = _REDUCTIONS[name]
    write, source = code.target(0, type_), code.source(1, type_)
    first = start(np.iinfo(dtype(type_)))

    def work(machine: Machine, lanes: Array, group: Group) -> None:
        write(machine, lanes, group.each(function, _spread(source(machine, lanes), lanes), first))

    return _with_mask(code, 2, work)


def match(code: Code) -> Together:
    """Return what `match.any.sync` does."""
    if code.take("any") is None or code.take("sync") is None:
        raise code.unknown()
    type_ = code.take_type()
    write, source = code.target(0, "b32"), code.source(1, type_)

    def work(machine: Machine, lanes: Array, group: Group) -> None:
        values = _spread(source(machine, lanes), lanes)
        result = np.zeros(len(lanes), np.uint32)
        for value in np.unique(values):
            result |= np.where(values == value, group.bits(values == value), np.uint32(0))
        write(machine, lanes, result)

    return _with_mask(code, 2, work)


def meet(code: Code) -> Together:
    """Return what `bar.warp.sync` does: what its threads wrote to shared memory is there for them."""

    def work(machine: Machine, lanes: Array, group: Group) -> None:
        whole = group.bits(np.ones(len(lanes), bool)) == machine.present(machine.warp[lanes])
        warps = np.unique(machine.warp[lanes[whole]])
        machine.shared.meet_warps(warps // machine.warps, warps % machine.warps)

    return _with_mask(code, 0, work)


def active(code: Code) -> Execute:
    """Return what `activemask` does: those who are here. A device may say that fewer are."""
    if code.take_type() != "b32":
        raise code.unknown()
    write = code.target(0, "b32")

    def execute(machine: Machine, lanes: Any) -> None:
        indices = machine.indices(lanes)
        group = Group(machine, indices, np.zeros(len(indices), np.int64))
        write(machine, lanes, group.bits(np.ones(len(indices), bool)))

    return execute


TOGETHER: dict[str, Callable[[Code], Together]] = {
    "shfl": shuffle,
    "vote": vote,
    "redux": reduce,
    "match": match,
}
OPERATIONS: dict[str, Callable[[Code], Execute]] = {"activemask": active}
