"""Keys that nobody used: § Robustness to Spurious Registered Keys, on chain_4 and chain_6."""

from __future__ import annotations

from benchmarks import recording, statistics
from benchmarks.paper.conversations.logs import Log
from benchmarks.paper.experiments.study import Study
from benchmarks.paper.quoted import SPURIOUS

MARKS = ("fourier", "gumbel")


def run(study: Study) -> None:
    """Read the same texts with more and more keys in the registry; changes are paired by records."""
    seed = study.options.seed
    header = ["mark", "decoder", "agents", "keys", "TokenAcc", "change", "TokenAcc, paper"]
    cells: list[list[recording.Cell]] = []
    rows, all_logs = [], list[Log]()
    for mark in MARKS:
        for agents in (4, 6):
            setting = study.setting("chain", agents, mark)
            logs = study.logs(setting)
            all_logs += logs
            for decoder in ("cusum", "posterior"):
                options = study.options_of(decoder, setting)
                first: list[float | None] = []
                for keys in (keys for true, keys in SPURIOUS if true == agents):
                    more = keys - agents
                    found = [study.figures(log, decoder, options, spurious=more) for log in logs]
                    accuracy = [one["token_accuracy"] for one in found]
                    first = first or accuracy
                    change = "" if keys == agents else statistics.difference(accuracy, first, seed) or ""
                    paper = SPURIOUS[agents, keys] if (mark, decoder) == ("fourier", "cusum") else ""
                    shown = statistics.interval(accuracy, seed)
                    cells.append([mark, decoder, agents, keys, shown, change, paper])
                    cell = {"mark": mark, "decoder": decoder, "agents": agents, "keys": keys}
                    rows += [
                        {**cell, "record": log.record, **one} for log, one in zip(logs, found, strict=True)
                    ]
    study.write("spurious", header, cells, all_logs, rows)
