"""Plot a report on matplotlib axes, for papers and notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iet.errors import BackendUnavailable, InputError
from iet.report.segments import extent
from iet.report.view import COLOURS, columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from iet.report.model import Report

HATCHES = ("", "//", "..", "xx")
LINES = ("-", "--", ":", "-.")
"""With the colours they distinguish agents, also in print and for colour-blind readers."""


def plot(report: Report, axes: Axes | None = None) -> Axes:
    """Draw f(t, a) of the agents that occur, the boundaries, and the agent of each segment.

    Args:
        report: the result of an audit.
        axes: of matplotlib. None: new axes.

    Returns:
        The axes. Positions are characters, or tokens if only ids were audited.

    Raises:
        BackendUnavailable: matplotlib is not installed.
        InputError: the report has no trace, or nothing in it could be read.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise BackendUnavailable(f"plotting: {error}; pip install matplotlib") from None
    trace = report.trace
    if trace is None or not len(trace.scores):
        raise InputError("report: got one without scores along the text, expected the result of an audit")
    drawn: Axes = plt.subplots(figsize=(9, 2.8), layout="constrained")[1] if axes is None else axes
    drawn_columns = columns(report, trace)
    agents = [trace.agents[column] for column in drawn_columns]
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(agents)}
    curves = []
    for i, (name, column) in enumerate(zip(agents, drawn_columns, strict=True)):
        line = LINES[i % len(LINES)]
        curves += drawn.plot(
            trace.centres, trace.scores[:, column], color=colours[name], ls=line, lw=1.2, label=name
        )
    low, high = drawn.get_ylim()
    strip = 0.08 * (high - low)
    for segment in report.segments:
        start, end = extent(segment)
        filled: dict[str, Any] = {"facecolor": "none", "edgecolor": "0.7"}
        if segment.agent in colours:
            hatch = HATCHES[agents.index(segment.agent) // len(COLOURS) % len(HATCHES)]
            filled = {"facecolor": colours[segment.agent], "edgecolor": "white", "hatch": hatch}
        drawn.broken_barh([(start, end - start)], (low - strip, strip), lw=0.5, **filled)
        if start:
            drawn.axvline(start, color="0.6", lw=0.6, ls=":")
    drawn.set(
        xlim=(0, len(report.text) if report.text is not None else report.tokens),
        ylim=(low - strip, high),
        xlabel="characters" if report.text is not None else "tokens",
        ylabel=f"f(t, a), w = {trace.window}",
    )
    if agents:
        position: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 1.18)}
        legend = drawn.legend(
            curves, ["?"] * len(agents), **position, ncols=min(6, len(agents)), frameon=False
        )
        for text, name in zip(legend.get_texts(), agents, strict=True):
            # Show names as they are: not as formulas, and also if they begin with "_".
            text.set(text=name, parse_math=False, usetex=False)
    return drawn
