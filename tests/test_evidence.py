"""Tails against exact laws, and the corrected p-value of the best segment against simulation."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from iet.errors import InputError
from iet.evidence import log_tail, log_tails, segment_log_p
from iet.scheme import FAMILIES, Family

FOURIER, SQUARE = FAMILIES["fourier"], FAMILIES["square"]


def arcsine_tail(total: float, count: int) -> float:
    """P(Σ cos U_i >= s), by inverting the characteristic function J0(t)^n."""
    integral = integrate.quad(
        lambda t: special.j0(t) ** count * math.sin(t * total) / t if t else total, 0, 60, limit=2000
    )[0]
    return 0.5 - integral / math.pi


def log_p_of(scores: np.ndarray, pairs: np.ndarray, start: int, end: int, family: Family, keys: int) -> float:
    """`segment_log_p` of one segment under one key."""
    starts, ends, columns = np.array([[start], [end], [0]])
    return float(segment_log_p(scores[:, None], pairs, starts, ends, columns, family, keys)[0])


def saddlepoint_by_bisection(total: float, count: int, family: Family) -> float:
    """Robinson's formula as it stands, with λ by bisection of the family's own mean."""
    if total < 0:
        return math.log1p(-math.exp(saddlepoint_by_bisection(-total, count, family))) if count >= 20 else 0.0
    x = min(total / count, 1 - 1e-9)
    low, high = 0.0, 256.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if family.mean(middle) < x else (low, middle)
    log_p = count * (family.log_mgf(low) - low * x)
    if count < 20:
        return log_p
    step = 3e-5 * (1 + low)
    variance = (family.mean(low + step) - family.mean(low - step)) / (2 * step)
    u = low * math.sqrt(count * variance)
    return log_p + u * u / 2 + special.log_ndtr(-u)


@pytest.mark.parametrize("count", [1, 7, 20, 64, 1000, 200_000])
def test_the_table_behind_the_fourier_tail_loses_nothing(count: int) -> None:
    shares = np.concatenate([np.linspace(-0.99, 0.99, 45), [1e-4, -1e-4, 1e-2, 0.999, 0.9999, 1 - 1e-6, 1.0]])
    found = log_tails(shares * count, np.full(len(shares), count), FOURIER)
    for share, log_p in zip(shares.tolist(), found.tolist(), strict=True):
        expected = min(0.0, saddlepoint_by_bisection(share * count, count, FOURIER))
        assert log_p == pytest.approx(expected, rel=1e-8, abs=1e-11 * count)
        assert log_p == log_tail(share * count, count, FOURIER)


@pytest.mark.parametrize("count", [20, 64, 200])
@pytest.mark.parametrize("deviations", [-1.0, 0.0, 0.5, 1.0, 2.0, 4.0])
def test_fourier_tail_is_that_of_the_arcsine_law(count: int, deviations: float) -> None:
    total = deviations * math.sqrt(count / 2)
    accuracy = 0.04 if count < 64 else 0.01
    found = math.exp(log_tail(total, count, FOURIER))
    assert found == pytest.approx(arcsine_tail(total, count), rel=accuracy)


@pytest.mark.parametrize("count", [5, 10, 19])
def test_fourier_tail_of_few_scores_is_never_too_small(count: int) -> None:
    for deviations in (0.0, 0.5, 1.0, 2.0, 3.0):
        total = deviations * math.sqrt(count / 2)
        if total < count:
            assert math.exp(log_tail(total, count, FOURIER)) >= arcsine_tail(total, count) - 1e-9


@pytest.mark.parametrize("count", [1, 7, 200])
def test_square_tail_is_binomial(count: int) -> None:
    for successes in {0, 1, count // 2, count - 1, count}:
        exact = stats.binom.logsf(successes - 1, count, 0.5)
        assert log_tail(2 * successes - count, count, SQUARE) == pytest.approx(exact, abs=1e-9)


def test_tails_stay_finite_and_fall() -> None:
    for family in (FOURIER, SQUARE):
        assert log_tail(0.0, 0, family) == 0.0
        tails = [log_tail(share * 5000, 5000, family) for share in (-1, -0.5, 0, 0.01, 0.1, 0.5, 0.9, 1)]
        assert all(-math.inf < later <= earlier <= 0 for earlier, later in itertools.pairwise(tails))


def test_family_without_a_tail_is_refused() -> None:
    with pytest.raises(InputError, match="sawtooth"):
        log_tail(1.0, 1, dataclasses.replace(FOURIER, name="sawtooth"))


def test_a_repeated_pair_is_no_new_evidence() -> None:
    scores, pairs = np.full(400, 0.5, dtype=np.float32), np.arange(400)
    once = log_p_of(scores, pairs, 0, 400, FOURIER, 4)
    assert once < -20
    assert log_p_of(scores, pairs % 3, 0, 400, FOURIER, 4) == 0.0
    assert log_p_of(scores, np.full(400, -1), 0, 400, FOURIER, 4) == 0.0


def test_segments_are_tested_on_their_inside_on_a_grid_each_pair_once() -> None:
    rng = np.random.default_rng(2)
    scores = rng.uniform(-0.5, 1, (3000, 3)).astype(np.float32)
    pairs = rng.integers(-1, 2000, 3000)
    edges = np.unique(np.concatenate([[0, 3000], rng.integers(0, 3000, 40)]))
    starts, ends, columns = edges[:-1], edges[1:], rng.integers(0, 3, len(edges) - 1)
    found = segment_log_p(scores, pairs, starts, ends, columns, FOURIER, 7)
    for start, end, column, log_p in zip(starts, ends, columns, found, strict=True):
        grid = 1
        while grid * 2 <= (end - start) // 8:
            grid *= 2
        low, high = math.ceil(start / grid) * grid, end // grid * grid
        firsts = dict(zip(pairs[low:high][::-1], scores[low:high, column][::-1], strict=True))
        firsts.pop(-1, None)
        tail = log_tail(sum(map(float, firsts.values())), len(firsts), FOURIER)
        choices = (15 if grid == 1 else 9) * (3000 // grid + 1) * (3000 // 8).bit_length() * 7
        assert log_p == pytest.approx(min(0.0, tail + math.log(choices)), rel=1e-9, abs=1e-9)


def test_correction_grows_with_keys_and_text() -> None:
    scores, pairs = np.full(3000, 0.4, dtype=np.float32), np.arange(3000)
    alone = log_p_of(scores[:200], pairs[:200], 0, 200, FOURIER, 1)
    in_text = log_p_of(scores, pairs, 0, 200, FOURIER, 1)
    among_keys = log_p_of(scores, pairs, 0, 200, FOURIER, 100)
    assert alone < in_text < among_keys
    assert among_keys - in_text == pytest.approx(math.log(100))


def test_unmarked_text_rarely_holds_any_segment_below_the_level() -> None:
    # The hardest reader there is: for each text the best of ALL segments and keys, not a decoder's choice.
    rng = np.random.default_rng(0)
    texts, tokens, keys, level = 300, 120, 3, 0.05
    ends = [(s, e) for s in range(0, tokens, 3) for e in range(s + 8, tokens + 1, 3)]
    pairs, hits = np.arange(tokens), 0
    for _ in range(texts):
        x = np.cos(rng.uniform(0, 2 * np.pi, (tokens, keys))).astype(np.float32)
        sums = np.concatenate([np.zeros((1, keys)), np.cumsum(x, axis=0, dtype=np.float64)])
        # Test only the few segments with the largest standardised sums; the others cannot be lower.
        z = np.array([(sums[e] - sums[s]) / math.sqrt(e - s) for s, e in ends])
        best = np.argsort(z, axis=None)[-25:]
        chosen, columns = np.unravel_index(best, z.shape)
        starts, stops = np.array(ends)[chosen].T
        candidates = segment_log_p(x, pairs, starts, stops, columns, FOURIER, keys)
        hits += candidates.min() <= math.log(level)
    assert hits <= stats.binom.ppf(0.999, texts, level)
