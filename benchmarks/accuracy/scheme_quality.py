"""How close the keyed permutation comes to an ideal one: uniform, uncorrelated, with sums like chance.

    python -m benchmarks.accuracy.scheme_quality -o benchmarks/results/scheme_quality.json

Rows are judged as `benchmarks.accuracy.judged` says; comparisons are another permutation, or seeds that
SipHash never gives. The permutation is an argument of every measure, so that the tests can be tested with a
bad one.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.accuracy import correlations, judged
from benchmarks.accuracy.correlations import (
    FIVE_ROUNDS,
    SET_SIZE,
    SUMS_LIMIT,
    WITHOUT_FIRST,
    WITHOUT_LAST,
    Setup,
    apart,
    correlation_spectrum,
    frequency_classes,
    moments,
    near_multiple,
    phi_table,
)
from benchmarks.accuracy.judged import Floats, Ids, Row, Seeds, failures
from benchmarks.recording import columns, exit_code, parser
from iet.marks.families import FAMILIES
from iet.native import reference

VOCAB_SIZES = (32000, 32003, 128256, 151936)
KAPPA = 0.8
ZIPF_SIZE = 256
SHIFT_LIMIT = 1e-4

# ---------------------------------------------------------------- 1, 2: where ranks fall


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
            rows.append(setup.chi_square("uniformity", f"{case}, {cells} cells", binned, shares(cell, cells)))
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

    rows = [setup.chi_square("digits", "L' × R'", rank_counts, shares(rank_cell, side * side))]
    # P(v) and P(v+1) differ: a cell of c ranks holds a pair with probability c·(c-1) / V(V-1).
    sizes = np.bincount(whole, minlength=side)
    pairs_in = (sizes[:, None] * sizes - np.diag(sizes)) / (V * (V - 1))
    rows.append(setup.chi_square("digits", "P(v) × P(v+1)", pair_counts, pairs_in))
    drawn = np.bincount(np.minimum(every, V - 2), minlength=V) / V
    for (x, y), counts in joint.items():
        of_v = np.bincount(cell[x], weights=drawn, minlength=side)
        probabilities = of_v[:, None] * shares(cell[y], side)
        rows.append(setup.chi_square("digits", f"{x} of v × {y}' of P(v)", counts, probabilities))
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


def sums(setup: Setup, measure: str = "sums", compared: bool = False) -> list[Row]:
    """Mean, variance and kurtosis of the sum of φ over 64 fixed ids, on draws/10 seeds.

    The mean is in units of the standard deviation of the sum, the variance a ratio to that of 64 ranks drawn
    without replacement, the kurtosis the excess, ideally that of one φ over 64.
    """
    V = setup.vocab_size
    frequencies = setup.frequencies()
    if compared:
        frequencies = {name: frequencies[name] for name in ("1", "large")}
    number = max(100, setup.draws // 10)
    rows = []
    for case, ids in fixed_sets(setup).items():
        powers = {name: np.zeros(4) for name in frequencies}
        for n in setup.chunks(number, SET_SIZE):
            ranks = setup.ranks(np.broadcast_to(ids, (n, SET_SIZE)), setup.seeds(n))
            for name, k_p in frequencies.items():
                phi = phi_table(V, k_p)
                mean, _ = moments(phi)
                total = phi[ranks].sum(axis=1, dtype=np.float64) - SET_SIZE * mean
                powers[name] += [(total**power).sum() for power in (1, 2, 3, 4)]
        for name, k_p in frequencies.items():
            phi = phi_table(V, k_p)
            mean, variance = moments(phi)
            one = float(np.mean((phi - mean) ** 4, dtype=np.float64)) / variance**2 - 3
            ideal = SET_SIZE * variance * (V - SET_SIZE) / (V - 1)
            first, second, _, fourth = powers[name] / number
            kurtosis, ratio = fourth / second**2, second / ideal
            of_ratio = ratio * math.sqrt(max(0.0, kurtosis - 1) / number)
            for statistic, value, expected, error in (
                ("mean/σ", first / math.sqrt(ideal), 0.0, math.sqrt(ratio / number)),
                ("variance ratio", ratio, 1.0, of_ratio),
                ("excess kurtosis", kurtosis - 3, one / SET_SIZE, math.sqrt(24 / number)),
            ):
                what = (measure, f"{case}, k_p = {name}", statistic, value, expected)
                known = near_multiple(V)[k_p] and statistic != "mean/σ" and case in IN_ONE_ROW
                if not compared and not known:
                    rows.append(setup.normal(*what, error, k_p=k_p))
                else:
                    limit = None if compared else SUMS_LIMIT
                    rows.append(setup.row(*what, k_p=k_p, error=float(error), limit=limit))
    return rows


# ---------------------------------------------------------------- 6: mean shift under a mark


def entropy(p: Floats) -> float:
    return float(-(p * np.log(p)).sum())


@functools.lru_cache
def ideal_shift(p: tuple[float, ...], kappa: float) -> float:
    """Return E[φ of the token drawn] under softmax(log p + κφ), with an independent φ for each token.

    With W = exp(κφ), L(s) = E[exp(-sW)] and M(s) = E[φ·W·exp(-sW)], and 1/Z = ∫ exp(-tZ) dt,

        E[Σ p_i φ_i W_i / Z] = ∫_0^∞ Σ_i p_i M(t p_i) Π_{j≠i} L(t p_j) dt

    by the trapezoidal rule in log t: exact to 1e-9.
    """
    law = np.cos((np.arange(128) + 0.5) * np.pi / 128)
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
        found = {name: np.zeros(2) for name in frequencies}
        for n in setup.chunks(number, m):
            ranks = setup.ranks(np.broadcast_to(ids, (n, m)), setup.seeds(n))
            for name, moment in found.items():
                phi = phi_table(V, frequencies[name])
                tilted = np.exp(np.float32(KAPPA) * phi)
                drawn = ((phi * tilted)[ranks] @ p) / (tilted[ranks] @ p)
                moment += drawn.sum(), np.square(drawn).sum()
        for name, moment in found.items():
            first, second = moment / number
            error = math.sqrt(max(0.0, second - first**2) / number)
            case = f"fourier, {law} (entropy {entropy(p):.3f}), k_p = {name}"
            ideal = ideal_shift(tuple(p), KAPPA)
            more = {"k_p": frequencies[name]}
            rows.append(setup.normal("mean shift", case, "mean shift", first, ideal, error, **more))
    for name, k_p in frequencies.items():
        phi = phi_table(V, k_p).astype(np.float64)
        ranks = setup.ranks(np.arange(V, dtype=np.uint32), np.repeat(setup.seeds(1), V))
        tilted = np.exp(KAPPA * phi[ranks])
        value = float((phi[ranks] * tilted).sum() / tilted.sum())
        case = f"fourier, uniform over V (entropy {math.log(V):.3f}), k_p = {name}"
        bound = {"k_p": k_p, "limit": SHIFT_LIMIT}
        ideal = FAMILIES["fourier"].mean(KAPPA)
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


def other_permutations(setup: Setup) -> list[Row]:
    """Three rounds fail the sums; a fifth round takes away the correlation of close ids. Not judged."""
    rows = []
    small = setup.draws // 4
    for name, permute in (("without the first", WITHOUT_FIRST), ("without the last", WITHOUT_LAST)):
        other = dataclasses.replace(setup, permute=permute, draws=small)
        found = sums(other, measure="other permutations", compared=True)
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
    "pairs": correlations.pairs,
    "every distance": correlations.every_distance,
    "every k_p": correlations.every_frequency,
    "contexts and keys": correlations.contexts_and_keys,
    "sums": sums,
    "mean shift": mean_shift,
    "bijection": bijection,
    "other permutations": other_permutations,
}


def run(vocab_sizes: Sequence[int], draws: int, seed: int) -> list[Row]:
    jobs = [(V, name) for V in vocab_sizes for name in MEASURES]
    rows = []
    for number, (V, name) in enumerate(tqdm(jobs, unit="measure")):
        rows += MEASURES[name](Setup(V, draws, np.random.default_rng([seed, number])))
    return rows


DETAILS = {
    **{"measure": "{measure}", "V": "{vocab_size}", "case": "{case}", "k_p": "{k_p}"},
    **{"statistic": "{statistic}", "value": "{value:.5f}", "±": "{error:.5f}", "ideal": "{expected:.5f}"},
    **{"limit": "{limit:.5f}", "p": "{p:.1e}"},
}
"""Columns of the tables of single rows."""


def markdown(rows: Sequence[Row], draws: int, seed: int) -> str:
    parts = [judged.heading("Quality of the permutation", rows, draws, seed)]
    parts += ["## Tests", judged.summary(rows)]
    known = [row for row in rows if row.kind == "bound" and row.measure not in ("mean shift", "bijection")]
    for title, chosen in (
        ("Mean shift under a mark", [row for row in rows if row.measure == "mean shift"]),
        ("Known differences, judged by a limit", known),
        ("Comparisons, not judged", [row for row in rows if row.kind == "comparison"]),
        ("Failures", failures(rows)),
    ):
        if chosen:
            parts += [f"## {title}", columns(judged.as_rows(chosen), DETAILS)]
    return "\n\n".join(parts)


def size(text: str) -> int:
    if int(text) < 8192:
        raise argparse.ArgumentTypeError(f"{text}: expected sizes of at least 8192")
    return int(text)


def main() -> None:
    line = parser("benchmarks.accuracy.scheme_quality", __doc__)
    line.add_argument("--vocab-sizes", type=size, nargs="+", default=VOCAB_SIZES)
    judged.main(line, lambda given: run(given.vocab_sizes, given.draws, given.seed), markdown)


if __name__ == "__main__":
    sys.exit(exit_code(main))
