"""How many tokens an agent must have written to be found: by simulation, and in texts of the models.

    python -m benchmarks.accuracy.power -o benchmarks/results/power.json [--work DIR]

The simulation is `iet calibrate --power`. Beside it, where `benchmarks.accuracy.texts` made texts in DIR:
what each agent of a text said, turn after turn, cut to N tokens; the table names the smallest N of a grid in
which nine of ten agents are found by the same p-value. Without `--work`, rows of texts that the output has
already stay as they are.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import texts
from benchmarks.recording import columns, exit_code, finish, parser
from iet import calibrate
from iet.audit.evidence import activity_log_p
from iet.decoding import log_activity
from iet.decoding.activity import evidence_blocks
from iet.kernels import pair_numbers, score_tokens
from iet.marks.registry import Registry
from iet.native.pairs import repeats

LEVEL, SHARE = 0.01, 0.9
GRID = tuple(round(calibrate.SHORTEST * 1.12**step) for step in range(32))
"""Tokens of one agent, 1,074 at most: an agent of four says 1,200 in a text."""


def real(work: pathlib.Path, cell: texts.Cell, keys: Sequence[int]) -> dict[str, Any] | None:
    """Return the tokens needed in one cell, or None without texts."""
    all_turns = texts.load(work, cell)
    if not all_turns:
        return None
    rows = [
        agent_log_p(np.concatenate([turns.ids[t] for t in turns_of_agent]), turns.registry(), slot)
        for turns in all_turns
        for slot in range(cell.agents)
        if (turns_of_agent := [t for t, speaker in enumerate(turns.speakers) if speaker == slot])
    ]
    log_p = np.array(rows)
    return {
        "cell": cell.name,
        "model": cell.model,
        "temperature": cell.temperature,
        "family": cell.family,
        "kappa": texts.scheme(cell.family).kappa,
        "entropy": float(np.mean([turns.entropy for turns in all_turns])),
        "level": LEVEL,
        "share": SHARE,
        "agents": len(rows),
        "most": GRID[-1],
        "tokens": {count: tokens_needed(log_p, count) for count in keys},
    }


def agent_log_p(
    ids: NDArray[np.int64], registry: Registry, slot: int, grid: Sequence[int] = GRID
) -> list[float]:
    """Return the log p-value of one key in the first N tokens, for each N of the grid."""
    pairs = pair_numbers(ids, registry)
    first = (pairs >= 0) & ~repeats(pairs)
    return log_p_of(score_tokens(ids, registry)[:, slot : slot + 1], first, registry, grid)


def log_p_of(
    scores: NDArray[np.float32], first: NDArray[np.bool_], registry: Registry, grid: Sequence[int] = GRID
) -> list[float]:
    """Return the log p-value of one key, of scores [T, 1]; only first occurrences of a pair [T] count."""
    family, log_p = registry.profile.family, []
    for count in grid:
        counted = first[:count]
        activity = log_activity(*evidence_blocks(scores[:count], counted), family)
        log_p.append(float(activity_log_p(activity, int(counted.sum()), family)[0]))
    return log_p


def tokens_needed(log_p: NDArray[np.float64], keys: int) -> int | None:
    """Return the first N of the grid at which the required share is found among this number of keys."""
    shares = (log_p <= calibrate.log_p_of_one(LEVEL, keys)).mean(axis=0)
    reached = [count for count, share in zip(GRID, shares, strict=True) if share >= SHARE]
    return reached[0] if reached else None


def markdown(content: dict[str, Any]) -> str:
    rows = []
    for row in content["simulated"]:
        # Numbers of agents are text in JSON.
        series = {name: {int(keys): n for keys, n in row[name].items()} for name in ("tokens", "in_short")}
        rows.append(calibrate.Power(**{**row, **series}))
    parts = [calibrate.power_table(rows)]
    if content["real"]:
        needed_rows = []
        for r in content["real"]:
            kappa = "" if r["family"] == "gumbel" else f", {r['kappa']:g}"
            needed = {int(k): calibrate.tokens_needed(n, r["most"]) for k, n in r["tokens"].items()}
            needed_rows.append({**r, "strength": kappa, "needed": needed})
        keys = [int(k) for k in content["real"][0]["tokens"]]
        formats = {
            "text": "{model} model, T = {temperature}, {family}{strength}",
            "nats per token": "{entropy:.2f}",
            **{f"{k:,} agent{'s' * (k > 1)}": f"{{needed[{k}]}}" for k in keys},
        }
        caption = "The same in texts of the benchmark's models: what an agent said there, turn after turn."
        parts += [caption, columns(needed_rows, formats)]
    return "\n\n".join(parts)


def main() -> None:
    line = parser("benchmarks.accuracy.power", __doc__)
    line.add_argument("--work", type=pathlib.Path, help="folder of the texts (default: simulation alone)")
    options = line.parse_args()
    rows = calibrate.power(level=LEVEL, share=SHARE, progress=print)
    # Agents of four have 1,200 tokens in a text: those of six say less, and the same.
    cells = [cell for cell in texts.CELLS if cell.agents == min(texts.AGENTS)]
    measured = [] if options.work is None else [real(options.work, c, calibrate.KEYS) for c in cells]
    simulated = [dataclasses.asdict(row) for row in rows]
    previous = (
        [] if options.work or not options.output.is_file() else json.loads(options.output.read_text())["real"]
    )
    content = {"simulated": simulated, "real": previous or [row for row in measured if row is not None]}
    finish(line, options, content, markdown(content))


if __name__ == "__main__":
    sys.exit(exit_code(main))
