"""κ and w swept on chain_4 (§ Perturbation Strength Sweep, § Sliding-Window Width Sweep), two runs each.

And keys that nobody used, on chain_4 and chain_6 (§ Robustness to Spurious Registered Keys).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import recording, statistics
from benchmarks.paper import plots, quoted, results
from benchmarks.paper.conversations.logs import Log
from benchmarks.paper.experiments.study import Study
from benchmarks.paper.reading.scoring import FIGURES
from benchmarks.statistics import Interval

KAPPAS = (0.5, 0.8, 1.0, 2.0)
WIDTHS = (16, 32, 64, 128, 256)
RUNS = 2
DECODERS = ("cusum", "posterior")
SHOWN = ("token_accuracy", "iou", "edge_similarity")


Found = dict[tuple[str, float], list[dict[str, Any]]]
"""Decoder and point -> the figures of every text, with its run and record."""


def kappa(study: Study) -> None:
    """Sweep κ: texts are generated anew for each value and run; a run is a seed, with its own records."""
    found: Found = {}
    logs: list[Log] = []
    points = itertools.product(enumerate(_runs(study)), KAPPAS)
    for (number, some), strength in results.each(points, lambda point: f"κ {point[1]:g}"):
        setting = some.setting("chain", 4, "fourier", strength)
        written = some.logs(setting)
        logs += written
        for decoder in DECODERS:
            texts = _texts(some, number, written, decoder, some.options_of(decoder, setting))
            found.setdefault((decoder, strength), []).extend(texts)
    _write(study, "kappa", "κ", KAPPAS, found, logs, operating_point=0.8)


def window(study: Study) -> None:
    """Sweep the width w of "cusum", which is the one that has it, on the same texts (κ = 0.8).

    The step stays 16. τ, smoothing, radius and the least length of a segment are those that suit w = 64 best.
    """
    found: Found = {}
    logs: list[Log] = []
    for number, some in results.each(
        enumerate(_runs(study)), lambda run: f"seed {run[1].options.seed}", "run"
    ):
        setting = some.setting("chain", 4, "fourier")
        written = some.logs(setting)
        logs += written
        for width in WIDTHS:
            texts = _texts(some, number, written, "cusum", {**some.cusum(setting), "window": width})
            found.setdefault(("cusum", width), []).extend(texts)
    _write(study, "window", "w (tokens)", WIDTHS, found, logs, operating_point=64)


def _runs(study: Study) -> Iterator[Study]:
    yield study
    for number in range(1, RUNS):
        options = dataclasses.replace(study.options, seed=study.options.seed + number)
        yield Study(study.loaded, study.all_records, study.out, options, len(study.others))


def _texts(
    study: Study, run: int, logs: Sequence[Log], decoder: str, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    return [{"run": run, "record": log.record, **study.figures(log, decoder, options)} for log in logs]


def _write(
    study: Study,
    name: str,
    label: str,
    points: Sequence[float],
    found: Found,
    logs: Sequence[Log],
    operating_point: float,
) -> None:
    seed = study.options.seed
    printed = quoted.WINDOW if name == "window" else {}
    header = ["decoder", label, *(FIGURES[figure] for figure in SHOWN)]
    header += [f"TokenAcc, run {number + 1}" for number in range(RUNS)] + ["TokenAcc, paper", "IoU, paper"]
    cells: list[list[recording.Cell]] = []
    series: dict[str, list[Interval | None]] = {}
    for (decoder, point), texts in sorted(found.items()):
        means = [statistics.interval([text[figure] for text in texts], seed) for figure in SHOWN]
        for figure, one in zip(SHOWN, means, strict=True):
            series.setdefault(f"{FIGURES[figure]}, {decoder}", []).append(one)
        runs = [
            statistics.interval([text["token_accuracy"] for text in texts if text["run"] == number], seed)
            for number in range(RUNS)
        ]
        theirs = [
            printed.get(figure, {}).get(int(point), "") if decoder == "cusum" else ""
            for figure in ("token_accuracy", "iou")
        ]
        cells.append([decoder, point, *means, *runs, *theirs])
    rows = ({"decoder": d, "point": p, **text} for (d, p), texts in found.items() for text in texts)
    study.write(name, header, cells, logs, rows)
    plots.sweep(
        study.out / name,
        points,
        series,
        xlabel=label,
        operating_point=operating_point,
        quoted={f"{FIGURES[f]}, cusum": [printed[f].get(int(p)) for p in points] for f in printed},
        log=True,
    )


def spurious(study: Study) -> None:
    """Read the same texts with more and more keys in the registry; changes are paired by records."""
    seed = study.options.seed
    header = ["mark", "decoder", "agents", "keys", "TokenAcc", "change", "TokenAcc, paper"]
    cells: list[list[recording.Cell]] = []
    rows, all_logs = [], list[Log]()
    settings = itertools.product(("fourier", "gumbel"), (4, 6))
    for mark, agents in results.each(settings, "{0[0]}, {0[1]} agents".format):
        setting = study.setting("chain", agents, mark)
        logs = study.logs(setting)
        all_logs += logs
        for decoder in ("cusum", "posterior"):
            options = study.options_of(decoder, setting)
            first: list[float | None] = []
            for keys in (keys for true, keys in quoted.SPURIOUS if true == agents):
                more = keys - agents
                found = [study.figures(log, decoder, options, spurious=more) for log in logs]
                accuracy = [one["token_accuracy"] for one in found]
                first = first or accuracy
                change = "" if keys == agents else statistics.difference(accuracy, first, seed) or ""
                paper = quoted.SPURIOUS[agents, keys] if (mark, decoder) == ("fourier", "cusum") else ""
                shown = statistics.interval(accuracy, seed)
                cells.append([mark, decoder, agents, keys, shown, change, paper])
                cell = {"mark": mark, "decoder": decoder, "agents": agents, "keys": keys}
                rows += [{**cell, "record": log.record, **one} for log, one in zip(logs, found, strict=True)]
    study.write("spurious", header, cells, all_logs, rows)
