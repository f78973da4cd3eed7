"""Draw what the experiments measured: sweeps, comparisons before and after, histograms of scores."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt

from benchmarks.paper.scoring import Interval
from benchmarks.style import STYLE, save
from iet.errors import ShapeError

FORMATS = ("svg", "png")
BINS = 30
"""Of a histogram, as in the paper."""


def sweep(
    path: pathlib.Path,
    x: Sequence[float],
    series: Mapping[str, Sequence[Interval | None]],
    *,
    xlabel: str,
    operating_point: float | None = None,
    quoted: Mapping[str, Sequence[float | None]] | None = None,
    log: bool = False,
) -> list[pathlib.Path]:
    """Draw figures against a parameter, with their intervals; return the SVG and the PNG.

    Args:
        path: without a suffix.
        x: values of the parameter.
        series: name of a figure -> an interval for each value.
        xlabel: what the parameter is called.
        operating_point: a dashed line.
        quoted: the same figures as somebody else printed them, in the colour of theirs, dotted.
        log: whether the axis of the parameter is logarithmic.

    Raises:
        ShapeError: a series is not as long as `x`.
    """
    for name, values in [*series.items(), *(quoted or {}).items()]:
        _same_length(name, values, x)
    colors = {name: f"C{i % 6}" for i, name in enumerate(dict.fromkeys([*series, *(quoted or {})]))}
    with mpl.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(4, 3), layout="constrained")
        for name, values in series.items():
            there = [(at, value) for at, value in zip(x, values, strict=True) if value is not None]
            at = [point for point, _ in there]
            axis.plot(at, [v.mean for _, v in there], "o-", color=colors[name], markersize=3, label=name)
            low, high = [v.low for _, v in there], [v.high for _, v in there]
            axis.fill_between(at, low, high, color=colors[name], alpha=0.2, linewidth=0)
        for name, numbers in (quoted or {}).items():
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
        return save(figure, path, *FORMATS)


def before_and_after(
    path: pathlib.Path,
    cells: Sequence[str],
    panels: Mapping[str, tuple[Sequence[Interval | None], Sequence[Interval | None]]],
    *,
    names: tuple[str, str] = ("original", "redacted"),
) -> list[pathlib.Path]:
    """Draw figures of cells before and after side by side, a panel each; return the SVG and the PNG.

    Args:
        path: without a suffix.
        cells: names of the settings.
        panels: name of a figure -> (before, after), an interval for each cell.
        names: of before and after.

    Raises:
        ShapeError: a series is not as long as `cells`.
    """
    for name, sides in panels.items():
        for side in sides:
            _same_length(name, side, cells)
    with mpl.rc_context(STYLE):
        width = 1 + 0.35 * len(cells)
        figure, axes = plt.subplots(
            1, len(panels), figsize=(width * len(panels), 3), layout="constrained", squeeze=False
        )
        for axis, (figure_name, sides) in zip(axes[0], panels.items(), strict=True):
            for number, (name, side) in enumerate(zip(names, sides, strict=True)):
                there = [(i, value) for i, value in enumerate(side) if value is not None]
                means = np.array([value.mean for _, value in there])
                gaps = [
                    [max(0.0, v.mean - v.low) for _, v in there],
                    [max(0.0, v.high - v.mean) for _, v in there],
                ]
                at = [i + 0.2 * number - 0.1 for i, _ in there]
                axis.errorbar(at, means, gaps, fmt="os"[number], markersize=3, linewidth=1, label=name)
            axis.set_xticks(range(len(cells)), cells, rotation=45, ha="right")
            axis.set(title=figure_name, ylim=(0, 1.02))
        axes[0][0].legend(frameon=False, fontsize=6)
        return save(figure, path, *FORMATS)


def differences(
    path: pathlib.Path,
    cells: Sequence[Sequence[str]],
    panels: Mapping[str, Mapping[str, Sequence[Interval | None]]],
    *,
    ylabel: str = "accuracy - clean",
) -> list[pathlib.Path]:
    """Draw differences with their intervals around zero, a panel each; return the SVG and the PNG.

    Args:
        path: without a suffix.
        cells: of each panel, what stands on its axis.
        panels: title -> name of a series -> an interval for each cell.
        ylabel: what the differences are of.

    Raises:
        ShapeError: a series is not as long as its panel's cells, or there are not as many as panels.
    """
    _same_length("cells", cells, list(panels))
    for names, series in zip(cells, panels.values(), strict=True):
        for name, values in series.items():
            _same_length(name, values, names)
    with mpl.rc_context(STYLE):
        width = sum(1.2 + 0.5 * len(names) for names in cells)
        figure, axes = plt.subplots(
            1,
            max(1, len(panels)),
            figsize=(width, 3),
            layout="constrained",
            squeeze=False,
            sharey=True,
            width_ratios=[1.2 + 0.5 * len(names) for names in cells] or None,
        )
        for axis, names, (title, series) in zip(axes[0], cells, panels.items(), strict=True):
            axis.axhline(0, color="0.5", linewidth=1)
            for number, (name, values) in enumerate(series.items()):
                there = [(i, value) for i, value in enumerate(values) if value is not None]
                at = [i + 0.2 * (number - (len(series) - 1) / 2) for i, _ in there]
                gaps = [[v.mean - v.low for _, v in there], [v.high - v.mean for _, v in there]]
                means = [v.mean for _, v in there]
                marker = "osD^v"[number % 5]
                axis.errorbar(
                    at, means, np.maximum(gaps, 0), fmt=marker, markersize=3, linewidth=1, label=name
                )
            axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
            axis.set(title=title, xlim=(-0.6, len(names) - 0.4))
        axes[0][0].set_ylabel(ylabel)
        figure.legend(
            *axes[0][0].get_legend_handles_labels(), loc="outside lower center", frameon=False, fontsize=6
        )
        return save(figure, path, *FORMATS)


def histograms(
    path: pathlib.Path,
    panels: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
    *,
    names: tuple[str, str] = ("own agent", "other agents"),
    xlabel: str = "score",
) -> list[pathlib.Path]:
    """Draw the densities of two samples over the same 30 bins, a panel each; return the SVG and the PNG.

    Args:
        path: without a suffix.
        panels: title -> (scores under the true agent's key, scores under the others' keys).
        names: of the two samples.
        xlabel: what the scores are.
    """
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(3 * len(panels), 3), layout="constrained", squeeze=False
        )
        for axis, (title, samples) in zip(axes[0], panels.items(), strict=True):
            values = [np.asarray(sample, dtype=np.float64).ravel() for sample in samples]
            bins = np.histogram_bin_edges(np.concatenate(values), BINS)
            for name, sample in zip(names, values, strict=True):
                if len(sample):
                    axis.hist(sample, bins, density=True, alpha=0.5, label=name)
            axis.set(title=title, xlabel=xlabel)
        axes[0][0].set_ylabel("density")
        axes[0][0].legend(frameon=False, fontsize=6)
        return save(figure, path, *FORMATS)


def _same_length(name: str, values: Sequence[object], axis: Sequence[object]) -> None:
    if len(values) != len(axis):
        raise ShapeError(name, got=f"{len(values)} values", expected=len(axis))
