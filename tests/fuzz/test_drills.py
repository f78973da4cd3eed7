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
def test_what_is_disturbed_loses_and_doubles_nothing(
    kind: str, times: int, disturbance: str, tmp_path: pathlib.Path
) -> None:
    counts = drills.drill(kind, tmp_path / "work", 1, times)
    assert counts["faults"] == 0
    assert counts[disturbance] + counts["clock jumps, not possible here"] >= times


def test_disks_that_are_full_or_only_read(tmp_path: pathlib.Path) -> None:
    """Full and read-only disks, if the process may mount one."""
    counts = drills.drill("mounts", tmp_path / "work", 1, 3)
    assert counts["faults"] == 0
    assert sum(counts.values()) == 6
