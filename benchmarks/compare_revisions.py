"""Run benchmarks in two checkouts by turns, and compare the ratios that they report.

    python -m benchmarks.compare_revisions PATH -o benchmarks/results/compare_revisions.md

PATH is a checkout of the earlier revision with its compiled modules. The benchmarks in `benchmarks/speed`
report times as ratios to a floor or a peer of the same run, so runs can be compared even if the machine's
clock changes. One turn runs before, now, now, before, so a drift of the machine affects both revisions
equally. The table also shows the spread between runs of one revision.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.recording import table

ROOT = pathlib.Path(__file__).parents[1]
ALLOWED = 1.03
_NAMES = ("suite", "text", "what", "decoder")
BENCHMARKS = {
    "bench_audit": ["--rounds", "15"],
    "bench_bulk": ["--documents", "4000", "--rounds", "2"],
    "bench_embed": [],
    "bench_score": [],
}


def ratios(summary: object, label: str = "") -> Iterator[tuple[str, float]]:
    """Yield (label, ratio) for our own times in a summary: the values whose name starts with "over".

    Ratios of floors and peers are left out.
    """
    if isinstance(summary, list):
        for row in summary:
            if not isinstance(row, dict) or row.get("kind", "ours") != "ours":
                continue
            labels = [str(row[key]) for key in _NAMES if row.get(key)]
            yield from ratios(row, " · ".join(filter(None, [label, *labels])))
    elif isinstance(summary, dict):
        for key, value in summary.items():
            if key in ("over_scores", "over_audit"):  # an engine's detector over ours
                continue
            if key.startswith("over"):
                yield from _leaves(value, f"{label} · {key.replace('_', ' ')}")
            else:
                yield from ratios(value, label)


def _leaves(value: object, label: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        if "median" in value:
            yield from _leaves(value["median"], label)
        else:
            for key, inner in value.items():
                yield from _leaves(inner, f"{label} {key}")
    elif isinstance(value, int | float) and value > 0:
        yield label, float(value)


def run(checkout: pathlib.Path, name: str, options: Sequence[str]) -> dict[str, float]:
    """Run a benchmark in a checkout, in its own process, and return its ratios."""
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "summary.json"
        command = [sys.executable, "-m", f"benchmarks.speed.{name}", "-o", str(output), *options]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name} in {checkout} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return dict(ratios(json.loads(output.read_text(encoding="utf-8"))))


def compare(
    earlier: Sequence[Mapping[str, float]], current: Sequence[Mapping[str, float]]
) -> list[dict[str, Any]]:
    """Return, for each ratio that all runs report, its medians, their quotient and their spread.

    `spread` is the largest quotient of two runs of one revision; a quotient below it is no evidence.
    """
    rows = []
    for label in earlier[0]:
        if not all(label in ratios for ratios in (*earlier, *current)):
            continue
        values = [[ratios[label] for ratios in state] for state in (earlier, current)]
        old, new = map(statistics.median, values)
        spread = max(max(state) / min(state) for state in values)
        rows.append({"what": label, "before": old, "now": new, "quotient": new / old, "spread": spread})
    return [row for row in rows if row["before"] != 1 or row["now"] != 1]


def report(results: Mapping[str, Sequence[Mapping[str, Any]]], turns: int) -> str:
    """Return Markdown tables: a row a benchmark, then every ratio that is worse by more than 3 %."""
    lines, worse = [], []
    for name, rows in results.items():
        quotients = [row["quotient"] for row in rows]
        mean = math.exp(statistics.fmean(map(math.log, quotients)))
        over = [row for row in rows if row["quotient"] > ALLOWED]
        spread = statistics.median(row["spread"] for row in rows)
        lines.append([f"`{name}`", len(rows), f"{mean:.3f}", f"{min(quotients):.3f}", f"{max(quotients):.3f}",
                      f"{spread:.3f}", len(over)])  # fmt: skip
        worse += [[f"`{name}`", *_cells(row)] for row in over]
    first = ["benchmark", "ratios", "now / before", "least", "most", "spread of one revision", "above 1.03"]
    parts = [
        f"`python -m benchmarks.compare_revisions PATH`, {2 * turns} runs of each revision by turns. A ratio "
        'is a time over its floor or peer in the same run. "Now / before" is the geometric mean of quotients '
        'of medians; "spread of one revision" is the median over ratios of the largest quotient of two runs '
        "of one revision.",
        table(first, lines),
    ]
    columns = ["benchmark", "ratio", "before", "now", "now / before", "spread of one revision"]
    if worse:
        parts += ["Worse by more than 3 %:", table(columns, worse)]
    for name in ("bench_audit", "bench_bulk"):
        if name in results:
            parts += [f"Every ratio of `{name}`:", table(columns[1:], [_cells(row) for row in results[name]])]
    return "\n\n".join(parts)


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        row["what"].replace("|", "/"),
        *(f"{row[key]:.3f}" for key in ("before", "now", "quotient", "spread")),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks by turns and write the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare_revisions", description=__doc__)
    parser.add_argument(
        "before", type=pathlib.Path, metavar="PATH", help="a checkout of the earlier revision"
    )
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, metavar="FILE")
    parser.add_argument("--data", type=pathlib.Path, help="folder of agent logs and a corpus")
    parser.add_argument("--turns", type=int, default=2, help="of four runs each (default: 2)")
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="a benchmark; may be repeated")
    chosen = parser.parse_args(arguments)
    if chosen.turns < 1:
        parser.error(f"--turns is {chosen.turns}, at least 1 is needed")
    if not (chosen.before / "benchmarks").is_dir():
        parser.error(f"{chosen.before} is no checkout: it has no folder benchmarks")
    results = {}
    for name in chosen.only or BENCHMARKS:
        options = list(BENCHMARKS[name])
        if chosen.data and name in ("bench_audit", "bench_bulk"):
            options += ["--data", str(chosen.data.resolve())]
        earlier, current = list[dict[str, float]](), list[dict[str, float]]()
        for turn in range(chosen.turns):
            for checkout, state in (
                (chosen.before, earlier),
                (ROOT, current),
                (ROOT, current),
                (chosen.before, earlier),
            ):
                state.append(run(checkout.resolve(), name, options))
                print(f"{name}: turn {turn + 1}, {len(earlier)} + {len(current)} runs", file=sys.stderr)
        results[name] = compare(earlier, current)
    chosen.output.write_text(report(results, chosen.turns) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
