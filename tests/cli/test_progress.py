"""The progress bar, shown only in a terminal, and commands in a terminal."""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import iet.cli.progress
from iet.cli import main
from iet.cli.progress import progress
from iet.marks.registry import Registry
from tests.support.conditions import posix
from tests.support.teams import word_tokenizer
from tests.support.terminals import ESCAPES, Terminal, cells, in_terminal, of_256_colours
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    of_256_colours(monkeypatch)


@pytest.fixture
def team(tmp_path: pathlib.Path) -> pathlib.Path:
    word_tokenizer(200).save(str(tmp_path / "tokenizer.json"))
    registry = Registry.create(tmp_path / "team.json", tokenizer=tmp_path / "tokenizer.json")
    registry.add("planner")
    (tmp_path / "final.txt").write_text("w1 w2 w3 w4 " * 50 + "\x1b[31m")
    return tmp_path


@posix
def test_an_audit_in_a_terminal(team: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    run = "import sys, iet.cli.progress as p; p.DELAY = 0.0; from iet.cli import main; sys.exit(main())"
    code, written = in_terminal(
        50, "-c", run, "audit", str(team / "final.txt"), "-r", str(team / "team.json")
    )
    assert code == 0
    *bar, result = re.split(r" +\r(?!\n)", written)  # the bar is taken away before the result
    assert "iet: auditing" in "".join(bar)
    assert "auditing" not in result
    assert "␛[31m" in result
    assert "\x1b[1m" in result
    lines = ESCAPES.sub("", result).replace("\r", "").split("\n")
    assert max(map(cells, lines)) <= 50
    monkeypatch.setenv("TERM", "dumb")
    code, written = in_terminal(
        50, "-c", run, "audit", str(team / "final.txt"), "-r", str(team / "team.json")
    )
    assert code == 0
    assert "\x1b" not in written.removesuffix("\x1b[0m")  # of colorama, which Numba uses if it is installed
    assert written.startswith("iet: auditing")
    assert max(map(cells, written.replace("\r", "").split("\n"))) <= 50


def test_every_long_command_shows_a_bar_only_in_a_terminal(
    team: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(iet.cli.progress, "DELAY", 0.0)
    monkeypatch.setenv("IET_REGISTRY", str(team / "team.json"))
    text = str(team / "final.txt")

    def filled(command: list[str], name: str) -> list[str]:
        return [part.replace("NEW", str(tmp_path / f"{command[0]}-{name}")) for part in command]

    commands = {
        "auditing": ["audit", text],
        "reading": ["keys", "init", "NEW", "--tokenizer", str(team / "tokenizer.json")],
        "auditing ": ["audit", text, "-o", str(tmp_path / "report.html")],
        "documents": ["audit", text, "-o", "NEW/"],
        "texts": ["calibrate", "--null", text, "--registries", "1"],
    }
    for title, command in commands.items():
        assert main(filled(command, "piped")) == 0
        assert capsys.readouterr().err == ""
        with monkeypatch.context() as seeing:
            seeing.setattr(sys, "stderr", seen := Terminal())
            assert main(filled(command, "seen")) == 0
        assert title in seen.getvalue(), title
        assert is_gone(seen), title
        capsys.readouterr()


def test_the_bar_shows_how_much_a_model_has_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry.create(tmp_path / "team.json", tokenizer="iet:demo")
    registry.add("planner")
    (tmp_path / "final.txt").write_text("the harbour of the town " * 400)
    moves = list[tuple[str, float]]()

    @contextlib.contextmanager
    def recorded(line: str, total: float | None = None) -> Iterator[Any]:
        assert total == 1
        yield lambda line, done: moves.append((line, done))

    monkeypatch.setattr("iet.cli.audit.progress", recorded)
    command = [
        "audit",
        str(tmp_path / "final.txt"),
        "-r",
        str(registry.path),
        "--model",
        "iet:demo",
        "--json",
    ]
    assert main(command) == 0
    assert {line for line, _ in moves} == {"reading with the model"}
    shares = [share for _, share in moves]
    assert len(shares) > 1
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_an_error_cannot_steer_the_terminal(team: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "no\x1b]0;file\u202e", "-r", str(team / "team.json")]) == 3
    error = capsys.readouterr().err
    assert "␛]0;" in error
    assert not set(error) & set("\x1b\u202e")


# The bar


def is_gone(file: io.StringIO) -> bool:
    """Whether the last thing that was written is spaces over a line, from its start and back to it."""
    return re.search(r"\r +\r\Z", file.getvalue()) is not None


def standard_error(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal as the standard error, where bars are shown at once."""
    monkeypatch.setattr(iet.cli.progress, "DELAY", 0.0)
    monkeypatch.setattr(sys, "stderr", file := Terminal())
    return file


def wait_for(file: io.StringIO, part: str) -> None:
    wait_until(lambda: part in file.getvalue(), lambda: f"{part!r} was not shown")


def test_a_bar_moves_and_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = standard_error(monkeypatch)
    with progress("beginning [b]", 10) as move:
        wait_for(terminal, "beginning")
        move("going on", 5)
        wait_for(terminal, "going on")
    assert "beginning [b]" in terminal.getvalue()
    assert re.search("going on .* 50%", terminal.getvalue())
    assert is_gone(terminal)


def test_a_bar_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = standard_error(monkeypatch)
    with progress("asking \x1b]0;server\u202e"):
        wait_for(terminal, "asking ␛]0;server")
    assert not set(terminal.getvalue()) & set("\x1b\u202e")


@pytest.mark.parametrize(
    ("file", "delay", "colours"),
    [(Terminal(), 60.0, ""), (io.StringIO(), 0.0, ""), (io.StringIO(), 0.0, "1")],
    ids=["short work", "no terminal", "no terminal, forced colours"],
)
def test_short_work_and_work_without_a_terminal_have_no_bar(
    file: io.StringIO, delay: float, colours: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", colours)
    monkeypatch.setattr(iet.cli.progress, "DELAY", delay)
    monkeypatch.setattr(sys, "stderr", file)
    with progress("working", 3) as move:
        move("working", 1)
    assert file.getvalue() == ""


def test_a_failure_takes_the_bar_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = standard_error(monkeypatch)

    def work() -> None:
        with progress("working"):
            wait_for(terminal, "working")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert is_gone(terminal)
    assert "\x1b[?25l" not in terminal.getvalue()  # the cursor was never taken away
    assert sys.stderr is terminal
