"""Plots of the paper's experiments: the same figures, the same file."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest

from benchmarks.statistics import Interval
from iet.errors import ShapeError

pytest.importorskip("matplotlib")

from benchmarks.paper import plots


def draw(folder: pathlib.Path) -> list[pathlib.Path]:
    values = [Interval(0.6 + i / 20, 0.5 + i / 20, 0.7 + i / 20, 9) for i in range(4)]
    rng = np.random.default_rng(0)
    return [
        *plots.sweep(
            folder / "kappa",
            [0.5, 0.8, 1, 2],
            {"TokenAcc": values, "IoU": [*values[:3], None]},
            xlabel="strength κ",
            operating_point=0.8,
            quoted={"TokenAcc": [0.7, None, 0.8, 0.9]},
        ),
        *plots.before_and_after(
            folder / "pii", ["chain_4", "tree_4"], {"IoU": (values[:2], [values[2], None])}
        ),
        *plots.histograms(
            folder / "scores", {"chain_4": (rng.normal(1, 1, 500), rng.normal(0, 1, (100, 3))), "x": ([], [])}
        ),
    ]


def test_plots_are_the_same_files_again(tmp_path):
    once, again = draw(tmp_path / "a"), draw(tmp_path / "b")
    assert [p.name for p in once] == ["kappa.svg", "pii.svg", "scores.svg"]
    assert [p.read_bytes() for p in once] == [p.read_bytes() for p in again]
    svg = {p.stem: p.read_text(encoding="utf-8") for p in once}
    assert all("<dc:date>" not in text for text in svg.values())
    for name, shown in {
        "kappa": ["strength κ", "TokenAcc", "IoU", "TokenAcc, paper", "0.8", "stroke-dasharray"],
        "pii": ["chain_4", "tree_4", "original", "redacted", "IoU"],
        "scores": ["own agent", "other agents", "density", "chain_4"],
    }.items():
        assert all(text in svg[name] for text in shown), name


def test_histograms_have_thirty_bins(tmp_path):
    own, others = np.linspace(0, 1, 300), np.linspace(0.5, 2, 300)
    (svg,) = plots.histograms(tmp_path / "h", {"a": (own, others)})
    text = svg.read_text(encoding="utf-8")
    shapes = re.findall(
        r'<path d="([^"]*)" clip-path="[^"]*" style="fill: #([0-9a-f]{6}); opacity: 0.5', text
    )
    edges = {color: len(set(re.findall(r"[\d.]+", path)[::2])) for path, color in shapes}
    assert edges == {"0072b2": 31, "d55e00": 31}


def test_plots_refuse_series_of_other_lengths(tmp_path):
    with pytest.raises(ShapeError, match="IoU: got 1 values, expected 2"):
        plots.sweep(tmp_path / "s", [1, 2], {"IoU": [None]}, xlabel="x")
    with pytest.raises(ShapeError, match="IoU: got 1 values, expected 2"):
        plots.before_and_after(tmp_path / "s", ["a", "b"], {"IoU": ([None, None], [None])})
    assert list(tmp_path.iterdir()) == []
