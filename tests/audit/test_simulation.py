"""Simulated scores of `select` and `walk`, against theory and the choice of `iet.select`."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest

from iet import calibrate
from iet.audit import simulation
from iet.audit.simulation import Method
from iet.errors import InputError
from iet.generation import selection
from iet.marks.families import FAMILIES

GUMBEL = FAMILIES["gumbel"]


@pytest.mark.parametrize("candidates", [2, 8, 16])
def test_chosen_drafts_carry_the_largest_of_independent_sums(candidates: int) -> None:
    rng = np.random.default_rng(candidates)
    scores = Method("select", candidates).scores("gumbel", 1.0, 5.0, rng, 1 << 17, 16)
    assert scores.shape == (1 << 13, 16)
    expected = rng.gamma(16, size=(1 << 15, candidates)).max(axis=1)
    assert scores.sum(axis=1).mean() == pytest.approx(expected.mean(), abs=0.25)  # shared first tokens
    assert scores.sum(axis=1).std() == pytest.approx(expected.std(), rel=0.04)
    normal = rng.normal(size=(1 << 15, candidates)).max(axis=1).mean()  # 1.42 for eight
    assert scores.mean() - 1 == pytest.approx(normal / math.sqrt(16), rel=0.12)  # sums are skewed


def test_certain_text_and_tokens_outside_of_the_likeliest_carry_no_mark() -> None:
    rng = np.random.default_rng(0)
    for mark in ("select", "walk"):
        certain = Method(mark).scores("gumbel", 1.0, 1e-6, rng, 1 << 15, 16 if mark == "select" else 1)
        assert certain.mean() == pytest.approx(1, abs=0.03)
    # At 5.4 nats, 19 of 256 tokens have about a tenth of the mass, and equal weights: u^19 is uniform.
    q = simulation._likeliest(simulation._distributions(5.4, rng))
    harmonic = (1 / np.arange(1, 20)).sum()  # E[-log(1 - u)], u the largest of 19
    expected = 1 + q.sum(axis=1).mean() * (harmonic - 1)
    scores = Method("walk").scores("gumbel", 1.0, 5.4, rng, 1 << 16)
    assert scores.mean() == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize("entropy", [0.25, 1.0])
def test_the_choice_carries_as_much_as_that_of_select(entropy: float) -> None:
    rng, count = np.random.default_rng(3), 300
    cumulative = np.cumsum(simulation._distributions(entropy, rng), axis=1)
    cumulative += np.arange(len(cumulative))[:, None]
    scores, prefixes = simulation.draft_tree(cumulative.ravel(), entropy / 2.5, (count, 8, 16), rng)
    sums, chosen = scores.sum(axis=0), simulation.chosen_drafts(scores, prefixes)
    differences = []
    for text in range(count):
        _, first, counts = np.unique(prefixes[-1, text], return_index=True, return_counts=True)
        drafts = [prefixes[:, text, i] for i in first]
        parts = [scores[:, text, i] for i in first]
        counted = [np.ones(len(part), np.bool_) for part in parts]
        winner = selection.Tree(drafts, parts, counted, counts.astype(float).tolist(), GUMBEL, rng).winner()
        differences.append(sums[text, chosen[text]] - sums[text, first[winner]])
    shift = float((sums[np.arange(count), chosen] - 16).mean())
    error = float(np.std(differences)) / math.sqrt(count)
    assert abs(float(np.mean(differences))) < 0.02 * shift + 3 * error


def test_drafts_share_scores_exactly_as_long_as_they_are_equal() -> None:
    rng = np.random.default_rng(1)
    cumulative = np.cumsum(simulation._distributions(0.5, rng), axis=1)
    cumulative += np.arange(len(cumulative))[:, None]
    scores, prefixes = simulation.draft_tree(cumulative.ravel(), 0.2, (50, 4, 12), rng)
    is_equal = prefixes[:, :, :1] == prefixes[:, :, 1:]
    assert (is_equal == (scores[:, :, :1] == scores[:, :, 1:])).all()
    assert (is_equal[1:] <= is_equal[:-1]).all()
    assert is_equal.any()
    assert not is_equal.all()


def test_tokens_that_select_needs_are_near_an_outside_measurement() -> None:
    rows = calibrate.power((0.25, 0.5, 1.0), keys=(1, 6), mark="select")
    assert [row.family for row in rows] == ["gumbel"] * 3
    # Measured outside: 512, 192 and 192 tokens. One agent needs fewer, six agents about as many or more.
    for row, measured in zip(rows, (512, 192, 192), strict=True):
        alone, six = row.tokens.values()
        assert alone is not None
        assert six is not None
        assert 0.6 * measured <= alone <= measured <= 1.1 * six
    table = calibrate.power_table(rows)
    assert "select among 8 candidates of 16 tokens" in table
    assert "| price |" in table
    assert table.endswith("| 8 |")


def test_power_grows_with_candidates_and_walk_needs_fewer_tokens_at_high_entropy() -> None:
    options: dict[str, Any] = {"entropies": (2.0,), "keys": (6,), "texts": 200}
    two, many = (calibrate.power(mark="select", candidates=m, **options)[0] for m in (2, 32))
    (walk,) = calibrate.power(mark="walk", **options)
    assert two.tokens[6] is not None
    assert many.tokens[6] is not None
    assert walk.tokens[6] is not None
    assert two.tokens[6] > 2 * many.tokens[6] > 2 * walk.tokens[6]
    assert (two.generated, many.generated) == (2, 32)
    assert 3 < walk.generated < 6
    assert "Mark: walk among 19 tokens, drafts of 8" in calibrate.power_table([walk])


def test_a_chunk_is_no_longer_than_the_text() -> None:
    (row,) = calibrate.power((3.0,), keys=(1,), mark="select", chunk_tokens=4096, most=64)
    scores = Method("select", 8, 4096).scores("gumbel", 1.0, 3.0, np.random.default_rng(0), 1 << 12, 64)
    assert scores.shape == (512, 64)
    # One choice among 8 answers of 200 tokens: the lowest of 8 p-values is below 0.01 in 7.7 % of texts.
    assert row.in_short[1] == pytest.approx(1 - 0.99**8, abs=0.045)


def test_plans_of_hosted_models_use_their_information() -> None:
    (native,) = calibrate.plan(1.0, 4, 160, families=["gumbel"])
    for mark in ("select", "walk"):
        (row,) = calibrate.plan(1.0, 4, 160, mark=mark)
        assert row.method.mark == mark
        assert row.outside == ()
        assert row.nats < native.nats
        assert calibrate.plan(1.0, 4, 160, mark=mark) == [row]
        assert f"Mark: {row.method}; tokens generated per token" in calibrate.plan_table([row])
    assert calibrate.advice([row]) == "One family: nothing is compared."
    per_token = simulation.information(Method("select"), 5.0, 160)
    assert per_token == pytest.approx(1.42**2 / 32, rel=0.25)  # E²/2L, were scores normal
    wide = calibrate.plan(calibrate.Entropy(1.0, 0.8, 1.2, 1000), 4, 160, mark="select")[0]
    assert wide.token_accuracy is not None
    assert wide.token_accuracy[1] < wide.token_accuracy[0] < wide.token_accuracy[2]


def test_defaults_are_those_of_hosted_models() -> None:
    hosted = pytest.importorskip("iet.generation.hosted")
    defaults = inspect.signature(hosted.HostedModel).parameters
    assert hosted.TOP_TOKENS - 1 == simulation._WALK_TOKENS
    assert defaults["candidates"].default == Method().candidates


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mark": "wolk"}, "mark: got 'wolk', expected one of native, select, walk"),
        ({"mark": "select", "candidates": 1}, "candidates: got 1, expected an int from 2 to 128"),
        ({"mark": "select", "chunk_tokens": 4097}, "chunk_tokens: got 4097, expected an int from 1 to 4096"),
    ],
)
def test_rejects_invalid_marks(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        calibrate.power(**options)
    with pytest.raises(InputError, match=message):
        calibrate.plan(1.0, 4, 160, **options)
    with pytest.raises(InputError, match=r"families: got \['fourier'\], expected some of \['gumbel'\]"):
        calibrate.plan(1.0, 4, 160, families=["fourier"], mark="walk")
