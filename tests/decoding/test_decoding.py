"""All decoders: texts with a known answer, every length, and rejected input."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iet.audit.metrics import boundary_f1, coverage, token_accuracy
from iet.decoding import DECODERS, Segmentation, Span, column_summary, decode
from iet.errors import InputError, ShapeError
from tests.support.scores import synthetic


def test_decoders_recover_synthetic_text_in_the_expected_order():
    rng = np.random.default_rng(3)
    accuracy, boundaries = ({name: [] for name in DECODERS} for _ in range(2))
    for _ in range(20):
        scores, truth = synthetic(rng, 12, 5)
        for name in DECODERS:
            decoded = decode(scores, name)
            accuracy[name].append(token_accuracy(truth, decoded.token_agents))
            points = np.flatnonzero(np.diff(truth)) + 1
            boundaries[name].append(boundary_f1(points, decoded.change_points, margin=16))
    mean = {name: np.mean(values) for name, values in accuracy.items()}
    assert mean["posterior"] > 0.95
    assert mean["posterior"] > mean["window"] > mean["cusum"] > 0.6
    assert np.mean(boundaries["posterior"]) == max(np.mean(values) for values in boundaries.values())


@pytest.mark.parametrize(("decoder", "at_most"), [("posterior", 0.35), ("cusum", 0.1), ("window", 0.1)])
def test_unmarked_text_is_mostly_unattributed(decoder, at_most):
    # By the decoder's labels alone: `Auditor` also asks whether the agent is found.
    rng = np.random.default_rng(4)
    texts = [np.cos(2 * np.pi * rng.random((1000, 4))) for _ in range(20)]
    shares = [coverage(decode(text, decoder, allow_unattributed=True).token_agents) for text in texts]
    assert np.mean(shares) < at_most
    assert all(coverage(decode(text, decoder).token_agents) == 1 for text in texts)


@pytest.mark.parametrize("decoder", DECODERS)
def test_unmarked_gumbel_text_is_mostly_unattributed(decoder):
    rng = np.random.default_rng(4)
    options = {"family": "gumbel", "allow_unattributed": True, "scored": np.arange(1000) % 10 > 0}
    shares = []
    for _ in range(20):  # the mean of its unmarked scores is 1
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
    decoded = decode(scores, decoder, allow_unattributed=allow_unattributed)
    assert isinstance(decoded, Segmentation)
    assert decoded.token_agents.shape == (tokens,)
    assert decoded.token_agents.dtype == np.int32
    assert set(decoded.token_agents.tolist()) <= {*range(agents), *([-1] if allow_unattributed else [])}
    assert [t for s in decoded.segments for t in range(s.start, s.end)] == list(range(tokens))
    assert decoded.change_points.tolist() == [s.start for s in decoded.segments[1:]]
    assert all(a.agent != b.agent for a, b in itertools.pairwise(decoded.segments))
    if decoder == "posterior":
        assert decoded.posterior.shape == (tokens, agents)
        assert decoded.posterior.dtype == np.float32
        assert decoded.strengths.shape == (agents,)


@pytest.mark.parametrize("decoder", DECODERS)
def test_without_evidence_no_agent_is_named_unless_forced(decoder):
    scores, scored = np.zeros((100, 3), np.float32), np.zeros(100, bool)
    assert decode(scores, decoder, scored=scored).segments == (Span(0, 100, 0),)
    assert decode(scores, decoder, scored=scored, allow_unattributed=True).segments == (Span(0, 100, -1),)


@pytest.mark.parametrize("decoder", DECODERS)
def test_dtypes_and_strides_do_not_matter(decoder):
    scores, _ = synthetic(np.random.default_rng(2), 3, 3)
    scores = scores.astype(np.float16).astype(np.float32)
    expected = decode(scores, decoder).token_agents
    original = scores.copy()
    for same in (scores.astype(np.float16), scores.astype(np.float64), np.asfortranarray(scores)):
        np.testing.assert_array_equal(decode(same, decoder).token_agents, expected)
    np.testing.assert_array_equal(scores, original)


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
        ({"null_prior": 1.0}, InputError, "null_prior: got 1.0"),
        ({"block": 0}, InputError, "block: got 0"),
        ({"iterations": -1}, InputError, "iterations: got -1"),
        ({"shrinkage": -1}, InputError, "shrinkage: got -1"),
        ({"start_strength": 1}, InputError, "options: got 'start_strength'"),
        ({"min_segment": 0}, InputError, "min_segment: got 0"),
        ({"strengths": [1.0]}, ShapeError, r"strengths: got \[1\]"),
        ({"strengths": [1.0, np.nan]}, InputError, "strengths"),
        ({"decoder": "cusum", "anchor": "middle"}, InputError, "'middle'.*centre"),
        ({"decoder": "cusum", "smooth_windows": 4}, InputError, "smooth: got 4"),
        ({"decoder": "cusum", "tau": float("nan")}, InputError, "tau: got nan"),
        ({"decoder": "cusum", "step": 0}, InputError, "step: got 0"),
        ({"decoder": "cusum", "radius": 1.5}, InputError, "radius: got 1.5"),
        ({"decoder": "window", "window": True}, InputError, "window: got True"),
        ({"decoder": "window", "level": 0, "allow_unattributed": True}, InputError, "level: got 0"),
        ({"pairs": np.zeros(3, int)}, ShapeError, r"pairs: got int64 \[3\], expected integers \[4\]"),
        ({"pairs": np.zeros(4)}, ShapeError, "pairs: got float64"),
        ({"pairs": [0, 2, 1, 3]}, InputError, "pairs: got numbers from 0 to 3"),
        ({"pairs": [-2, 0, 1, 2]}, InputError, "pairs: got numbers from -2"),
        ({"pairs": [0, 1, 2, 3], "scored": np.ones(4, bool)}, InputError, "expected pairs alone"),
        ({"resolution": 17}, InputError, "resolution: got 17"),
        ({"weights": np.ones(3)}, ShapeError, r"weights: got \[3\], expected \[4\]"),
        ({"weights": [1, 1, np.nan, 1]}, InputError, "weights: got nan, expected finite numbers from 0"),
        ({"weights": [1, 1, -1, 1]}, InputError, "weights: got -1.0"),
        ({"weights": "all"}, InputError, "weights: got 'all', expected finite numbers from 0"),
        ({"weights": np.ones(4), "decoder": "cusum"}, InputError, "options: got 'weights', decoder 'cusum'"),
        ({"shrinkage": math.inf}, InputError, "shrinkage: got inf"),
        ({"iterations": 10**20}, InputError, "iterations: got 1.*, expected an int from 0 to 100"),
        (
            {"min_segment": 10**19},
            InputError,
            "min_segment: got 1.*, expected an int from 1 to 1099511627776",
        ),
        ({"decoder": "window", "window": 10**19}, InputError, "window: got 1.*, expected an int from 1 to"),
        ({"decoder": "cusum", "smooth_windows": 10**19 + 1}, InputError, "smooth: got 1"),
        ({"decoder": "cusum", "min_points": 10**19}, InputError, "min_points: got 1"),
        ({"decoder": "cusum", "tau": 10**400}, InputError, "tau: got an int of 1329 bits"),
    ],
)
def test_rejects_invalid_arguments(change, error, words):
    with pytest.raises(error, match=words):
        decode(**{"scores": np.zeros((4, 2), np.float32), **change})


@pytest.mark.parametrize(
    ("starts", "ends", "columns", "error", "words"),
    [
        ([0], [4], [5], InputError, "columns: got 5 to 5, expected 0 to 1"),
        ([0], [4], [-1], InputError, "columns: got -1"),
        ([0], [5], [1], InputError, r"spans: got \[0, 5\], expected ascending from 0 to 4"),
        ([-1], [4], [1], InputError, r"spans: got \[-1, 4\]"),
        ([0, 2], [3, 4], [1, 1], InputError, r"spans: got \[0, 3, 2, 4\]"),
        ([0], [4], [1, 1], ShapeError, r"\[4, 2\], \[1\], \[1\], \[2\]"),
    ],
)
def test_a_column_summary_rejects_indices_out_of_range(starts, ends, columns, error, words):
    with pytest.raises(error, match=words):
        column_summary(np.ones((4, 2), np.float32), np.array(starts), np.array(ends), np.array(columns))


def test_a_column_summary_reads_spans_with_gaps_between_them():
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    means, highest = column_summary(values, np.array([0, 3, 5]), np.array([2, 5, 5]), np.array([1, 0, 1]))
    assert means.tolist() == [2, 7, 0]
    assert highest.tolist() == [3, 8, 0]
    assert column_summary(values, *np.zeros((3, 0), np.int64))[0].tolist() == []


def test_the_largest_options_equal_the_length_of_the_text() -> None:
    scores = np.random.default_rng(3).standard_normal((300, 2)).astype(np.float32)
    for decoder, names in (("window", ("window",)), ("cusum", ("window", "step", "radius", "min_points"))):
        for name in names:
            long = decode(scores, decoder, **{name: np.uint64(2**40)})
            same = decode(scores, decoder, **{name: 600})
            np.testing.assert_array_equal(long.token_agents, same.token_agents)
