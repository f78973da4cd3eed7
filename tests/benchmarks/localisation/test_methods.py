"""WISER and the Bayes reader agree with theory; the comparison reads published and drawn scores."""

from __future__ import annotations

import itertools
import json
import pathlib
import sys

import numpy as np
import pytest

from benchmarks.localisation import __main__ as comparison
from benchmarks.localisation import bayes, wiser
from benchmarks.localisation.laws import GREEN, Floats, draw
from iet.errors import InputError
from iet.marks.families import FAMILIES, Family

GUMBEL = FAMILIES["gumbel"]


def steps(high: float = 4.0) -> Floats:
    """Exponential scores without noise: the null mean, and in [100, 180) and [260, 360) what marks give."""
    scores = np.ones(480)
    scores[100:180] = scores[260:360] = high
    return scores


# Exact on steps without noise


@pytest.mark.parametrize("block", [10, 25, 40])
def test_wiser_finds_both_ends_of_each_step(block: int) -> None:
    assert wiser.detect(steps(), GUMBEL, block=block) == [(100, 180), (260, 360)]
    assert wiser.detect(np.ones(480), GUMBEL, block=block) == []


def test_wiser_takes_the_ends_of_highest_excess() -> None:
    scores = steps() * np.random.default_rng(3).exponential(size=480)
    (interval,) = wiser.detect(scores[:240], GUMBEL, block=40, rho=0.4)
    reach = 40 + int(0.1 * 240**0.6) + 1
    lift = (scores[80 - reach + 1 : 200 + reach - 1] - 1).sum() / (120 + 2 * (reach - 1) - 1)

    def excess(start: int, end: int) -> float:
        return float((scores[start:end] - 1 - 0.4 * lift).sum())

    ends = itertools.product(range(80 - 40, 80 + 40), range(200 - 40, 240))
    assert excess(*interval) == pytest.approx(max(excess(*pair) for pair in ends))


def test_bayes_reader_finds_steps() -> None:
    law = bayes.uniform(50, 150)
    lengths = bayes.Lengths(law, law, np.array([0.5, 0.5]), np.array([0.0, 1.0]))
    labels, posterior = bayes.read(2 * (steps() - 2)[:, None], lengths)
    assert np.flatnonzero(np.diff(labels)).tolist() == [99, 179, 259, 359]
    assert posterior.sum(axis=1) == pytest.approx(1)


# The Bayes reader is exact


def test_posterior_equals_the_sum_over_segmentations() -> None:
    tokens, agents = 7, 2
    rng = np.random.default_rng(1)
    ratios = rng.normal(size=(tokens, agents))
    agent_lengths, null_lengths = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.4])
    lengths = bayes.Lengths(agent_lengths, null_lengths, np.array([0.5, 0.2, 0.3]), np.array([0.1, 0.6, 0.3]))
    expected = np.zeros((tokens, agents + 1))

    def extend(labels: list[int], chance: float) -> None:
        if len(labels) >= tokens:
            expected[np.arange(tokens), labels[:tokens]] += chance
            return
        for state in range(agents + 1):
            if labels and state == labels[-1]:
                continue
            share = (
                lengths.shares[state] / (1 - lengths.shares[labels[-1]]) if labels else lengths.first[state]
            )
            for length, of_length in enumerate(agent_lengths if state < agents else null_lengths, 1):
                here = range(len(labels), min(tokens, len(labels) + length))
                ratio = np.exp(sum(ratios[t, state] for t in here)) if state < agents else 1.0
                extend(labels + [state] * length, chance * share * of_length * ratio)

    extend([], 1.0)
    labels, posterior = bayes.read(ratios, lengths)
    expected /= expected.sum(axis=1, keepdims=True)
    assert posterior == pytest.approx(expected, abs=1e-12)
    assert labels.tolist() == [-1 if label == agents else label for label in expected.argmax(axis=1)]


# Unmarked scores


@pytest.mark.parametrize("family", [GUMBEL, GREEN], ids=lambda family: family.name)
def test_false_positives_of_wiser_match_the_level(family: Family) -> None:
    texts = draw(family, 0.0, np.random.default_rng(5), (400, 300))
    positives = sum(bool(wiser.detect(scores, family, block=30, level=0.05)) for scores in texts)
    assert positives <= 400 * 0.05 + 3 * (400 * 0.05) ** 0.5
    if family is GUMBEL:  # the others' blocks are as often too low as too high, which marks none
        assert positives >= 6


# Laws


@pytest.mark.parametrize("strength", [0.0, 0.5])
@pytest.mark.parametrize("family", [*FAMILIES.values(), GREEN], ids=lambda family: family.name)
def test_drawn_scores_have_the_mean_of_their_law(family: Family, strength: float) -> None:
    scores = draw(family, strength, np.random.default_rng(8), 40_000)
    assert scores.mean() == pytest.approx(family.mean(strength), abs=0.03)
    if strength == 0:
        assert scores.var() == pytest.approx(family.variance, abs=0.05)


# The comparison


def write_published(folder: pathlib.Path, texts: int) -> None:
    """Write a file in WISER's format: 120 tokens, marked from 40 to 80."""
    rng = np.random.default_rng(0)
    pivots = rng.exponential(size=(texts, 120))
    pivots[:, 40:80] = rng.exponential(4, (texts, 40))
    pivots[0, 50] = np.inf
    kinds = [[0, 40, "unwatermarked"], [40, 80, "gumbel"], [80, 120, "unwatermarked"]]
    content = {"configuration": {"intervals": kinds}, "data": [{"pivots": row.tolist()} for row in pivots]}
    (folder / "data_model_gumbel.json").write_text(json.dumps(content))


def test_published_files_are_split_for_tuning_and_reporting(tmp_path: pathlib.Path) -> None:
    write_published(tmp_path, comparison.TUNING + 5)
    (corpus,) = comparison.published(tmp_path, 3)
    assert (len(corpus.tuning), len(corpus.texts)) == (comparison.TUNING, 3)
    assert np.flatnonzero(corpus.texts[0].truth == 0).tolist() == list(range(40, 80))
    assert corpus.tuning[0].scores[50, 0] == max(t.scores.max() for t in corpus.tuning) < np.inf
    with pytest.raises(InputError, match=r"expected a folder with data_\*\.json"):
        next(comparison.published(tmp_path / "none", 3))


def test_drawn_texts_follow_their_law() -> None:
    corpus = comparison.drawn("gumbel", 0.7, 2, 20)
    scores = np.concatenate([text.scores for text in corpus.texts])
    truth = np.concatenate([text.truth for text in corpus.texts])
    marked = truth[:, None] == np.arange(2)
    assert scores[marked].mean() == pytest.approx(1 / 0.3, rel=0.05)
    assert scores[~marked].mean() == pytest.approx(1, rel=0.05)
    assert (comparison.drawn("gumbel", 0.7, 2, 1).texts[0].scores == corpus.texts[0].scores).all()


def test_overlaps_go_to_the_interval_with_the_higher_standardised_sum() -> None:
    scores = np.ones((10, 2))
    scores[2:8, 0], scores[4:6, 1] = 2, 5
    labels = comparison.combined(scores, GUMBEL, [[(2, 8)], [(4, 6)]])
    assert labels.tolist() == [-1, -1, 0, 0, 1, 1, 0, 0, -1, -1]


def test_command_compares_readers(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_published(tmp_path, comparison.TUNING + 3)
    monkeypatch.setattr(comparison, "DRAWN", [("gumbel", 0.7, 2)])
    monkeypatch.setitem(comparison.DECODERS, "cusum", {"tau": (0.1,)})
    monkeypatch.setattr(wiser, "GRID", {"block": (10, 20)})
    out = tmp_path / "out.json"
    options = ["--data", tmp_path, "--texts", 3, "--texts-drawn", 3, "-o", out]
    monkeypatch.setattr(sys, "argv", ["localisation", *map(str, options)])
    comparison.main()
    published, drawn = json.loads(out.read_text())["corpora"]
    assert published["readers"]["posterior"]["iou"][0] > 0.7
    assert set(drawn["readers"]) == {"posterior", "cusum", "window", "WISER", "WISER, as published", "Bayes"}
    assert drawn["readers"]["Bayes"]["iou"][0] > drawn["readers"]["WISER, as published"]["iou"][0]
    assert "| drawn, gumbel λ = 0.7, 2 agents | 3 |" in out.with_suffix(".md").read_text()
