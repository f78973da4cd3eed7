"""Tails against exact laws, and the corrected p-value of the best segment against simulation."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from iet.errors import InputError
from iet.evidence import log_tail, segment_log_p
from iet.scheme import FAMILIES

FOURIER, SQUARE = FAMILIES["fourier"], FAMILIES["square"]


def arcsine_tail(total: float, count: int) -> float:
    """P(Σ cos U_i >= s), by inverting the characteristic function J0(t)^n."""
    integral = integrate.quad(
        lambda t: special.j0(t) ** count * math.sin(t * total) / t if t else total, 0, 60, limit=2000
    )[0]
    return 0.5 - integral / math.pi


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
    once = segment_log_p(scores, pairs, 0, 400, FOURIER, 4)
    assert once < -20
    assert segment_log_p(scores, pairs % 3, 0, 400, FOURIER, 4) == 0.0
    assert segment_log_p(scores, np.full(400, -1), 0, 400, FOURIER, 4) == 0.0


def test_correction_grows_with_keys_and_text() -> None:
    scores, pairs = np.full(3000, 0.4, dtype=np.float32), np.arange(3000)
    alone = segment_log_p(scores[:200], pairs[:200], 0, 200, FOURIER, 1)
    in_text = segment_log_p(scores, pairs, 0, 200, FOURIER, 1)
    among_keys = segment_log_p(scores, pairs, 0, 200, FOURIER, 100)
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
        candidates = (
            segment_log_p(x[:, k], pairs, *ends[i], FOURIER, keys)
            for i, k in zip(*np.unravel_index(best, z.shape), strict=True)
        )
        hits += min(candidates) <= math.log(level)
    assert hits <= stats.binom.ppf(0.999, texts, level)
