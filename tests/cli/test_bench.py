"""`iet bench` and its interleaved timer: what it times, not how fast."""

from __future__ import annotations

import json
import subprocess
import sys

import jsonschema
import numpy as np
import pytest

from iet import kernels
from iet.cli import bench, main
from iet.errors import IetError, InputError
from iet.native import load as native
from tests.support.speed_schema import SPREAD


def test_all_contestants_run_once_a_round_in_changing_order() -> None:
    log: list[str] = []
    samplers = {name: lambda name=name: (log.append(name), float(len(log)))[1] for name in "abc"}
    samples = bench.interleaved(samplers, rounds=20)
    rounds = [tuple(log[i : i + 3]) for i in range(3, len(log), 3)]  # after the one that warms up
    assert len(rounds) == 20
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert len(set(rounds)) > 2
    # samples[name][i] is of round i: the moment of each call tells.
    for name, values in samples.items():
        assert values == [4 + 3 * i + order.index(name) for i, order in enumerate(rounds)]


def test_no_round_begins_after_the_seconds_are_over() -> None:
    assert len(bench.interleaved({"a": lambda: 1.0}, rounds=50, seconds=0.0)["a"]) == 3
    assert len(bench.interleaved({"a": lambda: 1.0}, rounds=2, seconds=0.0)["a"]) == 2


def test_ratios_are_formed_within_rounds() -> None:
    drifting = [1.0, 2.0, 4.0, 8.0]
    assert bench.ratio([3 * value for value in drifting], drifting) == (3.0, 3.0, 3.0)
    assert bench.spread([5.0, 1.0, 3.0]) == (2.0, 3.0, 4.0)
    assert bench.noise([5.0, 1.0, 3.0]) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="argument"):
        bench.ratio([1.0], [1.0, 2.0])


def test_arguments_are_made_anew_for_every_call() -> None:
    seen: list[int] = []
    made = iter(range(5))
    sample = bench.timed(seen.append, lambda: (next(made),))
    assert all(sample() >= 0 for _ in range(3))
    assert seen == [0, 1, 2]


def test_a_kernel_that_differs_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = bench.team(515, 2).marking_keys()
    bench.validate_embed(keys, np.zeros((2, 515), np.float32))
    bench.validate_score(keys, np.arange(20))
    marking, scoring = kernels.embed_, kernels.score_tokens
    monkeypatch.setattr(
        kernels, "embed_", lambda logits, *rest: marking(logits[:1], *(r[:1] for r in rest[:2]), rest[2])
    )
    with pytest.raises(IetError, match="embed_ differs"):
        bench.validate_embed(keys, np.zeros((2, 515), np.float32))
    monkeypatch.setattr(kernels, "score_tokens", lambda ids, keys: scoring(ids[::-1], keys))
    with pytest.raises(IetError, match="score_tokens differs"):
        bench.validate_score(keys, np.arange(20))


# ---------------------------------------------------------------- iet bench

TINY = ["bench", "--rows", "3", "--vocab-size", "515", "--tokens", "50", "--seconds", "0"]


def test_iet_bench_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    before = kernels.backends()
    assert main([*TINY, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert kernels.backends() == before
    assert figures["rounds"] == [3, 3]
    assert figures["machine"]["isa"] == before.isa
    for work in ("embed_ float32 [3, 515]", "embed_ float16 [3, 515]", "score_tokens n = 2, T = 50, K = 16"):
        lines = [line for line in figures["lines"] if line["work"] == work]
        assert [line["what"] for line in lines if line["ours"]] == [name for name, _, _ in bench.contenders()]
        for line in lines:
            jsonschema.validate(line["value"], SPREAD)
            for ratio in line["over"].values():
                jsonschema.validate(ratio, SPREAD)
        floor = next(line for line in lines if line["what"] == next(iter(line["over"])))
        assert floor["over"][floor["what"]]["median"] == 1.0


def test_iet_bench_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TINY) == 0
    shown = capsys.readouterr().out
    assert "over float32 add [B, V]" in shown
    assert all(name in shown for name, _, _ in bench.contenders())
    assert "agreed with the reference" in shown


@pytest.mark.parametrize(
    ("option", "value"),
    [("--rows", "0"), ("--vocab-size", "1"), ("--tokens", "1"), ("--seconds", "nan"), ("--seconds", "-1.0")],
)
def test_iet_bench_refuses_what_it_cannot_time(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, option, value]) == 3
    error = capsys.readouterr().err
    assert f"got {value}, expected a" in error
    assert "of at least" in error


def test_iet_bench_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from iet.cli import main;"
        f"code = main({TINY!r}); assert 'benchmarks' not in sys.modules; raise SystemExit(code)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_an_unknown_instruction_set_is_refused() -> None:
    if native.cpu is None:
        pytest.skip("the reference has no instruction sets")
    with pytest.raises(InputError, match="'sse9', expected one of"):
        bench.select_isa("sse9")
