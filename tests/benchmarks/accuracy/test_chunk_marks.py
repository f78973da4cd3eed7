"""The benchmark of chunk marks: a small run, and what it counts."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.accuracy import chunk_exactness, chunk_marks, texts

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_quick_run_writes_tables_and_goes_on(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chunk_marks.json"
    monkeypatch.setattr(chunk_marks, "QUICK", chunk_marks.Sizes(2, (24, 32), 1, 1, 1, 600))
    for parts in ("reading", "exactness"):
        monkeypatch.setattr(sys, "argv", ["chunk_marks", "-o", str(path), "--quick", "--parts", parts])
        chunk_marks.main()
    content = json.loads(path.read_text(encoding="utf-8"))
    assert [cell["mark"] for cell in content["cells"]] == ["select", "walk"]
    assert all(len(cell["counts"]["right"]) == 2 and cell["nats"] > 2 for cell in content["cells"])
    assert [row["draws"] for row in content["exactness"]] == [360, 120, 60, 20, 20, 20]
    assert content["figures"]["all"]["conversations"] == 4
    page = path.with_suffix(".md").read_text(encoding="utf-8")
    assert "| 1 | walk | 1 | 1 |" in page
    assert "one draft, cut at the last blank" in page


def test_a_cut_at_the_last_blank_prefers_short_words() -> None:
    registry = texts.keys("shipped", "gumbel", 0, 1)
    shares = []
    for is_cut in (False, True):
        _, counts = chunk_exactness.eight_words(registry, 1, is_cut, 4000, 1)
        long_words = np.array([number.bit_count() for number in range(256)])
        shares.append(counts @ long_words / counts.sum() / 8)
    assert shares[0] == pytest.approx(0.5, abs=0.02)
    assert shares[1] < 0.47


def test_a_chain_has_the_probabilities_of_its_chunks() -> None:
    probabilities, counts = chunk_exactness.chunks(lambda session, drafts: 0, 12, 3000, 2)
    assert probabilities.sum() == pytest.approx(1)
    assert chunk_exactness.tested(probabilities, counts)["p"] > 1e-3


def test_total_variation_and_chi_square_of_counts() -> None:
    probabilities = np.array([0.5, 0.25, 0.25])
    exact = chunk_exactness.tested(probabilities, np.array([200, 100, 100]))
    assert (exact["total_variation"], exact["freedom"]) == (0, 2)
    shifted = chunk_exactness.tested(probabilities, np.array([240, 80, 80]))
    assert shifted["total_variation"] == pytest.approx(0.1)
    assert shifted["z"] > 3
    assert chunk_exactness.tested(probabilities, np.array([4, 2, 2]))["z"] is None


def test_promises_that_are_not_kept_are_named() -> None:
    kept: dict[str, Any] = {name: [0.01, 0.005, 0.02] for name in ("false", "silent alone")}
    kept |= {"silent with writers": None, "forced": 0.01, "forced bias": 0.0}
    bad = {**kept, "false": [0.05, 0.02, 0.1], "forced": 0.04, "forced bias": -0.04}
    assert chunk_marks.broken({"select T=1": kept}) == []
    assert chunk_marks.broken({"select T=1": bad}) == [
        "select T=1: false 0.0500",
        "select T=1: calibration, forced, 0.040 (bias -0.040)",
    ]
    assert chunk_marks.rate(0, 100) == pytest.approx([0, 0, 0.0362], abs=1e-3)
