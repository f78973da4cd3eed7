"""The decoder "posterior": its fit, weights of repeats, boundaries, and the choice of agents."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iet.audit.metrics import token_accuracy
from iet.decoding import PosteriorOptions, Span, boundary_intervals, candidates, decode, fit, windows
from iet.decoding.fit import block_of, block_sums
from iet.decoding.posterior import at_most
from iet.errors import InputError, ShapeError
from iet.marks.families import FAMILIES, BernoulliSum, sum_family
from tests.support.scores import FOURIER, synthetic


def test_the_fit_estimates_strengths_length_and_writers():
    rng = np.random.default_rng(0)
    true = np.array([0.4, 1.0, 1.6])
    turns = 100
    speakers = np.tile([0, 1, 2, 1, 2], turns // 5)  # a fifth of the text is agent 0's
    truth = np.repeat(speakers, 300)
    scores = np.cos(2 * np.pi * rng.random((len(truth), 3)))
    scores[np.arange(len(truth)), truth] = np.cos(rng.vonmises(0, true[truth]))
    weight = np.ones(len(truth), np.float32)
    sums, weights = block_sums(scores.astype(np.float32), weight, 16)
    decoded = fit(sums, weights, FOURIER, shrinkage=0, iterations=6)
    np.testing.assert_allclose(decoded.strengths, true, atol=0.1)
    np.testing.assert_allclose(decoded.shares, 1 / 3)  # of all writers
    assert decoded.null_prior == 0
    silent = np.append(scores, np.cos(2 * np.pi * rng.random((len(truth), 2))), axis=1).astype(np.float32)
    for null_prior in (0.0, 0.5):
        fitted_with_prior = fit(*block_sums(silent, weight, 16), FOURIER, null_prior=null_prior)
        writers, silent_agents = np.split(fitted_with_prior.shares, [3])
        np.testing.assert_allclose(writers, writers[0])
        assert writers.sum() == pytest.approx(1 - fitted_with_prior.null_prior, rel=0.02)
        assert silent_agents.max() < 0.01
    assert 220 <= decoded.mean_segment <= 500  # turns are of 300
    start = fit(sums, weights, FOURIER, iterations=0, mean_segment=99.0, null_prior=0.1)
    assert len(set(start.strengths.tolist())) == 1  # a guess for all agents together
    assert 0.4 < start.strengths[0] < 1.6
    assert start.mean_segment == pytest.approx(99)
    assert 0.02 <= start.null_prior <= 0.1
    np.testing.assert_allclose(start.shares, (1 - start.null_prior) / 3)
    for number in (0, 0.0):  # JSON may write either
        assert fit(sums, weights, FOURIER, null_prior=number).null_prior == 0
    with_strengths = fit(sums, weights, FOURIER, strengths=true, null_prior=0.5)
    assert with_strengths.strengths.tolist() == true.tolist()
    for bad, words in (
        ({"null_prior": 1.5}, "null_prior: got 1.5"),
        ({"mean_segment": -5}, "mean_segment: got -5"),
        ({"mean_segment": math.nan}, "mean_segment: got nan"),
        ({"shrinkage": -1}, "shrinkage: got -1"),
        ({"iterations": -1}, "iterations: got -1"),
        ({"block": 0}, "block: got 0"),
    ):
        with pytest.raises(InputError, match=words):
            PosteriorOptions(**bad)


def test_agents_with_small_shares_keep_them():
    rng = np.random.default_rng(3)
    truth = np.repeat([0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 0, 1, 2], [300] * 6 + [120] + [300] * 6)
    scores = np.cos(2 * np.pi * rng.random((len(truth), 5)))  # the fifth writes nothing
    scores[np.arange(len(truth)), truth] = np.cos(rng.vonmises(0, 1.5, len(truth)))
    decoded = fit(*block_sums(scores.astype(np.float32), np.ones(len(truth), np.float32), 16), FOURIER)
    small = decoded.shares[:3]
    np.testing.assert_allclose(small, small[0])
    assert decoded.shares[3] / decoded.shares.sum() == pytest.approx(120 / len(truth), rel=0.5)
    assert decoded.shares[4] < 0.2 * decoded.shares[3]


def test_forced_choice_allows_segments_of_a_quarter_of_the_mean():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(40 * 4) % 4, 12)
    scores = np.cos(2 * np.pi * rng.random((len(truth), 4)))
    scores[np.arange(len(truth)), truth] = np.cos(rng.vonmises(0, 3.0, len(truth)))
    sums, weights = block_sums(scores.astype(np.float32), np.ones(len(truth), np.float32), 4)
    guess, short, free = (
        fit(sums, weights, FOURIER, block=4, **more).mean_segment
        for more in ({"iterations": 0}, {}, {"null_prior": 0.5})
    )
    assert 0.25 * guess <= short < 0.5 * guess
    assert free >= 0.499 * guess  # a null state would take the rest of shorter ones


def alternating(rng, agents, turns, length, gap, strength):
    """Scores and truth of turns of random agents, each after a gap of unmarked tokens."""
    speakers = (np.cumsum(rng.integers(1, agents, turns)) % agents).tolist()
    truth = np.concatenate([np.repeat([-1, speaker], [gap, length]) for speaker in speakers])
    scores = np.cos(2 * np.pi * rng.random((len(truth), agents)))
    marked = np.flatnonzero(truth >= 0)
    scores[marked, truth[marked]] = np.cos(rng.vonmises(0, strength, len(marked)))
    return scores.astype(np.float32), truth


@pytest.mark.parametrize(("length", "gap", "strength"), [(200, 60, 0.8), (120, 30, 0.9)])
def test_posteriors_are_calibrated_if_gaps_alternate_with_turns(length, gap, strength):
    # The mean posterior of named tokens minus their accuracy is 0.002, with a standard error of 0.003 over 16
    # texts. If null segments had the agents' length it would be 0.134 (error 0.011): the limit is five errors
    # above the first and ten below the second. For gaps of 30 it is -0.006 (error 0.005); a search in blocks
    # of 16 tokens alone gives 0.061 (error 0.021).
    differences = []
    for seed in range(16):
        scores, truth = alternating(np.random.default_rng([19, seed]), 6, 12, length, gap, strength)
        decoded = decode(scores, family=FOURIER, allow_unattributed=True)
        assert decoded.posterior is not None
        named = decoded.token_agents >= 0
        stated = decoded.posterior.max(axis=1)[named].mean()
        differences.append(stated - (decoded.token_agents == truth)[named].mean())
    assert abs(np.mean(differences)) < 0.02


def test_a_null_length_is_fitted_only_if_gaps_alternate():
    rng = np.random.default_rng(7)
    scores, truth = alternating(rng, 4, 12, 200, 60, 1.0)
    ones = np.ones(len(truth), np.float32)
    decoded = fit(*block_sums(scores, ones, 16), FOURIER, null_prior=0.5)
    assert decoded.null_segment is not None
    assert 40 <= decoded.null_segment <= 90  # gaps are of 60
    assert 140 <= decoded.mean_segment <= 280  # turns are of 200
    for options in ({"null_prior": 0.0}, {"null_prior": 0.5, "mean_segment": 130.0}):
        assert fit(*block_sums(scores, ones, 16), FOURIER, **options).null_segment is None
    plain, truth = synthetic(rng, 12, 4, strength=1.0)
    ones = np.ones(len(truth), np.float32)
    assert fit(*block_sums(plain, ones, 16), FOURIER, null_prior=0.5).null_segment is None


def green_list(rng, tokens, marked, shift):
    """Scores of one key: 1 with probability 1/4, and with odds e^shift times as high for `marked` tokens."""
    odds = np.exp(shift) / 3
    return (rng.random(tokens) < np.where(marked, odds / (1 + odds), 0.25)).astype(np.float32)[:, None]


def intersection_over_union(decoded, truth):
    return (decoded & truth).sum() / (decoded | truth).sum()


@pytest.mark.parametrize(
    ("start", "end", "shift", "overlap", "one_segment"),
    [(200, 300, 1.43, 0.8, 0.75), (50, 450, 0.7, 0.75, 0.4)],
)
def test_short_strong_and_long_weak_marks(start, end, shift, overlap, one_segment):
    law = sum_family("kgw", BernoulliSum((1,), 0.25, 0.0, 1.0))
    rng, truth = np.random.default_rng(9), (np.arange(500) >= start) & (np.arange(500) < end)
    overlaps, segments = [], []
    for _ in range(100):
        decoded = decode(green_list(rng, 500, truth, shift), family=law, allow_unattributed=True)
        overlaps.append(intersection_over_union(decoded.token_agents == 0, truth))
        segments.append(sum(span.agent == 0 for span in decoded.segments))
    assert np.mean(overlaps) > overlap
    assert np.mean(np.array(segments) == 1) > one_segment


@pytest.mark.parametrize("agents", [1, 6])
def test_text_without_a_mark_is_unattributed(agents: int) -> None:
    rng = np.random.default_rng(5)
    scores = np.cos(2 * np.pi * rng.random((40, 1000, agents)))
    decoded = [decode(x, allow_unattributed=True) for x in scores]
    assert np.mean([result.token_agents < 0 for result in decoded]) > 0.85
    # That the text holds no mark at all is part of every posterior: it is small everywhere.
    assert np.median([result.posterior.sum(axis=1).max() for result in decoded]) < 0.7


def test_one_turn_in_a_long_unmarked_text_is_found():
    rng = np.random.default_rng(10)
    truth = np.arange(8000) // 200 == 17
    overlaps = []
    for _ in range(10):
        scores = np.cos(2 * np.pi * rng.random((8000, 6)))
        scores[truth, 2] = np.cos(rng.vonmises(0, 1.0, 200))
        decoded = decode(scores.astype(np.float32), allow_unattributed=True)
        assert (decoded.token_agents[~truth] >= 0).mean() < 0.01
        overlaps.append(intersection_over_union(decoded.token_agents == 2, truth))
    assert np.mean(overlaps) > 0.85


def test_evidence_is_the_mean_likelihood_ratio_over_unmarked_texts():
    # E[exp(evidence)] = 1 if the law is known, so a text without a mark seldom has much of it.
    rng = np.random.default_rng(6)
    evidence = []
    for _ in range(400):
        scores = np.cos(2 * np.pi * rng.random((400, 3))).astype(np.float32)
        sums, weights = block_sums(scores, np.ones(400, np.float32), 4)
        evidence.append(fit(sums, weights, FOURIER, block=4, null_prior=0.5, iterations=0).evidence)
    for ratio in (3, 10, 30):
        assert np.mean(np.exp(evidence) >= ratio) <= 1 / ratio
    scores, _ = synthetic(rng, 4, 3)
    assert fit(*block_sums(scores, np.ones(len(scores), np.float32), 4), FOURIER, block=4).evidence > 30


def test_a_weak_stretch_next_to_a_strong_one_is_found():
    marked = np.repeat([0.0, 0.5, 0.0, 0.85, 0.0], [100, 100, 120, 80, 100])
    right, equal = list[float](), 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        for strengths in (marked, np.where(marked > 0, 0.85, 0)):
            scores = rng.exponential(1 / (1 - strengths)).astype(np.float32)[:, None]
            if strengths is marked:
                decoded = decode(scores, family="gumbel", allow_unattributed=True).token_agents
                right.append(float((decoded[100:200] == 0).mean()))
            else:
                sums, weights = block_sums(scores, np.ones(len(scores), np.float32), 5)
                equal += fit(sums, weights, FAMILIES["gumbel"], block=5, null_prior=0.5).weaker is None
    assert np.mean(right) > 0.75  # a half with one strength for all segments
    assert equal == 20


def test_the_null_share_is_fitted_to_the_text():
    rng = np.random.default_rng(8)
    scores, truth = synthetic(rng, 12, 3)
    weight = np.ones(len(scores), np.float32)
    assert fit(*block_sums(scores, weight, 8), FOURIER, block=8, null_prior=0.5).null_prior < 0.1
    turns = np.cumsum(np.append(0, np.diff(truth) != 0))
    is_unmarked = turns % 2 == 1
    scores[is_unmarked] = np.cos(2 * np.pi * rng.random((is_unmarked.sum(), 3)))
    assert fit(*block_sums(scores, weight, 8), FOURIER, block=8, null_prior=0.5).null_prior > 0.4


def test_short_texts_have_small_blocks():
    assert [block_of(n, 16) for n in (0, 100, 500, 1000, 1600, 10**6)] == [4, 4, 5, 10, 16, 16]
    assert block_of(100, 2) == 2


def test_strengths_shrink_to_the_pooled_mean_for_little_text():
    rng = np.random.default_rng(7)
    truth = np.repeat([0, 1, 0, 1, 0, 2], [800, 800, 800, 800, 800, 25])
    true = np.array([0.5, 1.5, 1.5])
    scores = np.cos(2 * np.pi * rng.random((len(truth), 3)))
    scores[np.arange(len(truth)), truth] = np.cos(rng.vonmises(0, true[truth]))
    decoded = decode(scores.astype(np.float32))
    np.testing.assert_allclose(decoded.strengths[:2], true[:2], atol=0.15)
    pooled = decode(scores.astype(np.float32), shrinkage=1e6).strengths
    assert pooled.min() > 0.5
    assert np.ptp(pooled) < 0.01


def test_forward_backward_is_stable_over_a_million_tokens():
    tokens = 1_000_000
    scores = np.full((tokens, 2), 1.0, np.float32)
    scores[: tokens // 2, 0] = scores[tokens // 2 :, 1] = -1.0
    decoded = decode(scores, strengths=[4.0, 4.0])
    assert decoded.segments == (Span(0, tokens // 2, 1), Span(tokens // 2, tokens, 0))
    np.testing.assert_allclose(decoded.posterior.sum(axis=1), 1, atol=1e-5)


def test_silent_agents_take_little_posterior():
    rng = np.random.default_rng(2)
    change = []
    for _ in range(8):
        scores, truth = synthetic(rng, 12, 4)
        crowd = np.cos(2 * np.pi * rng.random((len(truth), 8))).astype(np.float32)
        alone = token_accuracy(truth, decode(scores).token_agents)
        change.append(alone - token_accuracy(truth, decode(np.hstack([scores, crowd])).token_agents))
    assert abs(np.mean(change)) < 0.01


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
    # One pair thirty times: only its number identifies it.
    pairs = np.append(np.zeros(30, int), np.arange(1, 31))
    same = decode(scores, pairs=pairs)
    once = decode(scores, pairs=pairs, repeats="drop")
    every = decode(scores, pairs=pairs, repeats="count")
    assert once.posterior[0, 0] < same.posterior[0, 0] < every.posterior[0, 0]
    np.testing.assert_array_equal(every.posterior, counted.posterior)


def test_weights_are_factors_of_the_evidence():
    scores = np.random.default_rng(4).normal(0.3, 1, (300, 2)).astype(np.float32)
    options = {"strengths": [0.5, 0.5], "mean_segment": 100}
    plain = decode(scores, **options)
    np.testing.assert_array_equal(decode(scores, weights=np.ones(300), **options).posterior, plain.posterior)
    none = decode(scores, weights=np.zeros(300), **options).posterior
    np.testing.assert_allclose(none, 0.5, atol=1e-6)
    # Beyond a token of weight 0 its score does not matter.
    weights = np.where(np.arange(300) % 3 == 0, 0.0, 2.0)
    noisy = np.where(weights[:, None] > 0, scores, 50).astype(np.float32)
    np.testing.assert_array_equal(
        decode(noisy, weights=weights, **options).posterior,
        decode(scores, weights=weights, **options).posterior,
    )


def test_family_gumbel_ignores_tokens_after_repeated_contexts():
    scores = np.random.default_rng(0).exponential(size=(700, 2)).astype(np.float32)
    pairs = np.concatenate([np.arange(50), np.arange(50), np.arange(50, 600), np.arange(50)])
    for position, matters in ((70, False), (670, True)):  # 50 tokens and 600 tokens after the same context
        changed = scores.copy()
        changed[position, 0] += 3
        for repeats in ("share", "drop", "count"):
            options = {"family": "gumbel", "pairs": pairs, "repeats": repeats}
            decoded = [decode(x, **options).posterior for x in (scores, changed)]
            assert np.array_equal(*decoded) != matters


def test_boundaries_have_the_highest_likelihood():
    scores = np.zeros((401, 2), np.float32)
    scores[:201, 0] = scores[201:, 1] = 0.8
    for resolution in (1, 2, 3, 5, 16):
        assert decode(scores, resolution=resolution).change_points.tolist() == [201]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 4))
def test_boundary_intervals_reach_the_nearest_certain_token(seed, tokens, agents):
    rng = np.random.default_rng(seed)
    posterior = rng.dirichlet(np.full(agents + 1, 0.2), tokens)[:, :agents].astype(np.float32)
    cuts = [0, *np.unique(rng.integers(1, tokens, 4)).tolist(), tokens] if tokens > 1 else [0, 1]
    spans = [(a, b, int(rng.integers(-1, agents))) for a, b in itertools.pairwise(cuts)]
    of = np.column_stack([posterior, 1 - posterior.sum(axis=1)])
    expected = [(0, 0)]
    for (start, at, left_agent), (_, end, right) in itertools.pairwise(spans):
        low = max((t + 1 for t in range(start, at) if of[t, left_agent] >= 0.95), default=start)
        high = min((t for t in range(at, end) if of[t, right] >= 0.95), default=end)
        expected.append((low, high))
    assert boundary_intervals(posterior, spans) == [*expected, (tokens, tokens)]
    assert boundary_intervals(posterior[:0], []) == []


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
def test_rejects_intervals_of_spans_with_gaps(spans):
    posterior = np.zeros((4, 2), np.float32)
    with pytest.raises(InputError, match=r"spans: got .*, expected .*up to token 4 and agent 1"):
        boundary_intervals(posterior, spans)
    with pytest.raises(ShapeError, match="spans: got"):
        boundary_intervals(posterior, [span[:2] for span in spans])
    with pytest.raises(ShapeError, match="posterior: got"):
        boundary_intervals(posterior[0], spans)


@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
@settings(max_examples=50, deadline=None)
def test_no_run_is_shorter_than_min_segment(seed: int, min_segment: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.uniform(-1, 1, (int(rng.integers(1, 400)), 3)).astype(np.float32)
    options = {"mean_segment": 2.0, "allow_unattributed": bool(seed % 2)}
    every_run = decode(scores, min_segment=1, **options)
    decoded = decode(scores, min_segment=min_segment, **options)
    assert len(decoded.segments) == 1 or min(s.end - s.start for s in decoded.segments) >= min_segment
    for start, end, agent in every_run.segments:  # a run that is long enough keeps its label
        if end - start >= min_segment:
            assert (decoded.token_agents[start:end] == agent).all()


@pytest.mark.parametrize("agents", [1, 3])
def test_forced_choice_of_a_long_unmarked_text(agents: int) -> None:
    # The null model explains such a text better by e^thousands, but is not in the chain.
    scores = np.random.default_rng(3).uniform(-1, 1, (20_000, agents)).astype(np.float32)
    decoded = decode(scores, strengths=[2.0] * agents)
    np.testing.assert_allclose(decoded.posterior.sum(axis=1), 1, atol=1e-5)


def test_agents_without_any_text_keep_a_share() -> None:
    scores = np.zeros((3000, 3), np.float32)
    scores[:, 0] = 30
    decoded = decode(scores, family="gumbel", shrinkage=0, allow_unattributed=True)
    assert decoded.segments == ((0, 3000, 0),)
    assert decode(scores[:0], shrinkage=0).segments == ()


def test_excluding_hopeless_agents_changes_no_posterior():
    rng = np.random.default_rng(1)
    scores, truth = synthetic(rng, 4, 3, strength=1.5)
    crowd = np.cos(2 * np.pi * rng.random((len(truth), 300))).astype(np.float32)
    decoded = decode(np.hstack([scores, crowd]), allow_unattributed=True)
    assert token_accuracy(truth, decoded.token_agents) > 0.9
    assert decoded.posterior.shape == (len(truth), 3 + crowd.shape[1])
    # Most of few agents stay candidates: log A - 4 is below typical chance values.
    assert (decoded.posterior == 0).all(axis=0).sum() >= crowd.shape[1] - 20


def span_sums(scores, boundaries):
    spans = itertools.pairwise(boundaries)
    return np.array([scores[start:end].sum(axis=0, dtype=np.float64) for start, end in spans])


def test_the_candidates_alone_give_the_full_result():
    rng = np.random.default_rng(1)
    scores, _ = synthetic(rng, 4, 3, strength=1.5)
    crowd = np.cos(2 * np.pi * rng.random((len(scores), 300))).astype(np.float32)
    scores = np.hstack([crowd, scores])
    scored, repeated = rng.random((2, len(scores))) < [[0.9], [0.1]]

    def sums_of(boundaries, counted, low, high):
        return span_sums(np.where(counted[:, None], scores[:, low:high], 0), boundaries)

    for allow_unattributed in (False, True):
        masks = (scored, repeated, allow_unattributed)
        few = candidates(sums_of, scores.shape[1], "posterior", "fourier", *masks)
        every = decode(scores, "posterior", "fourier", *masks)
        decoded = decode(scores[:, few], "posterior", "fourier", *masks, agents=scores.shape[1])
        assert 3 <= len(few) < scores.shape[1]
        np.testing.assert_array_equal(np.append(few, -1)[decoded.token_agents], every.token_agents)
        np.testing.assert_allclose(decoded.posterior, every.posterior[:, few], atol=1e-6)
        np.testing.assert_allclose(decoded.strengths, every.strengths[few], rtol=1e-9)


def test_the_first_two_agents_of_every_window_are_candidates():
    scores = np.random.default_rng(0).uniform(-1, 1, (700, 60)).astype(np.float32)
    everywhere = np.ones(700, bool)
    for window, step in ((64, 16), (30, 7), (900, 16)):
        ranked = np.argsort(windows(scores, window, step), axis=1)[:, -2:]
        decoded = candidates(
            lambda boundaries, counted, low, high: span_sums(scores[:, low:high], boundaries),
            60,
            "cusum",
            "fourier",
            everywhere,
            ~everywhere,
            window=window,
            step=step,
        )
        assert set(decoded.tolist()) == {0, *ranked.ravel().tolist()}


def test_no_more_than_the_limit_are_candidates():
    ranks = np.random.default_rng(0).random(400)
    retained = at_most(np.arange(0, 400, 1), ranks)
    assert len(retained) == 256
    assert ranks[retained].min() >= np.sort(ranks)[-256]
    assert at_most(np.arange(5), ranks).tolist() == list(range(5))
