"""`iet calibrate` with the marks of hosted models: its options and its tables."""

from __future__ import annotations

import json

import pytest

from iet import calibrate, cli

PLAN = ["calibrate", "--plan", "--entropy", "1", "--agents", "4", "--turn-tokens", "160"]


def test_the_power_of_select(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"most": 64, "texts": 100, "draws": 1 << 13}
    monkeypatch.setattr(calibrate.power, "__kwdefaults__", {**calibrate.power.__kwdefaults__, **small})
    monkeypatch.setattr(calibrate.power, "__defaults__", ((3.0,), (1.6,), (1,)))
    line = ["calibrate", "--power", "--mark", "select", "--candidates", "4", "--chunk-tokens", "8"]
    assert cli.main(line) == 0
    output = capsys.readouterr().out
    assert "Mark: select among 4 candidates of 8 tokens" in output
    assert "fourier" not in output
    assert cli.main([*line, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["method"] == {"mark": "select", "candidates": 4, "chunk_tokens": 8}
    assert row["generated"] == 4


def test_the_plan_of_walk(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*PLAN, "--mark", "walk", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["families"]
    assert row["method"]["mark"] == "walk"
    assert 1 < row["generated"] < 4
    assert cli.main([*PLAN, "--mark", "walk", "--family", "all"]) == 0
    assert "Mark: walk among 19 tokens, drafts of 8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--power", "--candidates", "4"], "--candidates goes with --mark select"),
        (["--power", "--mark", "walk", "--chunk-tokens", "4"], "--chunk-tokens goes with --mark select"),
        (["--power", "--mark", "select", "--candidates", "1"], "--candidates: got 1, expected an int from 2"),
        (
            ["--power", "--mark", "select", "--chunk-tokens", "4097"],
            "got 4097, expected an int from 1 to 4096",
        ),
        ([*PLAN[1:], "--mark", "walk", "--family", "fourier"], "--mark walk goes with --family gumbel"),
        (["--null", "x", "--mark", "select"], "--mark goes with --power and --plan"),
        (["--power", "--mark", "wolk"], "invalid choice: 'wolk'"),
    ],
)
def test_rejects_conflicting_options_of_marks(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["calibrate", *options])
    assert stopped.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
