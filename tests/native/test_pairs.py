"""Weights of repeated pairs against their definitions."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from iet.native.pairs import fresh_weights, novelty_weights, shared_weights


def naive_shared_weights(pairs, window):
    nearby = np.abs(np.subtract.outer(np.arange(len(pairs)), np.arange(len(pairs)))) < window
    count = (nearby & (pairs[:, None] == pairs)).sum(axis=1)
    return np.where(pairs >= 0, count**-0.75, 0)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 200), st.integers(1, 40), st.integers(1, 300))
def test_shared_weights_equal_the_quadratic_ones(seed, tokens, kinds, window):
    drawn = np.random.default_rng(seed).integers(-1, kinds, tokens)
    seen = {-1: -1}
    pairs = np.array([seen.setdefault(kind, len(seen) - 1) for kind in drawn.tolist()], np.int64)
    np.testing.assert_allclose(shared_weights(pairs, window), naive_shared_weights(pairs, window), rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 200), st.integers(1, 40), st.integers(1, 300))
def test_fresh_weights_look_back(seed, tokens, kinds, window):
    drawn = np.random.default_rng(seed).integers(-1, kinds, tokens)
    seen = {-1: -1}
    pairs = np.array([seen.setdefault(kind, len(seen) - 1) for kind in drawn.tolist()], np.int64)
    expected = [
        pair >= 0 and pair not in pairs[max(0, t - window) : t].tolist()
        for t, pair in enumerate(pairs.tolist())
    ]
    assert fresh_weights(pairs, window).tolist() == expected


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 200), st.integers(1, 40), st.integers(1, 300))
def test_novelty_weights_look_for_the_longest_n_gram_within_the_window(seed, tokens, kinds, window):
    ids = np.random.default_rng(seed).integers(0, kinds, tokens)
    expected = []
    for t in range(tokens):
        longest = max(
            n
            for n in range(4)
            if n == 0
            or any(
                s >= n - 1 and ids[s - n + 1 : s + 1].tolist() == ids[t - n + 1 : t + 1].tolist()
                for s in range(max(0, t - window), t)
            )
        )
        expected.append([1.0, 0.75, 0.4, 0.2][longest])
    np.testing.assert_allclose(novelty_weights(ids, window), expected, rtol=1e-6)
