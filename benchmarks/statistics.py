"""Statistics of figures of texts: means with 95 % bootstrap intervals, alone, paired and crossed; p-values.

All bootstraps are percentile ones. How often a text is drawn follows from the number of texts and the seed
alone, so figures of the same texts are resampled alike.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray
from scipy import special

from iet.errors import InputError, ShapeError

Floats = NDArray[np.floating[Any]]

DRAWS = 10_000
"""Resamples of a bootstrap."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean over texts with its bootstrap interval: the 2.5 and 97.5 % points of the resampled means."""

    mean: float
    low: float
    high: float
    texts: int  # how many

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def interval(values: Sequence[float | None], seed: int = 0, draws: int = DRAWS) -> Interval | None:
    """Return the mean over texts with a 95 % percentile bootstrap interval.

    Texts are drawn with replacement. None, a figure that a text does not have, is left out; None comes back
    if nothing is left. O(draws · texts).
    """
    present = _finite([value for value in values if value is not None])
    return _interval(present.mean(), _means(present, seed, draws), len(present)) if len(present) else None


def ratio(parts: Sequence[float], wholes: Sequence[float], seed: int, draws: int = DRAWS) -> Interval | None:
    """Return Σ parts / Σ wholes, as of turns that are right, with a 95 % percentile bootstrap interval.

    Texts are drawn with replacement, each with its part and its whole. Texts of whole 0 are left out; None
    comes back if nothing is left.
    """
    a, b = _pairs(parts, wholes)
    a, b = a[b > 0], b[b > 0]
    if not len(b):
        return None
    return _interval(a.sum() / b.sum(), _means(a, seed, draws) / _means(b, seed, draws), len(b))


def crossed(values: npt.ArrayLike, seed: int = 0, draws: int = DRAWS) -> Interval | None:
    """Return the mean over runs and texts with a 95 % percentile bootstrap interval of both.

    Runs (such as a judge's seeds) and texts are each drawn with replacement, independently, and every drawn
    run is read on every drawn text: `values` [S, N]. With one run it is the `interval` of its texts. None
    comes back if there is no text. O(draws · S·N).
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2:
        raise ShapeError("values", got=list(table.shape), expected="[runs, texts]")
    if not table.size:
        return None
    _finite(table.ravel().tolist())
    runs, texts = table.shape
    if draws < 1:
        raise InputError(f"draws: got {draws!r}, expected at least 1")
    rng = np.random.default_rng(seed)
    of_texts = rng.multinomial(texts, np.full(texts, 1 / texts), size=draws)
    of_runs = rng.multinomial(runs, np.full(runs, 1 / runs), size=draws)
    means = ((of_runs @ table) * of_texts).sum(1) / table.size
    return _interval(table.mean(), means, texts)


def difference(
    ours: Sequence[float | None], theirs: Sequence[float | None], seed: int, draws: int = DRAWS
) -> Interval | None:
    """Return the mean of ours - other, text by text, with a paired bootstrap interval.

    Both have the same texts in the same order. Texts that lack a figure on either side are left out.
    """
    a, b = _pairs(ours, theirs)
    return interval((a - b).tolist(), seed, draws)


def relative_change(
    earlier_values: Sequence[float | None], after: Sequence[float | None], seed: int, draws: int = DRAWS
) -> Interval | None:
    """Return 100·(mean after / mean before - 1) in percent, paired by texts, with a bootstrap interval.

    None if no pair is left or the mean before is zero; resamples whose mean before is zero are left out.
    """
    a, b = _pairs(earlier_values, after)
    if not len(a) or a.mean() == 0:
        return None
    earlier, later = _means(a, seed, draws), _means(b, seed, draws)  # of the same resamples
    nonzero = earlier != 0
    return _interval(100 * (b.mean() / a.mean() - 1), 100 * (later[nonzero] / earlier[nonzero] - 1), len(a))


def mean_difference(
    cells: Sequence[tuple[Sequence[float | None], Sequence[float | None]]], seed: int, draws: int = DRAWS
) -> Interval | None:
    """Return the mean over cells of (ours - other), each cell's texts resampled on their own.

    A cell is (ours, other) on the same texts, as in `difference`; one without a pair is left out.
    """
    differences = [a - b for a, b in (_pairs(*cell) for cell in cells) if len(a)]
    if not differences:
        return None
    seeds = np.random.SeedSequence(seed).generate_state(len(differences))
    means = [_means(d, int(s), draws) for d, s in zip(differences, seeds, strict=True)]
    mean = float(np.mean([d.mean() for d in differences]))
    return _interval(mean, np.mean(means, axis=0), sum(map(len, differences)))


def _means(values: NDArray[np.float64], seed: int, draws: int) -> NDArray[np.float64]:
    """Return the mean of each resample [draws]; how often a text is drawn follows from number and seed."""
    if draws < 1:
        raise InputError(f"draws: got {draws!r}, expected at least 1")
    return np.asarray(_counts(len(values), seed, draws) @ values / len(values))


@functools.lru_cache(maxsize=4)
def _counts(texts: int, seed: int, draws: int) -> NDArray[np.int64]:
    """Return how often each text is in each resample [draws, texts]."""
    return np.random.default_rng(seed).multinomial(texts, np.full(texts, 1 / texts), size=draws)


def _interval(mean: float, means: NDArray[np.float64], texts: int) -> Interval:
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(mean), float(low), float(high), texts)


def _pairs(
    a: Sequence[float | None], b: Sequence[float | None]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if len(a) != len(b):
        raise ShapeError("pairs", got=f"{len(a)} and {len(b)} texts", expected="the same texts twice")
    both = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    return _finite([x for x, _ in both]), _finite([y for _, y in both])


def _finite(values: Sequence[float]) -> NDArray[np.float64]:
    numbers = np.asarray(values, dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise InputError(f"values: got {numbers[~np.isfinite(numbers)][0]}, expected finite figures")
    return numbers


def p_of_normal(value: float, expected: float, error: float) -> float:
    """Return the two-sided p-value of a statistic that is normal around `expected`; 0 without an error."""
    return math.erfc(abs(value - expected) / error / math.sqrt(2)) if error > 0 else 0.0


def chi_square(counts: NDArray[np.integer[Any]], probabilities: Floats) -> tuple[float, int, float]:
    """Return χ² of counts against probabilities, its degrees of freedom, and its two-sided p-value.

    Cells of probability 0 do not count.
    """
    expected = probabilities.ravel() * counts.sum()
    seen, expected = counts.ravel()[expected > 0], expected[expected > 0]
    statistic, freedom = float(((seen - expected) ** 2 / expected).sum()), len(expected) - 1
    p = 2 * min(special.chdtr(freedom, statistic), special.chdtrc(freedom, statistic))
    return statistic, freedom, float(min(p, 1))


def distance_from_uniform(p_values: Floats) -> float:
    """Return the Kolmogorov-Smirnov distance of p-values [N] from the uniform distribution on [0, 1]."""
    p = np.sort(p_values)
    ranks = np.arange(1, len(p) + 1) / len(p)
    return float(np.maximum(np.abs(ranks - p), np.abs(ranks - 1 / len(p) - p)).max())


def summary(values: Sequence[float | None], seed: int = 0) -> list[float]:
    """Return `interval` as [mean, low, high], as the summaries of results hold it; [] without texts."""
    estimate = interval(values, seed)
    return [] if estimate is None else [estimate.mean, estimate.low, estimate.high]
