"""Keys that nobody used: § Robustness to Spurious Registered Keys, on chain_4 and chain_6."""

from __future__ import annotations

from typing import Any

from benchmarks.paper import scoring
from benchmarks.paper.logs import Log
from benchmarks.paper.quoted import SPURIOUS
from benchmarks.paper.study import Study
from benchmarks.paper.sweeps import measured

MARKS = ("fourier", "gumbel")


def run(study: Study) -> dict[str, Any]:
    """Read the same texts with more and more keys in the registry; changes are paired by records."""
    seed = study.options.seed
    header = ["mark", "decoder", "agents", "keys", "TokenAcc", "change", "TokenAcc, paper"]
    rows: list[list[scoring.Cell]] = []
    figures, all_logs = [], list[Log]()
    for mark in MARKS:
        for agents in (4, 6):
            setting = study.setting("chain", agents, mark)
            logs = study.logs(setting)
            all_logs += logs
            for decoder in ("cusum", "posterior"):
                options = study.cusum(setting) if decoder == "cusum" else {}
                first: list[float | None] = []
                for true, keys in SPURIOUS:
                    if true != agents:
                        continue
                    found = [measured(study, log, decoder, options, keys - agents) for log in logs]
                    accuracy = [one["token_accuracy"] for one in found]
                    first = first or accuracy
                    change = None if keys == agents else scoring.difference(accuracy, first, seed)
                    paper = SPURIOUS[true, keys] if (mark, decoder) == ("fourier", "cusum") else ""
                    shown = scoring.interval(accuracy, seed)
                    rows.append([mark, decoder, agents, keys, shown, "" if change is None else change, paper])
                    figures.append(
                        {"mark": mark, "decoder": decoder, "agents": agents, "keys": keys, "texts": accuracy}
                    )
    content = study.content("spurious", all_logs, figures=figures)
    scoring.write(study.out / "spurious", header, rows, content, note=study.note(all_logs))
    return content
