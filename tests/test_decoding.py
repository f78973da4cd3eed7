"""The decoders against readable oracles, on texts with a known answer, and at their edges."""

from __future__ import annotations

import itertools
import os
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iet.decoding import (
    DECODERS,
    Segmentation,
    Span,
    boundary_intervals,
    candidates,
    cusum,
    decode,
    fit_strengths,
    forward_backward,
    jit,
    margin,
    refine,
    smooth,
    span_sums,
    windows,
)
from iet.decoding.posterior import at_most
from iet.errors import InputError, ShapeError
from iet.metrics import boundary_f1, coverage, token_accuracy
from iet.scheme import FAMILIES

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


def chain(agents, mean_segment, nobody):
    """Initial law and transition matrix of the model, states last = nobody (if it is in the chain)."""
    pi = np.array([*[(1 - nobody) / agents] * agents, nobody])
    redraw = min(1.0, 1 / mean_segment / (1 - pi[0])) if pi[0] < 1 else 0.0
    return pi, (1 - redraw) * np.eye(agents + 1) + redraw * pi


def log_likelihoods(scores, weights, strengths):
    offsets = np.array([FOURIER.log_mgf(v) for v in strengths])
    rows = scores.astype(float) * strengths - weights[:, None] * offsets
    return np.column_stack([np.where(weights[:, None] > 0, rows, 0), np.zeros(len(scores))])


def naive_forward_backward(scores, weights, strengths, mean_segment, nobody):
    """O(T·A²), in logs, with the textbook backward recursion."""
    with np.errstate(divide="ignore"):
        log_pi, log_p = (np.log(m) for m in chain(scores.shape[1], mean_segment, nobody))
    e = log_likelihoods(scores, weights, strengths)
    alpha, beta = np.empty_like(e), np.zeros_like(e)
    for t in range(len(e)):
        before = np.logaddexp.reduce(alpha[t - 1][:, None] + log_p, axis=0) if t else log_pi
        alpha[t] = before + e[t]
    for t in reversed(range(len(e) - 1)):
        beta[t] = np.logaddexp.reduce(log_p + (e[t + 1] + beta[t + 1])[None], axis=1)
    gamma = alpha + beta
    return np.exp(gamma - np.logaddexp.reduce(gamma, axis=1, keepdims=True))


def enumerated_posterior(scores, weights, strengths, mean_segment, nobody):
    """Sum over every sequence of states."""
    pi, p = chain(scores.shape[1], mean_segment, nobody)
    e = np.exp(log_likelihoods(scores, weights, strengths))
    gamma = np.zeros_like(e)
    for path in itertools.product(range(e.shape[1]), repeat=len(e)):
        weight = pi[path[0]] * np.prod([p[i, j] for i, j in itertools.pairwise(path)])
        weight *= np.prod([e[t, i] for t, i in enumerate(path)])
        gamma[np.arange(len(e)), list(path)] += weight
    return gamma / gamma.sum(axis=1, keepdims=True)


@settings(max_examples=60, deadline=None)
@given(score_matrices(60), st.floats(1, 50), st.sampled_from([0.0, 0.2, 0.5]), st.integers(0, 2**32 - 1))
def test_forward_backward_equals_the_quadratic_one(scores, mean_segment, nobody, seed):
    rng = np.random.default_rng(seed)
    weights = rng.choice([0, 1, 1, 3], len(scores)).astype(np.float32)
    strengths = rng.uniform(0.2, 3, scores.shape[1])
    gamma, left = forward_backward(scores, weights, strengths, FOURIER, mean_segment, nobody)
    expected = naive_forward_backward(scores, weights, strengths, mean_segment, nobody)
    np.testing.assert_allclose(np.column_stack([gamma, left]), expected, atol=2e-4)


@pytest.mark.parametrize("nobody", [0.0, 0.3])
def test_forward_backward_equals_enumeration(nobody):
    rng = np.random.default_rng(5)
    scores, weights = rng.uniform(-1, 1, (6, 2)), np.array([1, 1, 0, 1, 1, 1], np.float32)
    strengths = np.array([0.5, 2.0])
    expected = enumerated_posterior(scores, weights, strengths, 4.0, nobody)
    np.testing.assert_allclose(expected, naive_forward_backward(scores, weights, strengths, 4.0, nobody))
    gamma, left = forward_backward(scores, weights, strengths, FOURIER, 4.0, nobody)
    np.testing.assert_allclose(np.column_stack([gamma, left]), expected, atol=1e-5)


def test_forward_backward_is_stable_over_a_million_tokens():
    tokens = 2_000 if INTERPRETED else 1_000_000
    scores = np.full((tokens, 2), 1.0, np.float32)
    scores[: tokens // 2, 0] = scores[tokens // 2 :, 1] = -1.0
    found = decode(scores, strengths=[4.0, 4.0])
    assert found.segments == (Span(0, tokens // 2, 1), Span(tokens // 2, tokens, 0))
    np.testing.assert_allclose(found.posterior.sum(axis=1), 1, atol=1e-5)


def test_forward_backward_survives_scores_of_any_size():
    scores = np.array([[1e30, -1e30], [-1e30, 1e30]], np.float32).repeat(20, axis=0)
    gamma, left = forward_backward(scores, np.ones(40, np.float32), np.array([4.0, 4.0]), FOURIER, 1e9, 0.5)
    assert np.isfinite(gamma).all()
    assert np.isfinite(left).all()


def test_fit_strengths_finds_the_strengths_of_a_text():
    rng = np.random.default_rng(0)
    true = np.array([0.4, 1.0, 1.6])
    truth = np.repeat([0, 1, 2, 0, 1, 2], 200 if INTERPRETED else 3000)
    scores = np.cos(2 * np.pi * rng.random((len(truth), 3)))
    scores[np.arange(len(truth)), truth] = np.cos(rng.vonmises(0, true[truth]))
    fitted = decode(scores.astype(np.float32), shrinkage=0).strengths
    np.testing.assert_allclose(fitted, true, atol=0.5 if INTERPRETED else 0.1)
    start = fit_strengths(scores, np.ones(len(scores), np.float32), FOURIER, iterations=0, start_strength=0.7)
    assert start.tolist() == [0.7] * 3


def test_posterior_drops_or_counts_repeats():
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


def test_posterior_leaves_hopeless_agents_out_without_changing_the_rest():
    rng = np.random.default_rng(1)
    scores, truth = synthetic(rng, 4, 3, strength=1.5)
    crowd = np.cos(2 * np.pi * rng.random((len(truth), 20 if INTERPRETED else 300))).astype(np.float32)
    found = decode(np.hstack([scores, crowd]), allow_unattributed=True)
    assert token_accuracy(truth, found.token_agents) > 0.9
    assert found.posterior.shape == (len(truth), 3 + crowd.shape[1])
    assert (found.posterior == 0).all(axis=0).any()


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


def test_no_more_than_the_limit_are_candidates_but_all_that_are_likely():
    ranks = np.random.default_rng(0).random(400)
    kept = at_most(np.arange(0, 400, 1), ranks)
    assert len(kept) == 256
    assert ranks[kept].min() >= np.sort(ranks)[-256]
    assert at_most(np.arange(400), ranks, 300).tolist() == sorted(np.argsort(-ranks)[:300].tolist())
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


@pytest.mark.parametrize(("decoder", "at_most"), [("posterior", 0.15), ("cusum", 0.1), ("window", 0.1)])
def test_unmarked_text_is_mostly_unattributed(decoder, at_most):
    rng = np.random.default_rng(4)
    texts = [np.cos(2 * np.pi * rng.random((1000, 4))) for _ in range(2 if INTERPRETED else 20)]
    shares = [coverage(decode(text, decoder, allow_unattributed=True).token_agents) for text in texts]
    assert np.mean(shares) < at_most
    assert all(coverage(decode(text, decoder).token_agents) == 1 for text in texts)


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


def test_weights_of_another_text_are_refused():
    with pytest.raises(ShapeError, match=r"weights: got \[3\], expected \[4\]"):
        forward_backward(np.zeros((4, 2)), np.ones(3, np.float32), np.ones(2), FOURIER)


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
