"""κ and w swept on chain_4 (§ Perturbation Strength Sweep, § Sliding-Window Width Sweep), two runs each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.paper import plots, quoted, readers, scoring
from benchmarks.paper.logs import Log
from benchmarks.paper.scoring import FIGURES, Interval
from benchmarks.paper.study import Options, Study

KAPPAS = (0.5, 0.8, 1.0, 2.0)
WIDTHS = (16, 32, 64, 128, 256)
RUNS = 2
DECODERS = ("cusum", "posterior")
SHOWN = ("token_accuracy", "iou", "edge_similarity")


def kappa(study: Study) -> dict[str, Any]:
    """Sweep κ: texts are generated anew for each value and run; a run is a seed, with its own records."""
    values: dict[tuple[str, float], list[dict[str, float | None]]] = {}
    runs: dict[tuple[str, float], list[Interval | None]] = {}
    logs: list[Log] = []
    for number in range(RUNS):
        some = _run(study, number)
        for strength in KAPPAS:
            setting = some.setting("chain", 4, "fourier", strength)
            written = some.logs(setting)
            logs += written
            for decoder in DECODERS:
                options = some.cusum(setting) if decoder == "cusum" else {}
                _add(values, runs, (decoder, strength), some, written, decoder, options, study.options.seed)
    return _write(study, "kappa", "κ", KAPPAS, values, runs, logs, operating_point=0.8)


def window(study: Study) -> dict[str, Any]:
    """Sweep the width w of "cusum", which is the one that has it, on the same texts (κ = 0.8).

    The step stays 16. τ, smoothing, radius and the least length of a segment are those that suit w = 64 best.
    """
    values: dict[tuple[str, float], list[dict[str, float | None]]] = {}
    runs: dict[tuple[str, float], list[Interval | None]] = {}
    logs: list[Log] = []
    for number in range(RUNS):
        some = _run(study, number)
        setting = some.setting("chain", 4, "fourier")
        written = some.logs(setting)
        logs += written
        for width in WIDTHS:
            options = {**some.cusum(setting), "window": width}
            _add(values, runs, ("cusum", width), some, written, "cusum", options, study.options.seed)
    return _write(study, "window", "w (tokens)", WIDTHS, values, runs, logs, operating_point=64)


def _run(study: Study, number: int) -> Study:
    options: Options = dataclasses.replace(study.options, seed=study.options.seed + number)
    if number == 0:
        return study
    return Study(study.loaded, study.all_records, study.out, options, len(study.others))


def _add(
    values: dict[tuple[str, float], list[dict[str, float | None]]],
    runs: dict[tuple[str, float], list[Interval | None]],
    cell: tuple[str, float],
    study: Study,
    logs: Sequence[Log],
    decoder: str,
    options: Mapping[str, Any],
    seed: int,
) -> None:
    found = [measured(study, log, decoder, options) for log in logs]
    values.setdefault(cell, []).extend(found)
    runs.setdefault(cell, []).append(scoring.interval([f["token_accuracy"] for f in found], seed))


def measured(
    study: Study, log: Log, decoder: str, options: Mapping[str, Any], spurious: int = 0
) -> dict[str, float | None]:
    """Return the figures of one log in forced choice."""
    found = readers.read(log.text, study.keys(log, spurious), study.loaded.reader, decoder, options)
    return scoring.score(
        scoring.truth_of(log, study.loaded.reader),
        found.labels,
        agents=log.setting.agents,
        edges=log.edges,
        found_edges=found.edges,
    )


def _write(
    study: Study,
    name: str,
    label: str,
    points: Sequence[float],
    values: Mapping[tuple[str, float], Sequence[Mapping[str, float | None]]],
    runs: Mapping[tuple[str, float], Sequence[Interval | None]],
    logs: Sequence[Log],
    operating_point: float,
) -> dict[str, Any]:
    seed = study.options.seed
    decoders = list(dict.fromkeys(decoder for decoder, _ in values))
    printed = quoted.WINDOW if name == "window" else {}
    header = ["decoder", label, *(FIGURES[figure] for figure in SHOWN)]
    header += [f"TokenAcc, run {number + 1}" for number in range(RUNS)] + ["TokenAcc, paper", "IoU, paper"]
    rows: list[list[scoring.Cell]] = []
    series: dict[str, list[Interval | None]] = {}
    for decoder in decoders:
        for point in points:
            cell = values[decoder, point]
            found = [scoring.interval([f[figure] for f in cell], seed) for figure in SHOWN]
            for figure, one in zip(SHOWN, found, strict=True):
                series.setdefault(f"{FIGURES[figure]}, {decoder}", []).append(one)
            theirs = [
                printed.get(f, {}).get(int(point), "") if decoder == "cusum" else ""
                for f in ("token_accuracy", "iou")
            ]
            rows.append([decoder, point, *found, *runs[decoder, point], *theirs])
    content = study.content(
        name,
        logs,
        figures=[
            {"decoder": d, "point": p, "texts": [dict(f) for f in cell]} for (d, p), cell in values.items()
        ],
    )
    scoring.write(study.out / name, header, rows, content, note=study.note(logs))
    plots.sweep(
        study.out / name,
        points,
        series,
        xlabel=label,
        operating_point=operating_point,
        quoted={f"{FIGURES[f]}, cusum": [printed[f].get(int(p)) for p in points] for f in printed},
        log=True,
    )
    return content
