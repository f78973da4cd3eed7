"""Changed bytes in stored files (a sample): each is rejected or harmless.

`python -m benchmarks.security.reliability --only flips` changes every one.
"""

from __future__ import annotations

import pathlib
import random

import pytest

from benchmarks.security import flips


@pytest.mark.parametrize(
    ("kind", "every"),
    [("registry file", 11), ("signed report", 19), ("published index", 29), ("bulk run", 397)],
)
def test_a_changed_byte_is_rejected_or_harmless(kind: str, every: int, tmp_path: pathlib.Path) -> None:
    counts = flips.flip(kind, tmp_path / "kept", 1, every)
    assert counts["faults"] == 0
    assert counts["refused"] > 0
    assert counts["changed"] == counts["refused"] + counts["read as before"] > 30


def test_each_byte_of_a_seed_is_changed_once() -> None:
    data = bytes(range(20))
    changes = list(flips.changed(data, random.Random(3), 1, 0))
    assert [at for at, _ in changes] == list(range(20))
    assert all(sum(a != b for a, b in zip(data, changed, strict=True)) == 1 for _, changed in changes)


def test_a_changed_reading_is_a_fault(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trusting(work: pathlib.Path) -> flips.Kept:
        path = work / "note.txt"
        path.write_bytes(b"ABC")
        return [path], lambda _, data: data.decode()

    monkeypatch.setitem(flips.KINDS, "note", trusting)
    counts = flips.flip("note", tmp_path / "kept", 1)
    assert counts == {"changed": 3, "faults": 3}
    assert "note.txt, byte 0, 0x41 to" in capsys.readouterr().out
