"""A text that is too large for one audit is rejected before any work, with a remedy."""

from __future__ import annotations

import io
import json
import pathlib
import shutil
import subprocess
import sys

import pytest

import iet
from iet.cli.texts import MAXIMUM
from tests.support.commands import RunIet


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    def audit(*_: object, **__: object) -> None:
        raise AssertionError("audited")

    monkeypatch.setattr(iet.Auditor, "audit", audit)


@pytest.fixture
def large(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "big text.txt"
    path.write_bytes(b"w\n" * (MAXIMUM // 2 + 1))
    return path


@pytest.mark.usefixtures("untouched")
def test_a_text_that_is_too_large_is_refused_with_its_size_and_the_way(
    team: pathlib.Path, large: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet
) -> None:
    page = tmp_path / "report.html"
    for command in (["audit", large], ["audit", large, "-o", page]):
        refusal = run_iet(3, *command, "-r", team)
        assert f"{large}: got more than 8,388,608 bytes" in refusal
        assert "docs/guides/audit_text.md" in refusal
    assert not page.exists()


@pytest.mark.usefixtures("untouched")
def test_standard_input_is_read_no_further_than_that(
    team: pathlib.Path, monkeypatch: pytest.MonkeyPatch, run_iet: RunIet
) -> None:
    stream = io.BytesIO(b"w" * 500)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
    refusal = run_iet(3, "audit", "-", "-r", team, "--max-text", "100")
    assert "standard input: got more than 100 bytes" in refusal


def test_a_file_without_a_name_is_shown_as_one(
    team: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet
) -> None:
    for command in (["audit", ""], ["audit", "", "-o", tmp_path / "report.html"], ["check", ""]):
        assert run_iet(3, *command, "-r", team).startswith("iet: '': cannot be read (")


def test_the_limit_is_the_readers_and_goes_with_one_text(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path, run_iet: RunIet
) -> None:
    size = text.stat().st_size
    assert json.loads(run_iet(0, "audit", text, "-r", team, "--json", "--max-text", str(size)))["tokens"] > 0
    assert "--max-text" in run_iet(3, "audit", text, "-r", team, "--max-text", str(size - 1))
    assert "expected an int of at least 1" in run_iet(3, "audit", text, "-r", team, "--max-text", "0")


def test_the_command_that_cuts_leaves_whole_lines(tmp_path: pathlib.Path) -> None:
    split = shutil.which("split")
    if (
        split is None
        or "GNU" not in subprocess.run([split, "--version"], capture_output=True, text=True).stdout
    ):
        pytest.skip("no split of GNU")
    complete = "".join(f"line {i} of the text\n" for i in range(1000))
    (tmp_path / "big.txt").write_text(complete)
    (tmp_path / "parts").mkdir()
    cut = [split, "-C", "4K", "--additional-suffix=.txt", "big.txt", "parts/"]
    subprocess.run(cut, cwd=tmp_path, check=True)
    parts = [path.read_text() for path in sorted((tmp_path / "parts").glob("*.txt"))]
    assert "".join(parts) == complete
    assert len(parts) > 3
    assert all(part.endswith("\n") and len(part) <= 4096 for part in parts)
