"""The interleaved timer: what it times, not how fast."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import timing
from iet import kernels
from iet.errors import IetError, InputError
from iet.native import load as native


def test_every_sampler_runs_once_a_round_in_changing_order() -> None:
    log: list[str] = []
    samplers = {name: lambda name=name: (log.append(name), float(len(log)))[1] for name in "abc"}
    samples = timing.interleaved(samplers, rounds=20)
    rounds = [tuple(log[i : i + 3]) for i in range(3, len(log), 3)]  # after the one that warms up
    assert len(rounds) == 20
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert len(set(rounds)) > 2
    # samples[name][i] is of round i: the moment of each call shows it.
    for name, values in samples.items():
        assert values == [4 + 3 * i + order.index(name) for i, order in enumerate(rounds)]


def test_no_round_begins_after_the_time_limit() -> None:
    assert len(timing.interleaved({"a": lambda: 1.0}, rounds=50, seconds=0.0)["a"]) == 3
    assert len(timing.interleaved({"a": lambda: 1.0}, rounds=2, seconds=0.0)["a"]) == 2


def test_ratios_are_formed_within_rounds() -> None:
    drifting = [1.0, 2.0, 4.0, 8.0]
    assert timing.ratio([3 * value for value in drifting], drifting) == (3.0, 3.0, 3.0)
    assert timing.spread([5.0, 1.0, 3.0]) == (2.0, 3.0, 4.0)
    assert timing.noise([5.0, 1.0, 3.0]) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="argument"):
        timing.ratio([1.0], [1.0, 2.0])


def test_arguments_are_made_anew_for_every_call() -> None:
    seen: list[int] = []
    made = iter(range(5))
    sample = timing.timed(seen.append, lambda: (next(made),))
    assert all(sample() >= 0 for _ in range(3))
    assert seen == [0, 1, 2]


def test_rejects_a_kernel_with_different_results(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = timing.team(515, 2).marking_keys()
    timing.validate_embed(keys, np.zeros((2, 515), np.float32))
    timing.validate_score(keys, np.arange(20))
    marking, scoring = kernels.embed_, kernels.score_tokens
    monkeypatch.setattr(
        kernels,
        "embed_",
        lambda logits, *operands: marking(logits[:1], *(r[:1] for r in operands[:2]), operands[2]),
    )
    with pytest.raises(IetError, match="embed_ differs"):
        timing.validate_embed(keys, np.zeros((2, 515), np.float32))
    monkeypatch.setattr(kernels, "score_tokens", lambda ids, keys: scoring(ids[::-1], keys))
    with pytest.raises(IetError, match="score_tokens differs"):
        timing.validate_score(keys, np.arange(20))


def test_rejects_unknown_instruction_set() -> None:
    if native.cpu is None:
        pytest.skip("the reference has no instruction sets")
    with pytest.raises(InputError, match="'sse9', expected one of"):
        timing.select_isa("sse9")
