"""Statistical tests of the noise of family gumbel against independent uniform numbers.

Gumbel-max sampling is exact if the u of a row are independent: so they are counted in cells, alone, in pairs
and in threes, in the upper tail, which holds the chosen token, as sums of scores, and as the winning token.
The noise is an argument of every measure, so that the tests can be tested with a bad one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from benchmarks import statistics
from iet.native import reference

LEVEL = 1e-3
CHUNK = 1 << 18
VOCAB_SIZE = 128256
BITS = 24  # of a numerator: u·2^24, an odd number
# Neighbours, powers of two, Fibonacci numbers and further distances that hardly change v·0x9E3779B1.
DISTANCES = (1, 2, 3, 16, 64, 256, 1024, 32768, 65536, 75025, 10946, 50549, 101098)
SET_SIZE = 64
SUM_CELLS = 256

Ids = NDArray[np.integer[Any]]
Seeds = NDArray[np.uint64]

Numerators = NDArray[np.uint32]
Noise = Callable[[Ids, Seeds], Numerators]
Draw = Callable[[int], Numerators]


@dataclasses.dataclass(frozen=True)
class Row:
    """One statistic with its two-sided p-value under an ideal generator."""

    measure: str
    case: str
    p: float


def failures(rows: Sequence[Row]) -> list[Row]:
    """Return the rows below `LEVEL`, corrected for the number of rows (Bonferroni)."""
    return [row for row in rows if row.p < LEVEL / len(rows)]


@dataclasses.dataclass(frozen=True)
class NoiseSetup:
    """Inputs of every measure: number of draws, a generator of ids and seeds, and the noise."""

    vocab_size: int
    draws: int
    rng: np.random.Generator
    noise: Noise = reference.uniform

    def ids(self, size: int | tuple[int, ...]) -> Ids:
        return self.rng.integers(0, self.vocab_size, size, dtype=np.uint32)

    def seeds(self, size: int) -> Seeds:
        return self.rng.integers(0, 1 << 64, size, dtype=np.uint64)

    def chunks(self) -> Iterator[int]:
        """Yield the sizes of pieces of `draws` that fit a cache."""
        for start in range(0, self.draws, CHUNK):
            yield min(CHUNK, self.draws - start)

    def normal(self, measure: str, case: str, value: float, error: float) -> Row:
        """Test a statistic that is normal around 0."""
        return Row(measure, case, statistics.p_of_normal(value, 0.0, error))

    def chi_square(self, measure: str, case: str, counts: NDArray[np.int64]) -> Row:
        """Test counts that should be equal."""
        return Row(measure, case, statistics.chi_square(counts, np.full(len(counts), 1 / len(counts)))[2])

    def counted(self, measure: str, case: str, cells: int, draw: Callable[[int], NDArray[Any]]) -> Row:
        """Return χ² of what `draw` returns, numbers below `cells` that should be equally frequent."""
        counts = np.zeros(cells, dtype=np.int64)
        for n in self.chunks():
            counts += np.bincount(draw(n), minlength=cells)
        return self.chi_square(measure, case, counts)


def scores(numerators: Numerators) -> NDArray[np.float64]:
    """Return -log(1 - u)."""
    return np.asarray(-np.log1p(numerators * -(2.0**-BITS)))


def top(numerators: Numerators, bits: int) -> NDArray[np.int64]:
    return (numerators >> np.uint32(BITS - bits)).astype(np.int64)


def low(numerators: Numerators, bits: int) -> NDArray[np.int64]:
    return (numerators >> np.uint32(1) & np.uint32((1 << bits) - 1)).astype(np.int64)


def uniformity(setup: NoiseSetup) -> list[Row]:
    """χ² of u alone: random and fixed ids, all ids of a row, contexts in order; high and low bits."""
    subkey = setup.rng.integers(0, 256, 16, dtype=np.uint8)

    def fixed(v: int, n: int) -> Numerators:
        return setup.noise(np.full(n, v, dtype=np.uint32), setup.seeds(n))

    def one_row(n: int) -> Numerators:  # 2^18 ids of one seed, then of the next
        return setup.noise(np.arange(n, dtype=np.uint32), setup.seeds(1))

    def in_order(n: int) -> Numerators:
        contexts = np.stack(np.divmod(setup.rng.integers(0, 1 << 40) + np.arange(n), 1 << 20), axis=-1)
        return setup.noise(setup.ids(n), reference.context_seed(subkey, contexts))

    cases: dict[str, Draw] = {
        "random v": lambda n: setup.noise(setup.ids(n), setup.seeds(n)),
        **{f"v = {v}": partial(fixed, v) for v in (0, 1, VOCAB_SIZE - 1, (1 << 32) - 1)},
        "v = 0, 1, 2, ...": one_row,
        "contexts in order": in_order,
    }

    def cut(draw: Draw, part: Callable[[Any, int], NDArray[np.int64]], bits: int, n: int) -> Any:
        return part(draw(n), bits)

    return [
        setup.counted("uniformity", f"{case}, {name} {bits} bits", 1 << bits, partial(cut, draw, part, bits))
        for case, draw in cases.items()
        for name, part, bits in (("high", top, 6), ("high", top, 10), ("high", top, 16), ("low", low, 10))
    ]


def joint(setup: NoiseSetup, measure: str, case: str, draw: Callable[[int], Any]) -> list[Row]:
    """χ² of pairs in the high and low bits, and of one value if the other is large; their correlation."""
    cells = {"high bits": np.zeros(1 << 12, np.int64), "low bits": np.zeros(1 << 12, np.int64)}
    cells["where the other is above 63/64"] = np.zeros(1 << 6, np.int64)
    total = np.zeros(2)
    for n in setup.chunks():
        u, second = draw(n)
        drawn = (
            top(u, 6) << 6 | top(second, 6),
            low(u, 6) << 6 | low(second, 6),
            top(second[top(u, 6) == 63], 6),
        )
        for counts, numbers in zip(cells.values(), drawn, strict=True):
            counts += np.bincount(numbers, minlength=len(counts))
        product = (scores(u) - 1) * (scores(second) - 1)  # 1 is their mean and their variance
        total += product.sum(), np.square(product).sum()
    mean, square = total / setup.draws
    error = math.sqrt((square - mean**2) / setup.draws)
    return [
        *(setup.chi_square(measure, f"{case}, {name}", counts) for name, counts in cells.items()),
        setup.normal(measure, f"{case}, correlation", mean, error),
    ]


def pairs(setup: NoiseSetup) -> list[Row]:
    """Two ids of one row."""

    def apart(distance: int, n: int) -> Any:
        ids, seeds = setup.ids(n), setup.seeds(n)
        return setup.noise(ids, seeds), setup.noise(ids + np.uint32(distance), seeds)

    return [row for d in DISTANCES for row in joint(setup, "pairs", f"{d} apart", partial(apart, d))]


def triples(setup: NoiseSetup) -> list[Row]:
    """Three ids of one row, 16 cells each."""

    def at(distances: tuple[int, int], n: int) -> NDArray[np.int64]:
        ids, seeds = setup.ids(n), setup.seeds(n)
        first, second, third = (top(setup.noise(ids + np.uint32(d), seeds), 4) for d in (0, *distances))
        return (first << 4 | second) << 4 | third

    return [
        setup.counted("triples", f"v, v+{d}, v+{e}", 1 << 12, partial(at, (d, e)))
        for d, e in ((1, 2), (1, 3), (256, 512), (17, 65536))
    ]


def contexts_and_keys(setup: NoiseSetup) -> list[Row]:
    """One id under contexts, and under sub-keys, that differ in one bit."""

    def contexts(bit: int, n: int) -> Any:
        key = setup.rng.integers(0, 256, 16, dtype=np.uint8)
        context, ids = setup.ids((n, 3)), setup.ids(n)
        second = context.copy()
        second[:, bit % 3] ^= np.uint32(1 << bit // 3)
        return tuple(setup.noise(ids, reference.context_seed(key, c)) for c in (context, second))

    def keys(bit: int, n: int) -> Any:
        subkeys = setup.rng.integers(0, 256, (n, 16), dtype=np.uint8)
        second = subkeys.copy()
        second[:, bit // 8] ^= np.uint8(1 << bit % 8)
        context, ids = setup.ids((n, 3)), setup.ids(n)
        return tuple(setup.noise(ids, reference.context_seed(key, context)) for key in (subkeys, second))

    rows = []
    for bit in (0, 1, 20, 47):
        rows += joint(setup, "contexts", f"bit {bit} of the context", partial(contexts, bit))
    for bit in (0, 63, 127):
        rows += joint(setup, "keys", f"bit {bit} of the sub-key", partial(keys, bit))
    return rows


def sums(setup: NoiseSetup) -> list[Row]:
    """χ² of the sum of 64 scores of one row against its Gamma(64) law, for sets of ids."""
    cuts = special.gammaincinv(SET_SIZE, np.arange(1, SUM_CELLS) / SUM_CELLS)
    sets = {
        "consecutive ids": np.arange(SET_SIZE, dtype=np.uint32) + np.uint32(1000),
        "256 apart": np.arange(SET_SIZE, dtype=np.uint32) * np.uint32(256),
        "65536 apart": np.arange(SET_SIZE, dtype=np.uint32) * np.uint32(65536),
        "random ids": setup.ids(SET_SIZE),
    }

    def over(ids: Ids, n: int) -> NDArray[np.int64]:
        seeds = setup.seeds(max(1, n // SET_SIZE))
        totals = scores(setup.noise(ids, seeds[:, None])).sum(axis=1)
        return np.asarray(np.searchsorted(cuts, totals), np.int64)

    return [
        setup.counted("sums", f"{SET_SIZE} scores, {case}", SUM_CELLS, partial(over, ids))
        for case, ids in sets.items()
    ]


def winners(setup: NoiseSetup) -> list[Row]:
    """χ² of the id with the largest u of a row, and of that u to the power of the row's size."""

    def rows_of(size: int, n: int) -> Numerators:
        ids = np.arange(size, dtype=np.uint32)
        return setup.noise(ids, setup.seeds(max(1, n // size))[:, None])

    def which(size: int, n: int) -> NDArray[np.int64]:
        return np.asarray(rows_of(size, n).argmax(axis=1), np.int64)

    def how_large(size: int, n: int) -> NDArray[np.int64]:
        return np.asarray(64 * (rows_of(size, n).max(axis=1) * 2.0**-BITS) ** size, np.int64)

    return [
        setup.counted("winners", f"of {size}, {case}", cells, partial(draw, size))
        for size in (16, 128, 1024)
        for case, cells, draw in (("which", size, which), (f"u^{size} in 64 cells", 64, how_large))
    ]


MEASURES: dict[str, Callable[[NoiseSetup], list[Row]]] = {
    "uniformity": uniformity,
    "pairs": pairs,
    "triples": triples,
    "contexts and keys": contexts_and_keys,
    "sums": sums,
    "winners": winners,
}
