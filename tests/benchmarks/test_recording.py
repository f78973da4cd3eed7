"""Results as they are written: tables, summaries, rows, command lines."""

from __future__ import annotations

import csv
import io
import json
import pathlib
import re

import pytest

from benchmarks import recording, tables
from benchmarks.recording import as_csv, number, table, write_table
from benchmarks.statistics import Interval
from iet.errors import ShapeError


def test_caches_are_read_from_sysfs(tmp_path: pathlib.Path) -> None:
    for index, (level, kind, size) in enumerate([("1", "Data", "48K"), ("3", "Unified", "491520K")]):
        (tmp_path / f"index{index}").mkdir()
        for name, value in (("level", level), ("type", kind), ("size", size)):
            (tmp_path / f"index{index}" / name).write_text(f"{value}\n")
    assert recording.caches(tmp_path) == {"L1d": 48 << 10, "L3": 480 << 20}
    assert recording.caches(tmp_path / "index0") == {}


def test_numbers_have_three_digits_and_no_exponent() -> None:
    assert [number(value) for value in (0.0, 0.000527, 0.75, 1.0, 33.9, 588131.0)] == [
        "0",
        "0.000527",
        "0.750",
        "1.00",
        "33.9",
        "588,131",
    ]


def test_results_are_a_summary_a_table_and_rows(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = [{"κ": [1e-300, "a, [b"], "long": "x" * 1000}, {}]
    content = {"value": 0.123456789, "count": 1234567, "list": [1.0, None], "deep": deep}
    rows = [{"text": i, "figure": i / 3} for i in range(3)]
    recording.write(tmp_path / "a" / "x.json", content, "| table |", rows=rows)
    assert capsys.readouterr().out == "| table |\n"
    written = (tmp_path / "a" / "x.json").read_text()
    assert json.loads(written) == {**content, "value": 0.123457}
    assert '"list": [1.0, null],\n "deep": [\n  {\n   "κ": [1e-300, "a, [b"],\n   "long": "xx' in written
    assert recording.as_json({"one": [1, {"line": [None, True]}], "more": {}}).count("\n") == 1
    assert (tmp_path / "a" / "x.md").read_text() == "| table |\n"
    assert recording.read_rows(tmp_path / "a" / "x.json") == rows
    recording.write(tmp_path / "y.json", {}, "")
    assert recording.read_rows(tmp_path / "y.json") == []
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"x.json", "x.md", "x.rows.jsonl.gz"}


def test_result_of_one_table_holds_its_cells(tmp_path: pathlib.Path) -> None:
    cells = [["a|b", Interval(0.5, 0.25, 0.75, 4)], ["c", None]]
    recording.write_table(tmp_path / "x", ["what", "mean"], cells, {"seed": 1}, title="T", note="N")
    assert json.loads((tmp_path / "x.json").read_text()) == {
        "seed": 1,
        "table": [{"what": "a|b", "mean": [0.5, 0.25, 0.75]}, {"what": "c", "mean": None}],
    }
    markdown = (tmp_path / "x.md").read_text()
    assert markdown.startswith("T\n\n| what | mean |")
    assert "| a\\|b | 0.500 [0.250, 0.750] |\n| c | N/A |\n\nN" in markdown
    assert (tmp_path / "x.csv").read_text().splitlines()[0] == "what,mean,mean low,mean high"


def test_cells_that_are_not_there_are_empty() -> None:
    rows = [{"a": 1.25, "b": {"low": 2}}, {"a": None, "b": None, "c": [3.0]}]
    markdown = recording.columns(rows, [("x", "{a:.1f}"), ("y", "{b[low]} of {a}"), ("x", "{c[0]:+.2f}")])
    assert markdown.splitlines()[0] == "| x | y | x |"
    assert markdown.splitlines()[2:] == ["| 1.2 | 2 of 1.25 |  |", "|  |  | +3.00 |"]


def test_recorded_command_line_has_no_folders(tmp_path: pathlib.Path) -> None:
    line = recording.parser("benchmarks.x", "Does x.\n\nMore.")
    line.add_argument("--work", type=pathlib.Path)
    line.add_argument("--sizes", type=int, nargs="+", default=[1])
    line.add_argument("--null-texts", type=int, default=3)
    line.add_argument("--joiner", default=" ")
    line.add_argument("--quick", action="store_true")
    assert line.description == "Does x."
    recorded = recording.command(line, line.parse_args(["-o", "results/x.json"]))
    assert recorded == "python -m benchmarks.x -o results/x.json"
    arguments = ["-o", str(tmp_path / "x.json"), "--work", str(tmp_path), "--sizes", "1", "2", "--quick"]
    arguments += ["--null-texts", "4", "--joiner", "\n"]
    recorded = recording.command(line, line.parse_args(arguments))
    options = r"--work DIR --sizes 1 2 --null-texts 4 --joiner '\n' --quick"
    assert recorded == f"python -m benchmarks.x -o x.json {options}"


def test_committed_results_are_small() -> None:
    files = [path for path in tables.RESULTS.rglob("*") if path.is_file()]
    sizes = {path: path.stat().st_size for path in files if path.suffix != ".csv" and path.suffix != ".gz"}
    assert {path.suffix for path in sizes} <= {".json", ".md", ".svg"}
    assert max(size for path, size in sizes.items() if path.suffix == ".json") <= 160_000
    assert sum(sizes.values()) <= 2_000_000


HEADER = ("method", "TokenAcc", "EdgeSim", "paper")
ROWS = (
    ("a|b", Interval(1 / 3, 0.25, 0.5, 9), None, 0.863),
    ("c, d", None, Interval(0.5, 0.4, 2 / 3, 9), ""),
    ("e", 0.123456, Interval(0.25, 0.125, 0.5, 9), 7),
)


def test_markdown_and_csv_hold_the_same_table(tmp_path, capsys):
    write_table(tmp_path / "found" / "table1", HEADER, ROWS, {"seed": 1}, title="# A", note="B.")
    folder = tmp_path / "found"
    assert sorted(p.name for p in folder.iterdir()) == ["table1.csv", "table1.json", "table1.md"]
    text = (folder / "table1.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == text
    assert text == f"# A\n\n{table(HEADER, ROWS)}\n\nB.\n"
    lines = list(csv.reader(io.StringIO((folder / "table1.csv").read_text(encoding="utf-8"))))
    assert lines[0][1:4] == ["TokenAcc", "TokenAcc low", "TokenAcc high"]
    assert lines[0][-1] == "paper"
    printed_rows = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in text.splitlines()[4:7]]
    for row, line, cells in zip(ROWS, lines[1:], printed_rows, strict=True):
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


def test_rejects_ragged_tables():
    for form in (table, as_csv):
        with pytest.raises(ShapeError, match="row 1: got 1 cells, expected 2"):
            form(("a", "b"), [(1, 2), (1,)])


def test_errors_take_one_line(tmp_path, capsys):
    def refused():
        raise ShapeError("texts", got="1 values", expected=2)

    def missing():
        (tmp_path / "nowhere").read_text()

    def wrong():
        raise ValueError("not the caller's fault")

    assert recording.exit_code(lambda: "what a command returns") == 0
    assert recording.exit_code(refused) == recording.exit_code(missing) == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors[0] == "error: texts: got 1 values, expected 2"
    assert str(tmp_path / "nowhere") in errors[1]
    with pytest.raises(ValueError, match="fault"):
        recording.exit_code(wrong)


def test_every_benchmark_reports_errors_in_one_line():
    folder = pathlib.Path(recording.__file__).parent
    guards = [
        path.read_text(encoding="utf-8").split('if __name__ == "__main__":')[1:]
        for path in folder.rglob("*.py")
    ]
    last = [parts[-1] for parts in guards if parts]
    assert len(last) > 20
    assert [text for text in last if re.fullmatch(r"\s*main\(\)\s*", text)] == []
