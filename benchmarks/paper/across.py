"""Put runs of Table 1 side by side: other entropies, lengths of turns, protocols.

    python -m benchmarks.paper.across --runs OUT/table1.json ... -o benchmarks/results/paper/turns_512.json

Each column is a run of `python -m benchmarks.paper table1`, named by its setting, where it has one alone, and
the mean entropy of its texts (by mark below the tables). A run of one setting keeps its intervals, 95 % over
records; of more the mean over settings is shown without one. Leads are paired by records: of who is told the
order over who is told it, and of who is told nothing over all others (Recursive, Semantic-BoW and TextTiling
are matched there, and so told more). The figure, beside the tables, has TokenAcc by entropy, of settings that
have two runs and more, for some of the methods; dotted are runs without the penalty where others have one.

`--runs` takes results of this command, too, with the runs that are in them. Of runs that differ in records
or marks alone the last one that is named counts.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.paper import plots
from benchmarks.paper.experiments.table1 import EQUAL_KL, METHODS, PLACED, TOLD
from benchmarks.recording import INTERVAL, columns, exit_code, finish, parser
from benchmarks.statistics import Interval
from iet.errors import InputError

SHIPPED = "iet:demo"
KEPT = ("temperature", "top_p", "protocol", "rounds", "turn_tokens", "records", "seed", "model")
LEADING = (*EQUAL_KL, PLACED[0])
EQUAL = ("kgw", "unigram")
"""The green lists at the divergence of `fourier`, whose δ follows from it."""
ORDERED = tuple(method.name for method in METHODS if method.name.endswith("in order"))
DRAWN: Mapping[str, Sequence[str]] = {
    "told nothing": (
        "IET fourier, posterior",
        "IET gumbel, posterior",
        "IET raw, posterior",
        "KGW, posterior",
        "KGW as published, posterior",
        "IET fourier, cusum as printed",
    ),
    "told the turns": (
        "IET fourier, told the order",
        "IET gumbel, told the order",
        "IET raw, told the order",
        "Recursive, in order",
        "Recursive",
        "HMM / Viterbi, of the log itself",
    ),
}
"""Panel of a setting → the methods in it."""
FIGURES = ("TokenAcc", "IoU", "EdgeSim", "coverage", "accuracy where attributed")


def run_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of one run of Table 1."""
    configuration = content["configuration"]
    settings = [name for name in content["free"][0] if name not in ("method", "figure")]
    methods: dict[str, dict[str, list[float]]] = {}
    for row in (*content["table"], *content["free"]):
        values = [row[setting] for setting in settings if isinstance(row[setting], list)]
        if len(values) == len(settings):
            found = values[0] if len(settings) == 1 else [float(np.mean([value[0] for value in values]))]
            methods.setdefault(row["method"], {})[row["figure"]] = found
    against = {
        ours: {
            theirs: figures["TokenAcc"]["mean difference"]
            for theirs, figures in compared.items()
            if "TokenAcc" in figures and (ours in TOLD or theirs not in ORDERED)
        }
        for ours, compared in content["against"].items()
        if ours in (*TOLD, *LEADING)
    }
    model = configuration["model"]
    return {
        **{name: configuration[name] for name in KEPT},
        "model": pathlib.PurePath(model).name if pathlib.PurePath(model).is_absolute() else model,
        "repetition_penalty": configuration.get("repetition_penalty", 1.0),
        "settings": settings,
        "tuning": len(configuration["records_for_options"]),
        "digest": content["digest"],
        "entropy": content["entropy"],
        "strength": {mark: content["strength"][mark] for mark in EQUAL if mark in content["strength"]},
        "tokens": content["logs"]["tokens"],
        "methods": methods,
        "against": against,
    }


def alike(run: Mapping[str, Any]) -> str:
    """Return what runs have in common of which one takes the other's place."""
    same = (
        "temperature",
        "top_p",
        "repetition_penalty",
        "protocol",
        "rounds",
        "turn_tokens",
        "seed",
        "model",
    )
    return json.dumps([run[name] for name in (*same, "settings")])


def name_of(run: Mapping[str, Any]) -> str:
    """Return the heading of a run."""
    low, high = run["turn_tokens"]
    setting = f"{run['settings'][0]}, " if len(run["settings"]) == 1 else ""
    penalty = f", penalty {run['repetition_penalty']:g}" if run["repetition_penalty"] != 1 else ""
    turns = f"{run['protocol']}, {low} to {high} tokens, {run['records']} records"
    return f"{setting}{nats(run):.2f} nats{penalty}, {turns}"


def markdown(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the methods by runs, and what is told against what is told the same."""
    names = [method.name for method in METHODS if any(method.name in run["methods"] for run in runs)]
    parts = [
        "# Table 1 in other regimes",
        "What the columns are: the docstring of `benchmarks.paper.across`.",
    ]
    for figure in FIGURES:
        rows, formats = [], [("", "{name}")]
        for name in names:
            row: dict[str, Any] = {"name": name}
            for number, run in enumerate(runs):
                row[f"run {number}"] = run["methods"].get(name, {}).get(figure)
            if any(row[f"run {number}"] for number in range(len(runs))):
                rows.append(row)
        one = all(len(run["settings"]) == 1 for run in runs)
        for number, run in enumerate(runs):
            cell = INTERVAL.format(f"run {number}") if one else f"{{run {number}[0]:.3f}}"
            formats.append((name_of(run), cell))
        parts += [f"**{figure}**", columns(rows, formats)]
    led: dict[tuple[str, str], dict[str, Any]] = {}
    for number, run in enumerate(runs):
        for ours, compared in run["against"].items():
            for theirs, lead in compared.items():
                led.setdefault((ours, theirs), {"ours": ours, "against": theirs})[f"run {number}"] = lead
    leads = [("ours", "{ours}"), ("less", "{against}")]
    leads += [(name_of(run), INTERVAL.format(f"run {number}")) for number, run in enumerate(runs)]
    entropies = "; ".join(
        (f"model {run['model']}, " * (run["model"] != SHIPPED))
        + f"T = {run['temperature']:g}, top-p {run['top_p']:g}, "
        + (f"repetition penalty {run['repetition_penalty']:g}, " * (run["repetition_penalty"] != 1))
        + f"{run['protocol']}: "
        + ", ".join(f"{mark} {nats:.2f}" for mark, nats in run["entropy"].items())
        + "".join(f"; δ = {delta:.2f}" for delta in sorted(set(run["strength"].values())))
        for run in runs
    )
    return "\n\n".join(
        [
            *parts,
            "**Leads in TokenAcc**, paired by records:",
            columns(led.values(), leads),
            f"Nats: {entropies}.",
        ]
    )


def panels(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[plots.Line]]:
    """Return what is drawn: for each setting of two runs or more its panels, with TokenAcc by entropy."""
    found: dict[str, list[plots.Line]] = {}
    for setting in sorted({tuple(run["settings"]) for run in runs}):
        some = sorted((run for run in runs if tuple(run["settings"]) == setting), key=nats)
        penalties = sorted({run["repetition_penalty"] for run in some}, reverse=True)
        for title, names in DRAWN.items() if len(some) > 1 else ():
            named = f"{setting[0]}, " if len(setting) == 1 else f"{len(setting)} settings, "
            found[named + title] = [
                (name, [nats(run) for run in those], [_token_accuracy(run, name) for run in those])
                for name in names
                for penalty in penalties
                if (those := [r for r in some if r["repetition_penalty"] == penalty and name in r["methods"]])
            ]
    return found


def nats(run: Mapping[str, Any]) -> float:
    """Return the mean entropy of a run over its marks."""
    return float(np.mean(list(run["entropy"].values())))


def _token_accuracy(run: Mapping[str, Any], name: str) -> Interval:
    mean, *ends = run["methods"][name]["TokenAcc"]
    low, high = ends or (mean, mean)
    return Interval(mean, low, high, run["records"])


def main() -> None:
    line = parser("benchmarks.paper.across", __doc__)
    line.add_argument(
        "--runs",
        nargs="+",
        type=pathlib.Path,
        required=True,
        help="table1.json of each run, or a result of this command",
    )
    given = line.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for path in given.runs:
        content = json.loads(path.read_text(encoding="utf-8"))
        if "runs" not in content and ("entropy" not in content or "against" not in content):
            raise InputError(
                f"{path}: got neither a table1.json with entropies by mark nor a result of this command,"
                " expected one of them"
            )
        for run in content["runs"] if "runs" in content else [run_of(content)]:
            found[alike(run)] = run
    runs = list(found.values())
    runs.sort(key=lambda run: (run["protocol"] != "round-major", nats(run)))
    given.runs = [pathlib.Path(path.parent.name, path.name) for path in given.runs]
    finish(line, given, {"runs": runs}, markdown(runs))
    if drawn := panels(runs):
        plots.curves(given.output.with_suffix(""), drawn, xlabel="nats per token")


if __name__ == "__main__":
    sys.exit(exit_code(main))
