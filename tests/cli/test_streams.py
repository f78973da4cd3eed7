"""Commands with a terminal without width, a closed stream, a full disk, or an interrupt (Ctrl-C)."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.support.conditions import posix
from tests.support.terminals import ESCAPES, cells, in_terminal, of_256_colours

pytestmark = posix


def in_shell(line: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a shell line, with IET replaced by `iet` and the arguments."""
    command = [
        "sh",
        "-c",
        line.replace("IET", '"$@"'),
        "sh",
        sys.executable,
        "-m",
        "iet",
        *map(str, arguments),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("width", ["", "0"])
def test_a_terminal_without_a_width_gets_lines_of_eighty(
    width: str, team: pathlib.Path, text: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_256_colours(monkeypatch)
    monkeypatch.setenv("COLUMNS", width)
    code, written = in_terminal(0, "-m", "iet", "audit", str(text), "-r", str(team))
    assert code == 0
    lines = re.split(r"[\r\n]+", ESCAPES.sub("", written))  # slow work prints a progress bar before them
    assert 60 < max(map(cells, lines)) <= 80


def test_commands_run_without_standard_streams(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    done = in_shell("exec IET <&- >&- 2>&-", "audit", text, "-r", team, "-o", tmp_path / "report.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "report.json").read_text(encoding="utf-8").startswith("{")
    done = in_shell("exec IET 2>&-", "audit", tmp_path / "nowhere.txt", "-r", team)
    assert (done.returncode, done.stdout) == (3, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_output_is_named(team: pathlib.Path, text: pathlib.Path) -> None:
    for buffered in ("unset PYTHONUNBUFFERED", "export PYTHONUNBUFFERED=1"):
        for more in ([], ["--json"]):  # less and more than a buffer
            done = in_shell(f"{buffered}; exec IET > /dev/full", "audit", text, "-r", team, *more)
            assert done.returncode == 3
            assert done.stderr == "iet: [Errno 28] No space left on device\n"


def test_a_reader_that_exits_is_no_failure(team: pathlib.Path, text: pathlib.Path) -> None:
    for buffered in ("unset PYTHONUNBUFFERED", "export PYTHONUNBUFFERED=1"):
        done = in_shell(f"{buffered}; (IET; echo $? >&2) | true", "audit", text, "-r", team, "--json")
        assert done.stderr == "0\n"


def test_a_file_that_a_full_disk_cannot_take_is_named(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    page = tmp_path / "page.html"
    done = in_shell("ulimit -f 8; exec IET", "audit", text, "-r", team, "-o", page)
    assert done.returncode == 3
    assert done.stderr.endswith(f"File too large: '{page}'\n")
    assert not list(tmp_path.glob("*page*"))


def test_an_interrupted_run_over_many_documents_says_how_it_goes_on(
    team: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("pyarrow")
    folder, out = tmp_path / "texts", tmp_path / "out"
    folder.mkdir()
    for number in range(150):
        (folder / f"{number}.txt").write_text(text.read_text())
    command = [sys.executable, "-m", "iet", "audit", str(folder), "-r", str(team), "-o", f"{out}/"]
    with subprocess.Popen(
        [*command, "--chunk-rows", "1"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        while not list(out.glob("**/*.parquet")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate()
    assert process.returncode == 130
    assert error.endswith("the same command with --resume goes on from there\n")
    done = subprocess.run(
        [*command, "--chunk-rows", "1", "--resume"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
