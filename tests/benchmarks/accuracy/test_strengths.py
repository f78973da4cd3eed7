"""The benchmark of strengths: laws, texts and measures are what they say."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.accuracy import strengths
from iet.decoding import UNATTRIBUTED

REGIMES = {regime.name: regime for regime in strengths.REGIMES}


@pytest.mark.parametrize("name", strengths.LAWS)
def test_marks_carry_the_requested_nats(name: str) -> None:
    law, rng = strengths.LAWS[name], np.random.default_rng(1)
    for nats in (0.02, 0.2, 0.6):
        tilt = strengths.strength_of(law, np.array(nats))
        scores = strengths.draw(law, np.full(100_000, float(tilt)), rng)
        assert np.mean(tilt * scores - law.log_mgf(tilt)) == pytest.approx(nats, rel=0.1)
    unmarked = strengths.draw(law, np.zeros(100_000), rng)
    assert unmarked.mean() == pytest.approx(float(law.mean(0.0)), abs=0.02)


def test_texts_follow_their_regime() -> None:
    rng = np.random.default_rng(2)
    truth = strengths.truth_of(REGIMES["100 in 500"], rng)
    assert (len(truth), (truth == 0).sum(), np.count_nonzero(np.diff(truth))) in (
        (500, 100, 2),
        (500, 100, 1),
    )
    assert (strengths.truth_of(REGIMES["unmarked, 6 agents"], rng) == UNATTRIBUTED).tolist() == [True] * 1000
    forced = strengths.truth_of(REGIMES["turns of 60, forced"], rng)
    assert forced.min() == 0
    assert np.count_nonzero(np.diff(forced)) == 11
    gaps = strengths.truth_of(REGIMES["gaps, turns of 60"], rng)
    assert (gaps == UNATTRIBUTED).sum() == 9 * 60
    (regime,) = (regime_ for regime_ in strengths.ALTERNATING if regime_.name == "turns of 200, gaps of 60")
    alternating = strengths.truth_of(regime, rng)
    assert len(alternating) == regime.tokens
    assert np.flatnonzero(np.diff(alternating == UNATTRIBUTED)).tolist()[:3] == [59, 259, 319]


def test_measures() -> None:
    truth = np.array([-1, 0, 0, 0, -1])
    labels = np.array([-1, -1, 0, 0, 0])
    assert strengths.measured(REGIMES["100 in 500"], truth, labels) == 0.5
    assert strengths.measured(REGIMES["turns of 60"], truth, labels) == 0.6


def test_compares_cells_with_another_checkout() -> None:
    regimes = [REGIMES["30 in 100"], REGIMES["turns of 30"]]
    cells, rows = strengths.run(regimes, 2)
    assert len(rows) == (3 + 4) * len(strengths.LAWS) * 2
    assert all("before" not in cell for cell in cells)
    earlier = [{**row, "posterior": row["posterior"] - 0.25} for row in rows]
    cells, _ = strengths.run(regimes, 2, earlier)
    assert all(cell["gain"][0] == pytest.approx(0.25) for cell in cells)
    table = strengths.markdown(cells, 2)
    assert "+0.250 (+0.250, +0.250)" in table
    assert all(0 <= cell["right"] <= 1 and 0 < cell["stated"] <= 1 for cell in cells)
    assert table.count("\n| 30 in 100") == 3
