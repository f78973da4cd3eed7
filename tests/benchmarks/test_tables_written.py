"""Tables as they are written: Markdown, CSV and the summary in JSON say the same."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from benchmarks.recording import as_csv, table, write_table
from benchmarks.statistics import Interval
from iet.errors import ShapeError

HEADER = ("method", "TokenAcc", "EdgeSim", "paper")
ROWS = (
    ("a|b", Interval(1 / 3, 0.25, 0.5, 9), None, 0.863),
    ("c, d", None, Interval(0.5, 0.4, 2 / 3, 9), ""),
    ("e", 0.123456, Interval(0.25, 0.125, 0.5, 9), 7),
)


def test_a_table_says_the_same_in_markdown_and_csv(tmp_path, capsys):
    write_table(tmp_path / "found" / "table1", HEADER, ROWS, {"seed": 1}, title="# A", note="B.")
    folder = tmp_path / "found"
    assert sorted(p.name for p in folder.iterdir()) == ["table1.csv", "table1.json", "table1.md"]
    text = (folder / "table1.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == text
    assert text == f"# A\n\n{table(HEADER, ROWS)}\n\nB.\n"
    content = json.loads((folder / "table1.json").read_text())
    assert content["seed"] == 1
    assert [list(row) for row in content["table"]] == [list(HEADER)] * 3
    assert content["table"][0] == {
        "method": "a|b",
        "TokenAcc": [0.333333, 0.25, 0.5],
        "EdgeSim": None,
        "paper": 0.863,
    }
    lines = list(csv.reader(io.StringIO((folder / "table1.csv").read_text(encoding="utf-8"))))
    assert lines[0][1:4] == ["TokenAcc", "TokenAcc low", "TokenAcc high"]
    assert lines[0][-1] == "paper"
    shown = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in text.splitlines()[4:7]]
    for row, line, cells in zip(ROWS, lines[1:], shown, strict=True):
        named = dict(zip(lines[0], line, strict=True))
        for name, cell, printed in zip(HEADER, row, [*cells, ""], strict=False):
            if isinstance(cell, Interval):
                assert (float(named[name]), float(named[f"{name} low"])) == (cell.mean, cell.low)
                assert printed == f"{cell.mean:.3f} [{cell.low:.3f}, {cell.high:.3f}]"
            elif isinstance(cell, float):
                assert float(named[name]) == cell
                assert float(printed) == round(cell, 3)
            else:
                assert named[name] == ("N/A" if cell is None else str(cell))
                assert printed.replace("\\", "") == named[name]


def test_a_ragged_table_is_refused():
    for form in (table, as_csv):
        with pytest.raises(ShapeError, match="row 1: got 1 cells, expected 2"):
            form(("a", "b"), [(1, 2), (1,)])
