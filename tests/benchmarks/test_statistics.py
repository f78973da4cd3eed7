"""Intervals over texts: alone, as ratios, paired, over cells, and crossed with runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.statistics import (
    Interval,
    crossed,
    difference,
    interval,
    mean_difference,
    ratio,
    relative_change,
)
from iet.errors import InputError, ShapeError

figures = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30)
seeds = st.integers(0, 2**32)


@settings(deadline=None)
@given(values=figures, seed=seeds)
def test_bootstrap_equals_means_of_resampled_texts(values, seed):
    result = interval(values, seed, draws=200)
    assert result == interval([*values, None], seed, draws=200)
    counts = np.random.default_rng(seed).multinomial(len(values), [1 / len(values)] * len(values), size=200)
    means = [np.mean(np.repeat(values, row)) for row in counts]
    low, high = np.quantile(means, [0.025, 0.975])
    assert result.mean == pytest.approx(np.mean(values))
    assert (result.low, result.high, result.texts) == (pytest.approx(low), pytest.approx(high), len(values))


def test_ratio_weighs_texts_by_denominator():
    result = ratio([9, 0, 0], [10, 1, 0], seed=1)
    assert (result.mean, result.texts) == (pytest.approx(9 / 11), 2)
    assert (result.low, result.high) == (0.0, pytest.approx(0.9))
    assert ratio([0.0], [0.0], seed=1) is None
    equal = ratio([1, 0, 1, 1], [2, 2, 2, 2], seed=3)
    alone = interval([0.5, 0.0, 0.5, 0.5], seed=3)
    assert (equal.low, equal.mean, equal.high) == pytest.approx((alone.low, alone.mean, alone.high))
    with pytest.raises(ShapeError, match="1 and 2 texts"):
        ratio([1], [1, 2], seed=0)


def test_intervals_have_the_width_of_theory():
    values = np.random.default_rng(5).normal(0.5, 0.1, 400)
    result = interval(values.tolist(), seed=1)
    error = values.std() / 20
    assert result.low == pytest.approx(values.mean() - 1.96 * error, abs=0.1 * error)
    assert result.high == pytest.approx(values.mean() + 1.96 * error, abs=0.1 * error)


@settings(deadline=None)
@given(values=figures, seed=seeds)
def test_interval_of_a_constant_difference_is_that_value(values, seed):
    better = [value + 0.25 for value in values]
    result = difference(better, values, seed, draws=100)
    assert (result.mean, result.low, result.high) == (pytest.approx(0.25),) * 3
    back = difference(values, better, seed, draws=100)
    assert (back.low, back.high) == (pytest.approx(-result.high), pytest.approx(-result.low))
    if min(values) > 0.01:
        change = relative_change(values, [0.9 * value for value in values], seed, draws=100)
        assert (change.mean, change.low, change.high) == (pytest.approx(-10),) * 3


def test_cells_are_resampled_each_on_its_own():
    rng = np.random.default_rng(0)
    first, second = rng.normal(0.3, 0.1, 100), rng.normal(0.5, 0.1, 400)
    zeros = np.zeros(400)
    result = mean_difference([(first, zeros[:100]), (second, zeros), ([None], [1.0])], seed=3)
    assert result.mean == pytest.approx((first.mean() + second.mean()) / 2)
    error = math.hypot(first.std() / 10, second.std() / 20) / 2
    assert result.high - result.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert result.texts == 500
    assert mean_difference([([None], [1.0])], seed=3) is None
    single = mean_difference([(first, zeros[:100])], seed=3)
    assert single.mean == difference(first, zeros[:100], seed=3).mean


def test_texts_without_a_figure():
    assert interval([], 0) is None
    assert interval([None], 0) is None
    assert difference([1.0, None, 0.5], [0.5, 0.5, None], 0) == Interval(0.5, 0.5, 0.5, 1)
    assert relative_change([0.0, None], [1.0, 1.0], 0) is None
    mixed = relative_change([0.0, 1.0], [1.0, 1.0], 0)
    assert mixed.mean == 100
    assert np.isfinite(mixed.high)
    with pytest.raises(InputError, match="values: got nan"):
        interval([0.5, float("nan")], 0)
    with pytest.raises(InputError, match="draws: got 0"):
        interval([0.5], 0, draws=0)
    with pytest.raises(ShapeError, match="got 1 and 2 texts"):
        difference([0.5], [0.5, 0.5], 0)


def test_crossed_interval_of_one_run_is_that_of_its_texts():
    values = np.random.default_rng(1).random(40).round()
    assert crossed([values], 3) == interval(values.tolist(), 3)
    assert crossed(np.zeros((2, 0)), 3) is None


def test_crossed_interval_has_the_variance_of_runs_and_texts():
    rng = np.random.default_rng(2)
    texts, runs = rng.normal(size=(1, 30)), rng.normal(size=(8, 1))
    of_texts, of_runs, both = (crossed(table + np.zeros((8, 30)), 5) for table in (texts, runs, texts + runs))
    for estimate, sample in ((of_texts, texts), (of_runs, runs)):
        error = sample.std() / sample.size**0.5
        assert estimate.mean == pytest.approx(sample.mean())
        assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert both.mean == pytest.approx(texts.mean() + runs.mean())
    widths = [estimate.high - estimate.low for estimate in (of_texts, of_runs, both)]
    assert widths[2] == pytest.approx((widths[0] ** 2 + widths[1] ** 2) ** 0.5, rel=0.1)


@pytest.mark.parametrize(
    ("values", "draws", "message"), [([1.0], 10, "values"), ([[np.nan]], 10, "finite"), ([[1.0]], 0, "draws")]
)
def test_crossed_rejects_invalid_arguments(values, draws, message):
    with pytest.raises((ShapeError, InputError), match=message):
        crossed(values, 0, draws)
