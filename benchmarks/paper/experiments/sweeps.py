"""κ and w swept on chain_4 (§ Perturbation Strength Sweep, § Sliding-Window Width Sweep), and spurious keys.

Each sweep has two runs; a run is a seed, with its own records.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import recording, statistics
from benchmarks.paper import plots, quoted, results
from benchmarks.paper.conversations.logs import Log
from benchmarks.paper.experiments.study import MARKED, Study
from benchmarks.paper.reading.scoring import FIGURES, SHOWN
from benchmarks.statistics import Interval

KAPPAS = (0.5, 0.8, 1.0, 2.0)
WIDTHS = (16, 32, 64, 128, 256)
RUNS = 2
DECODERS = ("cusum", "posterior")

Texts = dict[tuple[str, float], list[dict[str, Any]]]
"""(decoder, value of the parameter) -> the figures of every text, with its run and record."""


def kappa(study: Study) -> None:
    """Sweep κ: texts are generated for each value and run."""
    texts: Texts = {}
    logs: list[Log] = []
    points = itertools.product(enumerate(_runs(study)), KAPPAS)
    for (number, run), strength in results.with_progress(points):
        setting = run.setting("chain", 4, "fourier", strength)
        written = run.logs(setting)
        logs += written
        for decoder in DECODERS:
            figures = _figures(run, number, written, decoder, run.decoder_options(decoder, setting))
            texts.setdefault((decoder, strength), []).extend(figures)
    _write(study, "kappa", "κ", KAPPAS, texts, logs, operating_point=0.8)


def window(study: Study) -> None:
    """Sweep the width w of "cusum" on the same texts (κ = 0.8); step 16, other options tuned at w = 64."""
    texts: Texts = {}
    logs: list[Log] = []
    for number, run in enumerate(_runs(study)):
        setting = run.setting("chain", 4, "fourier")
        written = run.logs(setting)
        logs += written
        for width in WIDTHS:
            options = {**run.decoder_options("cusum", setting), "window": width}
            texts.setdefault(("cusum", width), []).extend(_figures(run, number, written, "cusum", options))
    _write(study, "window", "w (tokens)", WIDTHS, texts, logs, operating_point=64)


def _runs(study: Study) -> list[Study]:
    runs = [study]
    for number in range(1, RUNS):
        options = dataclasses.replace(study.options, seed=study.options.seed + number)
        runs.append(Study(study.loaded, study.all_records, study.out, options, len(study.tuning_records)))
    return runs


def _figures(
    study: Study, run: int, logs: Sequence[Log], decoder: str, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    return [{"run": run, "record": log.record, **study.figures(log, decoder, options)} for log in logs]


def _write(
    study: Study,
    name: str,
    label: str,
    points: Sequence[float],
    texts: Texts,
    logs: Sequence[Log],
    operating_point: float,
) -> None:
    seed = study.options.seed
    printed = quoted.WINDOW if name == "window" else {}
    header = ["decoder", label, *(FIGURES[figure] for figure in SHOWN)]
    header += [f"TokenAcc, run {number + 1}" for number in range(RUNS)] + ["TokenAcc, paper", "IoU, paper"]
    cells: list[list[recording.Cell]] = []
    series: dict[str, list[Interval | None]] = {}
    for (decoder, point), figures_of_texts in sorted(texts.items()):
        means = [statistics.interval([text[figure] for text in figures_of_texts], seed) for figure in SHOWN]
        for figure, interval in zip(SHOWN, means, strict=True):
            series.setdefault(f"{FIGURES[figure]}, {decoder}", []).append(interval)
        runs = [
            statistics.interval(
                [text["token_accuracy"] for text in figures_of_texts if text["run"] == number], seed
            )
            for number in range(RUNS)
        ]
        paper = [
            printed.get(figure, {}).get(int(point), "") if decoder == "cusum" else ""
            for figure in ("token_accuracy", "iou")
        ]
        cells.append([decoder, point, *means, *runs, *paper])
    rows = (
        {"decoder": d, "point": p, **text}
        for (d, p), figures_of_texts in texts.items()
        for text in figures_of_texts
    )
    study.write(name, header, cells, logs, rows)
    quoted_series = {f"{FIGURES[f]}, cusum": [printed[f].get(int(p)) for p in points] for f in printed}
    plots.sweep(
        study.out / name, points, series, xlabel=label, operating_point=operating_point, quoted=quoted_series
    )


def spurious(study: Study) -> None:
    """Read the same texts with more and more keys in the registry; changes are paired by records."""
    seed = study.options.seed
    header = ["mark", "decoder", "agents", "keys", "TokenAcc", "change", "TokenAcc, paper"]
    cells: list[list[recording.Cell]] = []
    rows, all_logs = [], list[Log]()
    settings = itertools.product(MARKED, (4, 6))
    for mark, agents in results.with_progress(settings):
        setting = study.setting("chain", agents, mark)
        logs = study.logs(setting)
        all_logs += logs
        for decoder in DECODERS:
            options = study.decoder_options(decoder, setting)
            first: list[float | None] = []
            for keys in (keys for true, keys in quoted.SPURIOUS if true == agents):
                figures = [study.figures(log, decoder, options, spurious=keys - agents) for log in logs]
                accuracy = [figures_of_text["token_accuracy"] for figures_of_text in figures]
                first = first or accuracy
                change = "" if keys == agents else statistics.difference(accuracy, first, seed) or ""
                paper = quoted.SPURIOUS[agents, keys] if (mark, decoder) == ("fourier", "cusum") else ""
                mean = statistics.interval(accuracy, seed)
                cells.append([mark, decoder, agents, keys, mean, change, paper])
                cell = {"mark": mark, "decoder": decoder, "agents": agents, "keys": keys}
                rows += [
                    {**cell, "record": log.record, **figures_of_text}
                    for log, figures_of_text in zip(logs, figures, strict=True)
                ]
    study.write("spurious", header, cells, all_logs, rows)
