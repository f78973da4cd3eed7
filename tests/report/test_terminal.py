"""What reaches a terminal: lines that fit, nothing that steers it, and a bar only where somebody looks."""

from __future__ import annotations

import dataclasses
import io
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import unicodedata
from typing import Any

import numpy as np
import pytest

import iet
import iet.cli.progress
from iet.cli import main
from iet.cli.progress import progress
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.report import Report, lines, terminal

posix = pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals are POSIX")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
NAMES = ("planner", "批评家・研究者", "Zoë Ångström the 3rd", "emoji 🙂 agent")
TEXT = (
    "The plan is naïve 🙂🙂🙂. \x1b[2J\x1b]0;title\x07 \x9b31m \u202eevil\u2066 \x7f a\ttab\tand another\r\n"
    + "漢字かな交じり文は空白なしで続く。" * 12
    + "\n\n    indented: "
    + "e\u0301a\u0300" * 80
    + " "
    + "x" * 150
    + " and some plain words that go on for a while, as words do, until the end of the text is near"
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)


@pytest.fixture(params=[True, False], ids=["rich", "without rich"])
def rich(request: pytest.FixtureRequest) -> bool:
    """Whether rich is installed: each way in turn."""
    installed: bool = request.param
    if installed:
        pytest.importorskip("rich")
    else:
        request.getfixturevalue("without_rich")
    return installed


def cells(line: str) -> int:
    """Cells of a line in a terminal: not the implementation's own count."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line
    )


@pytest.fixture(scope="module")
def report() -> Report:
    """An audit of ids under two of four agents' marks, with the text above put under its segments."""
    registry = Registry.create(None, vocab_size=400, scheme=Scheme(kappa=3.0))
    for name in NAMES:
        registry.add(name, secret=name.encode()[:32].ljust(32, b"."))
    draw, ids = np.random.default_rng(0), [1]
    for agent in (NAMES[1], NAMES[2], NAMES[1]):
        for _ in range(150):
            logits = np.zeros((1, 400), dtype=np.float32)
            iet.embed_(logits, [ids[-1:]], [registry.slot(agent)], registry)
            ids.append(int((logits[0] + draw.gumbel(size=400)).argmax()))
    found = iet.Auditor(registry).audit(token_ids=ids)
    assert found.found
    assert {segment.agent for segment in found.segments} == set(NAMES[1:3])
    ends = [
        round(segment.end / len(ids) * len(TEXT)) for segment in found.segments if segment.end is not None
    ]
    segments = [
        dataclasses.replace(segment, char_start=start, char_end=end)
        for segment, start, end in zip(found.segments, [0, *ends[:-1]], ends, strict=True)
    ]
    segments[-1] = dataclasses.replace(segments[-1], agent=None, error=0.3)
    return dataclasses.replace(found, text=TEXT, segments=tuple(segments), seam_share=0.01)


def shown(report: Report, file: io.StringIO | None = None) -> str:
    file = Terminal() if file is None else file
    terminal.show(report, file)
    return file.getvalue()


# The report


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_no_line_is_longer_than_the_terminal_and_none_is_lost(
    report: Report, width: int, rich: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    output = ESCAPES.sub("", shown(report))
    assert max(map(cells, output.split("\n"))) <= width
    assert "…" not in output
    pieces = re.sub(r"\s", "", output)
    for segment in report.segments:
        for pair in ((segment.char_start, segment.char_end), (segment.start, segment.end)):
            assert "{}-{}".format(*pair) in pieces
    rows = [re.sub(r"\s", "", name) for name in NAMES]
    assert all(row in pieces for row in rows)
    assert "漢字かな交じり文は空白なしで続く。" * 12 in pieces.replace("|", "")
    assert "x" * 150 in pieces
    assert report.registry_digest in pieces
    assert "unattributed" in pieces


@pytest.mark.parametrize("name", ["TERM=dumb", "NO_COLOR=1", "FORCE_COLOR=1", "piped"])
def test_what_steers_a_terminal_comes_from_us_alone(
    report: Report, name: str, rich: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "=" in name:
        monkeypatch.setenv(*name.split("="))
    output = shown(report, io.StringIO() if name in ("piped", "FORCE_COLOR=1") else None)
    ours = re.sub(r"\x1b\[[0-9;]*m", "", output)  # colours, bold, dim
    assert not set(ours) & set("\x1b\x07\x9b\u202e\u2066\x7f\r")
    assert "␛[2J" in ours
    coloured = "\x1b[38;" in output
    assert coloured == (rich and name == "FORCE_COLOR=1")
    if not rich or name in ("TERM=dumb", "piped"):
        assert "\x1b" not in output
    for segment in report.segments:
        assert f"[{segment.agent or '?'}] " in ours
    # What is piped on gets no line breaks of ours.
    assert ("x" * 150 in ours) == (name in ("piped", "FORCE_COLOR=1"))


def test_what_is_unsure_is_dim(report: Report) -> None:
    pytest.importorskip("rich")
    text = terminal.coloured_text(report)
    styles = {str(span.style) for span in text.spans}
    assert any(style.startswith("dim #") for style in styles)
    assert any(style.startswith("#") for style in styles)
    assert "dim text:" in shown(report)
    assert "dim text:" not in shown(report, io.StringIO())


def test_scores_and_starts_lie_above_each_other(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    by_ids = dataclasses.replace(
        report,
        text=None,
        segments=tuple(dataclasses.replace(s, char_start=None, char_end=None) for s in report.segments),
    )
    found = ESCAPES.sub("", shown(by_ids)).split("\n")
    first = next(i for i, line in enumerate(found) if line.startswith("f(t, a)"))
    bars = [line for line in found[first : first + 6] if set(line) & set("▁▂▃▄▅▆▇█")]
    offset = 14  # the longest name that is drawn takes 20 cells at most
    assert len(bars) == 3
    strongest = {bar[:3]: bar for bar in bars}
    starts = next(line for line in found[first:] if line.startswith("starts"))
    marks = [i for i, character in enumerate(starts) if character == "^"]
    assert len(marks) == len(report.segments) - 1
    # Between the two hand-overs the second agent's bar is the high one.
    middle = sum(marks) // 2
    assert offset < middle
    second = strongest["Zoë"]
    assert "▁▂▃▄▅▆▇█".index(second[middle]) >= 4
    assert "▁▂▃▄▅▆▇█".index(second[marks[0] - 6]) <= 3


def test_a_terminal_that_cannot_show_bars_gets_none(report: Report) -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii", errors="backslashreplace") as file:
        terminal.show(report, file)
        file.flush()
        assert b"f(t, a)" not in raw.getvalue()
        assert b"\\u2581" not in raw.getvalue()


@pytest.mark.parametrize("width", [20, 44, 100])
def test_tables_fit_or_become_paragraphs(width: int) -> None:
    rows = [
        ("turn", "who", "what", "unused"),
        ("1", "批評家", "one two three four five", ""),
        ("2", "b", "", ""),
    ]
    found = [line for row in lines.table(rows, width, wraps=2) for line in row]
    assert max(map(cells, found)) <= width
    assert not any("unused" in line for line in found)
    words = " ".join(" ".join(found).split())
    assert "批評家" in words
    assert "one two three four five" in words or width == 44
    if width == 100:
        assert found == ["turn  who     what", "1     批評家  one two three four five", "2     b"]
    assert lines.table(rows[:2], right=True)[1] == ["1     批評家  one two three four five"]


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("one two three", 7, ["one two", "three"]),
        ("one two three", 8, ["one two", "three"]),
        ("one two three", None, ["one two three"]),
        ("onetwothree", 4, ["onet", "woth", "ree"]),
        ("漢字かな", 5, ["漢字", "かな"]),
        ("e\u0301e\u0301e\u0301", 2, ["e\u0301e\u0301", "e\u0301"]),
        ("漢", 1, ["漢"]),
        ("a\n\nb", 5, ["a", "", "b"]),
        ("", 5, [""]),
        ("    indented", 8, ["    inde", "nted"]),
        ("a   b", 3, ["a", "b"]),
        ("\x1b[1m", 9, ["␛[1m"]),
    ],
)
def test_lines_break_between_words_where_they_can(text: str, width: int | None, expected: list[str]) -> None:
    assert lines.wrapped(text, width) == expected


def test_the_width_is_the_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines.width_of(io.StringIO()) is None
    assert lines.width_of(Terminal()) == 80  # it has no size to ask for
    monkeypatch.setenv("COLUMNS", "57")
    assert lines.width_of(Terminal()) == lines.width_of(io.StringIO()) == 57
    monkeypatch.setenv("COLUMNS", "wide")
    assert lines.width_of(io.StringIO()) is None


# Commands


@pytest.fixture
def team(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    import tokenizers
    from tokenizers import models, pre_tokenizers

    monkeypatch.delenv("IET_REGISTRY", raising=False)
    backend = tokenizers.Tokenizer(models.WordLevel({f"w{i}": i for i in range(200)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.save(str(tmp_path / "tokenizer.json"))
    registry = Registry.create(tmp_path / "team.json", tokenizer=tmp_path / "tokenizer.json")
    registry.add("planner")
    (tmp_path / "final.txt").write_text("w1 w2 w3 w4 " * 50 + "\x1b[31m")
    return tmp_path


def in_terminal(columns: int, *command: str) -> tuple[int, str]:
    """The exit code of a process whose stdout and stderr are a terminal, and what it wrote there."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen([sys.executable, *command], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    try:
        while chunk := os.read(ours, 4096):
            written += chunk
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return process.wait(), written.decode()


@posix
def test_an_audit_in_a_terminal(team: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    # As soon as there is something to wait for, so that the audit need not take a second.
    run = "import sys, iet.cli.progress as p; p.DELAY = 0.0; from iet.cli import main; sys.exit(main())"
    code, written = in_terminal(
        50, "-c", run, "audit", str(team / "final.txt"), "-r", str(team / "team.json")
    )
    assert code == 0
    bar, _, result = written.rpartition("\x1b[2K")  # the bar is taken away before the result
    assert "iet: auditing" in bar
    assert "auditing" not in result
    assert "␛[31m" in result
    assert "\x1b[1m" in result
    found = ESCAPES.sub("", result).replace("\r", "").split("\n")
    assert max(map(cells, found)) <= 50
    monkeypatch.setenv("TERM", "dumb")
    code, written = in_terminal(
        50, "-c", run, "audit", str(team / "final.txt"), "-r", str(team / "team.json")
    )
    assert code == 0
    assert "\x1b" not in written
    assert written.startswith("iet: auditing")
    assert max(map(cells, written.replace("\r", "").split("\n"))) <= 50


class AtOnce(threading.Timer):
    """A timer that does not wait: what is quick has its bar too."""

    def start(self) -> None:
        self.function()

    def join(self, timeout: float | None = None) -> None:
        pass


def test_every_long_command_shows_a_bar_to_people_only(
    team: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("rich")
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(threading, "Timer", AtOnce)
    monkeypatch.setenv("IET_REGISTRY", str(team / "team.json"))
    text = str(team / "final.txt")

    def filled(command: list[str], name: str) -> list[str]:
        return [part.replace("NEW", str(tmp_path / f"{command[0]}-{name}")) for part in command]

    commands = {
        "auditing": ["audit", text],
        "reading": ["keys", "init", "NEW", "--tokenizer", str(team / "tokenizer.json")],
        "auditing (": ["report", text, "-o", str(tmp_path / "report.html")],
        "documents": ["audit", text, "-o", "NEW/"],
        "texts": ["calibrate", "--null", text, "--registries", "1"],
        "measuring": ["bench", "--rows", "1", "--vocab-size", "50", "--tokens", "9", "--seconds", "0"],
    }
    for what, command in commands.items():
        assert main(filled(command, "piped")) == 0
        assert capsys.readouterr().err == ""
        with monkeypatch.context() as seeing:
            seeing.setattr(sys, "stderr", seen := Terminal())
            assert main(filled(command, "seen")) == 0
        assert what in ESCAPES.sub("", seen.getvalue()), what
        assert seen.getvalue().endswith("\x1b[2K"), what  # and is gone at the end
        capsys.readouterr()


def test_an_error_cannot_steer_the_terminal(team: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "no\x1b]0;file\u202e", "-r", str(team / "team.json")]) == 3
    said = capsys.readouterr().err
    assert "␛]0;" in said
    assert not set(said) & set("\x1b\u202e")


# The bar


def test_a_bar_moves_and_is_gone(rich: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iet.cli.progress, "DELAY", 0.0)
    file = Terminal()
    monkeypatch.setattr(sys, "stderr", file)
    with progress("beginning [b]", 10) as move:
        wait_for(file, "beginning")
        move("going on", 5)
        wait_for(file, "going on")
    assert "beginning [b]" in file.getvalue()
    assert file.getvalue().endswith("\x1b[2K" if rich else "\r\x1b[K")
    assert rich or "going on, 50%" in file.getvalue()


def wait_for(file: io.StringIO, part: str) -> None:
    until = time.monotonic() + 20
    while part not in file.getvalue():
        assert time.monotonic() < until, f"{part!r} was not shown"
        time.sleep(0.01)


def test_short_work_and_work_that_nobody_looks_at_have_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    for file, delay in ((Terminal(), 60.0), (io.StringIO(), 0.0)):
        monkeypatch.setattr(iet.cli.progress, "DELAY", delay)
        monkeypatch.setattr(sys, "stderr", file)
        with progress("working", 3) as move:
            move("working", 1)
        assert file.getvalue() == ""


def test_forced_colours_are_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(iet.cli.progress, "DELAY", 0.0)
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    with progress("working"):
        pass
    assert file.getvalue() == ""


def test_a_failure_takes_the_bar_away(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(iet.cli.progress, "DELAY", 0.0)
    file: Any = Terminal()
    monkeypatch.setattr(sys, "stderr", file)

    def work() -> None:
        with progress("working"):
            wait_for(file, "working")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert file.getvalue().endswith("\x1b[2K")
    assert "\x1b[?25h" in file.getvalue()  # the cursor is there again
    assert sys.stderr is file
