"""TokenAcc, IoU and coverage against the evidence of a turn: the curve that `iet calibrate --plan` reads.

    python -m benchmarks.accuracy.curve -o benchmarks/results/curve.json --table iet/audit/power_curves.json

Reads committed results and no texts. The grid is `decoders`, where every turn follows an opening of its own.
Conversations, whose agents read and repeat each other, are Table 1 with SmolLM2, and with turns of 32 to 512
tokens of the shipped model. Evidence of a turn is x = tokens · I(family, H), where I is the relative entropy
of marked from unmarked scores in simulated text of the cell's mean entropy H
(`iet.calibrate.marked_scores`, κ = 0.8); turns of different lengths count as one of Σ n² / Σ n tokens.

The curve of a family and number of agents is the grid's cells, made monotone in x. Errors are of cells that
it was not made of: each cell of the grid against the curve of the other models and temperatures, and
conversations against the curve of all of the grid. An interval reaches from the lowest to the highest error /
√(p·(1 - p)) of both together. "Checks" took part in neither: Table 1 with a larger model, which is in no
other cell.

The Bayes reader knows the law of scores and of lengths (turns drawn evenly from 80 to 240 tokens, twelve a
text, drawn scores); the oracle, in the grid's texts, knows where turns begin and end. `--table` writes what
the package holds.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, isotonic_regression

from benchmarks.localisation import bayes
from benchmarks.localisation.laws import draw
from benchmarks.recording import as_json, columns, exit_code, finish, parser
from iet import calibrate
from iet.audit import power_curves
from iet.audit.metrics import mean_iou, token_accuracy
from iet.marks.families import FAMILIES, Family

RESULTS = pathlib.Path(__file__).parent.parent / "results"
FAMILY_NAMES = ("fourier", "gumbel")
MEASURED = {"token_accuracy": "token_accuracy", "iou": "mean_iou", "coverage": "coverage"}
"""Figures of the curve -> their names in the grid's results, behind "posterior/"."""

SHIPPED = "iet:demo"
"""Name of the shipped model in results."""

LONG_TURNS = ("turns_512", "larger_512")
"""Runs of Table 1 with turns of up to 512 tokens: of the shipped model, of the larger one."""

POINTS = 17  # of information against entropy
PLACES = (0.3, 1, 3, 10, 30, 100, 300)  # nats, in the table
BOUND_NATS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
SHORTEST, LONGEST, TURNS, TEXTS = 80, 240, 12, 12  # of what the Bayes reader reads
PAPERS = 0.845  # TokenAcc of IET in the paper's Table 1, mean of its nine settings

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Cell:
    """Texts of one kind under one family.

    Attributes:
        run: their source: model and temperature, or a folder of Table 1.
        kind: "grid", "conversations" or "checks".
        nats: of evidence a turn.
        figures: of "posterior"; may lack some.
        others: TokenAcc of the other readers.
    """

    run: str
    kind: str
    family: str
    agents: int
    entropy: float
    tokens: float
    nats: float
    figures: dict[str, float]
    others: dict[str, float]


def information(family: str, entropy: float, draws: int = 1 << 16) -> float:
    """Return KL(marked || unmarked) of a score, in nats, by the tilt that has its mean."""
    rng = np.random.default_rng([FAMILIES[family].code, round(1e6 * entropy)])
    mean = float(calibrate.marked_scores(family, 0.8, entropy, rng, draws).mean())
    return _kl(FAMILIES[family], _tilt(FAMILIES[family], mean))


def _kl(law: Family, tilt: float) -> float:
    return float(tilt * law.mean(tilt) - law.log_mgf(tilt))


def _tilt(law: Family, mean: float) -> float:
    limit = min(200.0, law.strength_limit - 1e-9)
    return float(brentq(lambda tilt: float(law.mean(tilt)) - mean, 1e-9, limit))


def information_table(entropies: Sequence[float]) -> dict[str, list[float]]:
    """Return the information of both families at points between the lowest and the highest entropy."""
    points = np.geomspace(min(entropies), max(entropies), POINTS)
    information_of = {name: [information(name, float(h)) for h in points] for name in FAMILY_NAMES}
    # The points are drawn: at the next digits they need not grow.
    return {
        "entropy": points.tolist(),
        **{n: np.maximum.accumulate(v).tolist() for n, v in information_of.items()},
    }


def grid(results: pathlib.Path, table: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of `decoders`."""
    cells = []
    for row in _content(results / "decoders.json")["cells"]:
        cell_of, figures_of = row["cell"], row["figures"]
        family, tokens = cell_of["family"], float(cell_of["turn_tokens"])
        if family not in FAMILY_NAMES:
            continue
        figures = {name: figures_of[f"posterior/{theirs}"][0] for name, theirs in MEASURED.items()}
        baselines = {name: figures_of[f"{name}/token_accuracy"][0] for name in ("oracle", "window", "cusum")}
        run = f"{cell_of['model']} model, T = {cell_of['temperature']:g}"
        nats = tokens * power_curves.information(table, family, row["entropy_nats"])
        at = (run, "grid", family, cell_of["agents"], row["entropy_nats"], tokens, nats)
        cells.append(Cell(*at, figures, baselines))
    return cells


def conversations(results: pathlib.Path, table: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of Table 1 whose entropy the table covers, a setting and family each."""
    cells: list[Cell] = []
    for path in sorted(results.glob("paper/smollm2/*/table1.json")):
        run = _content(path)
        if set(run["texts"]) - set(FAMILY_NAMES):
            continue  # these texts of ours are in another run, too
        for setting in next(iter(run["texts"].values())):
            measured: dict[str, dict[str, list[float]]] = {}
            for row in (*run["table"], *run["free"]):
                measured.setdefault(row["method"], {})[row["figure"]] = row[setting]
            for family in (name for name in FAMILY_NAMES if name in run["texts"]):
                texts = run["texts"][family][setting]
                at = (f"{path.parent.name}, {setting}", "conversations", family, int(setting.split()[-1]))
                cells += _cell(at, texts["entropy"], texts["turn_of_token"], measured, table)
    for run in [run for name in LONG_TURNS for run in _content(results / "paper" / f"{name}.json")["runs"]]:
        setting, is_shipped = run["settings"][0], run["model"] == SHIPPED
        model, kind = ("shipped", "conversations") if is_shipped else (run["model"], "checks")
        name = f"{model} model, T = {run['temperature']:g}, {run['protocol']}, {setting}"
        lengths = np.arange(run["turn_tokens"][0], run["turn_tokens"][1] + 1)
        tokens = float((lengths**2).sum() / lengths.sum())
        for family in FAMILY_NAMES:
            at = (name, kind, family, int(setting.split()[-1]))
            cells += _cell(at, run["entropy"][family], tokens, run["methods"], table)
    return cells


def _cell(
    at: tuple[str, str, str, int],
    entropy: float,
    tokens: float,
    methods: Mapping[str, Mapping[str, Sequence[float]]],
    table: Mapping[str, Any],
) -> Iterator[Cell]:
    family, points = at[2], table["information"]["entropy"]
    figures_of = methods.get(f"IET {family}, posterior")
    if figures_of is not None and points[0] <= entropy <= points[-1]:
        figures = {ours: figures_of[theirs][0] for ours, theirs in power_curves.FIGURES.items()}
        nats = tokens * power_curves.information(table, family, entropy)
        yield Cell(*at, entropy, tokens, nats, figures, {})


def curves(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Return the curve of each family and number of agents: figures at the cells' nats, made monotone."""
    fitted = []
    for family in FAMILY_NAMES:
        for agents in sorted({cell.agents for cell in cells}):
            selected = [cell for cell in cells if (cell.family, cell.agents) == (family, agents)]
            selected.sort(key=lambda cell: cell.nats)
            x = np.array([cell.nats for cell in selected])
            values = {
                name: isotonic_regression([cell.figures[name] for cell in selected]).x.tolist()
                for name in MEASURED
            }
            fitted.append({"family": family, "agents": agents, "nats": x.tolist(), **values})
    return fitted


def residuals(cells: Sequence[Cell], later: Sequence[Cell], table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what each cell has and what the other cells predict, inside their range."""
    rows = []
    for run in dict.fromkeys(cell.run for cell in cells):
        remaining = {"curves": curves([cell for cell in cells if cell.run != run])}
        rows += [row for cell in cells if cell.run == run for row in _against(cell, remaining)]
    return rows + [row for cell in later for row in _against(cell, table)]


def _against(cell: Cell, table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, value in cell.figures.items():
        predicted = power_curves.at(table, cell.family, cell.agents, cell.nats, name)
        if predicted is not None:
            at = {"run": cell.run, "kind": cell.kind, "family": cell.family, "agents": cell.agents}
            yield {**at, "nats": cell.nats, "figure": name, "measured": value, "expected": predicted}


def errors(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Return the lowest and the highest error over spread, by family and figure."""
    ranges: dict[str, dict[str, list[float]]] = {}
    for family in FAMILY_NAMES:
        for name in MEASURED:
            selected = [
                r for r in rows if (r["family"], r["figure"]) == (family, name) and r["kind"] != "checks"
            ]
            relative = [
                (r["measured"] - r["expected"]) / power_curves.spread(r["expected"]) for r in selected
            ]
            ranges.setdefault(family, {})[name] = [min(0.0, *relative), max(0.0, *relative)]
    return ranges


def summarised(
    rows: Sequence[Mapping[str, Any]], ranges: Mapping[str, Mapping[str, Sequence[float]]]
) -> list[dict[str, Any]]:
    """Return how far expectations were off, by kind, family and figure."""
    summary_rows = []
    for kind in ("grid", "conversations", "checks"):
        for family in FAMILY_NAMES:
            for name in MEASURED:
                key = (kind, family, name)
                selected = [r for r in rows if (r["kind"], r["family"], r["figure"]) == key]
                if not selected:
                    continue
                off = np.array([r["measured"] - r["expected"] for r in selected])
                room = np.array([power_curves.spread(r["expected"]) for r in selected])
                low, high = ranges[family][name]
                inside = (off >= low * room - 1e-12) & (off <= high * room + 1e-12)
                summary_rows.append(
                    {
                        **{"kind": kind, "family": family, "figure": name, "cells": len(selected)},
                        **{"mean": float(off.mean()), "size": float(np.abs(off).mean())},
                        **{"lowest": float(off.min()), "highest": float(off.max())},
                        "inside": float(inside.mean()),
                    }
                )
    return summary_rows


def bound(nats: Sequence[float] = BOUND_NATS, texts: int = TEXTS) -> list[dict[str, Any]]:
    """Return what a Bayes reader reaches in drawn scores: means over texts, by family, agents and nats."""
    sizes = np.arange(SHORTEST, LONGEST + 1)
    effective = float((sizes**2).sum() / sizes.sum())
    length, rows = bayes.uniform(SHORTEST, LONGEST), []
    for code, family in enumerate(FAMILY_NAMES):
        law = FAMILIES[family]
        for agents in (4, 6):
            shares = np.append(np.full(agents, 1 / agents), 1e-12)
            for x in nats:
                limit = min(200.0, law.strength_limit - 1e-9)
                tilt = float(brentq(lambda t, x=x, law=law: _kl(law, t) - x / effective, 1e-9, limit))
                figures = []
                for text in range(texts):
                    rng = np.random.default_rng([code, agents, round(1000 * x), text])
                    truth = _turns(rng, agents)
                    scores = draw(law, 0.0, rng, (len(truth), agents))
                    scores[np.arange(len(truth)), truth] = draw(law, tilt, rng, len(truth))
                    ratios = tilt * scores - float(law.log_mgf(tilt))
                    labels = bayes.read(ratios, bayes.Lengths(length, length, shares, shares))[0]
                    figures.append((token_accuracy(truth, labels), mean_iou(truth, labels)))
                accuracy, iou = np.mean(figures, axis=0)
                row = {"family": family, "agents": agents, "nats": x}
                rows.append({**row, "token_accuracy": float(accuracy), "iou": float(iou)})
    return rows


def _turns(rng: np.random.Generator, agents: int) -> NDArray[np.int64]:
    speaker, parts = int(rng.integers(agents)), []
    for _ in range(TURNS):
        parts.append(np.full(int(rng.integers(SHORTEST, LONGEST + 1)), speaker))
        speaker = (speaker + int(rng.integers(1, agents))) % agents
    return np.concatenate(parts)


def crossing(table: Mapping[str, Any], family: str, agents: int, accuracy: float) -> float | None:
    """Return the least nats a turn for a TokenAcc on the curve; None if it is not reached."""
    (curve,) = (c for c in table["curves"] if (c["family"], c["agents"]) == (family, agents))
    x, y = np.log(curve["nats"]), np.array(curve["token_accuracy"])
    above = np.flatnonzero(y >= accuracy)
    if not len(above) or above[0] == 0:
        return None
    i = int(above[0])
    share = (accuracy - y[i - 1]) / (y[i] - y[i - 1])
    return float(np.exp(x[i - 1] + share * (x[i] - x[i - 1])))


def compute(results: pathlib.Path) -> tuple[dict[str, Any], list[Cell], list[dict[str, Any]]]:
    """Return what the package holds, all cells, and how far off expectations were."""
    rows = [r for r in _content(results / "decoders.json")["cells"] if r["cell"]["family"] in FAMILY_NAMES]
    table: dict[str, Any] = {"information": information_table([row["entropy_nats"] for row in rows])}
    cells, later = grid(results, table), conversations(results, table)
    table["turn_tokens"] = [min(cell.tokens for cell in cells), max(cell.tokens for cell in cells)]
    table["curves"] = curves(cells)
    off = residuals(cells, later, table)
    table["errors"] = errors(off)
    return table, [*cells, *later], off


def places(table: Mapping[str, Any], bounds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the curve at some nats, four agents, and the Bayes reader (mean of both families)."""
    rows = []
    for x in PLACES:
        row: dict[str, Any] = {"nats": x}
        for family in FAMILY_NAMES:
            values = [power_curves.at(table, family, 4, x, name) for name in MEASURED]
            row[family] = " · ".join("-" if value is None else f"{value:.2f}" for value in values)
        at = [b for b in bounds if b["agents"] == 4 and b["nats"] == x]
        if at:
            row["bayes"] = " · ".join(
                f"{np.mean([b[name] for b in at]):.2f}" for name in ("token_accuracy", "iou")
            )
        rows.append(row)
    return rows


def markdown(content: Mapping[str, Any]) -> str:
    """Return the curve, the errors, and every cell."""
    head = {"nats of evidence a turn": "{nats}", **{name: f"{{{name}}}" for name in FAMILY_NAMES}}
    off = {
        **{"held out": "{kind}", "family": "{family}", "figure": "{figure}", "cells": "{cells}"},
        **{"mean error": "{mean:+.3f}", "mean size": "{size:.3f}", "lowest": "{lowest:+.3f}"},
        **{"highest": "{highest:+.3f}", "inside the interval": "{inside:.0%}"},
    }
    cell_columns = {
        **{"text": "{run}", "family": "{family}", "agents": "{agents}", "nats per token": "{entropy:.2f}"},
        **{"tokens": "{tokens:.0f}", "nats a turn": "{nats:.3g}"},
        **{name: f"{{figures[{key}]:.3f}}" for key, name in power_curves.FIGURES.items()},
        **{name: f"{{others[{name}]:.3f}}" for name in ("oracle", "window", "cusum")},
    }
    return "\n\n".join(
        [
            "# TokenAcc, IoU and coverage against the evidence of a turn",
            "TokenAcc · IoU · coverage of `posterior` with four agents; TokenAcc · IoU of a Bayes reader who"
            " knows the law of scores and lengths. What the words mean: the docstring of"
            " `benchmarks.accuracy.curve`.",
            columns(content["places"], {**head, "Bayes reader": "{bayes}"}),
            content["papers"],
            "Measured less expected, in cells that the curve was not made of:",
            columns(content["errors"], off),
            _held(content["errors"]),
            "Every cell (readers without a name above their column: `posterior`):",
            columns(
                sorted(content["cells"], key=lambda c: (c["kind"], c["family"], c["nats"])), cell_columns
            ),
        ]
    )


def _held(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say how many of the checks lie in their intervals."""
    checks = [(row["cells"], round(row["inside"] * row["cells"])) for row in rows if row["kind"] == "checks"]
    return f"Checks in their intervals: {sum(n for _, n in checks)} of {sum(n for n, _ in checks)}."


def papers(table: Mapping[str, Any]) -> str:
    """Say how much evidence a turn has where TokenAcc is the paper's."""
    parts = []
    for family in FAMILY_NAMES:
        for agents in (4, 6):
            x = crossing(table, family, agents, PAPERS)
            parts.append(f"{family}, {agents} agents: {'not reached' if x is None else f'{x:.3g} nats'}")
    return (
        f"The paper's TokenAcc of {PAPERS} (mean of IET's nine settings) is reached from so much evidence a"
        f" turn on: {'; '.join(parts)}."
    )


def _content(path: pathlib.Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def main() -> None:
    line = parser("benchmarks.accuracy.curve", __doc__)
    line.add_argument("--table", type=pathlib.Path, help="write what `iet calibrate --plan` reads")
    options = line.parse_args()
    table, cells, off = compute(RESULTS)
    bounds = bound()
    content = {
        **{
            "places": places(table, bounds),
            "papers": papers(table),
            "errors": summarised(off, table["errors"]),
        },
        **{"bound": bounds, "cells": [dataclasses.asdict(cell) for cell in cells], "curves": table["curves"]},
    }
    finish(line, options, content, markdown(content))
    if options.table:
        command = "python -m benchmarks.accuracy.curve -o benchmarks/results/curve.json --table"
        content = {"command": f"{command} iet/audit/power_curves.json", **table}
        options.table.write_text(as_json(content), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(exit_code(main))
