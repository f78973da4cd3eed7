"""Time scheme `waterfall` on one thread: ours, NumPy's shuffle, and the Waterfall package if it is there.

    python -m benchmarks.speed.bench_waterfall -o benchmarks/results/waterfall.json

Scoring costs what its distinct contexts cost: the ids are random, so that nearly all contexts are distinct,
the worst case. One key. Embedding is one row's perturbation [V] per call.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.speed import peers
from benchmarks.speed.suite import Contestant, Suite, main
from benchmarks.timing import select_isa, timed
from iet import kernels
from iet.errors import IetError
from iet.marks.foreign import waterfall
from iet.marks.foreign.waterfall import WaterfallKeys
from iet.native import foreign

FLOOR, PEER = "NumPy, a shuffle per context", "Waterfall package"


def packages_ranks(ids: list[int], permute: Any) -> list[int]:
    """Return the ranks of a text as the package's verification finds them: a shuffle per distinct context."""
    after: dict[tuple[int], set[int]] = {}
    for context, token in itertools.pairwise(ids):
        after.setdefault((context,), set()).add(token)
    found = {
        context: permute.get_unshuffled_indices([42], (context, tuple(tokens)))
        for context, tokens in after.items()
    }
    return [int(found[(context,)][token][0]) for context, token in itertools.pairwise(ids)]


def scores_suite(tokens: int, theirs: int, vocab_size: int, rounds: int) -> Suite:
    """Score with every instruction set; NumPy and the package, which are slow, read the first ids alone."""
    ids = np.random.default_rng(0).integers(0, vocab_size, tokens)
    few, keys = ids[:theirs], WaterfallKeys({"a": 42}, vocab_size=vocab_size)
    floor = functools.partial(foreign.waterfall_scores, few, 2, keys=keys.keys, k_p=1, vocab_size=vocab_size)
    score = functools.partial(kernels.score_tokens, registry=keys, num_threads=1)
    note = f"the first {theirs} ids, scaled"
    contestants = {
        isa: Contestant(
            timed(functools.partial(score, ids), functools.partial(select_isa, isa)), "ours", tokens
        )
        for isa in timing.isas()
    }
    contestants[FLOOR] = Contestant(timed(floor), "floor", theirs, note)
    why, permute = peers.missing("Waterfall"), None
    if why is None:
        from waterfall.permute import Permute

        permute = Permute(vocab_size)
        packages = functools.partial(packages_ranks, few.tolist(), permute)
        contestants[PEER] = Contestant(timed(packages), "peer", theirs, note)

    def validate() -> None:
        expected = floor()
        for isa in timing.isas():
            select_isa(isa)
            if not np.array_equal(score(few), expected):
                raise IetError(f"score_tokens differs from the reference on {isa}")
        phi = foreign.waterfall_phi(vocab_size, 1)
        if permute and not np.array_equal(phi[packages_ranks(few.tolist(), permute)], expected[1:, 0]):
            raise IetError("the reference differs from the Waterfall package")

    name = f"scores, T = {tokens} ({len(np.unique(ids[:-1]))} distinct contexts), V = {vocab_size}"
    skipped = {} if why is None else {PEER: why}
    return Suite(name, "ns per token·key", contestants, (FLOOR,), validate, rounds, skipped)


def permutation_suite(vocab_size: int, rounds: int) -> Suite:
    """Permute V, as a marked row needs it, behind a new context in every call."""
    contexts = itertools.cycle(range(vocab_size))

    def new_context(isa: str) -> tuple[Any, ...]:
        select_isa(isa)
        return 42, [next(contexts)], vocab_size

    contestants = {
        isa: Contestant(timed(waterfall.waterfall_permutation, functools.partial(new_context, isa)), "ours")
        for isa in timing.isas()
    }
    floor = timed(foreign.waterfall_permutation, lambda: (42, (next(contexts),), vocab_size))
    contestants["NumPy"] = Contestant(floor, "floor")

    def validate() -> None:
        expected = foreign.waterfall_permutation(42, (7,), vocab_size)
        for isa in timing.isas():
            select_isa(isa)
            if not np.array_equal(waterfall.waterfall_permutation(42, [7], vocab_size), expected):
                raise IetError(f"waterfall_permutation differs from the reference on {isa}")

    return Suite(f"permutation, V = {vocab_size}", "µs", contestants, ("NumPy",), validate, rounds)


def suites(quick: bool) -> list[Suite]:
    tokens, few, sizes, rounds = (60, 30, (257,), 2) if quick else (2000, 300, (32000, 128256), 5)
    scores = [scores_suite(tokens, few, vocab_size, rounds) for vocab_size in sizes]
    return scores + [permutation_suite(vocab_size, 10 * rounds) for vocab_size in sizes]


def bench_waterfall(replay: Callable[[], None]) -> None:
    replay()


if __name__ == "__main__":
    main("benchmarks.speed.bench_waterfall", __doc__, suites, ("waterfall",))
