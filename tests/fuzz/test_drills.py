"""Kills, full and read-only disks, jumping clocks; the benchmark `reliability` does a thousand kills."""

from __future__ import annotations

import pathlib

import pytest

from benchmarks.security import drills
from tests.support.conditions import posix

pytestmark = posix


@pytest.mark.parametrize(
    ("kind", "times", "disturbance"),
    [
        ("bulk", 5, "kills"),
        ("registry", 5, "kills"),
        ("index", 5, "kills"),
        ("file sizes", 4, "file sizes limited"),
        ("clocks", 1, "clock jumps"),
    ],
)
def test_disturbed_runs_lose_and_duplicate_nothing(
    kind: str, times: int, disturbance: str, tmp_path: pathlib.Path
) -> None:
    counts = drills.drill(kind, tmp_path / "work", 1, times)
    assert counts["faults"] == 0
    assert counts[disturbance] + counts["clock jumps, not possible here"] >= times


def test_full_and_read_only_disks(tmp_path: pathlib.Path) -> None:
    """Full and read-only disks, if the process may mount one."""
    counts = drills.drill("mounts", tmp_path / "work", 1, 3)
    assert counts["faults"] == 0
    assert sum(counts.values()) == 6
