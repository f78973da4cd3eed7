"""The comparison of two revisions: ratios of a summary, and the table."""

from __future__ import annotations

import pathlib

import pytest

from benchmarks.compare_revisions import compare, main, ratios, report

SUMMARY = {
    "seconds": 3.0,
    "suites": [
        {
            "suite": "add",
            "note": "not part of a name",
            "results": [
                {"what": "avx2", "kind": "ours", "over": {"fill": {"low": 1.0, "median": 1.5, "high": 2.0}}},
                {"what": "fill", "kind": "floor", "over": {"fill": {"median": 1.0}}},
            ],
        }
    ],
    "results": [
        {"text": "logs", "what": "audit", "over_encode_batch": 1.25},
        {"detector": "theirs", "over_scores": 700.0},
    ],
}


def test_ratios_of_our_own_times_are_labelled() -> None:
    assert dict(ratios(SUMMARY)) == {"add · avx2 · over fill": 1.5, "logs · audit · over encode batch": 1.25}


def test_change_is_shown_with_the_spread_of_one_revision() -> None:
    (row,) = compare([{"a": 1.0, "floor": 1.0}, {"a": 1.2, "floor": 1.0}], [{"a": 1.32, "floor": 1.0}])
    assert row["what"] == "a"
    assert row["quotient"] == pytest.approx(1.2)
    assert row["spread"] == pytest.approx(1.2)
    text = report({"bench_audit": [row]}, 1)
    assert "| `bench_audit` | 1 | 1.200 | 1.200 | 1.200 | 1.200 | 1 |" in text
    assert "Worse by more than 3 %" in text
    assert "Worse" not in report({"bench_embed": [{**row, "quotient": 1.03}]}, 1)


def test_rejects_a_folder_without_checkout(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), "-o", str(tmp_path / "out.md")])
    assert not (tmp_path / "out.md").exists()
