"""Adjacency, bitmask and confidence of transitions against their formulas."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iet.decoding import decode, windows
from iet.decoding.topology import template, walk
from iet.decoding.transitions import from_bitmask, to_bitmask, transitions
from iet.errors import InputError, ShapeError


@given(st.integers(0, 9), st.data())
def test_bitmask_equals_the_formula_and_has_an_inverse(k, data):
    m = np.array(data.draw(st.lists(st.booleans(), min_size=k * k, max_size=k * k)), bool).reshape(k, k)
    mask = to_bitmask(m)
    assert mask == sum(int(m[i, j]) * 2 ** (i * k + j) for i in range(k) for j in range(k))
    np.testing.assert_array_equal(from_bitmask(mask, k), m)


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(1, 80), st.integers(1, 9), st.integers(1, 3)
)
def test_confidence_equals_the_formula_for_any_segments(seed, step, window, neighbourhood, agents):
    rng = np.random.default_rng(seed)
    cuts = [0, *np.unique(rng.integers(1, 300, 9)).tolist(), 300]
    segments = [(a, b, int(rng.integers(-1, agents))) for a, b in itertools.pairwise(cuts)]
    f = windows(rng.uniform(-1, 1, (300, agents)).astype(np.float32), window, step)
    centres = np.arange(len(f)) * step + min(window, 300) / 2
    merged = [[*segments[0]]]
    for start, end, agent in segments[1:]:
        if agent == merged[-1][2]:
            merged[-1][1] = end
        else:
            merged.append([start, end, agent])
    expected = []
    for left_segment, right in itertools.pairwise(merged):
        lead = 0.0
        for (start, end, agent), near in (
            (left_segment, slice(-neighbourhood, None)),
            (right, slice(neighbourhood)),
        ):
            rows = np.flatnonzero((start < centres) & (centres < end))[near]
            if not len(rows):
                rows = np.array([np.abs(centres - (start + end) / 2).argmin()])
            mean = f[rows].mean(axis=0)
            lead += mean[agent] - max(np.delete(mean, agent), default=0.0)
        if left_segment[2] >= 0 and right[2] >= 0:
            expected.append((right[0], left_segment[2], right[2], 1 / (1 + math.exp(-lead))))
    result = transitions(segments, f, window, step, neighbourhood).observed
    assert [t[:3] for t in result] == [t[:3] for t in expected]
    np.testing.assert_allclose([t[3] for t in result], [t[3] for t in expected], rtol=1e-9)


def test_confidence_is_the_best_of_several_boundaries():
    f = np.zeros((40, 2))
    f[:10, 0] = f[20:30, 0] = 0.1
    f[10:20, 1], f[30:, 1] = 0.1, 0.9
    result = transitions([(0, 192, 0), (192, 352, 1), (352, 512, 0), (512, 688, 1)], f)
    forward = [t.confidence for t in result.observed if t.source == 0]
    assert len(forward) == 2
    assert result.confidence[0, 1] == max(forward) > min(forward)
    assert result.accumulate() == [(192, 2), (352, 6), (512, 6)]
    assert result.bitmask == 6


def test_unattributed_text_links_no_agents_by_default():
    f = np.zeros((20, 3))
    segments = [(0, 100, 0), (100, 120, -1), (120, 200, 2), (200, 210, -1), (210, 300, 2)]
    none = transitions(segments, f)
    assert none.agents == (0, 2)
    assert none.observed == ()
    assert none.bitmask == 0
    assert none.topology.name == "other"
    assert transitions(segments, f, max_gap=19).observed == ()
    (passage,) = transitions(segments, f, max_gap=20).observed
    assert passage[:3] == (120, 0, 2)


def test_neighbouring_segments_of_one_agent_are_one():
    f = np.zeros((20, 2))
    result = transitions([(0, 100, 0), (100, 100, 1), (100, 150, 0), (150, 300, 1)], f)
    assert [t[:3] for t in result.observed] == [(150, 0, 1)]


def test_dense_includes_inactive_agents():
    f = np.zeros((20, 5))
    result = transitions([(0, 100, 3), (100, 300, 1)], f)
    dense = result.dense(range(5))
    assert result.confidence.shape == (2, 2)
    assert dense.confidence.shape == (5, 5)
    assert np.argwhere(dense.adjacency).tolist() == [[3, 1]]
    assert dense.bitmask == 1 << (3 * 5 + 1)
    assert dense.accumulate() == [(100, dense.bitmask)]
    with pytest.raises(InputError, match="all_agents"):
        result.dense([1, 2])
    with pytest.raises(InputError, match="all_agents"):
        result.dense([1, 1, 3])


@pytest.mark.parametrize("segments", [[], [(0, 5, -1)], [(0, 5, 0)], [(0, 5, 0), (5, 10, 1)]])
def test_short_texts_have_an_answer(segments):
    tokens = segments[-1][1] if segments else 0
    result = transitions(segments, windows(np.zeros((tokens, 2), np.float32)))
    assert len(result.observed) == max(0, len(segments) - 1)
    single = transitions([(0, 50, 0)], windows(np.zeros((50, 1), np.float32)))
    assert single.agents == (0,)
    assert single.confidence.tolist() == [[0.0]]


@pytest.mark.parametrize("name", ["chain", "star_pure", "tree", "circle"])
def test_a_walk_along_a_topology_is_recovered_from_its_scores(name):
    rng = np.random.default_rng(1)
    speakers = walk(template(name, 5), 12)
    truth = np.repeat(speakers, 150)
    scores = np.cos(2 * np.pi * rng.random((len(truth), 5)))
    scores[np.arange(len(truth)), truth] = np.cos(rng.vonmises(0, 3.0, len(truth)))
    scores = scores.astype(np.float32)
    result = transitions(decode(scores).segments, windows(scores))
    assert result.topology.name == name
    assert result.confidence[result.adjacency].min() > 0.5


def test_rejects_invalid_arguments():
    f = np.zeros((20, 2))
    for call, error, words in [
        (lambda: transitions([(0, 9, 2)], f), ShapeError, "window_scores"),
        (lambda: transitions([(0, 9, 0)], np.zeros(3)), ShapeError, r"\[3\]"),
        (lambda: transitions([(0, 9, 0), (5, 12, 1)], f), InputError, r"segments: got \[5, 12\)"),
        (lambda: transitions([(0, 9, 0)], f, neighbourhood=0), InputError, "neighbourhood: got 0"),
        (lambda: to_bitmask(np.zeros((2, 3))), ShapeError, r"\[2, 3\]"),
        (lambda: from_bitmask(16, 2), InputError, "bitmask: got 16"),
        (lambda: from_bitmask(-1, 2), InputError, "bitmask: got -1"),
    ]:
        with pytest.raises(error, match=words):
            call()
