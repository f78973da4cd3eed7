"""The report in a terminal: lines fit its width, and text cannot control it."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest

import iet
from iet.report import Report, lines, terminal
from tests.support.teams import team
from tests.support.terminals import ESCAPES, Terminal, cells, of_256_colours
from tests.support.texts import write

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


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    of_256_colours(monkeypatch)


@pytest.fixture(scope="module")
def report() -> Report:
    """An audit of ids under two of four agents' marks, with the text above put under its segments."""
    registry = team(NAMES, vocab_size=400, kappa=3.0)
    turns = [(NAMES[1], 150), (NAMES[2], 150), (NAMES[1], 150)]
    ids = write(registry, turns, ids=range(400), flat=True)
    output = iet.Auditor(registry).audit(token_ids=ids)
    assert output.found
    assert {segment.agent for segment in output.segments} == set(NAMES[1:3])
    ends = [
        round(segment.end / len(ids) * len(TEXT)) for segment in output.segments if segment.end is not None
    ]
    segments = [
        dataclasses.replace(segment, char_start=start, char_end=end)
        for segment, start, end in zip(output.segments, [0, *ends[:-1]], ends, strict=True)
    ]
    segments[-1] = dataclasses.replace(segments[-1], agent=None, error=0.3)
    return dataclasses.replace(output, text=TEXT, segments=tuple(segments), seam_share=0.01)


def printed(report: Report, file: io.StringIO | None = None) -> str:
    file = Terminal() if file is None else file
    terminal.show(report, file)
    return file.getvalue()


# The report


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_lines_fit_the_terminal_without_loss(
    report: Report, width: int, rich: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    output = ESCAPES.sub("", printed(report))
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


@pytest.mark.parametrize("name", ["TERM=dumb", "NO_COLOR=1", "FORCE_COLOR=1", "piped", "terminal"])
def test_text_cannot_control_the_terminal(
    report: Report, name: str, rich: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "=" in name:
        monkeypatch.setenv(*name.split("="))
    output = printed(report, io.StringIO() if name in ("piped", "FORCE_COLOR=1") else None)
    ours = re.sub(r"\x1b\[[0-9;]*m", "", output)  # colours, bold, dim
    assert not set(ours) & set("\x1b\x07\x9b\u202e\u2066\x7f\r")
    assert "␛[2J" in ours
    coloured = "\x1b[38;" in output
    assert coloured == (rich and name in ("FORCE_COLOR=1", "terminal"))
    if not rich or name in ("TERM=dumb", "piped"):
        assert "\x1b" not in output
    for segment in report.segments:
        assert f"[{segment.agent or '?'}] " in ours
    # Piped lines are not broken.
    assert ("x" * 150 in ours) == (name in ("piped", "FORCE_COLOR=1"))


def test_uncertain_text_is_dim(report: Report) -> None:
    pytest.importorskip("rich")
    text = terminal.coloured_text(report)
    styles = {str(span.style) for span in text.spans}
    assert any(style.startswith("dim #") for style in styles)
    assert any(style.startswith("#") for style in styles)
    assert "dim text:" in printed(report)
    assert "dim text:" not in printed(report, io.StringIO())


def test_bars_and_boundaries_are_aligned(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    by_ids = dataclasses.replace(
        report,
        text=None,
        segments=tuple(dataclasses.replace(s, char_start=None, char_end=None) for s in report.segments),
    )
    output = ESCAPES.sub("", printed(by_ids)).split("\n")
    first = next(i for i, line in enumerate(output) if line.startswith("f(t, a)"))
    bars = [line for line in output[first : first + 6] if set(line) & set("▁▂▃▄▅▆▇█")]
    offset = 14  # the longest name that is drawn takes 20 cells at most
    assert len(bars) == 3
    strongest = {bar[:3]: bar for bar in bars}
    starts = next(line for line in output[first:] if line.startswith("starts"))
    marks = [i for i, character in enumerate(starts) if character == "^"]
    assert len(marks) == len(report.segments) - 1
    # Between the two hand-overs the second agent's bar is the high one.
    middle = sum(marks) // 2
    assert offset < middle
    second = strongest["Zoë"]
    assert "▁▂▃▄▅▆▇█".index(second[middle]) >= 4
    assert "▁▂▃▄▅▆▇█".index(second[marks[0] - 6]) <= 3


def test_ascii_terminal_has_no_bars(report: Report) -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii", errors="backslashreplace") as file:
        terminal.show(report, file)
        file.flush()
        assert b"f(t, a)" not in raw.getvalue()
        assert b"\\u2581" not in raw.getvalue()


@pytest.mark.parametrize("width", [20, 44, 100])
def test_tables_fit_the_width_or_become_paragraphs(width: int) -> None:
    rows = [
        ("turn", "who", "what", "unused"),
        ("1", "批評家", "one two three four five", ""),
        ("2", "b", "", ""),
    ]
    output = [line for row in lines.table(rows, width, wraps=2) for line in row]
    assert max(map(cells, output)) <= width
    assert not any("unused" in line for line in output)
    words = " ".join(" ".join(output).split())
    assert "批評家" in words
    assert "one two three four five" in words or width == 44
    if width == 100:
        assert output == ["turn  who     what", "1     批評家  one two three four five", "2     b"]


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
        ("עברית\ttab", 20, ["עברית   tab"]),
    ],
)
def test_wrapped(text: str, width: int | None, expected: list[str]) -> None:
    assert lines.wrapped(text, width) == expected


def test_width_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines.width_of(io.StringIO()) is None
    assert lines.width_of(Terminal()) == 80  # it has no size to ask for
    monkeypatch.setenv("COLUMNS", "57")
    assert lines.width_of(Terminal()) == lines.width_of(io.StringIO()) == 57
    monkeypatch.setenv("COLUMNS", "wide")
    assert lines.width_of(io.StringIO()) is None
