"""`bench_sizes`: every case runs in its smallest form, and the committed table holds no case that fails."""

from __future__ import annotations

import json

from benchmarks import tables
from benchmarks.speed import bench_sizes


def test_cases_run_and_grow() -> None:
    for name in ("random ids, cusum", "one mark over and over", "line ends"):
        found = bench_sizes.measured(name, 120)
        assert found["seconds"] > 0
        assert found["megabytes"] >= 0


def test_the_committed_table_has_all_cases_and_only_times() -> None:
    rows = json.loads((tables.RESULTS / "sizes.json").read_text())["rows"]
    assert {row["case"] for row in rows} == {*bench_sizes.CASES}
    assert all("seconds" in row or row["said"].startswith("more than") for row in rows)
    assert "growth of time" in bench_sizes.markdown(rows)
