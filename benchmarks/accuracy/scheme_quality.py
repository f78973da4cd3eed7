"""How close the keyed permutation comes to an ideal one: uniform, uncorrelated, with sums like chance.

    python -m benchmarks.accuracy.scheme_quality -o benchmarks/results/scheme_quality.json

A row is one statistic with what an ideal permutation gives. There are three kinds:

* test: judged by its p-value. It passes if p >= LEVEL / (tests in the run), so an ideal permutation fails
  one run in 1 / LEVEL. χ² is judged on both sides.
* bound: a property that is exact, or known to differ from an ideal permutation; judged by a fixed limit.
* comparison: another permutation, or seeds that SipHash never gives; not judged.

The permutation is an argument of every measure, so that the tests can be tested with a bad one.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import pathlib
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special
from tqdm import tqdm

from benchmarks.recording import environment, table, write
from iet import kernels
from iet.marks.scheme import FAMILIES
from iet.native import reference

VOCAB_SIZES = (32000, 32003, 128256, 151936)
LEVEL = 1e-3
KAPPA = 0.8
SET_SIZE = 64
ZIPF_SIZE = 256
CHUNK = 1 << 18  # draws held at a time

# What k_p near a multiple of a, or ids close together, may cost: see `pairs` and `every_frequency`.
CORRELATION_LIMIT = 0.02
SUMS_LIMIT = 0.5
SHIFT_LIMIT = 1e-4

Ids = NDArray[np.integer[Any]]
Seeds = NDArray[np.uint64]
Floats = NDArray[np.floating[Any]]
Permutation = Callable[[Ids, Seeds, int], NDArray[np.integer[Any]]]


@dataclasses.dataclass(frozen=True)
class Row:
    """One statistic: its value, what an ideal permutation gives, and a standard error, p-value or limit."""

    measure: str
    vocab_size: int
    case: str
    statistic: str
    value: float
    expected: float
    k_p: int | None = None
    error: float | None = None
    p: float | None = None
    limit: float | None = None

    @property
    def kind(self) -> str:
        return "test" if self.p is not None else "bound" if self.limit is not None else "comparison"

    def passes(self, threshold: float) -> bool:
        """Tell if the row is as it should be, given the smallest p-value that is accepted."""
        if self.p is not None:
            return self.p >= threshold
        return self.limit is None or abs(self.value - self.expected) <= self.limit


def threshold_of(rows: Sequence[Row]) -> float:
    """Return the smallest p-value that a test among `rows` may have (Bonferroni)."""
    return LEVEL / max(1, sum(row.kind == "test" for row in rows))


def failures(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are not as they should be."""
    threshold = threshold_of(rows)
    return [row for row in rows if not row.passes(threshold)]


@dataclasses.dataclass(frozen=True)
class Setup:
    """What every measure needs.

    Attributes:
        vocab_size: V, at least 8192, so that both digits have more than 64 values.
        draws: how many ranks a test draws, at least; see each measure.
        rng: where ids and seeds come from.
        permute: the permutation under test.
    """

    vocab_size: int
    draws: int
    rng: np.random.Generator
    permute: Permutation = kernels.permute

    @property
    def grid(self) -> tuple[int, int]:
        return reference.grid(self.vocab_size)

    def frequencies(self) -> dict[str, int]:
        """Return the k_p that are tested: small ones, those around multiples of a, and two large ones."""
        a, _ = self.grid
        named = {"1": 1, "2": 2, "7": 7, "a-1": a - 1, "a": a, "a+1": a + 1, "2a": 2 * a}
        chosen = np.random.default_rng(self.vocab_size)  # the same ones in every run
        for name, low in (("large", self.vocab_size // 4), ("larger", 3 * self.vocab_size // 8)):
            k_p = low + int(chosen.integers(self.vocab_size // 8 - 2))
            named[name] = k_p + 2 * bool(near_multiple(self.vocab_size)[k_p])
        return named

    def ids(self, size: int | tuple[int, ...]) -> Ids:
        return self.rng.integers(0, self.vocab_size, size, dtype=np.uint32)

    def seeds(self, size: int) -> Seeds:
        return self.rng.integers(0, 1 << 64, size, dtype=np.uint64)

    def chunks(self, draws: int | None = None, width: int = 1) -> Iterator[int]:
        """Cut `draws` into pieces whose arrays of `width` columns fit a cache."""
        left, step = draws or self.draws, max(1, CHUNK // width)
        while left > 0:
            yield min(step, left)
            left -= step

    def ranks(self, ids: Ids, seeds: Seeds) -> NDArray[np.integer[Any]]:
        """Permute ids [N] or [N, M] under seeds [N]."""
        if ids.ndim == 2:
            seeds = np.repeat(seeds, ids.shape[1])
        return self.permute(ids.ravel(), seeds, self.vocab_size).reshape(ids.shape)

    def row(self, measure: str, case: str, statistic: str, value: float, expected: float, **more: Any) -> Row:
        return Row(measure, self.vocab_size, case, statistic, float(value), float(expected), **more)

    def normal(
        self,
        measure: str,
        case: str,
        statistic: str,
        value: float,
        expected: float,
        error: float,
        **more: Any,
    ) -> Row:
        """Return a test of a statistic that is normal around `expected`."""
        p = math.erfc(abs(value - expected) / error / math.sqrt(2)) if error > 0 else 0.0
        return self.row(measure, case, statistic, value, expected, error=float(error), p=p, **more)


@functools.lru_cache
def near_multiple(vocab_size: int) -> NDArray[np.bool_]:
    """Tell which k_p in [0, V/2] are the nearest to a multiple of V/b (a or just below) above 0.

    There φ depends on the low digit of the rank alone, or nearly so.
    """
    _, b = reference.grid(vocab_size)
    k_p = np.arange(vocab_size // 2 + 1)
    multiple = np.round(k_p * b / vocab_size)
    return np.asarray((np.abs(k_p - multiple * vocab_size / b) <= 0.5) & (multiple > 0))


@functools.lru_cache(maxsize=64)
def phi_table(vocab_size: int, k_p: int, family: str) -> NDArray[np.float32]:
    """Return φ(r) for every rank."""
    return reference.phi(np.arange(vocab_size), k_p, vocab_size, family)


def moments(phi: Floats) -> tuple[float, float]:
    """Return mean and variance of φ of a uniform rank."""
    return float(np.mean(phi, dtype=np.float64)), float(np.var(phi, dtype=np.float64))


# ---------------------------------------------------------------- 1, 2: where ranks fall


def chi_square(
    setup: Setup, measure: str, case: str, counts: NDArray[np.int64], probabilities: Floats
) -> Row:
    """Test counts against probabilities: χ² over its degrees of freedom, judged on both sides."""
    expected = probabilities.ravel() * counts.sum()
    seen = counts.ravel()[expected > 0]
    expected = expected[expected > 0]
    statistic, freedom = float(((seen - expected) ** 2 / expected).sum()), len(expected) - 1
    p = 2 * min(special.chdtr(freedom, statistic), special.chdtrc(freedom, statistic))
    return setup.row(
        measure, case, "χ²/dof", statistic / freedom, 1, error=math.sqrt(2 / freedom), p=float(min(p, 1))
    )


def shares(cells: NDArray[np.integer[Any]], number: int) -> Floats:
    """Return the share of each cell, given the cell of every rank."""
    return np.bincount(cells, minlength=number) / len(cells)


def uniformity(setup: Setup) -> list[Row]:
    """χ² of P(v) over 64, 256, 1024 and V cells: random v, fixed v, and the contexts of one key in order."""
    V, (_, b) = setup.vocab_size, setup.grid
    subkey = setup.rng.integers(0, 256, 16, dtype=np.uint8)

    def count(ids: Callable[[int], Ids], seeds: Callable[[int, int], Seeds]) -> NDArray[np.int64]:
        counts, start = np.zeros(V, dtype=np.int64), 0
        for n in setup.chunks():
            counts += np.bincount(setup.ranks(ids(n), seeds(start, n)), minlength=V)
            start += n
        return counts

    def fixed(v: int) -> Callable[[int], Ids]:
        return lambda n: np.full(n, v, dtype=np.uint32)

    def random_seeds(_: int, n: int) -> Seeds:
        return setup.seeds(n)

    def in_order(start: int, n: int) -> Seeds:  # two ids of context (n-gram 3): 0 0, 0 1, 0 2, ...
        return reference.context_seed(subkey, np.stack(np.divmod(np.arange(start, start + n), V), axis=-1))

    cases = {"random v": count(setup.ids, random_seeds)}
    for v in (0, 1, b - 1, b, V // 2, V - 1):
        cases[f"v = {v}"] = count(fixed(v), random_seeds)
    cases["random v, contexts in order"] = count(setup.ids, in_order)
    cases[f"v = {V // 3}, contexts in order"] = count(fixed(V // 3), in_order)

    rows = []
    for case, counts in cases.items():
        for cells in (64, 256, 1024, V):
            cell = np.arange(V) * cells // V
            binned = np.bincount(cell, weights=counts, minlength=cells).astype(np.int64)
            rows.append(
                chi_square(setup, "uniformity", f"{case}, {cells} cells", binned, shares(cell, cells))
            )
    return rows


def digits(setup: Setup) -> list[Row]:
    """Joint χ² of digits, cut into 32 cells each: of the rank, of v and its rank, of neighbours' ranks."""
    V, (a, b), side = setup.vocab_size, setup.grid, 32
    every = np.arange(V)
    high, low, whole = every // b * side // a, every % b * side // b, every * side // V
    cell = {"L": high, "R": low}
    joint = {(x, y): np.zeros(side * side, dtype=np.int64) for x in "LR" for y in "LR"}
    rank_cell, rank_counts = high * side + low, np.zeros(side * side, dtype=np.int64)
    pair_counts = np.zeros(side * side, dtype=np.int64)
    for n in setup.chunks():
        ids, seeds = setup.ids(n), setup.seeds(n)
        ids = np.minimum(ids, V - 2)
        ranks, next_ranks = setup.ranks(ids, seeds), setup.ranks(ids + np.uint32(1), seeds)
        rank_counts += np.bincount(rank_cell[ranks], minlength=side * side)
        pair_counts += np.bincount(whole[ranks] * side + whole[next_ranks], minlength=side * side)
        for (x, y), counts in joint.items():
            counts += np.bincount(cell[x][ids] * side + cell[y][ranks], minlength=side * side)

    rows = [chi_square(setup, "digits", "L' × R'", rank_counts, shares(rank_cell, side * side))]
    # P(v) and P(v+1) differ: a cell of c ranks holds a pair with probability c·(c-1) / V(V-1).
    sizes = np.bincount(whole, minlength=side)
    pairs_in = (sizes[:, None] * sizes - np.diag(sizes)) / (V * (V - 1))
    rows.append(chi_square(setup, "digits", "P(v) × P(v+1)", pair_counts, pairs_in))
    drawn = np.bincount(np.minimum(every, V - 2), minlength=V) / V
    for (x, y), counts in joint.items():
        of_v = np.bincount(cell[x], weights=drawn, minlength=side)
        probabilities = of_v[:, None] * shares(cell[y], side)
        rows.append(chi_square(setup, "digits", f"{x} of v × {y}' of P(v)", counts, probabilities))
    return rows


# ---------------------------------------------------------------- 3, 4: correlations


class Correlation:
    """Correlation of φ at pairs of ranks, for several k_p at once."""

    def __init__(self, vocab_size: int, frequencies: dict[str, int]) -> None:
        self.phis = {name: phi_table(vocab_size, k_p, "fourier") for name, k_p in frequencies.items()}
        self.sums = {name: np.zeros(2) for name in frequencies}
        self.draws = 0

    def add(self, ranks: NDArray[np.integer[Any]], others: NDArray[np.integer[Any]]) -> None:
        self.draws += len(ranks)
        for name, phi in self.phis.items():
            product = phi[ranks] * phi[others]
            square = np.einsum("i,i", product, product, dtype=np.float64)
            self.sums[name] += product.sum(dtype=np.float64), square

    def result(self, name: str) -> tuple[float, float]:
        """Return the correlation and its standard error."""
        mean, variance = moments(self.phis[name])
        first, second = self.sums[name] / self.draws
        return (first - mean**2) / variance, math.sqrt(max(0.0, second - first**2) / self.draws) / variance


def correlation_rows(
    setup: Setup, measure: str, case: str, found: Correlation, expected: float, kind: str = "test"
) -> list[Row]:
    rows = []
    for name, k_p in setup.frequencies().items():
        value, error = found.result(name)
        labelled = f"{case}, k_p = {name}"
        if kind == "comparison":
            rows.append(setup.row(measure, labelled, "correlation", value, expected, k_p=k_p, error=error))
        elif kind == "test" or not near_multiple(setup.vocab_size)[k_p]:
            rows.append(setup.normal(measure, labelled, "correlation", value, expected, error, k_p=k_p))
        else:
            more = {"k_p": k_p, "error": error, "limit": CORRELATION_LIMIT}
            rows.append(setup.row(measure, labelled, "correlation", value, expected, **more))
    return rows


Pairs = Callable[[int], tuple[Ids, Ids]]


def apart(setup: Setup, distance: int) -> Pairs:
    """Return a source of random ids v and v + distance."""

    def draw(n: int) -> tuple[Ids, Ids]:
        ids = setup.rng.integers(0, setup.vocab_size - distance, n, dtype=np.uint32)
        return ids, ids + np.uint32(distance)

    return draw


def in_one_window(setup: Setup) -> Pairs:
    """Return a source of random pairs out of 64 consecutive ids in a row of the grid."""
    a, b = setup.grid

    def draw(n: int) -> tuple[Ids, Ids]:
        start = setup.rng.integers(0, a - 1, n, dtype=np.uint32) * np.uint32(b)
        start += setup.rng.integers(0, b - SET_SIZE + 1, n, dtype=np.uint32)
        first = setup.rng.integers(0, SET_SIZE, n, dtype=np.uint32)
        second = first + setup.rng.integers(1, SET_SIZE, n, dtype=np.uint32)
        return start + first, start + second % np.uint32(SET_SIZE)

    return draw


def pairs(setup: Setup) -> list[Row]:
    """Correlation of φ at two ids under one seed; an ideal permutation gives -1/(V-1).

    Two ids of one row of the grid (the same high digit, distance d) meet in the high digit after round two
    with probability 1/a; then round three moves both low digits alike and leaves them d apart. Where φ
    depends on the low digit alone, k_p near a multiple of a, that is a correlation of about 1/a: a bound
    instead of a test.
    """
    V, (a, b) = setup.vocab_size, setup.grid
    fixed = setup.rng.choice(V, (16, 2), replace=False).astype(np.uint32)

    def same_high(n: int) -> tuple[Ids, Ids]:  # the last row of the grid may be short: it is left out
        start = setup.rng.integers(0, a - 1, n, dtype=np.uint32) * np.uint32(b)
        first = setup.rng.integers(0, b, n, dtype=np.uint32)
        return start + first, start + (first + setup.rng.integers(1, b, n, dtype=np.uint32)) % np.uint32(b)

    def same_low(n: int) -> tuple[Ids, Ids]:
        column = setup.rng.integers(0, b, n, dtype=np.uint32)
        first = setup.rng.integers(0, a - 1, n, dtype=np.uint32)
        other = (first + setup.rng.integers(1, a - 1, n, dtype=np.uint32)) % np.uint32(a - 1)
        return first * np.uint32(b) + column, other * np.uint32(b) + column

    def fixed_pairs(n: int) -> tuple[Ids, Ids]:
        chosen = fixed[setup.rng.integers(0, len(fixed), n)]
        return chosen[:, 0], chosen[:, 1]

    cases: dict[str, tuple[Pairs, str]] = {
        "v and v+1": (apart(setup, 1), "bound"),
        "same high digit": (same_high, "bound"),
        "same low digit": (same_low, "test"),
        "16 random pairs": (fixed_pairs, "test"),
    }
    rows = []
    for case, (draw, kind) in cases.items():
        found = Correlation(V, setup.frequencies())
        for n in setup.chunks():
            seeds = setup.seeds(n)
            ids, others = draw(n)
            found.add(setup.ranks(ids, seeds), setup.ranks(others, seeds))
        rows += correlation_rows(setup, "pairs", case, found, -1 / (V - 1), kind)
    return rows


def every_distance(setup: Setup) -> list[Row]:
    """Correlation of φ, k_p = 1, 2 and 7, at ids d or d·b apart, for each d within the grid.

    The χ² of all distances together and the largest, on draws/25 pairs for each distance.
    """
    V, (a, b) = setup.vocab_size, setup.grid
    frequencies = {name: setup.frequencies()[name] for name in ("1", "2", "7")}
    rows = []
    for case, distances in {"d apart": range(1, b), "d·b apart": range(b, (a - 1) * b, b)}.items():
        z: dict[str, list[float]] = {name: [] for name in frequencies}
        for distance in distances:
            found = Correlation(V, frequencies)
            for n in setup.chunks(max(1, setup.draws // 25)):
                ids, others = apart(setup, distance)(n)
                seeds = setup.seeds(n)
                found.add(setup.ranks(ids, seeds), setup.ranks(others, seeds))
            for name in frequencies:
                value, error = found.result(name)
                z[name].append((value + 1 / (V - 1)) / error)
        for name, k_p in frequencies.items():
            total, number = float(np.square(z[name]).sum()), len(distances)
            p = 2 * min(special.chdtr(number, total), special.chdtrc(number, total))
            labelled, error = f"{case}, k_p = {name}", math.sqrt(2 / number)
            more = {"k_p": k_p, "error": error, "p": float(min(p, 1))}
            rows.append(setup.row("every distance", labelled, "χ²/dof", total / number, 1, **more))
            rows.append(largest_row(setup, "every distance", labelled, np.array(z[name]), k_p=k_p))
    return rows


def largest_row(setup: Setup, measure: str, case: str, z: Floats, **more: Any) -> Row:
    """Test the largest of many standard normal deviates (Bonferroni)."""
    largest = float(np.abs(z).max())
    p = min(1.0, len(z) * math.erfc(largest / math.sqrt(2)))
    expected = -float(special.ndtri(0.5 * -math.expm1(-math.log(2) / len(z))))  # the median
    return setup.row(measure, case, "largest z", largest, expected, p=p, **more)


def correlation_spectrum(setup: Setup, pairs: Pairs, draws: int) -> Floats:
    """Return the correlation of φ at pairs of ids for every k_p up to V/2, less -1/(V-1).

    E[cos x cos y] = (E[cos(x - y)] + E[cos(x + y)]) / 2: two histograms and their Fourier transforms.
    The standard error is 1/√draws. k_p = 0 and V/2 are set to 0.
    """
    V = setup.vocab_size
    differences, totals = np.zeros(V), np.zeros(V)
    for n in setup.chunks(draws):
        seeds = setup.seeds(n)
        ids, others = pairs(n)
        ranks = setup.ranks(ids, seeds).astype(np.int64)
        other_ranks = setup.ranks(others, seeds).astype(np.int64)
        differences += np.bincount((ranks - other_ranks) % V, minlength=V)
        totals += np.bincount((ranks + other_ranks) % V, minlength=V)
    spectrum = np.asarray((np.fft.rfft(differences) + np.fft.rfft(totals)).real / draws + 1 / (V - 1))
    spectrum[0] = 0
    if V % 2 == 0:
        spectrum[-1] = 0
    return spectrum


def every_frequency(setup: Setup) -> list[Row]:
    """Correlation of φ at ids close together for every k_p, on 4·draws pairs: the largest, and how many.

    Bounds, because it is known to be there: at multiples of a for the reason given in `pairs`, and at a few
    other k_p because the cheap round function sends a fixed difference to few differences. The last bound is
    the variance of a sum over 64 consecutive ids: 1 + 63 times the mean correlation among them.
    """
    V, (_, b) = setup.vocab_size, setup.grid
    draws = 4 * setup.draws
    error = 1 / math.sqrt(draws)
    rows = []
    for distance in (1, 2, 5, b):
        spectrum = correlation_spectrum(setup, apart(setup, distance), draws)
        for name, chosen in frequency_classes(V):
            k_p = int(np.argmax(np.abs(spectrum) * chosen))
            many = int((np.abs(spectrum[chosen]) > 6 * error).sum())
            case = f"{distance} apart, {name}: {many} of {int(chosen.sum())} beyond 6σ, the largest"
            more = {"k_p": k_p, "error": error, "limit": CORRELATION_LIMIT}
            rows.append(setup.row("every k_p", case, "correlation", spectrum[k_p], 0, **more))
    spectrum = correlation_spectrum(setup, in_one_window(setup), draws)
    for name, chosen in frequency_classes(V):
        k_p = int(np.argmax(np.abs(spectrum) * chosen))
        many = int((np.abs(spectrum[chosen]) > 6 * error).sum())
        case = f"64 consecutive ids, {name}: {many} of {int(chosen.sum())} beyond 6σ, the largest"
        more = {"k_p": k_p, "error": (SET_SIZE - 1) * error, "limit": SUMS_LIMIT}
        ratio = 1 + (SET_SIZE - 1) * spectrum[k_p]
        rows.append(setup.row("every k_p", case, "variance ratio", ratio, 1, **more))

    def random_pairs(n: int) -> tuple[Ids, Ids]:
        ids = setup.ids(n)
        return ids, (ids + setup.rng.integers(1, V, n, dtype=np.uint32)) % np.uint32(V)

    spectrum = correlation_spectrum(setup, random_pairs, draws)[1 : (V + 1) // 2]
    rows.append(largest_row(setup, "every k_p", "random pairs", spectrum / error))
    return rows


def frequency_classes(vocab_size: int) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return the k_p near multiples of a, and all others."""
    near = near_multiple(vocab_size)
    return [("multiples of a", near), ("other k_p", ~near)]


def contexts_and_keys(setup: Setup) -> list[Row]:
    """Correlation of φ at one id under two seeds: contexts and keys that differ a little. Ideally 0.

    Seeds that differ in one bit are a comparison: each bit belongs to one round, and SipHash never gives
    seeds that are so close.
    """
    V = setup.vocab_size

    def draw(n: int) -> tuple[NDArray[np.uint8], Ids]:
        return setup.rng.integers(0, 256, (n, 16), dtype=np.uint8), setup.ids((n, 1))

    def flip_context(n: int) -> tuple[Seeds, Seeds]:
        keys, contexts = draw(n)
        bit = np.uint32(1) << setup.rng.integers(0, 17, (n, 1), dtype=np.uint32)
        return reference.context_seed(keys, contexts), reference.context_seed(keys, contexts ^ bit)

    def next_context(n: int) -> tuple[Seeds, Seeds]:
        keys, contexts = draw(n)
        return reference.context_seed(keys, contexts), reference.context_seed(keys, contexts + np.uint32(1))

    def older_context(n: int) -> tuple[Seeds, Seeds]:  # n-gram 4, one bit of the oldest id
        keys, contexts = draw(n)[0], setup.ids((n, 3))
        others = contexts.copy()
        others[:, 0] ^= np.uint32(1) << setup.rng.integers(0, 17, n, dtype=np.uint32)
        return reference.context_seed(keys, contexts), reference.context_seed(keys, others)

    def flip_key(n: int) -> tuple[Seeds, Seeds]:
        keys, contexts = draw(n)
        others, bit = keys.copy(), setup.rng.integers(0, 128, n)
        others[np.arange(n), bit // 8] ^= (1 << bit % 8).astype(np.uint8)
        return reference.context_seed(keys, contexts), reference.context_seed(others, contexts)

    def flip_seed(n: int) -> tuple[Seeds, Seeds]:
        seeds = setup.seeds(n)
        return seeds, seeds ^ (np.uint64(1) << setup.rng.integers(0, 64, n, dtype=np.uint64))

    cases: dict[str, tuple[Callable[[int], tuple[Seeds, Seeds]], str]] = {
        "contexts one bit apart": (flip_context, "test"),
        "contexts c and c+1": (next_context, "test"),
        "contexts of 3 ids, one bit of the oldest": (older_context, "test"),
        "keys one bit apart": (flip_key, "test"),
        "seeds one bit apart": (flip_seed, "comparison"),
    }
    rows = []
    for case, (seeds_of, kind) in cases.items():
        found = Correlation(V, setup.frequencies())
        for n in setup.chunks():
            seeds, other_seeds = seeds_of(n)
            ids = setup.ids(n)
            found.add(setup.ranks(ids, seeds), setup.ranks(ids, other_seeds))
        rows += correlation_rows(setup, "contexts and keys", case, found, 0.0, kind)
    return rows


# ---------------------------------------------------------------- 5, 7: sums


IN_ONE_ROW = ("consecutive ids", "same high digit", "ids 0 to 63")  # of the grid: see `pairs`


def fixed_sets(setup: Setup) -> dict[str, Ids]:
    """Return six sets of 64 ids. Only the random one reaches the last row of the grid, which may be short."""
    (a, b), rng = setup.grid, setup.rng
    row, column = int(rng.integers(a - 1)) * b, int(rng.integers(b))
    sets = {
        "consecutive ids": row + rng.integers(b - SET_SIZE) + np.arange(SET_SIZE),
        "same high digit": row + rng.choice(b, SET_SIZE, replace=False),
        "ids b apart": column + b * (rng.integers(a - SET_SIZE) + np.arange(SET_SIZE)),
        "same low digit": column + b * rng.choice(a - 1, SET_SIZE, replace=False),
        "random ids": rng.choice(setup.vocab_size, SET_SIZE, replace=False),
        "ids 0 to 63": np.arange(SET_SIZE),
    }
    return {name: ids.astype(np.uint32) for name, ids in sets.items()}


def sums(setup: Setup, family: str = "fourier", measure: str = "sums", judged: bool = True) -> list[Row]:
    """Mean, variance and kurtosis of the sum of φ over 64 fixed ids, on draws/10 seeds.

    The mean is in units of the standard deviation of the sum, the variance a ratio to that of 64 ranks drawn
    without replacement, the kurtosis the excess, ideally that of one φ over 64.
    """
    V = setup.vocab_size
    frequencies = setup.frequencies()
    if family == "square" or not judged:
        frequencies = {name: frequencies[name] for name in ("1", "large")}
    number = max(100, setup.draws // 10)
    rows = []
    for case, ids in fixed_sets(setup).items():
        powers = {name: np.zeros(4) for name in frequencies}
        for n in setup.chunks(number, SET_SIZE):
            ranks = setup.ranks(np.broadcast_to(ids, (n, SET_SIZE)), setup.seeds(n))
            for name, k_p in frequencies.items():
                phi = phi_table(V, k_p, family)
                mean, _ = moments(phi)
                total = phi[ranks].sum(axis=1, dtype=np.float64) - SET_SIZE * mean
                powers[name] += [(total**power).sum() for power in (1, 2, 3, 4)]
        for name, k_p in frequencies.items():
            phi = phi_table(V, k_p, family)
            mean, variance = moments(phi)
            one = float(np.mean((phi - mean) ** 4, dtype=np.float64)) / variance**2 - 3
            ideal = SET_SIZE * variance * (V - SET_SIZE) / (V - 1)
            first, second, _, fourth = powers[name] / number
            kurtosis = fourth / second**2
            labelled = f"{case}, k_p = {name}"
            values = {
                "mean/σ": (first / math.sqrt(ideal), 0.0, math.sqrt(second / ideal / number)),
                "variance ratio": (
                    second / ideal,
                    1.0,
                    second / ideal * math.sqrt(max(0.0, kurtosis - 1) / number),
                ),
                "excess kurtosis": (kurtosis - 3, one / SET_SIZE, math.sqrt(24 / number)),
            }
            for statistic, (value, expected, error) in values.items():
                known = near_multiple(V)[k_p] and statistic != "mean/σ" and case in IN_ONE_ROW
                if judged and not known:
                    rows.append(setup.normal(measure, labelled, statistic, value, expected, error, k_p=k_p))
                else:
                    more = {"limit": SUMS_LIMIT} if judged else {}
                    rows.append(
                        setup.row(
                            measure, labelled, statistic, value, expected, k_p=k_p, error=float(error), **more
                        )
                    )
    return rows


# ---------------------------------------------------------------- 6: mean shift under a mark


def entropy(p: Floats) -> float:
    """Return the entropy of a distribution in nats."""
    return float(-(p * np.log(p)).sum())


@functools.lru_cache
def ideal_shift(p: tuple[float, ...], kappa: float, family: str) -> float:
    """Return E[φ of the token drawn] under softmax(log p + κφ), with an independent φ for each token.

    With W = exp(κφ), L(s) = E[exp(-sW)] and M(s) = E[φ·W·exp(-sW)], and 1/Z = ∫ exp(-tZ) dt,

        E[Σ p_i φ_i W_i / Z] = ∫_0^∞ Σ_i p_i M(t p_i) Π_{j≠i} L(t p_j) dt

    by the trapezoidal rule in log t: exact to 1e-9.
    """
    law = np.cos((np.arange(128) + 0.5) * np.pi / 128) if family == "fourier" else np.array([-1.0, 1.0])
    weights = np.exp(kappa * law)
    values, counts = np.unique(np.array(p), return_counts=True)
    total, step = 0.0, 0.1
    for log_t in np.arange(-25, 9, step):
        s = np.exp(log_t) * values
        decay = np.exp(-s[:, None] * (weights - weights.min()))
        laplace = decay.mean(axis=1)
        log_product = counts @ (np.log(laplace) - s * weights.min())
        ratio = (decay * law * weights).mean(axis=1) / laplace
        total += step * np.exp(log_t + log_product) * float((counts * values * ratio).sum())
    return total


def mean_shift(setup: Setup) -> list[Row]:
    """E[φ] of the token drawn under a mark of κ = 0.8, for known distributions over ids.

    Uniform over 2, 8 and 64 consecutive ids and over all V, and Zipf over ids 0 to 255, on draws/m seeds or
    draws/25, whichever is more. Over all V tokens the shift is the same for every seed: I₁(κ)/I₀(κ).
    """
    V = setup.vocab_size
    frequencies = {name: setup.frequencies()[name] for name in ("1", "large")}
    zipf = 1 / np.arange(1, ZIPF_SIZE + 1)
    laws = {f"uniform over {m}": np.full(m, 1 / m) for m in (2, 8, 64)}
    laws[f"Zipf over {ZIPF_SIZE}"] = zipf / zipf.sum()
    rows = []
    for law, p in laws.items():
        m = len(p)
        start = 0 if law.startswith("Zipf") else int(setup.rng.integers(V - m))
        ids = (np.arange(m) + start).astype(np.uint32)
        number = max(setup.draws // 25, setup.draws // m)
        families = ("fourier", "square") if m == 8 else ("fourier",)
        found = {(family, name): np.zeros(2) for family in families for name in frequencies}
        for n in setup.chunks(number, m):
            ranks = setup.ranks(np.broadcast_to(ids, (n, m)), setup.seeds(n))
            for (family, name), moment in found.items():
                phi = phi_table(V, frequencies[name], family)
                tilted = np.exp(np.float32(KAPPA) * phi)
                drawn = ((phi * tilted)[ranks] @ p) / (tilted[ranks] @ p)
                moment += drawn.sum(), np.square(drawn).sum()
        for (family, name), moment in found.items():
            first, second = moment / number
            error = math.sqrt(max(0.0, second - first**2) / number)
            case = f"{family}, {law} (entropy {entropy(p):.3f}), k_p = {name}"
            ideal = ideal_shift(tuple(p), KAPPA, family)
            more = {"k_p": frequencies[name]}
            rows.append(setup.normal("mean shift", case, "mean shift", first, ideal, error, **more))
    for family in ("fourier", "square"):
        for name, k_p in frequencies.items():
            phi = phi_table(V, k_p, family).astype(np.float64)
            ranks = setup.ranks(np.arange(V, dtype=np.uint32), np.repeat(setup.seeds(1), V))
            tilted = np.exp(KAPPA * phi[ranks])
            value = float((phi[ranks] * tilted).sum() / tilted.sum())
            case = f"{family}, uniform over V (entropy {math.log(V):.3f}), k_p = {name}"
            bound = {"k_p": k_p, "limit": SHIFT_LIMIT}
            ideal = FAMILIES[family].mean(KAPPA)
            rows.append(setup.row("mean shift", case, "mean shift", value, ideal, **bound))
    return rows


# ---------------------------------------------------------------- 8: bijection


def bijection(setup: Setup) -> list[Row]:
    """The share of ranks that are reached, over the full range, for six seeds. Exactly 1."""
    V = setup.vocab_size
    rows = []
    for seed in [0, (1 << 64) - 1, *setup.seeds(4).tolist()]:
        ranks = setup.ranks(np.arange(V, dtype=np.uint32), np.full(V, seed, dtype=np.uint64))
        share = len(np.unique(ranks[ranks < V])) / V
        rows.append(setup.row("bijection", f"seed {seed:016x}", "share of ranks", share, 1, limit=0.0))
    return rows


# ---------------------------------------------------------------- other permutations, for comparison


def feistel(*rounds: str) -> Permutation:
    """Return the scheme with other rounds: "R b 0" adds Bmix of the high digit, under k1, to the low one."""
    mixes = {"a": reference._amix, "b": reference._bmix}

    def mix(ids: NDArray[np.uint64], seeds: Seeds, vocab_size: int) -> NDArray[np.uint64]:
        sides = dict(zip("LR", reference.grid(vocab_size), strict=True))
        digit = dict(zip("LR", np.divmod(ids, np.uint64(sides["R"])), strict=True))
        for line in rounds:
            changed, kind, key = line.split()
            other, side = digit["L" if changed == "R" else "R"], sides[changed]
            word = seeds >> np.uint64(16 * int(key) % 64)
            word = (word ^ seeds >> np.uint64(37) if int(key) == 4 else word) & np.uint64(0xFFFF)
            digit[changed] = (digit[changed] + mixes[kind](other, word, side)) % np.uint64(side)
        return np.asarray(digit["L"] * np.uint64(sides["R"]) + digit["R"])

    def permute(ids: Ids, seeds: Seeds, vocab_size: int) -> NDArray[np.integer[Any]]:
        ranks = mix(ids.astype(np.uint64), seeds, vocab_size)
        while (outside := ranks >= vocab_size).any():
            ranks[outside] = mix(ranks[outside], seeds[outside], vocab_size)
        return ranks

    return permute


WITHOUT_FIRST = feistel("L b 1", "R a 2", "L a 3")
WITHOUT_LAST = feistel("R b 0", "L b 1", "R a 2")
FIVE_ROUNDS = feistel("L a 4", "R b 0", "L b 1", "R a 2", "L a 3")  # a fifth round key from the other bits


def other_permutations(setup: Setup) -> list[Row]:
    """Three rounds fail the sums; a fifth round takes away the correlation of close ids. Not judged."""
    rows = []
    small = setup.draws // 4
    for name, permute in (("without the first", WITHOUT_FIRST), ("without the last", WITHOUT_LAST)):
        other = dataclasses.replace(setup, permute=permute, draws=small)
        found = sums(other, measure="other permutations", judged=False)
        rows += [
            dataclasses.replace(row, case=f"three rounds, {name}: {row.case}")
            for row in found
            if row.k_p == 1 and row.statistic == "variance ratio"
        ]
    other = dataclasses.replace(setup, permute=FIVE_ROUNDS)
    spectrum = correlation_spectrum(other, apart(setup, 1), setup.draws)
    for name, chosen in frequency_classes(setup.vocab_size):
        k_p = int(np.argmax(np.abs(spectrum) * chosen))
        case = f"five rounds: 1 apart, {name}, the largest of {int(chosen.sum())}"
        more = {"k_p": k_p, "error": 1 / math.sqrt(setup.draws)}
        rows.append(setup.row("other permutations", case, "correlation", spectrum[k_p], 0, **more))
    return rows


# ---------------------------------------------------------------- everything

MEASURES: dict[str, Callable[[Setup], list[Row]]] = {
    "uniformity": uniformity,
    "digits": digits,
    "pairs": pairs,
    "every distance": every_distance,
    "every k_p": every_frequency,
    "contexts and keys": contexts_and_keys,
    "sums": sums,
    "sums, square": functools.partial(sums, family="square", measure="sums, square"),
    "mean shift": mean_shift,
    "bijection": bijection,
    "other permutations": other_permutations,
}


def run(vocab_sizes: Sequence[int], draws: int, seed: int) -> list[Row]:
    """Run every measure at every V."""
    jobs = [(V, name) for V in vocab_sizes for name in MEASURES]
    rows = []
    for number, (V, name) in enumerate(tqdm(jobs, unit="measure")):
        rows += MEASURES[name](Setup(V, draws, np.random.default_rng([seed, number])))
    return rows


def markdown(rows: Sequence[Row], draws: int, seed: int) -> str:
    """Return a summary by measure and V, then the bounds, the mean shifts and the comparisons in full."""
    threshold, tests = threshold_of(rows), [row for row in rows if row.p is not None]
    small = sum((row.p or 0) < 0.01 for row in tests)
    failed = failures(rows)
    lines = [
        "# Quality of the permutation",
        "",
        f"{draws:,} draws a test or more, seed {seed}. {len(tests)} tests, each passing at p >="
        f" {threshold:.1e}; {small} have p < 0.01, {len(tests) / 100:.0f} are expected."
        f" {'All pass.' if not failed else f'{len(failed)} rows FAIL.'}",
        "",
        "## Tests",
        "",
    ]
    summary = []
    for key in dict.fromkeys((row.measure, row.vocab_size, row.statistic) for row in tests):
        group = [row for row in tests if (row.measure, row.vocab_size, row.statistic) == key]
        worst = min(group, key=lambda row: row.p or 0)
        low, high = min(row.value for row in group), max(row.value for row in group)
        expected = sorted({number(row.expected) for row in group}, key=float)
        verdict = "yes" if all(row.passes(threshold) for row in group) else "NO"
        ideal = expected[0] if len(expected) == 1 else f"{expected[0]} to {expected[-1]}"
        values = f"{number(low)} to {number(high)}"
        summary.append([*key, len(group), values, ideal, f"{worst.p:.1e}", worst.case, verdict])
    header = ["measure", "V", "statistic", "tests", "values", "ideal", "smallest p", "of", "pass"]
    lines += [table(header, summary), ""]
    for title, chosen in (
        ("Mean shift under a mark", [row for row in rows if row.measure == "mean shift"]),
        (
            "Known differences, judged by a limit",
            [row for row in rows if row.kind == "bound" and row.measure not in ("mean shift", "bijection")],
        ),
        ("Comparisons, not judged", [row for row in rows if row.kind == "comparison"]),
        ("Failures", failed),
    ):
        if chosen:
            lines += [f"## {title}", "", details(chosen), ""]
    return "\n".join(lines).rstrip()


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.5f}"


def details(rows: Sequence[Row]) -> str:
    cells = []
    for row in rows:
        k_p, p = "" if row.k_p is None else row.k_p, "" if row.p is None else f"{row.p:.1e}"
        numbers = [number(x) for x in (row.value, row.error, row.expected, row.limit)]
        cells.append([row.measure, row.vocab_size, row.case, k_p, row.statistic, *numbers, p])
    header = ["measure", "V", "case", "k_p", "statistic", "value", "±", "ideal", "limit", "p"]
    return table(header, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--draws", type=int, default=10_000_000)
    parser.add_argument("--vocab-sizes", type=int, nargs="+", default=VOCAB_SIZES)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if min(args.vocab_sizes) < 8192:
        parser.error("--vocab-sizes: expected sizes of at least 8192")

    started = time.perf_counter()
    rows = run(args.vocab_sizes, args.draws, args.seed)
    threshold = threshold_of(rows)
    where = environment("scipy")
    where["processor"] = ", ".join(filter(None, (platform.machine(), where["isa"])))
    shown = args.output.name if args.output.is_absolute() else args.output.as_posix()
    content = {
        "command": f"python -m benchmarks.accuracy.scheme_quality -o {shown}"
        f" --draws {args.draws} --vocab-sizes {' '.join(map(str, args.vocab_sizes))} --seed {args.seed}",
        "environment": where,
        "draws": args.draws,
        "seed": args.seed,
        "seconds": round(time.perf_counter() - started, 1),
        "threshold": threshold,
        "passed": not failures(rows),
        "rows": [
            {"kind": row.kind, "passed": row.passes(threshold), **dataclasses.asdict(row)} for row in rows
        ],
    }
    write(args.output, content, markdown(rows, args.draws, args.seed))
    if failures(rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
