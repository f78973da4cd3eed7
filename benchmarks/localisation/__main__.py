"""Where marked text begins and ends, by the localisation field and by `iet`, on the same scores.

    python -m benchmarks.localisation --data PATH -o benchmarks/results/localisation.json

`--data` is the folder data/output of github.com/subroy13/WISER (not copied here: it carries no licence);
without it only drawn and written texts are read. `--work` keeps what the shipped model wrote. What is tuned
is tuned for the highest mean IoU on the first texts of each corpus, which are not reported and have the same
layout: every rival over the grid of its module, `cusum` and `window` too. `posterior` has its defaults, as
has "WISER, as published": blocks of 65 and rho 0.5, with which its paper's tables are made. All texts of a
published file are marked at the same places, so that the tuned ones know where; the group "moved" has the
same scores at places that nobody can know (`corpora`).
"Bayes" knows the law of scores (estimated on the same first texts, where it is not drawn) and of lengths (of
published files: uniform from half the shortest interval to twice the longest), but no place. "posterior,
told" is given what `posterior` has to fit of a drawn text: the strength, the mean length of a segment and
nobody's share; what it lacks of Bayes is the law of lengths itself.

IoU of a text is the tokens in found and true intervals over those in either, as in the WISER paper (which
takes the union of all intervals); with several agents their mean. The boundary error is the mean distance in
tokens of the true change points from the nearest found one, the ends of the text among these. Differences are
paired by texts. Times are those of this machine, after compilation; null texts are drawn before.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import multiprocessing
import pathlib
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.localisation import corpora, measuring, readers
from benchmarks.localisation.showing import markdown
from benchmarks.recording import exit_code, finish, parser
from benchmarks.statistics import difference, summary

SEED = 0


def jobs(given: argparse.Namespace) -> list[measuring.Maker]:
    """Return what makes the corpora; those of a job are read by one process."""
    found: list[measuring.Maker] = []
    if given.data is not None:
        found += [
            functools.partial(corpora.of_file, path, given.texts) for path in corpora.published(given.data)
        ]
    if not given.published_only:
        found += [functools.partial(corpora.of_law, law, given.texts_of_ours) for law in corpora.DRAWN]
        found += [
            functools.partial(corpora.written, cell, given.texts_of_ours, given.work)
            for cell in corpora.WRITTEN
        ]
    return found


def summarised(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the corpora with means and intervals of each reader, and its IoU less that of `posterior`."""
    by_corpus: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_corpus.setdefault(row["corpus"], []).append(row)
    found = []
    for name, of_corpus in by_corpus.items():
        ours = next(row["figures"] for row in of_corpus if row["reader"] == "posterior")
        each = {}
        for row in of_corpus:
            figures = row["figures"]
            result: dict[str, Any] = {"iou": _short(summary(figures["iou"], SEED))}
            apart = difference(figures["iou"], ours["iou"], SEED)
            if row["reader"] != "posterior" and apart is not None:
                result["less posterior"] = _short((apart.mean, apart.low, apart.high))
            result |= {key: round(float(np.mean(figures[key])), 3) for key in ("boundary", "number")}
            if row["group"] == "unmarked":
                result["found"] = float(np.mean(figures["found"]))
            elif row["options"]:
                result["options"] = row["options"]
            if row["group"] != "moved":  # which takes as long as the published one
                result["ms"] = round(float(np.median(figures["ms"])), 3)
            each[row["reader"]] = result
        first = of_corpus[0]
        found.append(
            {
                "corpus": name,
                "group": first["group"],
                "texts": len(ours["iou"]),
                "tokens": first["tokens"],
                "readers": each,
            }
        )
    return found


def _short(values: Iterable[float]) -> list[float]:
    """Round figures to what 60 texts can tell: the summary has thousands of them."""
    return [round(value, 4) for value in values]


def main() -> None:
    line = parser("benchmarks.localisation", __doc__)
    line.add_argument("--data", type=pathlib.Path, help="folder of the published score files")
    line.add_argument("--work", type=pathlib.Path, help="folder that keeps what the shipped model wrote")
    line.add_argument("--texts", type=int, default=60, help="texts read of a published file, 180 at most")
    line.add_argument("--texts-of-ours", type=int, default=30, help="texts read of each other corpus")
    line.add_argument("--published-only", action="store_true", help="read no texts of our own")
    line.add_argument(
        "--reader",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="read by this function as well: (scores float32 [T, A], family) -> agents int [T], -1 nobody;"
        " may be repeated",
    )
    line.add_argument("--workers", type=int, default=2, help="processes")
    given = line.parse_args()
    for name in given.reader:
        readers.entered(name)
    started = time.perf_counter()
    rows: list[dict[str, Any]] = []
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(given.workers, context) as pool:
        for found in pool.map(functools.partial(measuring.rows_of, entrants=given.reader), jobs(given)):
            rows += found
            for row in found:
                print(row["corpus"], row["reader"], f"{np.mean(row['figures']['iou']):.3f}", flush=True)
    content = {"seconds": time.perf_counter() - started, "corpora": summarised(rows)}
    finish(line, given, content, markdown(content), rows=rows)


if __name__ == "__main__":
    sys.exit(exit_code(main))
