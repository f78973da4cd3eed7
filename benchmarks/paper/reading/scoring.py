"""Figures of one text: how well it was attributed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from benchmarks.paper.conversations.logs import Log
from benchmarks.paper.transforms import Altered
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
"""Figures of `score` and their names in tables."""

SHOWN = ("token_accuracy", "iou", "edge_similarity")
"""The paper's figures."""


def truth_of(source: Log | Altered, tokenizer: Tokenizer) -> Labels:
    """Return the true agent of every token of the text, int64 [T]."""
    return token_labels(source.spans, tokenizer.encode(source.text).char_ends)


def true_edges(source: Log | Altered, agents: int) -> NDArray[np.float64]:
    """Return the true adjacency matrix [n, n] of the text after the transformation."""
    return source.edges(agents) if isinstance(source, Altered) else source.edges


def score(
    truth: npt.ArrayLike,
    attributed: npt.ArrayLike,
    *,
    agents: int,
    edges: npt.ArrayLike,
    found_edges: npt.ArrayLike | None = None,
    margin: int = 16,
) -> dict[str, float | None]:
    """Return `FIGURES` of one text (definitions: `iet.audit.metrics`).

    `truth` and `attributed` are labels of the tokens [T], -1 if unattributed; labels of n and above, from
    spurious keys, are wrong. IoU is the mean over the agents that are in at least one labelling. EdgeSim is
    None without `found_edges`, and `accuracy_where_attributed` is None if nothing is attributed.
    """
    g, estimate = (np.asarray(labels) for labels in (truth, attributed))
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


def _edge_similarity(edges: npt.ArrayLike, attributed: npt.ArrayLike, agents: int) -> float:
    truth, estimate = np.asarray(edges, np.float64), np.asarray(attributed, np.float64)
    if truth.shape != (agents, agents):
        raise ShapeError("edges", got=list(truth.shape), expected=[agents, agents])
    if estimate.ndim == 2 and len(estimate) > agents:  # spurious keys have no edges
        truth = np.pad(truth, (0, len(estimate) - agents))
    return edge_similarity(truth, estimate)
