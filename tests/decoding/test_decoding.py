"""The decoders against readable oracles, on texts with a known answer, and at their edges."""

from __future__ import annotations

import itertools
import math
import os
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iet.audit.metrics import boundary_f1, coverage, token_accuracy
from iet.decoding import (
    DECODERS,
    Segmentation,
    Span,
    boundary_intervals,
    candidates,
    cusum,
    decode,
    fit,
    forward_backward,
    margin,
    refine,
    smooth,
    span_sums,
    windows,
)
from iet.decoding import chain as chain_module
from iet.decoding.posterior import at_most, block_sums
from iet.errors import InputError, ShapeError
from iet.marks.scheme import FAMILIES
from iet.native import jit
from iet.native.pairs import fresh_weights, novelty_weights, shared_weights

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT", "0") != "0"
FOURIER = FAMILIES["fourier"]


def synthetic(rng, turns, agents, strength=0.8, length=(80, 320)):
    """Scores of turns under marks of known strength: cosines of von Mises angles are tilted arcsine draws."""
    speakers = [int(rng.integers(agents))]
    while len(speakers) < turns:
        speakers.append(int((speakers[-1] + rng.integers(1, agents)) % agents))
    truth = np.repeat(speakers, rng.integers(*length, turns))
    scores = np.cos(2 * np.pi * rng.random((len(truth), agents)))
    scores[np.arange(len(truth)), truth] = np.cos(rng.vonmises(0, strength, len(truth)))
    return scores.astype(np.float32), truth


def score_matrices(max_tokens=40, max_agents=4):
    shapes = st.tuples(st.integers(0, max_tokens), st.integers(1, max_agents), st.integers(0, 2**32 - 1))
    return shapes.map(lambda s: np.random.default_rng(s[2]).uniform(-1, 1, s[:2]).astype(np.float32))


# --- windows, margin ---------------------------------------------------------------------------------


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
    found = decode(scores, "window", window=window).token_agents
    for t, agent in enumerate(found.tolist()):
        low = t - window // 2
        totals = scores[max(low, 0) : max(low + window, 0)].sum(axis=0, dtype=np.float64)
        assert totals[agent] == pytest.approx(totals.max(), abs=1e-12)


# --- cusum -------------------------------------------------------------------------------------------


def naive_cusum(z, tau, min_points, low=0):
    c = np.cumsum(z - z.mean()) if len(z) else z
    candidates = range(min_points, len(z) - min_points + 1)
    split = max(candidates, key=lambda b: abs(c[b - 1]), default=None)
    if split is None or abs(c[split - 1]) <= tau:
        return []
    left, right = z[:split], z[split:]
    return [
        *naive_cusum(left, tau, min_points, low),
        low + split,
        *naive_cusum(right, tau, min_points, low + split),
    ]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 60), st.floats(0.01, 3), st.integers(1, 8))
def test_cusum_equals_the_recursive_formula(seed, length, tau, min_points):
    z = np.random.default_rng(seed).normal(size=length)
    assert cusum(z, tau, min_points).tolist() == naive_cusum(z, tau, min_points)


def test_cusum_finds_a_step_and_stops_at_tau():
    z = np.repeat([0.1, 0.5], [20, 30])
    peak = 20 * (z.mean() - 0.1)
    assert cusum(z, tau=0.99 * peak).tolist() == [20]
    assert cusum(z, tau=1.01 * peak).tolist() == []
    assert cusum(z, tau=0.5, min_points=26).tolist() == []


def test_smooth_is_a_centred_mean():
    assert smooth([1.0, 2.0, 6.0, 3.0], 3).tolist() == [1.5, 3.0, 11 / 3, 4.5]
    assert smooth([1.0, 2.0], 1).tolist() == [1.0, 2.0]
    assert smooth([], 5).tolist() == []


def test_refine_moves_a_boundary_to_the_hand_over_within_the_radius():
    f = np.zeros((40, 2))
    f[:20, 0] = f[20:, 1] = 1.0
    assert refine(f, [14], radius=8).tolist() == [20]
    assert refine(f, [14], radius=3).tolist() == [17]
    assert refine(f, [14], radius=0).tolist() == [14]
    assert refine(np.ones((40, 2)), [14]).tolist() == [14]
    assert refine(f, [], radius=8).tolist() == []


@settings(max_examples=50, deadline=None)
@given(score_matrices(60, 3), st.integers(0, 2**32 - 1), st.integers(0, 9))
def test_refine_equals_the_formula(f, seed, radius):
    rng = np.random.default_rng(seed)
    cuts = np.unique(rng.integers(1, len(f), 5)) if len(f) > 1 else np.array([], np.int64)
    ends = [0, *cuts.tolist(), len(f)]
    dominant = [f[a:b].sum(axis=0, dtype=np.float64).argmax() for a, b in itertools.pairwise(ends)]
    for s, old in enumerate(cuts.tolist()):
        left, right = dominant[s], dominant[s + 1]
        places = range(max(ends[s] + 1, old - radius), min(ends[s + 2] - 1, old + radius) + 1)
        gain = {
            b: sum(float(f[i, left]) for i in range(places[0], b))
            + sum(float(f[i, right]) for i in range(b, places[-1]))
            for b in places
        }
        if left != right:
            best = max(gain.values())
            ends[s + 1] = min((b for b in places if gain[b] > best - 1e-9), key=lambda b: (abs(b - old), b))
    assert refine(f.astype(np.float64), cuts, radius).tolist() == ends[1:-1]


@pytest.mark.parametrize(("anchor", "shift"), [("start", 0), ("centre", 32), ("end", 64)])
def test_cusum_anchor_says_where_in_its_window_a_boundary_lies(anchor, shift):
    scores = np.zeros((2000, 2), np.float32)
    scores[:1000, 0], scores[1000:, 1] = 0.2, 0.8
    (boundary,) = decode(scores, "cusum", anchor=anchor).change_points.tolist()
    assert (boundary - shift + 8) % 16 == 0  # halfway between two windows
    assert abs(boundary - shift + 32 - 1000) <= 16


# --- posterior ---------------------------------------------------------------------------------------


def chain(shares, mean_segment, nobody, stages):
    """Initial law and transition matrix over (agent or, last, nobody) x stage, written out."""
    pi = np.append(np.array(shares) / np.sum(shares) * (1 - nobody), nobody)
    states, advance = len(pi), min(1.0, stages / mean_segment)
    p = np.zeros((states, stages, states, stages))
    for i, m in itertools.product(range(states), range(stages)):
        p[i, m, i, m] = 1 - advance
        if m + 1 < stages:
            p[i, m, i, m + 1] = advance
            continue
        for j in range(states):
            if j != i and pi[i] < 1:
                p[i, m, j, 0] = advance * pi[j] / (1 - pi[i])
    return np.repeat(pi / stages, stages), p.reshape(states * stages, states * stages)


def naive_forward_backward(ratios, mean_segment, nobody, shares, stages):
    """O(T·A²), in logs, with the textbook backward recursion."""
    with np.errstate(divide="ignore"):
        log_pi, log_p = (np.log(m) for m in chain(shares, mean_segment, nobody, stages))
    e = np.repeat(np.column_stack([ratios.astype(float), np.zeros(len(ratios))]), stages, axis=1)
    alpha, beta = np.empty_like(e), np.zeros_like(e)
    for t in range(len(e)):
        before = np.logaddexp.reduce(alpha[t - 1][:, None] + log_p, axis=0) if t else log_pi
        alpha[t] = before + e[t]
    for t in reversed(range(len(e) - 1)):
        beta[t] = np.logaddexp.reduce(log_p + (e[t + 1] + beta[t + 1])[None], axis=1)
    if not len(e):
        return np.zeros((0, len(shares) + 1)), 0.0
    gamma = alpha + beta
    total = np.logaddexp.reduce(gamma, axis=1, keepdims=True)
    held = np.exp(gamma - total).reshape(len(e), -1, stages).sum(axis=2)
    return held, float(total[0, 0])


def enumerated_posterior(ratios, mean_segment, nobody, shares, stages):
    """Sum over every sequence of states."""
    pi, p = chain(shares, mean_segment, nobody, stages)
    e = np.exp(np.repeat(np.column_stack([ratios, np.zeros(len(ratios))]), stages, axis=1))
    gamma = np.zeros_like(e)
    for path in itertools.product(range(e.shape[1]), repeat=len(e)):
        weight = pi[path[0]] * np.prod([p[i, j] for i, j in itertools.pairwise(path)])
        weight *= np.prod([e[t, i] for t, i in enumerate(path)])
        gamma[np.arange(len(e)), list(path)] += weight
    held = gamma.reshape(len(e), -1, stages).sum(axis=2)
    return held / held.sum(axis=1, keepdims=True), np.log(gamma[0].sum())


@settings(max_examples=60, deadline=None)
@given(
    score_matrices(60),
    st.floats(4, 50),
    st.sampled_from([0.0, 0.2, 0.5]),
    st.integers(1, 4),
    st.integers(0, 2**32 - 1),
)
def test_forward_backward_equals_the_quadratic_one(scores, mean_segment, nobody, stages, seed):
    shares = np.random.default_rng(seed).uniform(0.1, 1, scores.shape[1])
    if len(shares) == 1 and nobody == 0:
        nobody = 0.2
    ratios = 3 * scores
    gamma, left, log_ratio = forward_backward(ratios, mean_segment, nobody, shares, stages)
    expected, expected_ratio = naive_forward_backward(ratios, mean_segment, nobody, shares, stages)
    np.testing.assert_allclose(np.column_stack([gamma, left]), expected, atol=2e-4)
    assert log_ratio == pytest.approx(expected_ratio, abs=1e-4)


@pytest.mark.parametrize(("nobody", "stages"), [(0.0, 1), (0.3, 1), (0.3, 2)])
def test_forward_backward_equals_enumeration(nobody, stages):
    ratios = np.random.default_rng(5).uniform(-2, 2, (5, 2))
    law = (4.0, nobody, [1.0, 3.0], stages)
    expected, log_ratio = enumerated_posterior(ratios, *law)
    naive, naive_ratio = naive_forward_backward(ratios, *law)
    np.testing.assert_allclose(expected, naive)
    gamma, left, found = forward_backward(ratios, *law)
    np.testing.assert_allclose(np.column_stack([gamma, left]), expected, atol=1e-5)
    assert found == pytest.approx(log_ratio, abs=1e-5)
    assert naive_ratio == pytest.approx(log_ratio)


def test_a_text_read_in_parts_gives_the_same(monkeypatch):
    ratios = np.random.default_rng(0).normal(0, 1, (2000, 3))
    whole = forward_backward(ratios, 50.0, 0.2)
    monkeypatch.setattr(chain_module, "_STORED", 1)  # parts of 256 tokens
    parts = forward_backward(ratios, 50.0, 0.2)
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_one_agent_without_alternative_holds_all():
    gamma, left, log_ratio = forward_backward(np.full((10, 1), -3.0), 5.0)
    assert (gamma == 1).all()
    assert (left == 0).all()
    assert np.isfinite(log_ratio)


def test_forward_backward_is_stable_over_a_million_tokens():
    tokens = 2_000 if INTERPRETED else 1_000_000
    scores = np.full((tokens, 2), 1.0, np.float32)
    scores[: tokens // 2, 0] = scores[tokens // 2 :, 1] = -1.0
    found = decode(scores, strengths=[4.0, 4.0])
    assert found.segments == (Span(0, tokens // 2, 1), Span(tokens // 2, tokens, 0))
    np.testing.assert_allclose(found.posterior.sum(axis=1), 1, atol=1e-5)


def test_forward_backward_survives_ratios_of_any_size():
    ratios = np.array([[1e30, -1e30], [-1e30, 1e30]], np.float32).repeat(20, axis=0)
    gamma, left, _ = forward_backward(ratios, 1e9, 0.5)
    assert np.isfinite(gamma).all()
    assert np.isfinite(left).all()


def test_the_fit_finds_strengths_shares_and_length_of_a_text():
    rng = np.random.default_rng(0)
    true = np.array([0.4, 1.0, 1.6])
    turns = 20 if INTERPRETED else 100
    speakers = np.tile([0, 1, 2, 1, 2], turns // 5)  # a fifth of the text is agent 0's
    truth = np.repeat(speakers, 300)
    scores = np.cos(2 * np.pi * rng.random((len(truth), 3)))
    scores[np.arange(len(truth)), truth] = np.cos(rng.vonmises(0, true[truth]))
    weight = np.ones(len(truth), np.float32)
    sums, weights = block_sums(scores.astype(np.float32), weight, 16)
    found = fit(sums, weights, FOURIER, shrinkage=0, iterations=6)
    np.testing.assert_allclose(found.strengths, true, atol=0.15 if INTERPRETED else 0.1)
    np.testing.assert_allclose(found.shares, [0.2, 0.4, 0.4], atol=0.03)
    assert found.nobody == 0
    assert 200 < found.mean_segment < 450
    start = fit(sums, weights, FOURIER, iterations=0, start_strength=0.7, mean_segment=99.0, nobody=0.1)
    assert start.strengths.tolist() == [0.7] * 3
    assert start.shares.tolist() == [0.3] * 3
    assert (start.nobody, start.mean_segment) == (0.1, 99.0)
    for bad, words in (
        ({"nobody": 1.5}, "nobody: got 1.5"),
        ({"mean_segment": -5}, "mean_segment: got -5"),
        ({"mean_segment": math.nan}, "mean_segment: got nan"),
        ({"start_strength": 99}, "start_strength: got 99"),
        ({"block": 0}, "block: got 0"),
    ):
        with pytest.raises(InputError, match=words):
            fit(sums, weights, FOURIER, **bad)


def test_agents_that_say_nothing_take_little_from_those_that_speak():
    rng = np.random.default_rng(2)
    change = []
    for _ in range(1 if INTERPRETED else 8):
        scores, truth = synthetic(rng, 12, 4)
        crowd = np.cos(2 * np.pi * rng.random((len(truth), 8))).astype(np.float32)
        alone = token_accuracy(truth, decode(scores).token_agents)
        change.append(alone - token_accuracy(truth, decode(np.hstack([scores, crowd])).token_agents))
    assert abs(np.mean(change)) < 0.01


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


def test_posterior_shares_drops_or_counts_repeats():
    scores = np.zeros((60, 2), np.float32)
    scores[:, 1] = 0.3
    scores[:30, 0] = 0.9
    repeated = np.arange(60) < 30
    dropped = decode(scores, repeated=repeated)
    counted = decode(scores, repeated=repeated, repeats="count")
    assert dropped.segments == (Span(0, 60, 1),)
    assert counted.token_agents[0] == 0
    unscored = decode(scores, scored=~repeated)
    np.testing.assert_array_equal(unscored.posterior, dropped.posterior)
    # One pair thirty times: with what it stands is known only by number.
    pairs = np.append(np.zeros(30, int), np.arange(1, 31))
    same = decode(scores, pairs=pairs)
    once = decode(scores, pairs=pairs, repeats="drop")
    every = decode(scores, pairs=pairs, repeats="count")
    assert once.posterior[0, 0] < same.posterior[0, 0] < every.posterior[0, 0]
    np.testing.assert_array_equal(every.posterior, counted.posterior)


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


def test_weights_are_factors_of_the_evidence():
    scores = np.random.default_rng(4).normal(0.3, 1, (300, 2)).astype(np.float32)
    given = {"strengths": [0.5, 0.5], "mean_segment": 100}
    plain = decode(scores, **given)
    np.testing.assert_array_equal(decode(scores, weights=np.ones(300), **given).posterior, plain.posterior)
    none = decode(scores, weights=np.zeros(300), **given).posterior
    np.testing.assert_allclose(none, 0.5, atol=1e-6)
    # Beyond a token of weight 0 its score does not matter.
    weights = np.where(np.arange(300) % 3 == 0, 0.0, 2.0)
    noisy = np.where(weights[:, None] > 0, scores, 50).astype(np.float32)
    np.testing.assert_array_equal(
        decode(noisy, weights=weights, **given).posterior, decode(scores, weights=weights, **given).posterior
    )


def test_in_family_gumbel_what_follows_an_earlier_context_says_nothing():
    scores = np.random.default_rng(0).exponential(size=(700, 2)).astype(np.float32)
    pairs = np.concatenate([np.arange(50), np.arange(50), np.arange(50, 600), np.arange(50)])
    for place, matters in ((70, False), (670, True)):  # 50 tokens and 600 tokens after the same context
        changed = scores.copy()
        changed[place, 0] += 3
        for repeats in ("share", "drop", "count"):
            options = {"family": "gumbel", "pairs": pairs, "repeats": repeats}
            found = [decode(x, **options).posterior for x in (scores, changed)]
            assert np.array_equal(*found) != matters


def test_odds_move_boundaries_to_where_they_are_likelier():
    rng = np.random.default_rng(4)
    scores = np.cos(2 * np.pi * rng.random((600, 2)))
    scores[:300, 0], scores[300:, 1] = np.cos(rng.vonmises(0, 1.5, (2, 300)))
    scored = np.abs(np.arange(600) - 300) > 20  # between 280 and 320 the scores say nothing
    for place in (286, 300, 312):
        odds = np.ones(600)
        odds[place] = 1e4
        assert decode(scores, scored=scored, break_odds=odds).change_points.tolist() == [place]
    even = decode(scores, scored=scored, break_odds=np.full(600, 7.0))
    np.testing.assert_array_equal(even.posterior, decode(scores, scored=scored).posterior)


def test_odds_scale_the_chance_of_each_step():
    ratios, odds = np.random.default_rng(6).normal(0, 1, (7, 2)), np.array([1, 1, 2, 0.5, 1, 3, 1.0])
    pi, _ = chain([1, 1], 5.0, 0.2, 2)
    steps = [chain([1, 1], 5.0 / factor, 0.2, 2)[1] for factor in odds]
    e = np.exp(np.repeat(np.column_stack([ratios, np.zeros(7)]), 2, axis=1))
    alpha = [pi * e[0]]
    for t in range(1, 7):
        alpha.append(alpha[-1] @ steps[t] * e[t])
    beta = [np.ones(6)]
    for t in range(6, 0, -1):
        beta.insert(0, steps[t] @ (e[t] * beta[0]))
    held = (np.array(alpha) * np.array(beta)).reshape(7, 3, 2).sum(axis=2)
    gamma, left, log_ratio = forward_backward(ratios, 5.0, 0.2, None, 2, odds)
    found = np.column_stack([gamma, left])
    np.testing.assert_allclose(found, held / held.sum(axis=1, keepdims=True), atol=1e-5)
    assert log_ratio == pytest.approx(np.log(alpha[-1].sum()), abs=1e-5)


def test_boundaries_lie_where_they_are_likeliest():
    scores = np.zeros((401, 2), np.float32)
    scores[:201, 0] = scores[201:, 1] = 0.8
    for resolution in (1, 2, 3, 5, 16):
        assert decode(scores, resolution=resolution).change_points.tolist() == [201]


def test_posterior_leaves_hopeless_agents_out_without_changing_the_rest():
    rng = np.random.default_rng(1)
    scores, truth = synthetic(rng, 4, 3, strength=1.5)
    crowd = np.cos(2 * np.pi * rng.random((len(truth), 20 if INTERPRETED else 300))).astype(np.float32)
    found = decode(np.hstack([scores, crowd]), allow_unattributed=True)
    assert token_accuracy(truth, found.token_agents) > 0.9
    assert found.posterior.shape == (len(truth), 3 + crowd.shape[1])
    # Of few agents most are kept: log A - 4 is below what chance gives.
    assert INTERPRETED or (found.posterior == 0).all(axis=0).sum() >= crowd.shape[1] - 20


def test_the_candidates_alone_give_what_all_agents_give():
    rng = np.random.default_rng(1)
    scores, _ = synthetic(rng, 4, 3, strength=1.5)
    crowd = np.cos(2 * np.pi * rng.random((len(scores), 20 if INTERPRETED else 300))).astype(np.float32)
    scores = np.hstack([crowd, scores])
    scored, repeated = rng.random((2, len(scores))) < [[0.9], [0.1]]

    def sums_of(boundaries, counted, low, high):
        return span_sums(np.where(counted[:, None], scores[:, low:high], 0), boundaries)

    for allow_unattributed in (False, True):
        masks = (scored, repeated, allow_unattributed)
        few = candidates(sums_of, scores.shape[1], "posterior", "fourier", *masks)
        every = decode(scores, "posterior", "fourier", *masks)
        found = decode(scores[:, few], "posterior", "fourier", *masks, agents=scores.shape[1])
        assert INTERPRETED or 3 <= len(few) < scores.shape[1]
        np.testing.assert_array_equal(np.append(few, -1)[found.token_agents], every.token_agents)
        np.testing.assert_allclose(found.posterior, every.posterior[:, few], atol=1e-6)
        np.testing.assert_allclose(found.strengths, every.strengths[few], rtol=1e-9)


def test_the_first_two_agents_of_every_window_are_candidates():
    scores = np.random.default_rng(0).uniform(-1, 1, (700, 60)).astype(np.float32)
    everywhere = np.ones(700, bool)
    for window, step in ((64, 16), (30, 7), (900, 16)):
        ranked = np.argsort(windows(scores, window, step), axis=1)[:, -2:]
        found = candidates(
            lambda boundaries, counted, low, high: span_sums(scores[:, low:high], boundaries),
            60,
            "cusum",
            "fourier",
            everywhere,
            ~everywhere,
            window=window,
            step=step,
        )
        assert set(found.tolist()) == {0, *ranked.ravel().tolist()}


def test_no_more_than_the_limit_are_candidates():
    ranks = np.random.default_rng(0).random(400)
    kept = at_most(np.arange(0, 400, 1), ranks)
    assert len(kept) == 256
    assert ranks[kept].min() >= np.sort(ranks)[-256]
    assert at_most(np.arange(5), ranks).tolist() == list(range(5))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 4))
def test_boundary_intervals_reach_to_the_nearest_sure_token(seed, tokens, agents):
    rng = np.random.default_rng(seed)
    posterior = rng.dirichlet(np.full(agents + 1, 0.2), tokens)[:, :agents].astype(np.float32)
    cuts = [0, *np.unique(rng.integers(1, tokens, 4)).tolist(), tokens] if tokens > 1 else [0, 1]
    spans = [(a, b, int(rng.integers(-1, agents))) for a, b in itertools.pairwise(cuts)]
    of = np.column_stack([posterior, 1 - posterior.sum(axis=1)])
    expected = [(0, 0)]
    for (start, at, left), (_, end, right) in itertools.pairwise(spans):
        low = max((t + 1 for t in range(start, at) if of[t, left] >= 0.95), default=start)
        high = min((t for t in range(at, end) if of[t, right] >= 0.95), default=end)
        expected.append((low, high))
    assert boundary_intervals(posterior, spans) == [*expected, (tokens, tokens)]
    assert boundary_intervals(posterior[:0], []) == []


# --- all decoders ------------------------------------------------------------------------------------


def test_decoders_recover_synthetic_text_in_the_expected_order():
    rng = np.random.default_rng(3)
    accuracy, boundaries = ({name: [] for name in DECODERS} for _ in range(2))
    for _ in range(2 if INTERPRETED else 20):
        scores, truth = synthetic(rng, 12, 5)
        for name in DECODERS:
            found = decode(scores, name)
            accuracy[name].append(token_accuracy(truth, found.token_agents))
            points = np.flatnonzero(np.diff(truth)) + 1
            boundaries[name].append(boundary_f1(points, found.change_points, margin=16))
    mean = {name: np.mean(values) for name, values in accuracy.items()}
    assert mean["posterior"] > 0.95
    assert mean["posterior"] > mean["window"] > mean["cusum"] > 0.6
    assert np.mean(boundaries["posterior"]) == max(np.mean(values) for values in boundaries.values())


@pytest.mark.parametrize(("decoder", "at_most"), [("posterior", 0.35), ("cusum", 0.1), ("window", 0.1)])
def test_unmarked_text_is_mostly_unattributed(decoder, at_most):
    # By the decoder's labels alone: `Auditor` also asks whether the agent is found.
    rng = np.random.default_rng(4)
    texts = [np.cos(2 * np.pi * rng.random((1000, 4))) for _ in range(6 if INTERPRETED else 20)]
    shares = [coverage(decode(text, decoder, allow_unattributed=True).token_agents) for text in texts]
    assert np.mean(shares) < at_most
    assert all(coverage(decode(text, decoder).token_agents) == 1 for text in texts)


@pytest.mark.parametrize("decoder", DECODERS)
def test_unmarked_gumbel_text_is_mostly_unattributed(decoder):
    rng = np.random.default_rng(4)
    options = {"family": "gumbel", "allow_unattributed": True, "scored": np.arange(1000) % 10 > 0}
    shares = []
    for _ in range(2 if INTERPRETED else 20):  # the mean of its unmarked scores is 1
        text = rng.exponential(size=(1000, 4)) * options["scored"][:, None]
        shares.append(coverage(decode(text, decoder, **options).token_agents))
    assert np.mean(shares) < 0.1
    text[:, 2] *= 2
    assert np.mean(decode(text, decoder, **options).token_agents == 2) > 0.9


@pytest.mark.parametrize("decoder", DECODERS)
def test_marked_text_is_attributed_and_the_unmarked_part_is_not(decoder):
    rng = np.random.default_rng(6)
    scores = np.cos(2 * np.pi * rng.random((1800, 3)))
    scores[:600, 0], scores[1200:, 1] = np.cos(rng.vonmises(0, 2.5, (2, 600)))
    labels = decode(scores.astype(np.float32), decoder, allow_unattributed=True).token_agents
    truth = np.repeat([0, -1, 1], 600)
    assert token_accuracy(truth, labels) > 0.75


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.permutations(range(4)), st.sampled_from(list(DECODERS)), st.booleans())
def test_permuting_agents_permutes_the_result(seed, order, decoder, allow_unattributed):
    scores, _ = synthetic(np.random.default_rng(seed), 4, 4)
    plain = decode(scores, decoder, allow_unattributed=allow_unattributed)
    permuted = decode(scores[:, order], decoder, allow_unattributed=allow_unattributed)
    back = np.array([*order, -1])[permuted.token_agents]
    if plain.posterior is not None:
        np.testing.assert_allclose(permuted.posterior, plain.posterior[:, order], atol=1e-5)
        np.testing.assert_allclose(permuted.strengths, plain.strengths[order])
        ranked = np.sort(np.column_stack([plain.posterior, 1 - plain.posterior.sum(axis=1)]), axis=1)
        clear = ranked[:, -1] - ranked[:, -2] > 1e-4
        np.testing.assert_array_equal(back[clear], plain.token_agents[clear])
    else:
        np.testing.assert_array_equal(back, plain.token_agents)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("allow_unattributed", [False, True])
@pytest.mark.parametrize("tokens", [0, 1, 2, 15, 63, 64, 65, 400])
@pytest.mark.parametrize("agents", [1, 2])
def test_every_length_has_an_answer(decoder, allow_unattributed, tokens, agents):
    rng = np.random.default_rng(tokens)
    scores = rng.uniform(-1, 1, (tokens, agents)).astype(np.float32)
    found = decode(scores, decoder, allow_unattributed=allow_unattributed)
    assert isinstance(found, Segmentation)
    assert found.token_agents.shape == (tokens,)
    assert found.token_agents.dtype == np.int32
    assert set(found.token_agents.tolist()) <= {*range(agents), *([-1] if allow_unattributed else [])}
    assert [t for s in found.segments for t in range(s.start, s.end)] == list(range(tokens))
    assert found.change_points.tolist() == [s.start for s in found.segments[1:]]
    assert all(a.agent != b.agent for a, b in itertools.pairwise(found.segments))
    if decoder == "posterior":
        assert found.posterior.shape == (tokens, agents)
        assert found.posterior.dtype == np.float32
        assert found.strengths.shape == (agents,)


@pytest.mark.parametrize("decoder", DECODERS)
def test_without_evidence_nobody_is_named_unless_forced(decoder):
    scores, scored = np.zeros((100, 3), np.float32), np.zeros(100, bool)
    assert decode(scores, decoder, scored=scored).segments == (Span(0, 100, 0),)
    assert decode(scores, decoder, scored=scored, allow_unattributed=True).segments == (Span(0, 100, -1),)


@pytest.mark.parametrize("decoder", DECODERS)
def test_dtypes_and_strides_do_not_matter(decoder):
    scores, _ = synthetic(np.random.default_rng(2), 3, 3)
    scores = scores.astype(np.float16).astype(np.float32)
    expected = decode(scores, decoder).token_agents
    kept = scores.copy()
    for same in (scores.astype(np.float16), scores.astype(np.float64), np.asfortranarray(scores)):
        np.testing.assert_array_equal(decode(same, decoder).token_agents, expected)
    np.testing.assert_array_equal(scores, kept)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"scores": np.zeros(4)}, ShapeError, r"scores: got float64 \[4\]"),
        ({"scores": np.zeros((4, 0))}, ShapeError, r"\[4, 0\]"),
        ({"scores": np.zeros((4, 2), complex)}, ShapeError, "complex"),
        ({"scores": np.array([[0, np.nan]])}, InputError, "nan at token 0, agent 1"),
        ({"scores": np.array([[0], [np.inf]])}, InputError, "inf at token 1, agent 0"),
        ({"decoder": ["cusum"]}, InputError, r"decoder: got \['cusum'\]"),
        ({"family": {}}, InputError, "family: got {}"),
        *(
            (
                {"decoder": decoder, "agents": agents},
                InputError,
                f"agents: got {agents}, expected an int of at",
            )
            for decoder in ("posterior", "cusum", "window")
            for agents in (0, 1, 2.0, True)
        ),
        ({"strengths": "abc"}, InputError, "strengths: got 'abc', expected numbers from 0 to 4"),
        ({"strengths": [1.0, [2.0]]}, InputError, "strengths: got"),
        ({"decoder": "viterbi"}, InputError, "'viterbi'.*cusum.*posterior.*window"),
        ({"family": "sine"}, InputError, "'sine'.*fourier"),
        ({"scored": np.ones(3, bool)}, ShapeError, r"scored: got bool \[3\], expected bool \[4\]"),
        ({"repeated": np.zeros(4, int)}, ShapeError, "repeated: got int"),
        ({"tau": 1.0}, InputError, "'tau', decoder 'posterior' accepts.*mean_segment"),
        ({"mean_segment": 0.5}, InputError, "mean_segment: got 0.5"),
        ({"repeats": "half"}, InputError, "'half'"),
        ({"nobody": 1.0}, InputError, "nobody: got 1.0"),
        ({"block": 0}, InputError, "block: got 0"),
        ({"iterations": -1}, InputError, "iterations: got -1"),
        ({"shrinkage": -1}, InputError, "shrinkage: got -1"),
        ({"start_strength": 9}, InputError, "start_strength: got 9"),
        ({"strengths": [1.0]}, ShapeError, r"strengths: got \[1\]"),
        ({"strengths": [1.0, np.nan]}, InputError, "strengths"),
        ({"decoder": "cusum", "anchor": "middle"}, InputError, "'middle'.*centre"),
        ({"decoder": "cusum", "smooth_windows": 4}, InputError, "smooth: got 4"),
        ({"decoder": "cusum", "tau": float("nan")}, InputError, "tau: got nan"),
        ({"decoder": "cusum", "step": 0}, InputError, "step: got 0"),
        ({"decoder": "cusum", "radius": 1.5}, InputError, "radius: got 1.5"),
        ({"decoder": "window", "window": True}, InputError, "window: got True"),
        ({"decoder": "window", "level": 0, "allow_unattributed": True}, InputError, "level: got 0"),
    ],
)
def test_bad_input_is_refused_by_name_and_value(change, error, words):
    with pytest.raises(error, match=words):
        decode(**{"scores": np.zeros((4, 2), np.float32), **change})


@pytest.mark.parametrize("boundaries", [[-1, 4], [0, 5], [0, 3, 2], [np.uint64(2**63), 2**63 + 1]])
def test_sums_over_spans_outside_the_text_are_refused(boundaries):
    with pytest.raises(InputError, match=r"boundaries: got .* expected ascending from 0 to 4"):
        span_sums(np.zeros((4, 2)), boundaries)


@pytest.mark.parametrize(
    ("scores", "boundaries", "words"),
    [
        (np.zeros((4, 2)), [], r"boundaries: got float64 \[0\]"),
        (np.zeros((4, 2)), [0.0, 4.0], "boundaries: got float64"),
        (np.zeros((4, 2)), [[0, 4]], r"boundaries: got int64 \[1, 2\]"),
        (np.zeros(4), [0, 4], r"scores: got float64 \[4\]"),
        (np.array([["a"]]), [0, 1], "scores: got <U1"),
    ],
)
def test_sums_over_what_are_no_spans_are_refused(scores, boundaries, words):
    with pytest.raises(ShapeError, match=words):
        span_sums(scores, boundaries)


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 2, 0), (2, 9, 1)],
        [(-1, 2, 0), (2, 4, 1)],
        [(0, 2, 0), (2, 4, 2)],
        [(0, 2, -2), (2, 4, 1)],
        [(0, 2, 0), (3, 4, 1)],
        [(0, 3, 0), (3, 2, 1)],
    ],
)
def test_intervals_of_spans_that_do_not_tile_the_text_are_refused(spans):
    posterior = np.zeros((4, 2), np.float32)
    with pytest.raises(InputError, match=r"spans: got .*, expected .*up to token 4 and agent 1"):
        boundary_intervals(posterior, spans)
    with pytest.raises(ShapeError, match="spans: got"):
        boundary_intervals(posterior, [span[:2] for span in spans])
    with pytest.raises(ShapeError, match="posterior: got"):
        boundary_intervals(posterior[0], spans)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"log_ratios": np.zeros(4)}, ShapeError, r"log_ratios: got \[4\]"),
        ({"shares": [1.0]}, ShapeError, r"shares: got \[1\], expected \[2\]"),
        ({"shares": [1.0, 0.0]}, InputError, "shares: got .*above 0"),
        ({"nobody": 1.0}, InputError, "nobody: got 1.0"),
        ({"stages": 0}, InputError, "stages: got 0"),
        ({"odds": np.ones(3)}, ShapeError, r"odds: got \[3\], expected \[4\]"),
        ({"odds": np.zeros(4)}, InputError, "odds: got 0"),
    ],
)
def test_a_chain_refuses_what_it_cannot_be(arguments, error, words):
    with pytest.raises(error, match=words):
        forward_backward(**{"log_ratios": np.zeros((4, 2)), **arguments})


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"pairs": np.zeros(3, int)}, ShapeError, r"pairs: got int64 \[3\], expected integers \[4\]"),
        ({"pairs": np.zeros(4)}, ShapeError, "pairs: got float64"),
        ({"pairs": [0, 2, 1, 3]}, InputError, "pairs: got numbers from 0 to 3"),
        ({"pairs": [-2, 0, 1, 2]}, InputError, "pairs: got numbers from -2"),
        ({"pairs": [0, 1, 2, 3], "scored": np.ones(4, bool)}, InputError, "expected pairs alone"),
        ({"resolution": 17}, InputError, "resolution: got 17"),
        ({"break_odds": np.ones(3)}, ShapeError, r"break_odds: got \[3\]"),
        ({"weights": np.ones(3)}, ShapeError, r"weights: got \[3\], expected \[4\]"),
        ({"weights": [1, 1, np.nan, 1]}, InputError, "weights: got a number below 0 or not finite"),
        ({"weights": [1, 1, -1, 1]}, InputError, "weights: got a number below 0"),
        ({"weights": "all"}, InputError, "weights: got 'all', expected numbers from 0"),
        ({"weights": np.ones(4), "decoder": "cusum"}, InputError, "options: got 'weights', decoder 'cusum'"),
        ({"break_odds": np.zeros(4)}, InputError, "break_odds: got a number"),
        ({"break_odds": "soon"}, InputError, "break_odds: got 'soon'"),
    ],
)
def test_pairs_that_are_no_numbers_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        decode(np.zeros((4, 2), np.float32), **arguments)


def test_cusum_parts_refuse_what_is_not_a_vector():
    with pytest.raises(ShapeError, match="margins"):
        cusum(np.zeros((2, 2)))
    with pytest.raises(InputError, match="finite"):
        smooth([np.nan])


@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
@settings(max_examples=50, deadline=None)
def test_no_run_is_shorter_than_min_segment(seed: int, min_segment: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.uniform(-1, 1, (int(rng.integers(1, 400)), 3)).astype(np.float32)
    options = {"mean_segment": 2.0, "allow_unattributed": bool(seed % 2)}
    every_run = decode(scores, min_segment=1, **options)
    found = decode(scores, min_segment=min_segment, **options)
    assert len(found.segments) == 1 or min(s.end - s.start for s in found.segments) >= min_segment
    for start, end, agent in every_run.segments:  # a run that is long enough keeps its label
        if end - start >= min_segment:
            assert (found.token_agents[start:end] == agent).all()


def test_where_nothing_can_be_written_loops_are_compiled_without_a_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compile_loop = numba.njit

    def njit(cache: bool = False, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")  # what Numba does there
        return compile_loop(**options)

    monkeypatch.setattr(numba, "njit", njit)
    assert jit.njit(lambda x: x + 1)(1) == 2


@pytest.mark.parametrize("agents", [1, 3])
def test_forced_choice_of_a_long_text_that_nobody_marked(agents: int) -> None:
    # Nobody explains such a text better by e^thousands, but is not in the chain.
    scores = np.random.default_rng(3).uniform(-1, 1, (20_000, agents)).astype(np.float32)
    found = decode(scores, strengths=[2.0] * agents)
    assert found.posterior is not None
    np.testing.assert_allclose(found.posterior.sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"mean_segment": 0.0},
        {"mean_segment": math.inf},
        {"odds": np.full(2000, 1e-300)},
        {"odds": np.full(2000, np.inf)},
        {"shares": [1, 1e-12]},
        {"shares": [1, 5e-324], "nobody": 0.5},
        {"nobody": 1e-12},
    ],
    ids=repr,
)
def test_chain_stays_finite_at_the_extremes(options: dict[str, Any]) -> None:
    ratios = np.full((2000, 2), -80.0)
    ratios[:1000, 0] = ratios[1000:, 1] = 80.0
    posterior, left, log_ratio = forward_backward(ratios, **options)
    assert math.isfinite(log_ratio)
    np.testing.assert_allclose(posterior.sum(axis=1) + left, 1, atol=1e-5)


def test_chain_refuses_what_is_no_number() -> None:
    with pytest.raises(InputError, match=r"log_ratios: got NaN"):
        forward_backward(np.full((5, 2), np.nan))
    with pytest.raises(InputError, match=r"mean_segment: got nan"):
        forward_backward(np.zeros((5, 2)), mean_segment=math.nan)
    with pytest.raises(InputError, match=r"shares: got \[inf, 1\]"):
        forward_backward(np.zeros((5, 2)), shares=[math.inf, 1])
    with pytest.raises(InputError, match=r"shrinkage: got inf"):
        decode(np.zeros((5, 2), np.float32), shrinkage=math.inf)


def test_agents_without_any_text_keep_a_share() -> None:
    scores = np.zeros((3000, 3), np.float32)
    scores[:, 0] = 30
    found = decode(scores, family="gumbel", shrinkage=0, allow_unattributed=True)
    assert found.segments == ((0, 3000, 0),)
    assert decode(scores[:0], shrinkage=0).segments == ()
