"""How the benchmarks' figures look, and how they are written: the same results, the same file."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "iet",
    # The font that matplotlib carries, and one as wide: SVG names the whole list at each text.
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": mpl.rcsetup.cycler(
        color=["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"]
    ),
}
"""Parameters of matplotlib, for `matplotlib.rc_context`."""

_PLACED = re.compile(r' (?:d|x|y|width|height)="[^"]*"')
_LONG = re.compile(r"-?\d+\.\d{3,}")
_DRAWN = re.compile(r' d="([^"]*)"')
_STRAIGHT = re.compile(r"[ML](?: [-\d.]+)+(?: L(?: [-\d.]+)+)+")
_ALIKE = re.compile(r'(?:<use [^>]*( style="[^"]*")/>\n)(?:<use [^>]*\1/>\n)+')
_UNTURNED = re.compile(r' transform="rotate\(-0 [^"]*"')
_GROUP = re.compile(r"<g[^>]*>\n|</g>\n")
_NAMED = re.compile(r'<g(?: id="[^"]*")?/?>\n')
_HEAD = re.compile(r"<!DOCTYPE[^>]*>\n|<metadata>.*?</metadata>\n", re.DOTALL)
_FONT = "font-family: 'DejaVu Sans', 'Verdana', sans-serif"
_METADATA: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "png": {"Software": None}}


def save(figure: Any, path: pathlib.Path, *formats: str) -> list[pathlib.Path]:
    """Write the figure as `path` with each suffix ("svg", "png"), close it, and return the files.

    To be called within `matplotlib.rc_context(STYLE)`, where SVG gets its ids.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for name in formats:
        written.append(path.with_name(f"{path.name}.{name}"))
        figure.savefig(written[-1], metadata=_METADATA[name], dpi=150)
        if name == "svg":
            written[-1].write_text(shortened(written[-1].read_text(encoding="utf-8")), encoding="utf-8")
    plt.close(figure)
    return written


def shortened(svg: str) -> str:
    """Return a figure whose places have hundredths of a point, without indents and turns by no angle.

    Lines of a path follow each other without a letter each, and marks of one style share a group.
    Groups that have no more than a name are left out, and the font is named once.
    """
    svg = _UNTURNED.sub("", svg)
    svg = _PLACED.sub(lambda part: _LONG.sub(lambda number: f"{float(number[0]):.2f}", part[0]), svg)
    svg = _ungrouped(_HEAD.sub("", re.sub(r"\n +", "\n", svg)))
    if f"; {_FONT}" in svg:
        svg = svg.replace(f"; {_FONT}", "").replace("</style>", f" text{{{_FONT}}}</style>", 1)
    svg = _DRAWN.sub(lambda path: f' d="{_joined(" ".join(path[1].split()))}"', svg)
    return _ALIKE.sub(lambda marks: f"<g{marks[1]}>\n{marks[0].replace(marks[1], '')}</g>\n", svg)


def _ungrouped(svg: str) -> str:
    """Return a figure without groups that have no more than a name, which nothing refers to."""
    open_groups: list[bool] = []

    def group(tag: re.Match[str]) -> str:
        if tag[0] == "</g>\n":
            return tag[0] if open_groups.pop() else ""
        needed = _NAMED.fullmatch(tag[0]) is None
        if not tag[0].endswith("/>\n"):
            open_groups.append(needed)
        return tag[0] if needed else ""

    return _GROUP.sub(group, svg)


def _joined(path: str) -> str:
    return _STRAIGHT.sub(lambda lines: lines[0].replace(" L ", " "), path)
