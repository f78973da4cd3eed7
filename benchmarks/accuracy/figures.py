"""Draw the committed results of `decoders` and `null`.

    python -m benchmarks.accuracy.figures

Writes `curve.svg` (what to expect against the evidence of a turn), `decoders.svg` (TokenAcc against the
length of turns; how often the posterior is right against how sure it is) and `null.svg` (p-values of fixed
spans; realised rates against levels; power against length) beside the JSON that they show.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.accuracy.curve import FAMILY_NAMES, PAPERS
from benchmarks.accuracy.decoders import BINS
from benchmarks.figure_style import STYLE, save
from benchmarks.recording import exit_code
from benchmarks.tables import RESULTS

READERS = {"oracle": ":", "posterior": "-", "window": "--", "cusum": "-."}


def accuracy(results: dict[str, Any]) -> Any:
    """Draw TokenAcc of four agents' texts against the length of turns, a panel per model and family."""
    cells = [r for r in results["cells"] if r["cell"]["agents"] == 4]
    panels = sorted({(r["cell"]["model"], r["cell"]["family"]) for r in cells}, key=lambda p: (p[1], p[0]))
    figure, axes = plt.subplots(1, len(panels) + 1, figsize=(3 * len(panels) + 3, 3), layout="constrained")
    for axis, (model, family) in zip(axes, panels, strict=False):
        here = [r for r in cells if (r["cell"]["model"], r["cell"]["family"]) == (model, family)]
        for color, temperature in enumerate(sorted({r["cell"]["temperature"] for r in here}, reverse=True)):
            rows = sorted(
                (r for r in here if r["cell"]["temperature"] == temperature),
                key=lambda r: r["cell"]["turn_tokens"],
            )
            lengths = [r["cell"]["turn_tokens"] for r in rows]
            for reader, line in READERS.items():
                values = np.array([r["figures"][f"{reader}/token_accuracy"] for r in rows]).T
                axis.plot(lengths, values[0], line, color=f"C{color}", label=f"{reader}, T = {temperature}")
                if reader == "posterior":
                    axis.fill_between(lengths, values[1], values[2], color=f"C{color}", alpha=0.2)
        axis.set(title=f"{model} model, {family}", xlabel="tokens of a turn", xscale="log", ylim=(0, 1.02))
        axis.set_xticks(lengths, [str(length) for length in lengths], minor=False)
        axis.minorticks_off()
    axes[0].set_ylabel("TokenAcc, A = 4")
    axes[len(panels) - 1].legend(fontsize=5, frameon=False)
    reliability(axes[-1], results)
    return figure


def reliability(axis: Any, results: dict[str, Any]) -> None:
    counts, right = np.array(results["reliability"])
    there = counts > 0
    middle = ((np.arange(BINS) + 0.5) / BINS)[there]
    axis.plot([0, 1], [0, 1], color="0.7")
    axis.plot(middle, right[there] / counts[there], "o-", markersize=3)
    axis.set(title="calibration, all cells", xlabel="highest posterior of a token", ylabel="share right")


def evidence(results: dict[str, Any]) -> Any:
    figure, (spans, rates, power) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    spans.plot([0, 1], [0, 1], color="0.7")
    for family, found in results["fixed_spans"].items():
        shares = np.append(0, np.cumsum(found["histogram"]))
        spans.plot(np.linspace(0, 1, len(shares)), shares, ".-", label=family)
    spans.set(title="fixed spans, single keys", xlabel="p", ylabel="share of p-values at most p")
    spans.legend(frameon=False)
    levels = [float(level) for level in results["null"]["all"]["levels"]]
    rates.plot(levels, levels, color="0.7")
    for number, (name, group) in enumerate(results["null"].items()):
        rows = np.array([[r["found"], r["low"], r["high"]] for r in group["levels"].values()]).T
        at = np.array(levels) * 1.08**number  # side by side
        rows = np.maximum(rows, 1e-6)
        gaps = np.abs(rows[1:] - rows[0])
        rates.errorbar(at, rows[0], gaps, fmt="o", markersize=3, linewidth=1, label=name)
    rates.set(title="an agent is found", xlabel="level", ylabel="realised rate", xscale="log", yscale="log")
    rates.legend(fontsize=6, frameon=False)
    cells = [name for name in dict.fromkeys(row["cell"] for row in results["power"]) if "-A4-" in name]
    for number, cell in enumerate(cells):
        found = [row for row in results["power"] if row["cell"] == cell]
        power.plot(
            [row["tokens"] for row in found],
            [row["found"]["0.01"] for row in found],
            "--" if "gumbel" in cell else "-",
            color=f"C{number % 6}",
            label=cell.replace("-A4", ""),
        )
    power.set(
        title="power at level 0.01, 4 keys", xlabel="tokens of a turn", ylabel="share found", xscale="log"
    )
    lengths = sorted({row["tokens"] for row in results["power"]})
    power.set_xticks(lengths, [str(length) for length in lengths])
    power.minorticks_off()
    power.legend(fontsize=5, frameon=False)
    return figure


MARKERS = {"grid": "o", "conversations": "D", "checks": "*"}


def against_evidence(results: dict[str, Any]) -> Any:
    """Draw TokenAcc, IoU and coverage against the evidence of a turn, a point a cell, with the curves."""
    shown = (("token_accuracy", "TokenAcc"), ("iou", "IoU"), ("coverage", "coverage at level 0.01"))
    figure, axes = plt.subplots(1, 4, figsize=(15, 3.6), layout="constrained")
    for axis, (name, title) in zip(axes, shown, strict=False):
        for number, family in enumerate(FAMILY_NAMES):
            for kind, marker in MARKERS.items():
                for agents in (4, 5, 6):
                    some = [
                        c
                        for c in results["cells"]
                        if (c["family"], c["kind"], c["agents"]) == (family, kind, agents) and c["figures"]
                    ]
                    axis.plot(
                        [c["nats"] for c in some],
                        [c["figures"][name] for c in some],
                        marker,
                        color=f"C{number}",
                        fillstyle="full" if agents == 4 else "none",
                        markersize=4,
                        label=f"{family}, {kind}" if agents == 4 and some else None,
                    )
            for curve in results["curves"]:
                if curve["family"] == family:
                    line = "-" if curve["agents"] == 4 else "--"
                    axis.plot(curve["nats"], curve[name], line, color=f"C{number}", linewidth=0.8)
        if name != "coverage":
            for agents, line in ((4, "-"), (6, "--")):
                _bound(axis, results, name, agents, line)
        axis.set(title=title, xlabel="nats of evidence a turn", xscale="log", ylim=(-0.02, 1.02))
    axes[0].axhline(PAPERS, color="C3", linewidth=0.8, label=f"the paper's {PAPERS}")
    axes[0].legend(fontsize=6, frameon=False)
    for number, reader in enumerate(("oracle", "window", "cusum")):
        some = [c for c in results["cells"] if reader in c["others"] and c["agents"] == 4]
        for family, style in zip(FAMILY_NAMES, ("full", "none"), strict=True):
            of = [c for c in some if c["family"] == family]
            axes[3].plot(
                [c["nats"] for c in of],
                [c["others"][reader] for c in of],
                "os^"[number],
                color=f"C{number + 2}",
                fillstyle=style,
                markersize=3,
                label=f"{reader}, {family}",
            )
    _bound(axes[3], results, "token_accuracy", 4, "-")
    axes[3].set(title="TokenAcc of other readers, A = 4", xlabel="nats of evidence a turn", xscale="log")
    axes[3].axhline(PAPERS, color="C3", linewidth=0.8)
    axes[3].legend(fontsize=6, frameon=False)
    for axis in axes:
        axis.minorticks_off()
    return figure


def _bound(axis: Any, results: dict[str, Any], name: str, agents: int, line: str) -> None:
    of = [b for b in results["bound"] if b["agents"] == agents]
    nats = sorted({b["nats"] for b in of})
    mean = [float(np.mean([b[name] for b in of if b["nats"] == x])) for x in nats]
    axis.plot(nats, mean, line, color="0.4", linewidth=0.8, label=f"Bayes reader, A = {agents}")


def draw(results: pathlib.Path) -> list[pathlib.Path]:
    drawn = []
    shown = (("curve", against_evidence), ("decoders", accuracy), ("null", evidence))
    for name, figure_of in shown:
        source = results / f"{name}.json"
        if source.is_file():
            with mpl.rc_context(STYLE):
                figure = figure_of(json.loads(source.read_text(encoding="utf-8")))
                drawn += save(figure, source.with_suffix(""), "svg")
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="folder (default: %(default)s)")
    for path in draw(parser.parse_args().results):
        print(path)


if __name__ == "__main__":
    sys.exit(exit_code(main))
