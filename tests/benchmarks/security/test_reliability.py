"""The counts of `benchmarks.security.reliability`, how it resumes after a kill, and the committed results."""

from __future__ import annotations

import json
import pathlib
import sys
from collections import Counter

import pytest

from benchmarks import tables
from benchmarks.security import reliability


def test_rounds_go_on_until_the_size_is_reached(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = list[int]()

    def count(work: pathlib.Path, number: int) -> Counter[str]:
        seen.append(number)
        return Counter({"things": 40, "faults": int(number == 1), reliability.PEAK: 10 - number})

    monkeypatch.setattr(reliability, "PARTS", {"part": (count, "things", 100)})
    reliability.go_on(tmp_path, "part", 50)
    assert seen == [0, 1]
    arguments = ["reliability", "--work", str(tmp_path), "-o", str(tmp_path / "out.json")]
    monkeypatch.setattr(sys, "argv", arguments)
    reliability.main()  # resumes
    assert seen == [0, 1, 2]
    rows_by_name = {row["what"]: row for row in json.loads((tmp_path / "out.json").read_text())["rows"]}
    assert {name: row["count"] for name, row in rows_by_name.items()} == {
        "things": 120,
        "faults": 1,
        "peak MB": 10,
    }
    assert (rows_by_name["things"]["aim"], "aim" in rows_by_name["faults"]) == (100, False)
    assert "| part | things | 120 | 100 | 0.00 |" in (tmp_path / "out.md").read_text()
    assert "0 rounds were done so, of the 16" in (tmp_path / "out.md").read_text()
    flips = {"part": "flips", "what": "bytes changed", "count": 1, "aim": 2, "hours": 1.0, "rounds": 17}
    assert "17 rounds were done so" in reliability.markdown([flips])
    monkeypatch.setattr(sys, "argv", [*arguments, "--only", "none"])
    reliability.main()
    assert seen == [0, 1, 2]
    assert "1 faults" in capsys.readouterr().out


def test_committed_results_hold_no_fault() -> None:
    rows = json.loads((tables.RESULTS / "reliability.json").read_text())["rows"]
    assert {row["part"] for row in rows} == set(reliability.PARTS)
    assert [row["count"] for row in rows if row["what"] == "faults"] == [0] * len(reliability.PARTS)
    assert all(row["count"] > 0 for row in rows if "aim" in row)
