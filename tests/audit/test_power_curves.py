"""`iet calibrate --plan`: the packaged curve, questions inside and outside its range, and invalid input."""

from __future__ import annotations

import itertools
import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest

import iet
from benchmarks.accuracy import curve
from iet import calibrate, cli
from iet.audit import power_curves
from iet.errors import InputError

TABLE = json.loads(pathlib.Path(power_curves.__file__).with_suffix(".json").read_text(encoding="utf-8"))


def test_the_packaged_curve_is_reproducible_from_committed_results() -> None:
    cells = curve.grid(curve.RESULTS, TABLE)
    later = [c for c in curve.conversations(curve.RESULTS, TABLE) if c.kind == "conversations"]
    assert {(cell.family, cell.agents) for cell in cells} == {
        (f, a) for f in curve.FAMILY_NAMES for a in (4, 6)
    }
    assert len(cells) == 96
    assert len(later) == 30
    made = curve.curves(cells)
    for packaged, ours in zip(TABLE["curves"], made, strict=True):
        assert (packaged["family"], packaged["agents"]) == (ours["family"], ours["agents"])
        for name in ("nats", *curve.MEASURED):
            np.testing.assert_allclose(packaged[name], ours[name], rtol=1e-4, atol=1e-5)
    errors = curve.errors(curve.residuals(cells, later, {"curves": made}))
    for family, figures in errors.items():
        for name, interval in figures.items():
            np.testing.assert_allclose(TABLE["errors"][family][name], interval, rtol=1e-3, atol=1e-4)
    assert TABLE["turn_tokens"] == [60, 400]


@pytest.mark.parametrize(("family", "point"), [("fourier", 16), ("gumbel", 3)])
def test_packaged_information_equals_that_of_simulated_scores(family: str, point: int) -> None:
    entropy = TABLE["information"]["entropy"][point]
    actual = curve.information(family, entropy, draws=1 << 14)
    assert actual == pytest.approx(TABLE["information"][family][point], rel=0.1)


def test_information_is_the_relative_entropy_of_the_laws() -> None:
    # Exp(1 - λ) from Exp(1): -log(1 - λ) ... in closed form λ/(1 - λ) + log(1 - λ).
    law = iet.marks.families.FAMILIES["gumbel"]
    assert curve._kl(law, 0.5) == pytest.approx(1 + math.log(0.5))
    assert curve._tilt(law, 2.0) == pytest.approx(0.5)


def test_curves_are_monotone_and_expectations_lie_on_them() -> None:
    for packaged in TABLE["curves"]:
        assert (np.diff(packaged["nats"]) > 0).all()
        for name in power_curves.FIGURES:
            assert (np.diff(packaged[name]) >= 0).all()
        middle = len(packaged["nats"]) // 2
        x = packaged["nats"][middle]
        for name in power_curves.FIGURES:
            actual = power_curves.at(TABLE, packaged["family"], packaged["agents"], x, name)
            assert actual == pytest.approx(packaged[name][middle])
    four, five, six = (power_curves.at(TABLE, "gumbel", agents, 20.0, "iou") for agents in (4, 5, 6))
    assert five == pytest.approx((four + six) / 2)  # type: ignore[operator]
    assert power_curves.at(TABLE, "gumbel", 7, 20.0, "iou") is None
    assert power_curves.at(TABLE, "gumbel", 4, 1e4, "iou") is None


def test_expectations_grow_with_evidence_and_intervals_cover_the_mean() -> None:
    rows = [calibrate.plan(h, 4, 200) for h in (0.5, 1.0, 3.0)]
    for few, more in itertools.pairwise(rows):
        for family in ("fourier", "gumbel"):
            a, b = (next(row for row in answers if row.family == family) for answers in (few, more))
            assert a.nats < b.nats
            for name in power_curves.FIGURES:
                assert getattr(a, name)[0] <= getattr(b, name)[0]
    for row in (row for answers in rows for row in answers):
        assert row.outside == ()
        for name in power_curves.FIGURES:
            mean, low, high = getattr(row, name)
            assert 0 <= low <= mean <= high <= 1
    assert [row.family for row in rows[0]] == ["gumbel", "fourier"]
    assert calibrate.advice(rows[0]).startswith("Take gumbel")


def test_turns_of_different_lengths_count_by_their_tokens() -> None:
    (drawn,) = calibrate.plan(1.0, 4, [100, 300], families=["gumbel"])
    (plan,) = calibrate.plan(1.0, 4, 250, families=["gumbel"])  # (100² + 300²) / 400
    assert drawn == plan


@pytest.mark.parametrize(
    ("entropy", "agents", "tokens", "message"),
    [
        (0.2, 4, 200, "0.2 nats per token (measured: 0.391 to 3.27)"),
        (1.0, 3, 200, "3 agents (measured: 4 to 6)"),
        (1.0, 4, 50, "turns of 50 tokens (measured: 60 to 400)"),
        (1.0, 4, 401, "turns of 401 tokens (measured: 60 to 400)"),
    ],
)
def test_nothing_is_extrapolated_beyond_the_measurements(
    entropy: float, agents: int, tokens: int, message: str
) -> None:
    for row in calibrate.plan(entropy, agents, tokens):
        assert row.token_accuracy is row.iou is row.coverage is None
        assert message in row.outside
    assert calibrate.advice(calibrate.plan(entropy, agents, tokens)).startswith("No advice")


def test_a_sample_gives_an_entropy_interval_and_widens_expectations() -> None:
    rng = np.random.default_rng(0)
    q = np.array([0.5, 0.25, 0.125, 0.125])
    drawn = np.log(q[rng.choice(4, 4000, p=q)])
    actual = calibrate.entropy_of(drawn)
    assert actual.tokens == 4000
    assert actual.low < -(q * np.log(q)).sum() < actual.high
    assert actual.nats == pytest.approx(1.213, abs=0.05)
    (wide,), (narrow,) = (calibrate.plan(h, 4, 200, families=["fourier"]) for h in (actual, actual.nats))
    assert wide.token_accuracy is not None
    assert narrow.token_accuracy is not None
    assert wide.token_accuracy[0] == narrow.token_accuracy[0]
    assert wide.token_accuracy[1] < narrow.token_accuracy[1]


@pytest.mark.parametrize("tokens", [200, 256, 1000])
def test_the_interval_of_a_small_sample_covers_the_mean(tokens: int) -> None:
    rng, covered = np.random.default_rng(tokens), 0
    for _ in range(1000):
        actual = power_curves.sample_entropy(rng.exponential(size=tokens))
        covered += actual.low <= 1.0 <= actual.high
    assert covered / 1000 >= 0.925


def test_students_quantile() -> None:
    for freedom, quantile in ((3, 3.1824), (5, 2.5706), (9, 2.2622), (30, 2.0423), (1000, 1.9623)):
        assert power_curves.t_quantile(freedom) == pytest.approx(quantile, rel=2e-3)


def test_an_impossible_token_keeps_the_entropy_finite() -> None:
    torch = pytest.importorskip("torch")

    class Model:
        vocab_size = 4

        def logits(self, ids: object, size: int) -> Any:
            yield None, torch.tensor([[0.0, 0.0, -math.inf, -math.inf], [0.0, 0.0, 0.0, 0.0]])

    assert power_curves.entropies(Model(), [0, 1, 2]).tolist() == pytest.approx([math.log(2), math.log(4)])
    with pytest.raises(InputError, match="sample: got a token of NaN"):
        power_curves.sample_entropy(np.append(np.ones(300), np.nan))


@pytest.mark.parametrize(
    ("log_probs", "message"),
    [
        ([-1.0] * 199, "got 199 tokens, expected at least 200"),
        ([-1.0, 0.5], "got 0.5, expected finite"),
        ([-1.0, math.inf], "got inf"),
        ("words", "expected numbers"),
    ],
)
def test_rejects_invalid_samples(log_probs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        calibrate.entropy_of(log_probs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 4, 200), "entropy: got 0, expected nats per token above 0"),
        ((math.nan, 4, 200), "entropy: got nan"),
        ((1.0, 1, 200), "agents: got 1"),
        ((1.0, 4, 0), "turn_tokens: got 0"),
        ((1.0, 4, []), "turn_tokens: got none"),
    ],
)
def test_rejects_invalid_plans(arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        calibrate.plan(*arguments)
    with pytest.raises(InputError, match="families: got"):
        calibrate.plan(1.0, 4, 200, families=["sawtooth"])


def test_the_command_prints_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["calibrate", "--plan", "--agents", "4", "--turn-tokens", "80", "240"]
    assert cli.main([*line, "--entropy", "0.55"]) == 0
    output = capsys.readouterr().out
    assert "| fourier, κ 0.8 | 0." in output
    assert "Take gumbel" in output
    assert cli.main([*line, "--entropy", "0.55", "--family", "gumbel", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["families"]
    assert row["family"] == "gumbel"
    assert len(row["coverage"]) == 3


def test_plan_reads_a_text_with_a_model(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    text = tmp_path / "text.txt"
    text.write_text("We need a plan that the whole team can follow before the end of the week. " * 20)
    line = ["calibrate", "--plan", "--agents", "4", "--turn-tokens", "200", "--json"]
    line += ["--text", str(text), "--model", "iet:demo"]
    nats = []
    for temperature in ("1", "0.5"):
        assert cli.main([*line, "--temperature", temperature]) == 0
        nats.append(json.loads(capsys.readouterr().out)["families"][0]["nats"])
    assert nats[1] < nats[0]
    text.write_text(text.read_text(), encoding="utf-16")
    assert cli.main([*line, "--temperature", "0.5"]) == 0
    assert json.loads(capsys.readouterr().out)["families"][0]["nats"] == nats[1]
    text.write_bytes("Ça y est, le plan est là. ".encode("latin-1") * 40)
    assert cli.main(line) == 3
    assert f"iet: {text}: byte 0 is 0xc7, which is not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--agents", "4", "--turn-tokens", "9"], "takes one of --entropy and --text"),
        (["--entropy", "1", "--text", "x", "--agents", "4", "--turn-tokens", "9"], "takes one of"),
        (["--entropy", "1", "--agents", "4"], "needs --agents and --turn-tokens"),
        (["--entropy", "1", "--agents", "4", "--turn-tokens", "9", "5"], "got 9 5, expected a number"),
        (["--entropy", "1", "--agents", "4", "--turn-tokens", "0"], "from 1 to 1,000,000"),
        (["--text", "x", "--agents", "4", "--turn-tokens", "9"], "--text and --model go together"),
        (["--entropy", "1", "--level", "0.1", "--agents", "4", "--turn-tokens", "9"], "--level goes with"),
    ],
)
def test_rejects_conflicting_options(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["calibrate", "--plan", *options])
    assert stopped.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_options_of_the_plan_need_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["calibrate", "--power", "--agents", "4"])
    assert "--agents goes with --plan" in capsys.readouterr().err
