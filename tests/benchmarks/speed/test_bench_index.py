"""`benchmarks.speed.bench_index`: that it runs, and notices pairs that are not there."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

import iet
from benchmarks.speed import bench_index
from iet.errors import IetError


def test_an_index_grows(tmp_path: pathlib.Path) -> None:
    one, two = bench_index.run(tmp_path, [90_000, 150_000])
    per_text = bench_index.TEXT - 3 + 1  # n = 4, and the hash that a text is known by
    assert (one["pairs"], two["pairs"]) == (per_text, 2 * per_text)
    assert one["bytes"] < 13 * per_text
    assert (one["others_seen"], two["others_seen"]) == (0, 0)


def test_a_pair_that_is_missing_is_no_result(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iet.PublishedIndex, "seen", lambda self, ids, keys: np.zeros(len(ids), np.bool_))
    with pytest.raises(IetError, match="a pair that was added is not in the index"):
        next(bench_index.run(tmp_path, [90_000]))
