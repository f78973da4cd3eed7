"""Table 1 with the same knowledge for all: every method gets the speakers of the turns, in order.

In Table 1 Recursive, Semantic-BoW and TextTiling get the number of turns, and the truth names their segments;
marks are read without that. Here the s-th segment has the speaker of the s-th turn, and marks are read by
`alignment`. "Equal parts" cuts the text into parts of the same length. Below them is the paper's decoder as
printed, which gets nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks import recording, statistics
from benchmarks.paper import results
from benchmarks.paper.baselines import segmenters
from benchmarks.paper.baselines.reading import ordered_segments, read_tokens
from benchmarks.paper.conversations.logs import Log
from benchmarks.paper.experiments.study import MARKED, Study
from benchmarks.paper.experiments.table1 import METHODS, Cells, rows_of
from benchmarks.paper.quoted import SETTINGS
from benchmarks.paper.reading import printed, scoring
from benchmarks.paper.reading.alignment import aligned
from benchmarks.paper.reading.scoring import FIGURES

SHOWN = ("token_accuracy", "iou")
"""Figures of the table. A known order of speakers is the graph, so there is no EdgeSim."""


def equal_parts(text: str, segments: int) -> list[int]:
    """Return the bounds of parts of the same length, in characters."""
    return [len(text) * part // segments for part in range(segments + 1)]


SEGMENTERS: dict[str, Callable[[str, int], list[int]]] = {
    "Equal parts": equal_parts,
    "Recursive": segmenters.recursive,
    "Semantic-BoW": segmenters.semantic_bow,
    "TextTiling": segmenters.text_tiling,
}
"""Methods that read plain text; they get the texts that are marked as "fourier"."""


IN_ORDER = ", in order"

MARKS = {method.mark: method.name.partition(",")[0] for method in METHODS if method.decoder}
"""Mark -> its name in Table 1."""


def order(
    study: Study, settings: Sequence[tuple[str, int]] = SETTINGS, marks: Sequence[str] = MARKED
) -> None:
    """Read the texts of Table 1 with the speakers of the turns, in order."""
    texts: Cells = {}
    all_logs: list[Log] = []
    for topology, agents in results.with_progress(settings):
        cell = texts.setdefault(f"{topology} {agents}", {})
        for mark in dict.fromkeys(["fourier", *marks]):
            logs = study.logs(study.setting(topology, agents, mark))
            all_logs += logs
            for log in logs:
                truth = scoring.truth_of(log, study.loaded.reader)
                for method, labels in _readings(study, log).items():
                    figures = scoring.score(truth, labels, agents=agents, edges=log.edges)
                    cell.setdefault(method, []).append({"record": log.record, **figures})
    _write(study, texts, all_logs)


def _readings(study: Study, log: Log) -> dict[str, NDArray[np.int64]]:
    """Return the agents of the tokens [T] of a log, by each method that reads its mark."""
    reader, mark = study.loaded.reader, log.setting.mark
    tokens = read_tokens(log, reader)
    # A turn without the end of a token cannot be found.
    turns = np.unique(tokens.turns).tolist()
    readings: dict[str, NDArray[np.int64]] = {}
    if mark == "fourier":
        for name, cut in SEGMENTERS.items():
            segments = tokens.labels(cut(log.text, len(turns)))
            readings[name + IN_ORDER] = ordered_segments(segments, tokens.turns, tokens.agents)
    ids, keys = reader.encode(log.text).token_ids, study.keys(log)
    readings[MARKS[mark] + IN_ORDER] = aligned(keys, ids, [log.turns[turn].agent for turn in turns])
    readings[f"{MARKS[mark]}, cusum as printed"] = printed.labels(keys.scores(ids))
    return readings


def _write(study: Study, texts: Cells, logs: Sequence[Log]) -> None:
    seed, settings = study.options.seed, list(texts)
    methods = sorted(
        texts[settings[0]], key=lambda name: (not name.endswith(IN_ORDER), name.startswith("IET"))
    )

    def values(method: str, setting: str, name: str = "token_accuracy") -> NDArray[np.float64]:
        return np.array([text[name] for text in texts[setting][method]], np.float64)

    cells: list[list[recording.Cell]] = [
        [
            method,
            FIGURES[name],
            *(statistics.interval(values(method, s, name).tolist(), seed) for s in settings),
        ]
        for method in methods
        for name in SHOWN
    ]
    versus = ["ours", "against", "TokenAcc, mean difference"]
    compared: list[list[recording.Cell]] = []
    equals = [method for method in methods if method.endswith(IN_ORDER)]
    for ours, theirs in itertools.permutations(equals, 2):
        if ours.startswith("IET"):
            # A record has the same task in every setting, so records are drawn whole.
            less = np.mean([values(ours, s) - values(theirs, s) for s in settings], axis=0)
            compared.append([ours, theirs, statistics.interval(less.tolist(), seed)])
    study.write(
        *("order", ["method", "figure", *settings], cells, logs, rows_of(texts)),
        note="\n\nOurs less theirs, paired by records, over the settings:\n\n"
        + recording.table(versus, compared),
        against=recording.as_dicts(versus, compared),
    )
