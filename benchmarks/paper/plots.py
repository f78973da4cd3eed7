"""Draw what the experiments measured: sweeps, runs, comparisons before and after, histograms of scores.

`path` stands without its suffix; what was written, an SVG, is returned.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt

from benchmarks.figure_style import STYLE, save
from benchmarks.statistics import Interval
from iet.errors import ShapeError

BINS = 30
"""Of a histogram, as in the paper."""
Series = Sequence[Interval | None]


def sweep(
    path: pathlib.Path,
    x: Sequence[float],
    series: Mapping[str, Series],
    *,
    xlabel: str,
    operating_point: float | None = None,
    quoted: Mapping[str, Sequence[float | None]] | None = None,
    log: bool = False,
) -> list[pathlib.Path]:
    """Draw figures (name -> an interval for each value) against a parameter, with their intervals.

    `quoted` are the same figures as somebody else printed them, in the colour of theirs, dotted.
    """
    quoted = quoted or {}
    _check({**series, **{f"{name}, paper": values for name, values in quoted.items()}}, x)
    colors = {name: f"C{i % 6}" for i, name in enumerate(dict.fromkeys([*series, *quoted]))}
    with mpl.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(4, 3), layout="constrained")
        for name, values in series.items():
            at, means, low, high = _known(values, x)
            axis.plot(at, means, "o-", color=colors[name], markersize=3, label=name)
            axis.fill_between(at, low, high, color=colors[name], alpha=0.2, linewidth=0)
        for name, numbers in quoted.items():
            known = [(at, value) for at, value in zip(x, numbers, strict=True) if value is not None]
            axis.plot(*np.array(known).reshape(-1, 2).T, ":", color=colors[name], label=f"{name}, paper")
        if operating_point is not None:
            axis.axvline(operating_point, linestyle="--", color="0.5", linewidth=1)
        if log:
            axis.set_xscale("log")
        axis.set_xticks(list(x), [f"{value:g}" for value in x])
        axis.minorticks_off()
        axis.set(xlabel=xlabel, ylim=(0, 1.02))
        axis.legend(frameon=False, fontsize=6)
        return save(figure, path, "svg")


Line = tuple[str, Sequence[float], Series]
"""Name, values of a parameter, and an interval for each."""


def curves(path: pathlib.Path, panels: Mapping[str, Sequence[Line]], *, xlabel: str) -> list[pathlib.Path]:
    """Draw figures against a parameter, over a logarithmic axis: a panel each.

    Lines of one name in a panel are of different runs: the later ones are dotted, and have no label. Nor have
    those of panels with the same names as an earlier one.
    """
    said: list[list[str]] = []
    with mpl.rc_context(STYLE):
        figure, axes = _panels([3.4] * len(panels), sharey=True)
        for axis, (title, lines) in zip(axes, panels.items(), strict=True):
            colors: dict[str, str] = {}
            for name, x, values in lines:
                _check({name: values}, x)
                at, means, low, high = _known(values, x)
                style, label = (":", None) if name in colors else ("-", name)
                color = colors.setdefault(name, f"C{len(colors)}")
                gaps = [means - low, high - means]
                axis.errorbar(at, means, gaps, fmt=style, color=color, linewidth=1, label=label)
            ticks: list[float] = []
            for value in sorted(value for _, x, _ in lines for value in x):
                if not ticks or value > 1.1 * ticks[-1]:
                    ticks.append(value)
            axis.set_xscale("log")
            axis.set_xticks(ticks, [f"{value:.2f}" for value in ticks])
            axis.minorticks_off()
            axis.set(title=title, xlabel=xlabel, ylim=(0, 1.02))
            if list(colors) not in said:
                said.append(list(colors))
                axis.legend(frameon=False, fontsize=5, loc="lower right")
        axes[0].set_ylabel("TokenAcc")
        return save(figure, path, "svg")


def before_and_after(
    path: pathlib.Path, cells: Sequence[str], panels: Mapping[str, tuple[Series, Series]]
) -> list[pathlib.Path]:
    """Draw figures of cells before and after side by side, a panel each: an interval for each cell."""
    for title, sides in panels.items():
        _check({title: sides[0]}, cells)
        _check({title: sides[1]}, cells)
    with mpl.rc_context(STYLE):
        figure, axes = _panels([1 + 0.35 * len(cells)] * len(panels))
        for axis, (title, sides) in zip(axes, panels.items(), strict=True):
            series = dict(zip(("original", "redacted"), sides, strict=True))
            _error_bars(axis, cells, series, "os", rotation=45)
            axis.set(title=title, ylim=(0, 1.02))
        axes[0].legend(frameon=False, fontsize=6)
        return save(figure, path, "svg")


def differences(
    path: pathlib.Path, cells: Sequence[Sequence[str]], panels: Mapping[str, Mapping[str, Series]]
) -> list[pathlib.Path]:
    """Draw differences, with intervals, around zero: a panel each, an interval for each cell of a series."""
    _check({"cells": cells}, list(panels))
    for names, series in zip(cells, panels.values(), strict=True):
        _check(series, names)
    with mpl.rc_context(STYLE):
        figure, axes = _panels([1.2 + 0.5 * len(names) for names in cells], sharey=True)
        for axis, names, (title, series) in zip(axes, cells, panels.items(), strict=False):
            axis.axhline(0, color="0.5", linewidth=1)
            _error_bars(axis, names, series, "osD^v", rotation=30)
            axis.set(title=title, xlim=(-0.6, len(names) - 0.4))
        axes[0].set_ylabel("accuracy - clean")
        figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside lower center", frameon=False, fontsize=6
        )
        return save(figure, path, "svg")


def histograms(
    path: pathlib.Path,
    panels: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
    *,
    xlabel: str = "score",
) -> list[pathlib.Path]:
    """Draw the densities of two samples over the same bins, a panel each."""
    with mpl.rc_context(STYLE):
        figure, axes = _panels([3] * len(panels))
        for axis, (title, samples) in zip(axes, panels.items(), strict=True):
            values = [np.asarray(sample, dtype=np.float64).ravel() for sample in samples]
            bins = np.histogram_bin_edges(np.concatenate(values), BINS)
            for name, sample in zip(("own agent", "other agents"), values, strict=True):
                if len(sample):
                    density, _ = np.histogram(sample, bins, density=True)
                    axis.stairs(density, bins, fill=True, alpha=0.5, label=name)
            axis.set(title=title, xlabel=xlabel)
        axes[0].set_ylabel("density")
        axes[0].legend(frameon=False, fontsize=6)
        return save(figure, path, "svg")


def _panels(widths: Sequence[float], **options: Any) -> tuple[Any, Sequence[Any]]:
    figure, axes = plt.subplots(
        1,
        max(1, len(widths)),
        figsize=(sum(widths), 3),
        layout="constrained",
        squeeze=False,
        width_ratios=widths or None,
        **options,
    )
    return figure, axes[0]


def _error_bars(
    axis: Any, names: Sequence[str], series: Mapping[str, Series], markers: str, rotation: int
) -> None:
    for number, (name, values) in enumerate(series.items()):
        offset = 0.2 * (number - (len(series) - 1) / 2)
        at, means, low, high = _known(values, range(len(names)))
        gaps = np.maximum([means - low, high - means], 0)
        marker = markers[number % len(markers)]
        axis.errorbar(at + offset, means, gaps, fmt=marker, markersize=3, linewidth=1, label=name)
    axis.set_xticks(range(len(names)), names, rotation=rotation, ha="right")


def _known(values: Series, x: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return place, mean, low and high of the intervals that are there, [4, N]."""
    known = [(at, v.mean, v.low, v.high) for at, v in zip(x, values, strict=True) if v is not None]
    return np.array(known, np.float64).reshape(-1, 4).T


def _check(series: Mapping[str, Sequence[object]], axis: Sequence[object]) -> None:
    for name, values in series.items():
        if len(values) != len(axis):
            raise ShapeError(name, got=f"{len(values)} values", expected=len(axis))
