"""The paper's figures as SVG: sweeps of a parameter, and error bars of cells.

`path` has no suffix; the functions return the files that they write.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt

from benchmarks.figure_style import STYLE, save
from benchmarks.statistics import Interval

Series = Sequence[Interval | None]


def sweep(
    path: pathlib.Path,
    x: Sequence[float],
    series: Mapping[str, Series],
    *,
    xlabel: str,
    operating_point: float,
    quoted: Mapping[str, Sequence[float | None]] | None = None,
) -> list[pathlib.Path]:
    """Draw figures (name -> an interval for each x) over a logarithmic axis; `quoted` values are dotted."""
    with mpl.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(4, 3), layout="constrained")
        for number, (name, values) in enumerate(series.items()):
            at, means, low, high = _known(values, x)
            axis.plot(at, means, "o-", color=f"C{number % 6}", markersize=3, label=name)
            axis.fill_between(at, low, high, color=f"C{number % 6}", alpha=0.2, linewidth=0)
            if quoted and name in quoted:
                points = [(at, value) for at, value in zip(x, quoted[name], strict=True) if value is not None]
                axis.plot(
                    *np.array(points).reshape(-1, 2).T, ":", color=f"C{number % 6}", label=f"{name}, paper"
                )
        axis.axvline(operating_point, linestyle="--", color="0.5", linewidth=1)
        axis.set_xscale("log")
        axis.set_xticks(list(x), [f"{value:g}" for value in x])
        axis.minorticks_off()
        axis.set(xlabel=xlabel, ylim=(0, 1.02))
        axis.legend(frameon=False, fontsize=6)
        return save(figure, path, "svg")


def error_bars(
    path: pathlib.Path,
    cells: Mapping[str, Sequence[str]],
    panels: Mapping[str, Mapping[str, Series]],
    *,
    ylabel: str,
) -> list[pathlib.Path]:
    """Draw the intervals of several series side by side, in one panel for each title.

    Args:
        cells: title -> name of each interval of a series.
        panels: title -> name of a series -> its intervals.
    """
    widths = [1.2 + 0.5 * len(cells[title]) for title in panels]
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(
            *(1, len(panels)),
            figsize=(sum(widths), 3),
            layout="constrained",
            squeeze=False,
            width_ratios=widths,
            sharey=True,
        )
        for axis, (title, series) in zip(axes[0], panels.items(), strict=True):
            for number, (name, values) in enumerate(series.items()):
                at, means, low, high = _known(values, range(len(cells[title])))
                at = at + 0.2 * (number - (len(series) - 1) / 2)
                gaps = np.maximum([means - low, high - means], 0)
                axis.errorbar(at, means, gaps, fmt="osD^v"[number % 5], markersize=3, linewidth=1, label=name)
            axis.axhline(0, color="0.5", linewidth=1)
            axis.set_xticks(range(len(cells[title])), cells[title], rotation=30, ha="right")
            axis.set(title=title)
        axes[0][0].set_ylabel(ylabel)
        axes[0][0].legend(frameon=False, fontsize=6)
        return save(figure, path, "svg")


def _known(values: Series, x: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return x, mean, low and high of the intervals that are not None, [4, N]."""
    points = [(at, v.mean, v.low, v.high) for at, v in zip(x, values, strict=True) if v is not None]
    return np.array(points, np.float64).reshape(-1, 4).T
