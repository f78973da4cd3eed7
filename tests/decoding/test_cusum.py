"""Windows, margins, CUSUM and its refinement against their formulas, and at their edges."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iet.decoding import cusum, decode, margin, refine, smooth, windows
from iet.errors import InputError, ShapeError
from tests.support.scores import score_matrices


def naive_windows(scores, window, step):
    width = min(window, len(scores))
    starts = range(0, len(scores) - width + 1, step) if width else []
    rows = [
        [sum(float(x) for x in scores[t : t + width, a]) / width for a in range(scores.shape[1])]
        for t in starts
    ]
    return np.array(rows).reshape(-1, scores.shape[1])


@settings(max_examples=50, deadline=None)
@given(score_matrices(), st.integers(1, 12), st.integers(1, 20))
def test_windows_equal_the_formula(scores, window, step):
    np.testing.assert_allclose(windows(scores, window, step), naive_windows(scores, window, step), atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(score_matrices())
def test_margin_equals_the_formula(f):
    expected = [
        sorted(row)[-1] - (sorted(row)[-2] if len(row) > 1 else 0) for row in f.astype(float).tolist()
    ]
    np.testing.assert_allclose(margin(f), expected)


@settings(max_examples=25, deadline=None)
@given(score_matrices(), st.integers(1, 12))
def test_window_decoder_equals_the_formula(scores, window):
    agents = decode(scores, "window", window=window).token_agents
    for t, agent in enumerate(agents.tolist()):
        low = t - window // 2
        totals = scores[max(low, 0) : max(low + window, 0)].sum(axis=0, dtype=np.float64)
        assert totals[agent] == pytest.approx(totals.max(), abs=1e-12)


def naive_cusum(z, tau, min_points, low=0):
    c = np.cumsum(z - z.mean()) if len(z) else z
    candidates = range(min_points, len(z) - min_points + 1)
    split = max(candidates, key=lambda b: abs(c[b - 1]), default=None)
    if split is None or abs(c[split - 1]) <= tau:
        return []
    left_values, right = z[:split], z[split:]
    return [
        *naive_cusum(left_values, tau, min_points, low),
        low + split,
        *naive_cusum(right, tau, min_points, low + split),
    ]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 60), st.floats(0.01, 3), st.integers(1, 8))
def test_cusum_equals_the_recursive_formula(seed, length, tau, min_points):
    z = np.random.default_rng(seed).normal(size=length)
    assert cusum(z, tau, min_points).tolist() == naive_cusum(z, tau, min_points)


def test_smooth_is_a_centred_mean():
    assert smooth([1.0, 2.0, 6.0, 3.0], 3).tolist() == [1.5, 3.0, 11 / 3, 4.5]
    assert smooth([1.0, 2.0], 1).tolist() == [1.0, 2.0]
    assert smooth([], 5).tolist() == []


@pytest.mark.parametrize(
    ("points", "error", "expected"),
    [
        *(
            (points, InputError, "ascending, 1 to 39")
            for points in ([0], [-5], [40], [10**7], [15, 5], [5, 5])
        ),
        *((points, ShapeError, r"ints \[S - 1\]") for points in ([0.5], [[1]], ["a"])),
    ],
)
def test_refine_rejects_invalid_change_points(points, error, expected):
    with pytest.raises(error, match=f"change_points: got .*, expected {expected}"):
        refine(np.zeros((40, 2)), points)


@settings(max_examples=50, deadline=None)
@given(score_matrices(60, 3), st.integers(0, 2**32 - 1), st.integers(0, 9))
def test_refine_equals_the_formula(f, seed, radius):
    rng = np.random.default_rng(seed)
    cuts = np.unique(rng.integers(1, len(f), 5)) if len(f) > 1 else np.array([], np.int64)
    ends = [0, *cuts.tolist(), len(f)]
    dominant = [f[a:b].sum(axis=0, dtype=np.float64).argmax() for a, b in itertools.pairwise(ends)]
    for s, old in enumerate(cuts.tolist()):
        left_values, right = dominant[s], dominant[s + 1]
        candidates = range(max(ends[s] + 1, old - radius), min(ends[s + 2] - 1, old + radius) + 1)
        gain = {
            b: sum(float(f[i, left_values]) for i in range(candidates[0], b))
            + sum(float(f[i, right]) for i in range(b, candidates[-1]))
            for b in candidates
        }
        if left_values != right:
            best = max(gain.values())
            ends[s + 1] = min(
                (b for b in candidates if gain[b] > best - 1e-9), key=lambda b: (abs(b - old), b)
            )
    assert refine(f.astype(np.float64), cuts, radius).tolist() == ends[1:-1]


@pytest.mark.parametrize(("anchor", "shift"), [("start", 0), ("centre", 32), ("end", 64)])
def test_cusum_anchor_sets_the_boundary_within_its_window(anchor, shift):
    scores = np.zeros((2000, 2), np.float32)
    scores[:1000, 0], scores[1000:, 1] = 0.2, 0.8
    (boundary,) = decode(scores, "cusum", anchor=anchor).change_points.tolist()
    assert (boundary - shift + 8) % 16 == 0  # halfway between two windows
    assert abs(boundary - shift + 32 - 1000) <= 16


@pytest.mark.parametrize("anchor", ["middle", [], 1, None])
def test_rejects_invalid_anchors(anchor):
    with pytest.raises(InputError, match=r"anchor: got .*, expected one of \['centre', 'end', 'start'\]"):
        decode(np.zeros((200, 2), np.float32), "cusum", anchor=anchor)


def test_cusum_parts_reject_other_shapes():
    with pytest.raises(ShapeError, match="margins"):
        cusum(np.zeros((2, 2)))
    with pytest.raises(InputError, match="finite"):
        smooth([np.nan])
