"""`benchmarks.speed.bench_sessions`: that it runs, refuses what is wrong, and what is committed of it."""

from __future__ import annotations

import json
import pathlib
import sys

import numpy as np
import pytest

from benchmarks import tables
from benchmarks.speed import bench_sessions
from iet.errors import IetError


def test_a_tiny_run_is_recorded(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["bench_sessions", "-o", str(tmp_path / "x.json"), "--quick", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", given)
    bench_sessions.main()
    content = json.loads((tmp_path / "x.json").read_text())
    assert len(content["rows"]) == 2 * 4
    assert all(row["seconds"] > 0 for row in content["rows"])
    assert "| audit, text half an agent's |" in (tmp_path / "x.md").read_text()


def test_another_session_than_the_one_that_wrote_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_sessions, "marked", lambda registry, name, ids: ids)
    with pytest.raises(IetError, match="half an agent's: set\\(\\) are found"):
        bench_sessions.measured("gumbel n=4", 20, np.arange(300), 1)


def test_the_committed_results_are_of_all_sizes() -> None:
    rows = json.loads((tables.RESULTS / "sessions.json").read_text())["rows"]
    assert {row["sessions"] for row in rows} == {*bench_sessions.SESSIONS}
