"""Log ratios that use a language model equal those of theory, and true mixture weights are recovered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iet.audit.mixture import POWERS, SPREADS, TILTS, choice_log_ratios, gumbel_log_ratios, mixture_weights

# The mixture


def test_mixture_weights_are_recovered() -> None:
    draw = np.random.default_rng(4)
    tables = draw.dirichlet(np.full(20, 0.3), size=3)
    sources = draw.choice(3, size=6000, p=[0.6, 0.1, 0.3])
    tokens = np.array([draw.choice(20, p=tables[source]) for source in sources])
    weights = mixture_weights(tables[:, tokens], np.ones(6000, int), np.ones(6000, np.bool_), 200)
    np.testing.assert_allclose(weights[:, 0], [0.6, 0.1, 0.3], atol=0.05)
    np.testing.assert_allclose(weights.sum(axis=0), 1)
    shallow = mixture_weights(tables[:, tokens], np.zeros(6000, int), np.ones(6000, np.bool_))
    assert (shallow[2] == 0).all()


# Gumbel


def gumbel_text(tokens: int, seed: int) -> tuple[Any, Any]:
    """Probabilities q [T] of emitted tokens; scores [T, 2] under the writer's key and an unrelated one."""
    draw = np.random.default_rng(seed)
    q = draw.uniform(0.05, 1.0, tokens)
    u = draw.uniform(size=(tokens, 2))
    u[:, 0] **= q
    return q, -np.log1p(-u)


def test_gumbel_ratios_equal_the_density_ratio() -> None:
    q, scores = gumbel_text(300, 5)
    u = -np.expm1(-scores)
    density = sum((u ** (1 / q[:, None] ** p - 1)) / q[:, None] ** p for p in POWERS)
    density = density + sum((1 - tilt) * np.exp(tilt * scores) for tilt in TILTS)
    expected = np.log((1 + density) / (1 + len(POWERS) + len(TILTS)))
    counted = np.ones(300, np.bool_)
    counted[7] = False
    actual = gumbel_log_ratios(scores, q, counted, iterations=0)
    assert (actual[7] == 0).all()
    np.testing.assert_allclose(actual[counted], expected[counted], atol=1e-9)


def test_gumbel_ratios_average_one_under_other_keys_and_exceed_it_under_the_writers() -> None:
    q, scores = gumbel_text(200_000, 6)
    counted = np.ones(len(q), np.bool_)
    actual = gumbel_log_ratios(scores, q, counted)
    ratios = np.exp(actual[:, 1])
    assert abs(ratios.mean() - 1) < 4 * ratios.std() / len(q) ** 0.5
    u = -np.expm1(-scores[:, 0])
    best = (-np.log(q) + (1 / q - 1) * np.log(u)).sum()  # with q known to be right
    assert 0.85 * best < actual[:, 0].sum() <= best


def test_wrong_probability_does_not_invert_gumbel_evidence() -> None:
    q, scores = gumbel_text(2000, 7)
    wrong = np.full(len(q), 1e-4)
    counted = np.ones(len(q), np.bool_)
    plain = (-np.log(wrong) + (1 / wrong - 1) * np.log(-np.expm1(-scores[:, 0]))).sum()
    actual = gumbel_log_ratios(scores, wrong, counted).sum(axis=0)
    assert plain < -1e6
    assert actual[0] > 100 > 0 > actual[1]


def test_scores_at_their_ends_are_read() -> None:
    scores = np.array([[0.0, 16.64], [0.0, 60.0]])
    actual = gumbel_log_ratios(scores, np.array([1.0, 1e-9]), np.ones(2, np.bool_))
    assert np.isfinite(actual).all()


def choices(tokens: int, keys: int, error: float, seed: int) -> tuple[Any, ...]:
    """Arguments of `choice_log_ratios` for tokens that a sampler with probabilities near q chose by key 0."""
    draw = np.random.default_rng(seed)
    q = draw.dirichlet(np.full(20, 0.3), tokens).clip(1e-6)
    log_q = np.log(q / q.sum(axis=1, keepdims=True))
    noise = draw.gumbel(size=(tokens, 20, keys))
    chosen = (log_q + error * draw.gumbel(size=(tokens, 20)) + noise[..., 0]).argmax(axis=1)
    scores, rows = -np.log(-np.expm1(-np.exp(-noise))), np.arange(tokens)
    chosen_log_q = log_q[rows, chosen]
    candidates = log_q.copy()
    candidates[rows, chosen] = -np.inf
    return candidates, scores, chosen_log_q, scores[rows, chosen]


@pytest.mark.parametrize("error", [0.0, 0.6])
def test_chosen_tokens_are_evidence_for_the_writer_only(error: float) -> None:
    log_q, scores, chosen_log_q, own_scores = choices(4000, 8, error, 10)
    actual = choice_log_ratios(log_q, scores, chosen_log_q, own_scores)
    assert actual.shape == (4000, 8, len(SPREADS))
    assert np.isfinite(actual).all()
    strangers = np.exp(actual[:, 1:]).mean(axis=(0, 1))
    assert strangers.min() > 0.85
    assert strangers.max() < 1.05
    assert (actual[:, 0].mean(axis=0)[1:] > 0.2).all()


def test_choices_add_evidence_to_the_chosen_token() -> None:
    log_q, scores, chosen_log_q, own_scores = choices(4000, 8, 0.6, 11)
    counted, q = np.ones(4000, np.bool_), np.exp(chosen_log_q)
    alone = gumbel_log_ratios(own_scores, q, counted)
    together = gumbel_log_ratios(
        own_scores, q, counted, choice_log_ratios(log_q, scores, chosen_log_q, own_scores)
    )
    assert together[:, 0].mean() > 1.15 * alone[:, 0].mean()
    assert np.exp(together[:, 1:]).mean() < 1.05
