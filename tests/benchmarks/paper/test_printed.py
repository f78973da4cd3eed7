"""The paper's decoder as printed: splits that are searched forward only."""

from __future__ import annotations

import numpy as np

from benchmarks.paper.reading import printed
from iet.audit.metrics import token_accuracy


def by_definition(margins: np.ndarray, tau: float, min_points: int) -> list[int]:
    points, start = [], 0
    while True:
        remaining = margins[start:]
        sums = [abs(sum(remaining[: t + 1] - remaining.mean())) for t in range(len(remaining))]
        allowed = {t: sums[t] for t in range(min_points - 1, len(remaining) - min_points)}
        if not allowed or max(allowed.values()) <= tau:
            return points
        start += min(t for t, value in allowed.items() if value == max(allowed.values())) + 1
        points.append(start)


def test_change_points_are_those_of_the_printed_equations():
    rng = np.random.default_rng(0)
    for _ in range(20):
        margins = np.repeat(rng.normal(size=6), 9) + 0.1 * rng.normal(size=54)
        for min_points in (1, 4):
            expected = by_definition(margins, 0.4, min_points)
            assert printed.forward(margins, 0.4, min_points).tolist() == expected


def test_long_turns_of_strong_marks_are_attributed():
    rng = np.random.default_rng(1)
    truth = np.repeat([0, 1, 2, 0], 600)
    scores = np.cos(rng.vonmises(0, 0, (len(truth), 3)))
    scores[np.arange(len(truth)), truth] = np.cos(rng.vonmises(0, 2.0, len(truth)))
    assert token_accuracy(truth, printed.labels(scores.astype(np.float32))) > 0.7
