"""The keyed permutation as `scheme_quality` tests it, and correlations of φ of its ranks.

At two ids or under two seeds; other permutations stand beside it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from benchmarks.accuracy import judged
from benchmarks.accuracy.judged import Floats, Ids, Row, Seeds
from iet import kernels
from iet.native import reference

SET_SIZE = 64

Permutation = Callable[[Ids, Seeds, int], NDArray[np.integer[Any]]]


@dataclasses.dataclass(frozen=True)
class Setup(judged.Setup):
    """What every measure needs; V is at least 8192, so that both digits have more than 64 values."""

    permute: Permutation = kernels.permute  # under test

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

    def ranks(self, ids: Ids, seeds: Seeds) -> NDArray[np.integer[Any]]:
        """Permute ids [N] or [N, M] under seeds [N]."""
        if ids.ndim == 2:
            seeds = np.repeat(seeds, ids.shape[1])
        return self.permute(ids.ravel(), seeds, self.vocab_size).reshape(ids.shape)


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
def phi_table(vocab_size: int, k_p: int) -> NDArray[np.float32]:
    """Return φ(r) for every rank."""
    return reference.phi(np.arange(vocab_size), k_p, vocab_size)


def moments(phi: Floats) -> tuple[float, float]:
    """Return mean and variance of φ of a uniform rank."""
    return float(np.mean(phi, dtype=np.float64)), float(np.var(phi, dtype=np.float64))


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


# What k_p near a multiple of a, or ids close together, may cost: see `pairs` and `every_frequency`.
CORRELATION_LIMIT = 0.02
SUMS_LIMIT = 0.5


class Correlation:
    """Correlation of φ at pairs of ranks, for several k_p at once."""

    def __init__(self, vocab_size: int, frequencies: dict[str, int]) -> None:
        self.phis = {name: phi_table(vocab_size, k_p) for name, k_p in frequencies.items()}
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
        what = (measure, f"{case}, k_p = {name}", "correlation", value, expected)
        if kind != "comparison" and (kind == "test" or not near_multiple(setup.vocab_size)[k_p]):
            rows.append(setup.normal(*what, error, k_p=k_p))
        else:
            limit = None if kind == "comparison" else CORRELATION_LIMIT
            rows.append(setup.row(*what, k_p=k_p, error=error, limit=limit))
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
            p = min(1.0, 2 * min(special.chdtr(number, total), special.chdtrc(number, total)))
            what, error = ("every distance", f"{case}, k_p = {name}"), math.sqrt(2 / number)
            rows.append(setup.row(*what, "χ²/dof", total / number, 1, k_p=k_p, error=error, p=float(p)))
            rows.append(largest_row(setup, *what, np.array(z[name]), k_p=k_p))
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
    sources = {f"{distance} apart": apart(setup, distance) for distance in (1, 2, 5, b)}
    sources["64 consecutive ids"] = in_one_window(setup)
    for source, draw in sources.items():
        spectrum = correlation_spectrum(setup, draw, draws)
        for name, chosen in frequency_classes(V):
            k_p = int(np.argmax(np.abs(spectrum) * chosen))
            many = int((np.abs(spectrum[chosen]) > 6 * error).sum())
            case = f"{source}, {name}: {many} of {int(chosen.sum())} beyond 6σ, the largest"
            found = ("correlation", spectrum[k_p], 0, error, CORRELATION_LIMIT)
            if source == "64 consecutive ids":
                others = SET_SIZE - 1
                found = ("variance ratio", 1 + others * spectrum[k_p], 1, others * error, SUMS_LIMIT)
            statistic, value, expected, of_value, limit = found
            more = {"k_p": k_p, "error": of_value, "limit": limit}
            rows.append(setup.row("every k_p", case, statistic, value, expected, **more))

    def random_pairs(n: int) -> tuple[Ids, Ids]:
        ids = setup.ids(n)
        return ids, (ids + setup.rng.integers(1, V, n, dtype=np.uint32)) % np.uint32(V)

    spectrum = correlation_spectrum(setup, random_pairs, draws)[1 : (V + 1) // 2]
    rows.append(largest_row(setup, "every k_p", "random pairs", spectrum / error))
    return rows


def frequency_classes(vocab_size: int) -> list[tuple[str, NDArray[np.bool_]]]:
    near = near_multiple(vocab_size)
    return [("multiples of a", near), ("other k_p", ~near)]


def contexts_and_keys(setup: Setup) -> list[Row]:
    """Correlation of φ at one id under two seeds: contexts and keys that differ a little. Ideally 0.

    Seeds that differ in one bit are a comparison: each bit belongs to one round, and SipHash never gives
    seeds that are so close.
    """
    V = setup.vocab_size

    def keys_and_contexts(n: int) -> tuple[NDArray[np.uint8], Ids]:
        return setup.rng.integers(0, 256, (n, 16), dtype=np.uint8), setup.ids((n, 1))

    def bit(size: int | tuple[int, ...]) -> Ids:
        return np.uint32(1) << setup.rng.integers(0, 17, size, dtype=np.uint32)

    def flip_context(n: int) -> tuple[Seeds, Seeds]:
        keys, contexts = keys_and_contexts(n)
        return reference.context_seed(keys, contexts), reference.context_seed(keys, contexts ^ bit((n, 1)))

    def next_context(n: int) -> tuple[Seeds, Seeds]:
        keys, contexts = keys_and_contexts(n)
        return reference.context_seed(keys, contexts), reference.context_seed(keys, contexts + np.uint32(1))

    def older_context(n: int) -> tuple[Seeds, Seeds]:  # n-gram 4, one bit of the oldest id
        keys, contexts = keys_and_contexts(n)[0], setup.ids((n, 3))
        others = contexts.copy()
        others[:, 0] ^= bit(n)
        return reference.context_seed(keys, contexts), reference.context_seed(keys, others)

    def flip_key(n: int) -> tuple[Seeds, Seeds]:
        keys, contexts = keys_and_contexts(n)
        others, flipped = keys.copy(), setup.rng.integers(0, 128, n)
        others[np.arange(n), flipped // 8] ^= (1 << flipped % 8).astype(np.uint8)
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
