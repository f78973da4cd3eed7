"""How well a reader did: figures of one text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from benchmarks.paper.conversations.logs import Log
from benchmarks.paper.transforms.altered import Altered
from iet.audit.metrics import boundary_f1, coverage, edge_similarity, mean_iou, token_accuracy, token_labels
from iet.errors import InputError, ShapeError
from iet.marks.tokenizer import Tokenizer

Labels = NDArray[np.int64]

FIGURES = {
    "token_accuracy": "TokenAcc",
    "iou": "IoU",
    "edge_similarity": "EdgeSim",
    "boundary_f1": "boundary F1",
    "coverage": "coverage",
    "accuracy_where_attributed": "accuracy where attributed",
}
"""Figures of `score`, and how tables call them."""


def truth_of(source: Log | Altered, tokenizer: Tokenizer) -> Labels:
    """Return the true label of every token of the text, int64 [T]; -1 is nobody."""
    return token_labels(source.spans, tokenizer.encode(source.text).char_ends)


def true_edges(source: Log | Altered, agents: int) -> NDArray[np.float64]:
    """Return the true adjacency matrix [n, n] of the text as it stands: after a shuffle, of the new order."""
    return source.edges(agents) if isinstance(source, Altered) else source.edges


def score(
    truth: npt.ArrayLike,
    found: npt.ArrayLike,
    *,
    agents: int,
    edges: npt.ArrayLike,
    found_edges: npt.ArrayLike | None = None,
    margin: int = 16,
) -> dict[str, float | None]:
    """Return `FIGURES` of one text for what one reader found (`iet.metrics` has the definitions).

    `truth` and `found` are labels of the text's tokens [T], -1 = nobody; labels of n and above, of a registry
    with spurious keys, are wrong. IoU is the mean over the n agents, as in the paper; an agent in neither
    labelling is left out, and so a log of n agents who all speak counts all n. EdgeSim of A* and Â, which may
    be over more keys, is None without Â; `accuracy_where_attributed` is None where nothing is.
    """
    g, estimate = (np.asarray(labels) for labels in (truth, found))
    right = token_accuracy(g, estimate)
    if g.size and g.max() >= agents:
        raise InputError(f"truth: got {g.max()}, expected below {agents} agents")
    attributed = estimate >= 0
    return {
        "token_accuracy": right,
        "iou": mean_iou(g, np.where(estimate < agents, estimate, -1)),
        "edge_similarity": None if found_edges is None else _edge_similarity(edges, found_edges, agents),
        "boundary_f1": boundary_f1(_changes(g), _changes(estimate), margin),
        "coverage": coverage(estimate),
        "accuracy_where_attributed": (
            token_accuracy(g[attributed], estimate[attributed]) if attributed.any() else None
        ),
    }


def _changes(labels: Labels) -> Labels:
    return np.asarray(np.flatnonzero(np.diff(labels)) + 1, dtype=np.int64)


def _edge_similarity(edges: npt.ArrayLike, found: npt.ArrayLike, agents: int) -> float:
    truth, estimate = np.asarray(edges, np.float64), np.asarray(found, np.float64)
    if truth.shape != (agents, agents):
        raise ShapeError("edges", got=list(truth.shape), expected=[agents, agents])
    if estimate.ndim == 2 and len(estimate) > agents:  # keys that nobody holds have no edges
        truth = np.pad(truth, (0, len(estimate) - agents))
    return edge_similarity(truth, estimate)
