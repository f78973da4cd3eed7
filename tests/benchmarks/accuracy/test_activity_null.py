"""The table for the p-values of keys: what its program draws, and what lies in the package."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Iterator

import numpy as np
import pytest

import iet
from benchmarks.accuracy import activity_null
from iet.audit.evidence import activity_log_p
from iet.decoding import log_activity
from iet.marks.families import FAMILIES


@pytest.fixture(autouse=True)
def pools() -> Iterator[None]:
    """Keep no sums from one size of pool to another."""
    activity_null.block_sums.cache_clear()
    yield
    activity_null.block_sums.cache_clear()


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_table_agrees_with_new_draws(family: str) -> None:
    blocks, count, rng = 4, 20_000, np.random.default_rng(11)
    size = activity_null.BLOCK
    sums = FAMILIES[family].draw(rng, (blocks, size, count), 0.0).sum(axis=1)
    ratios = log_activity(sums, np.full(blocks, float(size)), FAMILIES[family])
    for level in (-0.5, 0.0, 0.5, 1.0, 2.0):
        seen = (ratios > level).mean()
        expected = math.exp(activity_log_p(np.array([level]), blocks * size, FAMILIES[family])[0])
        assert abs(seen - expected) < 4.5 * math.sqrt(expected / count) + 0.03 * expected, level


def test_far_tail_equals_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity_null, "POOL", 1 << 13)
    row = activity_null.tail("gumbel", 64, 40_000, seed=5)
    table = json.loads((pathlib.Path(iet.__file__).parent / "audit" / "activity_null.json").read_text())
    frozen = table["log_p"]["gumbel"][table["counts"].index(64)]
    assert table["log_ratios"] == list(activity_null.LEVELS)
    far = [i for i, level in enumerate(activity_null.LEVELS) if 0 <= level <= 10]
    assert np.abs(np.array(row) - frozen)[far].max() < 0.25


def test_interpolated_p_values_are_not_too_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(activity_null, "POOL", 1 << 17)
    # In three blocks 3 tokens can be high, in two or four not alike: log P is not linear in log n.
    simulated = np.array(activity_null.tail("fourier", 48, 900_000, seed=3))
    levels = np.array(activity_null.LEVELS)
    judged = (simulated > math.log(1e-6)) & (levels > -0.5)
    returned = activity_log_p(levels + 1e-9, 48, FAMILIES["fourier"])
    assert (returned >= simulated - 0.12)[judged].all()


def test_activity_follows_the_mixture() -> None:
    speaks = activity_null.draw_states(400, 2000, 0.1, np.random.default_rng(0))
    leave = activity_null.BLOCK / activity_null.MEAN_SEGMENT
    assert speaks.mean() == pytest.approx(0.1 / (0.1 + leave), abs=0.01)
    ends = (speaks[:-1] & ~speaks[1:]).sum() / speaks[:-1].sum()
    assert ends == pytest.approx(leave, rel=0.05)
