"""Weights of repeated pairs against their definitions."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from iet.native.pairs import far_sources, fresh_weights, novelty_weights, shared_weights
from tests.support.conditions import needs_native

pytestmark = needs_native


def numbered(kinds):
    """Number the kinds of pairs as they first occur; -1 stays."""
    seen = {-1: -1}
    return np.array([seen.setdefault(kind, len(seen) - 1) for kind in kinds.tolist()], np.int64)


def naive_shared_weights(pairs, window):
    nearby = np.abs(np.subtract.outer(np.arange(len(pairs)), np.arange(len(pairs)))) < window
    count = (nearby & (pairs[:, None] == pairs)).sum(axis=1)
    return np.where(pairs >= 0, count**-0.75, 0)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 200), st.integers(1, 40), st.integers(1, 300))
def test_shared_weights_equal_the_definition(seed, tokens, kinds, window):
    pairs = numbered(np.random.default_rng(seed).integers(-1, kinds, tokens))
    np.testing.assert_allclose(shared_weights(pairs, window), naive_shared_weights(pairs, window), rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 200), st.integers(1, 40), st.integers(1, 300))
def test_fresh_weights_equal_the_definition(seed, tokens, kinds, window):
    pairs = numbered(np.random.default_rng(seed).integers(-1, kinds, tokens))
    expected = [
        pair >= 0 and pair not in pairs[max(0, t - window) : t].tolist()
        for t, pair in enumerate(pairs.tolist())
    ]
    assert fresh_weights(pairs, window).tolist() == expected


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 200), st.integers(1, 40), st.integers(1, 300))
def test_novelty_weights_equal_the_definition(seed, tokens, kinds, window):
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
    np.testing.assert_allclose(novelty_weights(ids, window=window), expected, rtol=1e-6)
    joined = np.concatenate([[-1, -1], ids, [-1], ids[: tokens // 2]])
    ends = np.array([2 + tokens, len(joined)])
    weights = novelty_weights(joined, np.array([2, 3 + tokens]), ends, window)
    np.testing.assert_allclose(weights[2 : 2 + tokens], expected, rtol=1e-6)
    np.testing.assert_allclose(weights[3 + tokens :], expected[: tokens // 2], rtol=1e-6)


def naive_far_sources(pairs, window, shortest):
    """Return each token's source: that of the first run that occurred far before."""
    sources, firsts = list(range(len(pairs))), {}
    for t in range(shortest - 1, len(pairs)):
        run = tuple(pairs[t - shortest + 1 : t + 1].tolist())
        starts = range(t - shortest + 1, t + 1)
        fresh = [pairs[i] not in pairs[max(0, i - shortest) : i] for i in starts]
        if -1 in run or 2 * sum(fresh) < shortest:
            continue
        first = firsts.setdefault(run, t)
        if t - first >= window:
            for back in reversed(range(shortest)):
                if sources[t - back] == t - back:
                    sources[t - back] = sources[first - back]
    return sources


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 5), st.integers(5, 40))
def test_far_sources_equal_the_definition(seed, passages, shortest, window):
    draw = np.random.default_rng(seed)
    runs = [draw.integers(-1, 30, draw.integers(1, 40)) for _ in range(passages)]
    pairs = numbered(np.concatenate([runs[i] for i in draw.integers(0, passages, 12)]))
    expected = naive_far_sources(pairs, window, shortest)
    sources = far_sources(pairs, window, shortest)
    assert (list(range(len(pairs))) if sources is None else sources.tolist()) == expected
    if sources is not None:
        assert (sources[sources] == sources).all()
        assert (pairs[sources] == pairs).all()
