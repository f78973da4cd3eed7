"""Every text of a corpus by every reader: what is right, where boundaries lie, how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.localisation import readers
from benchmarks.localisation.corpora import Corpus
from iet.audit.metrics import mean_iou
from iet.decoding import Segmentation

Maker = Callable[[], Sequence[Corpus]]


def rows_of(maker: Maker, entrants: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the rows of the corpora that are made."""
    return [row for corpus in maker() for row in measured(corpus, entrants)]


def measured(corpus: Corpus, entrants: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return a row for each reader: its options, and figures of each text in order.

    `entrants` are readers of others, "MODULE:FUNCTION", which are read behind those that are here.
    """
    rows = []
    each = readers.tuned(corpus)
    for name in entrants:
        each[name] = readers.entrant(name, corpus.family), {}
    for name, (reader, options) in each.items():
        reader(corpus.tuning[0])  # compiled, and thresholds simulated
        figures: dict[str, list[float]] = {"iou": [], "boundary": [], "number": [], "found": [], "ms": []}
        for text in corpus.texts:
            started = time.perf_counter()
            labels = reader(text)
            figures["ms"].append(1e3 * (time.perf_counter() - started))
            figures["iou"].append(mean_iou(text.truth, labels))
            figures["boundary"].append(boundary_error(text.truth, labels))
            figures["number"].append(float(intervals(text.truth) == intervals(labels)))
            figures["found"].append(float((labels >= 0).any()))
        rows.append(
            {
                "corpus": corpus.name,
                "group": corpus.group,
                "tokens": len(corpus.texts[0].truth),
                "reader": name,
                "options": options,
                "figures": figures,
            }
        )
    return rows


def intervals(labels: NDArray[np.integer[Any]]) -> int:
    """Return how many intervals are an agent's."""
    return sum(span.agent >= 0 for span in Segmentation(labels.astype(np.int32)).segments)


def boundary_error(truth: NDArray[np.integer[Any]], found: NDArray[np.integer[Any]]) -> float:
    """Return the mean distance of true change points from found ones or the ends; 0 if there are none."""
    points = np.flatnonzero(np.diff(truth)) + 1
    theirs = np.concatenate([[0], np.flatnonzero(np.diff(found)) + 1, [len(found)]])
    return float(np.abs(points[:, None] - theirs).min(axis=1).mean()) if len(points) else 0.0
