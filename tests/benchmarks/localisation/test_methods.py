"""The localisation field: methods find what theory says, and on unmarked scores as little."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from benchmarks.localisation import aligator, bayes, seeded, seeker, wiser
from benchmarks.localisation.laws import GREEN, INVERSE, THREE_BITS, Floats, draw, standardised
from iet.marks.families import FAMILIES, Family

GUMBEL = FAMILIES["gumbel"]


def steps(high: float = 4.0) -> Floats:
    """Exponential scores without noise: the null mean, and in [100, 180) and [260, 360) what marks give."""
    scores = np.ones(480)
    scores[100:180] = scores[260:360] = high
    return scores


# Exact on steps without noise


@pytest.mark.parametrize("block", [10, 25, 40])
def test_wiser_finds_both_ends_of_each_step(block: int) -> None:
    assert wiser.detect(steps(), GUMBEL, block=block) == [(100, 180), (260, 360)]
    assert wiser.detect(np.ones(480), GUMBEL, block=block) == []


def test_wiser_takes_the_ends_of_highest_excess() -> None:
    scores = steps() * np.random.default_rng(3).exponential(size=480)
    (found,) = wiser.detect(scores[:240], GUMBEL, block=40, rho=0.4)
    reach = 40 + int(0.1 * 240**0.6) + 1
    lift = (scores[80 - reach + 1 : 200 + reach - 1] - 1).sum() / (120 + 2 * (reach - 1) - 1)

    def excess(start: int, end: int) -> float:
        return float((scores[start:end] - 1 - 0.4 * lift).sum())

    ends = itertools.product(range(80 - 40, 80 + 40), range(200 - 40, 240))
    assert excess(*found) == pytest.approx(max(excess(*each) for each in ends))


def test_seeded_segmentation_finds_every_change_and_which_segments_are_marked() -> None:
    assert seeded.change_points(steps(), 1, 50, 0.05) == [100, 180, 260, 360]
    assert seeded.detect(steps(), GUMBEL, window=1) == [(100, 180), (260, 360)]
    assert seeded.detect(np.ones(480), GUMBEL, window=1) == []


def test_the_split_is_that_of_the_kolmogorov_smirnov_test_at_every_place() -> None:
    rng = np.random.default_rng(0)
    for values in (rng.exponential(size=60), rng.integers(0, 4, 45).astype(float)):
        count = len(values)
        every = [
            k * (count - k) * stats.ks_2samp(values[:k], values[k:], method="asymp").statistic
            for k in range(1, count)
        ]
        ranks = np.unique(values, return_inverse=True)[1].astype(np.int64)
        place, highest = seeded._split_njit(ranks, np.empty(count, np.int32), np.empty(count, np.int32))
        assert highest == pytest.approx(max(every))
        assert every[place - 1] == pytest.approx(max(every))


def test_seeded_intervals_cover_every_layer_evenly() -> None:
    found = seeded.seeded_intervals(400)
    assert found[-1] == (0, 400)
    assert {(0, 200), (100, 300), (200, 400), (0, 100), (50, 150), (300, 400)} <= set(found)
    assert all(start in range(376) and end - start in range(25, 401 - start) for start, end in found)


def test_waterseeker_finds_both_ends_of_each_step() -> None:
    options = {"window": 40, "tolerance": 20, "share": 0.5}
    assert seeker.detect(steps(), GUMBEL, **options) == [(100, 180), (260, 360)]  # type: ignore[arg-type]
    assert seeker.detect(np.ones(480), GUMBEL) == []
    assert seeker.detect(steps()[:30], GUMBEL) == []


def test_aol_forecasts_a_level_and_moves_with_a_step() -> None:
    assert aligator.denoised(np.full(200, 3.0)) == pytest.approx(3, abs=0.2)
    forecast = aligator.denoised(steps())
    inside = np.r_[124:156, 284:336]
    assert forecast[inside] == pytest.approx(4, abs=0.3)
    assert forecast[np.r_[0:76, 204:236, 384:480]] == pytest.approx(1, abs=0.3)
    found = aligator.detect(steps(), GUMBEL, lift=1.5)
    assert np.abs(np.array(found) - [(100, 180), (260, 360)]).max() <= 8
    assert aligator.detect(np.ones(480), GUMBEL) == []


def test_aol_knows_nothing_of_texts_too_short_for_an_expert() -> None:
    assert np.isnan(aligator.denoised(np.ones(40))).all()
    assert aligator.detect(np.ones(40), GUMBEL) == []


def test_the_bayes_reader_finds_steps() -> None:
    law = bayes.uniform(50, 150)
    lengths = bayes.Lengths(law, law, np.array([0.5, 0.5]), np.array([0.0, 1.0]))
    labels, posterior = bayes.read(2 * (steps() - 2)[:, None], lengths)
    assert np.flatnonzero(np.diff(labels)).tolist() == [99, 179, 259, 359]
    assert posterior.sum(axis=1) == pytest.approx(1)


# The Bayes reader is exact


def test_the_posterior_is_that_of_all_segmentations() -> None:
    tokens, agents = 7, 2
    rng = np.random.default_rng(1)
    ratios = rng.normal(size=(tokens, agents))
    own, rest = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.4])
    lengths = bayes.Lengths(own, rest, np.array([0.5, 0.2, 0.3]), np.array([0.1, 0.6, 0.3]))
    expected = np.zeros((tokens, agents + 1))

    def extend(labels: list[int], chance: float) -> None:
        if len(labels) >= tokens:
            expected[np.arange(tokens), labels[:tokens]] += chance
            return
        for state in range(agents + 1):
            if labels and state == labels[-1]:
                continue
            share = (
                lengths.shares[state] / (1 - lengths.shares[labels[-1]]) if labels else lengths.first[state]
            )
            for length, of_length in enumerate(own if state < agents else rest, 1):
                here = range(len(labels), min(tokens, len(labels) + length))
                ratio = np.exp(sum(ratios[t, state] for t in here)) if state < agents else 1.0
                extend(labels + [state] * length, chance * share * of_length * ratio)

    extend([], 1.0)
    labels, posterior = bayes.read(ratios, lengths)
    expected /= expected.sum(axis=1, keepdims=True)
    assert posterior == pytest.approx(expected, abs=1e-12)
    assert labels.tolist() == [-1 if label == agents else label for label in expected.argmax(axis=1)]


# Unmarked scores


@pytest.mark.parametrize("family", [GUMBEL, GREEN, INVERSE], ids=lambda family: family.name)
def test_wiser_finds_something_in_as_many_unmarked_texts_as_its_level_says(family: Family) -> None:
    texts = draw(family, 0.0, np.random.default_rng(5), (400, 300))
    found = sum(bool(wiser.detect(scores, family, block=30, level=0.05)) for scores in texts)
    assert found <= 400 * 0.05 + 3 * (400 * 0.05) ** 0.5
    if family is GUMBEL:  # the others' blocks are as often too low as too high, which marks none
        assert found >= 6


def test_p_values_of_change_points_hold_in_unmarked_texts() -> None:
    texts = draw(GUMBEL, 0.0, np.random.default_rng(6), (300, 60))
    low = sum(seeded._significance(scores.tobytes(), 1, 0, 60)[1] <= 0.05 for scores in texts)
    assert low <= 300 * 0.05 + 3 * (300 * 0.05) ** 0.5


def test_waterseeker_finds_hardly_anything_in_unmarked_texts() -> None:
    for family, most in ((GUMBEL, 0), (GREEN, 2)):  # green tokens are not as normal as its p-values
        texts = draw(family, 0.0, np.random.default_rng(7), (50, 500))
        assert sum(bool(seeker.detect(scores, family, level=1e-6)) for scores in texts) <= most


def test_sums_have_the_p_values_of_their_law_however_far_out() -> None:
    sums, counts = np.array([12.0, 60.0, 400.0, 3000.0]), np.array([10, 40, 100, 200])
    expected = stats.gamma.logsf(sums[:3], counts[:3])
    assert seeker.log_p_of_sums(sums, counts, GUMBEL)[:3] == pytest.approx(expected, rel=1e-6)
    # Σ k < n of x^k/k! exp(-x), in logarithms, where 1 - the distribution function is 0 in floating point
    terms = -3000 + np.arange(200) * np.log(3000) - np.array([0, *np.cumsum(np.log(np.arange(1, 200)))])
    assert seeker.log_p_of_sums(sums, counts, GUMBEL)[3] == pytest.approx(
        np.logaddexp.reduce(terms), rel=1e-3
    )
    assert seeker.log_p_of_sums(np.array([3.0]), np.array([9]), GREEN) == pytest.approx(stats.norm.logsf(1.0))


# Laws


@pytest.mark.parametrize("strength", [0.0, 0.5])
@pytest.mark.parametrize("family", [*FAMILIES.values(), GREEN, THREE_BITS], ids=lambda family: family.name)
def test_drawn_scores_have_the_mean_of_their_law(family: Family, strength: float) -> None:
    scores = draw(family, strength, np.random.default_rng(8), 40_000)
    assert scores.mean() == pytest.approx(family.mean(strength), abs=0.03)
    if strength == 0:
        assert scores.var() == pytest.approx(family.variance, abs=0.05)


def test_the_law_of_inverse_sampling() -> None:
    grid = (np.arange(100_000) + 0.5) / 100_000
    scores = standardised(grid, INVERSE)
    assert (2 * grid * scores).mean() == pytest.approx(0, abs=1e-6)
    for strength in (1e-5, 0.3, 0.8, 2.0):
        mgf = (2 * grid * np.exp(strength * scores)).mean()
        assert INVERSE.log_mgf(strength) == pytest.approx(np.log(mgf), abs=1e-4)
        tilted = (2 * grid * scores * np.exp(strength * scores)).mean() / mgf
        assert INVERSE.mean(strength) == pytest.approx(tilted, abs=1e-3)
    drawn = draw(INVERSE, 0.0, np.random.default_rng(9), 40_000)
    assert (drawn.mean(), drawn.var()) == (pytest.approx(0, abs=0.02), pytest.approx(1, abs=0.02))
