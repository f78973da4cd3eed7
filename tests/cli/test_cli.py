"""Every command: usage, exit codes, and a process of its own."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

import iet
from iet.cli import doctor
from tests.support.commands import RunIet, run, spawn
from tests.support.conditions import posix


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["audit"],
        ["audit", "x", "--decoder", "guess"],
        ["audit", "x", "--fail-on", "anything"],
        ["audit", "x", "--level", "low"],
        ["keys"],
        ["keys", "add"],
        ["keys", "export", "x"],
        ["demo", "--agents", "7"],
        ["demo", "--topology", "ring"],
        ["doctor", "--loud"],
    ],
)
def test_wrong_usage_exits_with_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    output = capsys.readouterr()
    assert output.err.startswith("usage: iet")
    assert output.out == ""


def test_a_command_without_arguments_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, names in (([], ("audit", "keys", "doctor")), (["keys"], ("init", "add", "export"))):
        assert run(*arguments) == 2
        lines = capsys.readouterr().err.splitlines()
        for name in names:
            assert [line for line in lines if line.split()[:1] == [name] and len(line.split()) > 1], name


def test_a_usage_error_shows_the_commands_usage(run_iet: RunIet) -> None:
    for arguments, command in (
        (["audit", "a.txt", "b.txt"], "audit"),
        (["audit", "a.txt", "--keys", "x"], "audit"),
        (["audit", "a.txt", "-o", "a.html", "--keys", "x"], "audit"),
        (["keys", "add"], "keys add"),
        (["keys", "add", "x", "--loud"], "keys add"),
        (["calibrate", "--power", "--registries", "3"], "calibrate"),
        (["doctor", "--agent", "x"], "doctor"),
        (["audit", "a.txt", "-o", "out/", "--reread"], "audit"),
        (["audit", "a.txt", "--forced", "--attributed", "tokens"], "audit"),
    ):
        refusal = run_iet(2, *arguments)
        assert refusal.startswith(f"usage: iet {command} ")
        assert f"\niet {command}: error: " in refusal


def test_help_and_version_exit_with_zero(capsys: pytest.CaptureFixture[str], run_iet: RunIet) -> None:
    for arguments in (["--help"], ["audit", "--help"], ["keys", "--help"], ["keys", "add", "--help"]):
        assert "usage: iet" in run_iet(0, *arguments)
    assert run("--version") == 0
    assert capsys.readouterr().out == f"iet {iet.__version__}\n"


def test_an_interrupt_fails_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "examine", interrupt)
    assert run("doctor") == 130
    assert capsys.readouterr().err == "iet: interrupted\n"


def test_a_process_reads_a_pipe_and_answers_by_its_exit_code(team: pathlib.Path, text: pathlib.Path) -> None:
    done = spawn("audit", "-", "-r", team, "--json", "--fail-on", "attributed", input=text.read_bytes())
    assert (done.returncode, done.stderr) == (1, b"")
    assert json.loads(done.stdout)["segments"][0]["agent"] == "critic"
    done = spawn("audit", "-", input=b"w1", env={**os.environ, "IET_REGISTRY": str(team.parent / "none")})
    assert done.returncode == 3
    assert b"Traceback" not in done.stderr


def test_an_output_without_unicode_is_no_failure(team: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "naïve.txt").write_text("w1 w2 naïve 漢", encoding="utf-8")
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for more in ([], ["--json"]):
        done = spawn("audit", tmp_path / "naïve.txt", "-r", team, *more, env=ascii_only)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.isascii()
    assert json.loads(done.stdout)["text"] == "w1 w2 naïve 漢"


@pytest.mark.parametrize("name", ["self", "cls", "keys", "path", "scheme", "tokenizer", "secret_mount"])
def test_unknown_scheme_parameters_are_rejected(
    name: str, text: pathlib.Path, tokenizer: pathlib.Path, run_iet: RunIet
) -> None:
    engine = ["--scheme", "vllm-gumbel", "--keys", "keys.json", "--tokenizer", tokenizer]
    refusal = run_iet(3, "audit", text, *engine, "--parameter", f"{name}=1")
    assert f"--parameter: got '{name}', expected one of --scheme vllm-gumbel" in refusal


def test_numbers_that_are_too_long_are_rejected_in_one_line(
    team: pathlib.Path, text: pathlib.Path, tokenizer: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet
) -> None:
    digits = "9" * 5000
    init = ["keys", "init", tmp_path / "new.json", "--vocab-size", "100", "--parameter"]
    waterfall = ["audit", text, "--scheme", "waterfall", "--tokenizer", tokenizer, "--keys"]
    for code, arguments, message in (
        (3, [*init, f"k_p={digits}"], "k_p: got '999"),
        (3, [*init, f"k_p={digits[:4000]}"], "k_p: got an int of 13288 bits, expected at most 49"),
        (3, [*waterfall, f"planner={digits}"], "--keys: got 'planner=999"),
        (2, ["audit", text, "-r", team, "--span", f"0:{digits}"], "--span: got '0:999"),
        (3, ["audit", text, "-r", team, "--span", f"0:{10**20}"], f"spans: got {10**20}, expected"),
        (3, ["audit", text, "-r", team, "--span", "5:2"], "spans: got (5, 2), expected"),
        (3, ["calibrate", "--power", "--seed", "-1"], "seed: got -1, expected an int of at least 0"),
        (3, ["calibrate", "--null", text, "-r", team, "--seed", "-1"], "seed: got -1, expected"),
    ):
        refusal = run_iet(code, *arguments).splitlines()[-1]
        assert message in refusal
        assert len(refusal) < 300
    assert not (tmp_path / "new.json").exists()


def test_a_refusal_is_that_of_python(team: pathlib.Path, run_iet: RunIet) -> None:
    (team.parent / "a.txt").write_text("w1 w2")
    for arguments, refusal in (
        (["--level", "2"], "iet: level: got 2.0, expected a number between 0 and 1"),
        (["--model", "m", "--decoder", "cusum"], "iet: model: got decoder 'cusum'"),
        (["--known", "nobody"], "iet: known_agents: got 'nobody'"),
        (["--profile", "x"], "iet: profile 'x' is not in the registry"),
    ):
        assert refusal in run_iet(3, "audit", team.parent / "a.txt", "-r", team, *arguments)


def test_commands_for_one_local_file_reject_uris(team: pathlib.Path, run_iet: RunIet) -> None:
    uri = "s3://user:PASSWORD@bucket/a.txt"
    for code, command, message in (
        (2, ["check", uri], "many conversations take one folder for the results: -o OUT/"),
        (
            3,
            ["index", "add", "a.idx", uri, "--agent", "planner"],
            "s3://...: got a URI, expected files of this machine; iet audit reads it",
        ),
    ):
        refusal = run_iet(code, *command, "-r", team)
        assert message in refusal
        assert "PASSWORD" not in refusal


@posix
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_closed_output_is_no_failure(team: pathlib.Path, tmp_path: pathlib.Path, more: list[str]) -> None:
    (tmp_path / "long.txt").write_text("w1 w2 w3 " * 40_000)  # more than a pipe holds
    command = [sys.executable, "-m", "iet", "audit", str(tmp_path / "long.txt"), "-r", str(team), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0
