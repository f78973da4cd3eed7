"""Free tokens: the choice by request and position, on arrays and tensors; rejected settings."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy import stats

import iet
from iet.audit import calibration
from iet.errors import InputError
from iet.generation.free import FreeTokens, request_key
from tests.support import generation
from tests.support.generation import PROMPT, chosen_token, team

REQUESTS = np.array([request_key(seed) for seed in range(4000)])


def test_first_tokens_and_a_random_share_are_free() -> None:
    free = FreeTokens(8, 0.1)
    requests, positions = np.repeat(REQUESTS, 200), np.tile(np.arange(200), len(REQUESTS))
    result = free.are_free(requests, positions).reshape(len(REQUESTS), 200)
    assert result[:, :8].all()
    later = result[:, 8:]
    assert stats.binomtest(int(later.sum()), later.size, 0.1).pvalue > 1e-3
    # Positions and requests are independent of each other.
    assert stats.chisquare(later.sum(axis=0)).pvalue > 1e-3
    counts = np.bincount(later.sum(axis=1), minlength=193)[:40]
    expected = stats.binom.pmf(np.arange(40), 192, 0.1) * len(REQUESTS)
    few = expected >= 5
    assert stats.chisquare(counts[few], expected[few] * counts[few].sum() / expected[few].sum()).pvalue > 1e-3
    assert abs(np.corrcoef(later[:, :-1].ravel(), later[:, 1:].ravel())[0, 1]) < 0.01


def test_no_token_is_free_unless_asked_for() -> None:
    positions = np.arange(4000)
    assert not FreeTokens(0, 0.0).are_free(REQUESTS, positions).any()
    assert FreeTokens(5, 0.0).are_free(REQUESTS, positions).sum() == 5
    almost = FreeTokens(0, 1 - 2**-40).are_free(REQUESTS, positions)
    assert almost.all()


def test_tensors_equal_arrays() -> None:
    torch = pytest.importorskip("torch")
    positions = np.arange(len(REQUESTS))
    free = FreeTokens(3, 0.3)
    result = free.are_free(torch.from_numpy(REQUESTS), torch.from_numpy(positions))
    assert np.array_equal(result.numpy(), free.are_free(REQUESTS, positions))


def test_request_keys_have_63_bits_and_depend_on_seed_and_row() -> None:
    assert request_key(7) == request_key(7) == 2647286300180484073
    assert len({request_key(7), request_key(8), request_key("7", 1), request_key(7, 2)}) == 4
    assert 0 <= REQUESTS.min() < REQUESTS.max() < 1 << 63


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"first": -1}, "first: got -1, expected a number of tokens"),
        ({"first": 1.0}, "first: got 1.0"),
        ({"first": True}, "first: got True"),
        ({"rate": 1}, "rate: got 1, expected a probability from 0 to below 1"),
        ({"rate": -0.1}, "rate: got -0.1"),
        ({"rate": float("nan")}, "rate: got nan"),
        ({"rate": "0.1"}, "rate: got '0.1'"),
        ({"rate": None}, "rate: got None"),
    ],
)
def test_rejects_numbers_out_of_range(options: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        FreeTokens(**options)


# ---------------------------------------------------------------- transformers


def generate(config: Any, **options: Any) -> Any:
    pytest.importorskip("torch")
    options = {"do_sample": True, "max_new_tokens": 40, **options}
    prompt = options.pop("prompt", PROMPT)
    return generation.generate(config, prompt, **options)


def test_only_tokens_that_are_not_free_are_marked() -> None:
    pytest.importorskip("torch")
    registry = team(family="gumbel")
    free = FreeTokens(3, 0.2)
    result = generate(iet.WatermarkingConfig(registry, ["planner", None], free=free, seed=11))
    keys = np.array([request_key(11, row) for row in range(2)])
    for step, scores in enumerate(result.scores):
        expected = bool(free.are_free(keys, np.full(2, step))[0])
        assert (chosen_token(scores[0]) is not None) == (not expected)
        assert not (chosen_token(scores[1]) is not None)


def test_answers_vary_and_torchs_seed_reproduces_them() -> None:
    torch = pytest.importorskip("torch")
    registry, answers = team(family="gumbel"), []
    marking = iet.WatermarkingConfig(registry, "planner")
    for seed in (1, 2, 1):
        answers.append(generate(marking, prompt=PROMPT[:1], seed=seed, num_return_sequences=3).sequences)
    assert torch.equal(answers[0], answers[2])
    assert len({tuple(row.tolist()) for answer in answers[:2] for row in answer}) == 6
    assert all(iet.Auditor(registry).audit(token_ids=row[4:].numpy()).found for row in answers[0])


def test_assisted_decoding_chooses_the_same_positions() -> None:
    pytest.importorskip("torch")
    marking = iet.WatermarkingConfig(team(family="gumbel"), "planner", free=FreeTokens(0, 0.3), seed=5)
    plain = generate(marking, prompt=PROMPT[:1])
    result = generate(marking, prompt=PROMPT[:1], prompt_lookup_num_tokens=3)
    chosen = [
        [chosen_token(scores[0]) is not None for scores in run.scores if run.scores is not None]
        for run in (plain, result)
    ]
    assert chosen[0] == chosen[1][: len(chosen[0])]


def test_warns_if_all_tokens_are_free() -> None:
    pytest.importorskip("torch")
    marking = iet.WatermarkingConfig(team(family="gumbel"), "planner")
    with pytest.warns(UserWarning, match="nothing is marked: max_new_tokens is 8, and the first 8 tokens"):
        generate(marking, max_new_tokens=8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"free": 8}, "free: got int, expected iet.FreeTokens"),
        ({"seed": "7"}, "seed: got '7', expected an integer"),
        ({"seed": True}, "seed: got True"),
        ({"seed": 1.5}, "seed: got 1.5"),
    ],
)
def test_config_rejects_invalid_values(options: Any, words: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(InputError, match=words):
        iet.WatermarkingConfig(team(family="gumbel"), "planner", **options)


def test_free_tokens_are_saved_and_loaded() -> None:
    pytest.importorskip("torch")
    registry = team(family="gumbel")
    marking = iet.WatermarkingConfig(registry, "planner", free=FreeTokens(2, 0.3), seed=3)
    saved = marking.to_dict()
    loaded = iet.WatermarkingConfig.from_dict(saved, registry=registry)
    assert (loaded.free, loaded.seed) == (FreeTokens(2, 0.3), 3)
    with pytest.raises(InputError, match=r"free: got \{'first': 2, 'other': 1\}, expected first and rate"):
        iet.WatermarkingConfig.from_dict({**saved, "free": {"first": 2, "other": 1}}, registry=registry)


def test_power_table_uses_the_defaults() -> None:
    assert dataclasses.astuple(FreeTokens()) == (calibration.FREE_FIRST, calibration.FREE_RATE)
