"""Results as they are written: tables, summaries, rows, command lines."""

from __future__ import annotations

import pathlib

from benchmarks import recording
from benchmarks.recording import number


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
