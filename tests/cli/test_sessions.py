"""`iet audit --sessions`."""

from __future__ import annotations

import csv
import json
import pathlib

import pytest

from iet.marks.registry import Registry
from tests.support.commands import RunIet, run
from tests.support.texts import spell, write


@pytest.fixture
def of_a_run(team: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    run = Registry.load(team).session("run 7")
    path = tmp_path / "run.txt"
    path.write_text(spell(write(run, [("critic", 150)], ids=range(1, 400), flat=True)))
    return path


@pytest.fixture
def sessions(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "sessions.txt"
    path.write_text("\ufeffrun 6\r\nrun 7\r\n\nrun 8\nrun 7\n", encoding="utf-8")
    return path


def test_a_report_says_which_session(
    team: pathlib.Path,
    of_a_run: pathlib.Path,
    sessions: pathlib.Path,
    tmp_path: pathlib.Path,
    run_iet: RunIet,
) -> None:
    assert "No registered agent was found" in run_iet(0, "audit", of_a_run, "-r", team)
    output = run_iet(0, "audit", of_a_run, "-r", team, "--sessions", sessions)
    assert "critic wrote" in output
    assert "critic in run 7" in output
    data = json.loads(run_iet(0, "audit", of_a_run, "-r", team, "--sessions", sessions, "--json"))
    assert data["sessions"]["read"] == 3
    assert [data_segment["session"] for data_segment in data["sessions"]["found"]] == ["run 7"]
    assert {segment["session"] for segment in data["segments"]} == {"run 7"}
    page = tmp_path / "page.html"
    run_iet(0, "audit", of_a_run, "-r", team, "--sessions", sessions, "-o", page)
    assert "critic in run 7" in page.read_text()


def test_a_message_is_of_a_session(
    team: pathlib.Path,
    of_a_run: pathlib.Path,
    sessions: pathlib.Path,
    tmp_path: pathlib.Path,
    run_iet: RunIet,
) -> None:
    messages = [
        {"role": "assistant", "name": "critic", "content": of_a_run.read_text()},
        {"role": "assistant", "name": "critic", "content": "w1 w2"},
    ]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(messages))
    assert run_iet(0, "check", trace, "-r", team).startswith("2 pieces: 2 open")
    output = run_iet(0, "check", trace, "-r", team, "--sessions", sessions)
    assert output.startswith("2 pieces: 1 confirmed, 1 open")
    assert "in session run 7" in " ".join(output.split())
    data = json.loads(run_iet(0, "check", trace, "-r", team, "--sessions", sessions, "--json"))
    assert data["sessions"] == 3
    assert [piece["session"] for piece in data["pieces"]] == ["run 7", None]


def test_tables_have_a_column_of_sessions(
    team: pathlib.Path,
    of_a_run: pathlib.Path,
    sessions: pathlib.Path,
    tmp_path: pathlib.Path,
    run_iet: RunIet,
) -> None:
    pytest.importorskip("pyarrow", reason="the extra bulk is not installed")
    for options, expected in ((("--sessions", sessions), {"run 7"}), ((), {""})):
        out = tmp_path / f"out{len(options)}"
        run_iet(0, "audit", of_a_run, "-r", team, *options, "-o", f"{out}/", "--csv")
        rows = list(csv.DictReader((out / "segments.csv").open(newline="")))
        assert {row["session"] for row in rows} == expected


def test_what_is_refused(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = {"empty": b"\n\n", "latin": b"caf\xe9\n", "control": b"run 1\nrun\t2\n", "long": b"s" * 201}
    for name, content in lists.items():
        (tmp_path / name).write_bytes(content)
    for arguments, code, message in (
        (["audit", text, "-r", team, "--sessions", tmp_path / "gone"], 3, "gone: cannot be read"),
        (["audit", text, "-r", team, "--sessions", tmp_path / "empty"], 3, "got no ids of sessions"),
        (["audit", text, "-r", team, "--sessions", tmp_path / "latin"], 3, "byte 3 is 0x"),
        (
            ["audit", text, "-r", team, "--sessions", tmp_path / "control"],
            3,
            "control, line 2: session: got the",
        ),
        (["audit", text, "-r", team, "--sessions", tmp_path / "long"], 3, "expected 1 to 200 characters"),
        (["audit", text, "--scheme", "waterfall", "--sessions", tmp_path / "long"], 2, "--sessions"),
    ):
        assert run(*arguments) == code
        assert message in capsys.readouterr().err
