"""`iet check`: a trace in; a table, files and an exit code out."""

from __future__ import annotations

import csv
import json
import pathlib
from typing import Any

import pytest

from tests.support.commands import RunIet, run


@pytest.fixture
def trace(text: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """The critic's text under two names, words of a user, and a message without a name."""
    words = text.read_text().split()
    messages = [
        {"role": "user", "content": "w1 w2 w3"},
        {"role": "assistant", "name": "Critic", "content": " ".join(words[:75])},
        {"role": "assistant", "name": "planner", "content": " ".join(words[75:])},
        {"role": "assistant", "content": "w7"},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"messages": messages}))
    return path


def test_check(run_iet: RunIet, team: pathlib.Path, trace: pathlib.Path, tmp_path: pathlib.Path) -> None:
    output = run_iet(0, "check", trace, "-r", team, "--agent", "Critic=critic")
    assert output.startswith(
        "4 pieces: 1 confirmed, 1 contradicted, 1 open, 1 skipped\njudged: 3; skipped: 1"
    )
    unknown = run_iet(0, "check", trace, "-r", team)
    assert "unknown name" in unknown
    assert "--agent Critic=critic" in unknown
    files = [tmp_path / f"out.{form}" for form in ("json", "html", "csv")]
    outputs = [argument for path in files for argument in ("-o", path)]
    data = json.loads(run_iet(0, "check", trace, "-r", team, "--agent", "Critic=critic", "--json", *outputs))
    assert [piece["verdict"] for piece in data["pieces"]] == ["skipped", "confirmed", "contradicted", "open"]
    assert json.loads(files[0].read_text()) == data
    assert "contradicted" in files[1].read_text()
    assert [row["agent"] for row in csv.DictReader(files[2].open(newline=""))] == ["", "critic", "critic", ""]


def test_exit_codes(run_iet: RunIet, team: pathlib.Path, trace: pathlib.Path) -> None:
    run_iet(1, "check", trace, "-r", team, "--fail-on", "contradicted")
    run_iet(1, "check", trace, "-r", team, "--fail-on", "open")
    run_iet(1, "check", trace, "-r", team, "--fail-on", "unknown-name")
    mapped = "check", trace, "-r", team, "--agent", "Critic=critic"
    run_iet(0, *mapped, "--fail-on", "unknown-name")
    run_iet(1, *mapped, "--fail-on", "unknown-name", "--fail-on", "contradicted")
    lines = json.loads(trace.read_text())["messages"][:2]
    trace.write_text("\n".join(json.dumps({"messages": [message]}) for message in lines))
    run_iet(0, "check", trace, "-r", team, "--agent", "Critic=critic", "--fail-on", "contradicted")


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        (b"{", (), "line 1: "),
        (b"[]", (), "got a list of 0"),
        (b"{}\n{\n", (), "line 2: "),
        (b"\xff\xfe", (), "byte 0 is not UTF-8"),
        (b"[" * 100_000, (), "less deep"),
        (b'[{"role": "user", "content": 1' + b"0" * 5000 + b"}]", (), "shorter numbers"),
        (None, (), "cannot be read (No such file"),
        (b"[]", ("-o", "out.pdf"), "out.pdf: got an unknown suffix"),
        (b"[]", ("-o", "nowhere/out.json"), "no such folder"),
        (b"[]", ("--agent", "x"), "--agent: got 'x', expected NAME=AGENT"),
        (b"[]", ("--agent", "x=y"), "--agent: got 'y', expected one of planner, critic"),
        (
            b"[]",
            ("--agent", "x=critic", "--agent", "x=planner"),
            "--agent: got 'x' twice, expected each name",
        ),
        (b"[]", ("--level", "2"), "level: got 2"),
    ],
)
def test_what_is_refused(
    run_iet: RunIet, team: pathlib.Path, tmp_path: pathlib.Path, content: Any, arguments: Any, words: str
) -> None:
    path = tmp_path / "trace.json"
    if content is not None:
        path.write_bytes(content)
    assert words in run_iet(3, "check", path, "-r", team, *arguments)


def test_events_need_no_provider(run_iet: RunIet, team: pathlib.Path, trace: pathlib.Path) -> None:
    pytest.importorskip("opentelemetry._logs")
    assert "1 open" in run_iet(0, "check", trace, "-r", team, "--otel", "--agent", "Critic=critic")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ('"name": "y", ', "has the name 'x'; there are 'y'"),
        ("", "has the name 'y', 'x'; no message has a name"),
    ],
)
def test_an_unused_name_is_reported_and_stops_nothing(
    team: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(f'[{{"role": "assistant", {name}"content": "w1"}}]')
    assert run("check", trace, "-r", team, "--agent", "y=critic", "--agent", "x=critic") == 0
    assert f"no message {message}" in capsys.readouterr().err


def test_a_conversation_a_line(
    run_iet: RunIet,
    team: pathlib.Path,
    trace: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, out = tmp_path / "logs.jsonl", tmp_path / "out"
    one = json.dumps(json.loads(trace.read_text()))
    path.write_text(f"{one}\n\n{one}\n")
    options = "-r", team, "--agent", "Critic=critic", "--per-line"
    assert run_iet(0, "check", path, *options).splitlines() == [
        f"line {number}: 4 pieces: 1 confirmed, 1 contradicted, 1 open, 1 skipped" for number in (1, 3)
    ]
    assert "2 conversations of 8 pieces: 2 confirmed" in run_iet(0, "check", path, *options, "-o", f"{out}/")
    run_iet(1, "check", path, *options, "-o", f"{out}/", "--resume", "--fail-on", "contradicted")
    run_iet(1, "check", path, *options, "--fail-on", "contradicted")
    path.write_text(f"{one}\n{{}}\n")
    assert run("check", path, *options, "--json") == 3
    output = capsys.readouterr()
    lines = [json.loads(line) for line in output.out.splitlines()]
    assert [(line["line"], "problem" in line) for line in lines] == [(1, False), (2, True)]
    assert "got 1 lines that are no conversations" in output.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--per-line", "-o", "out.json"), "--per-line goes with -o OUT/"),
        (("--workers", "2"), "many conversations take one folder"),
        (("b.json",), "many conversations take one folder"),
        (("-o", "out/", "--otel"), "--otel goes with one conversation"),
        (("--column", "text=a"), "got 'text=a', expected messages=NAME or id=NAME"),
    ],
)
def test_options_that_do_not_go_together(
    run_iet: RunIet, team: pathlib.Path, trace: pathlib.Path, arguments: tuple[str, ...], words: str
) -> None:
    assert words in run_iet(2, "check", trace, *arguments, "-r", team)
