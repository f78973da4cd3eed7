"""The metrics against their formulas, written as sets, and at their edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iet.audit.metrics import (
    agent_accuracy,
    boundary_f1,
    coverage,
    edge_similarity,
    mean_iou,
    token_accuracy,
)
from iet.errors import InputError, ShapeError

label_pairs = st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 4)), min_size=1, max_size=30)
points = st.sets(st.integers(0, 25), max_size=5).map(sorted)


@given(label_pairs)
def test_token_accuracy_and_iou_equal_the_formulas(pairs):
    truth, predicted = zip(*pairs, strict=True)
    assert token_accuracy(truth, predicted) == pytest.approx(sum(g == e for g, e in pairs) / len(pairs))
    ious = []
    for a in range(5):
        t, e = ({i for i, x in enumerate(labels) if x == a} for labels in (truth, predicted))
        if t | e:
            ious.append(len(t & e) / len(t | e))
    assert mean_iou(truth, predicted, 5) == mean_iou(truth, predicted)
    assert mean_iou(truth, predicted) == pytest.approx(np.mean(ious) if ious else 1.0)


def test_iou_of_absent_agents():
    assert mean_iou([10**12, -1], [0, -1]) == 0.0
    assert mean_iou([10**12, 5], [10**12, -1]) == 0.5
    assert mean_iou([0, 0], [0, 0], n_agents=9) == 1
    assert mean_iou([0, 0], [0, 7]) == pytest.approx((1 / 2 + 0) / 2)
    assert mean_iou([-1, -1], [-1, -1]) == mean_iou([], []) == 1


def test_edge_similarity():
    a = np.array([[0, 1, 1], [0, 0, 0], [0, 1, 0]])
    assert edge_similarity(a, 0.51 * a) == pytest.approx(1)
    assert edge_similarity(a, [[0, 1, 0], [1, 0, 0], [1, 0, 0]]) == pytest.approx(1 / 3)
    assert edge_similarity(a, 0 * a) == edge_similarity(0 * a, a) == 0
    for large, small in ((1e300, 1e-300), (1e160, 1.0), (5e-324, 1.0)):
        assert edge_similarity(large * a, small * a) == pytest.approx(1)
    assert edge_similarity(0 * a, 0 * a) == edge_similarity(np.zeros((0, 0)), np.zeros((0, 0))) == 1


def most_pairs(truth, predicted, margin):
    if not truth:
        return 0
    remaining = [
        most_pairs(truth[1:], predicted[:i] + predicted[i + 1 :], margin) + 1
        for i, p in enumerate(predicted)
        if abs(p - truth[0]) <= margin
    ]
    return max([most_pairs(truth[1:], predicted, margin), *remaining])


@given(points, points, st.integers(0, 6))
def test_boundary_f1_uses_the_largest_matching(truth, predicted, margin):
    total = len(truth) + len(predicted)
    expected = 2 * most_pairs(truth, predicted, margin) / total if total else 1
    assert boundary_f1(truth, predicted, margin) == expected == boundary_f1(predicted[::-1], truth, margin)


def test_empty_logs_and_coverage():
    assert token_accuracy([], []) == boundary_f1([], []) == 1
    assert boundary_f1([], [3]) == boundary_f1([3], []) == 0
    assert coverage([]) == 0
    assert coverage([-1, 0]) == 0.5


def test_agent_accuracy():
    assert agent_accuracy(["a", "b", None], ["a", "c", None]) == pytest.approx(1 / 3)
    assert agent_accuracy(["a", "b"], ["a", None]) == 0.5
    assert agent_accuracy([], []) == 1


def test_rejects_invalid_arguments():
    for call, error, words in [
        (lambda: token_accuracy([0], [0, 1]), ShapeError, r"found: got \[2\], expected \[1\]"),
        (lambda: token_accuracy([0.5], [0]), ShapeError, "truth: got float64"),
        (lambda: mean_iou([[0]], [[0]]), ShapeError, r"\[1, 1\]"),
        (lambda: mean_iou([-2], [0]), InputError, "labels: got -2"),
        (lambda: mean_iou([3], [0], n_agents=3), InputError, "labels: got 3"),
        (lambda: edge_similarity(np.eye(2), np.eye(3)), ShapeError, r"\[2, 2\] and \[3, 3\]"),
        (lambda: edge_similarity([[np.nan]], [[0]]), InputError, "NaN"),
        (lambda: boundary_f1([1, 1], [1]), InputError, "duplicates"),
        (lambda: boundary_f1([1], [1], margin=-1), InputError, "margin: got -1"),
        (lambda: agent_accuracy(["a"], []), ShapeError, "0 logs"),
        (lambda: token_accuracy(np.array([2**64 - 1], np.uint64), [-1]), InputError, r"truth: got 1844"),
        (lambda: edge_similarity([["a"]], [["b"]]), InputError, r"adjacency: got \[\['a'\]\]"),
        (lambda: edge_similarity([[1], [1, 2]], [[1]]), InputError, r"adjacency: got \[\[1\], \[1, 2\]\]"),
        (lambda: mean_iou([[1], [1, 2]], [0]), ShapeError, r"truth: got \[\[1\], \[1, 2\]\]"),
    ]:
        with pytest.raises(error, match=words):
            call()
