"""The beginning of an answer: before its first marked token, if an engine leaves its first tokens free.

In family `gumbel` engines leave the first tokens of an answer to the sampler (`iet.FreeTokens`). They carry
no mark, so a chain places the boundary somewhere among them, although all of them are the new agent's. Not in
the paper.
"""

from __future__ import annotations

import numpy as np

from iet.decoding.segmentation import Scores
from iet.native.arrays import Float32s, Float64s, Int32s

FREE = 8
"""Tokens at the start of an answer that engines leave free by default."""

REACH = 24
"""Tokens on either side of a boundary in which the answer's first token is sought."""


def place_answers(
    scores: Scores,
    weights: Float32s,
    strengths: Float64s,
    offsets: Float64s,
    min_segment: int,
    labels: Int32s,
) -> None:
    """Move the boundaries between two agents, in place, to the beginning of the second one's answer.

        L(q, F) = Σ_{j < q} r_j(a) + Σ_{j >= q + F} r_j(b),    r_j(a) = w_j·(λ_a·x_j(a) - offset_a)

    A boundary from a to b goes to the likeliest q with F = `FREE`, if over all boundaries of the text the
    likeliest q with F = `FREE` are likelier than those with F = 0. Else all stay: the first tokens of the
    answers were marked.

    Args:
        scores: [T, C].
        weights: w [T].
        strengths, offsets: [C] λ and log_mgf(λ).
        min_segment: fewest tokens that a segment is left with.
        labels: int32 [T] among the columns, -1 for none.

    O(T + boundaries · `REACH`). Deterministic.
    """
    edges = np.flatnonzero(np.diff(labels)) + 1
    before, after = labels[edges - 1], labels[edges]
    starts, ends = np.append(0, edges[:-1]), np.append(edges[1:], len(labels))
    chosen = (before >= 0) & (after >= 0)
    edges, before, after = edges[chosen], before[chosen], after[chosen]
    starts, ends = starts[chosen], ends[chosen]
    at = edges[:, None] + np.arange(-REACH, REACH)  # [B, W]
    is_inside = (at >= starts[:, None]) & (at < ends[:, None])
    allowed = (at >= starts[:, None] + min_segment) & (at <= ends[:, None] - min_segment)
    at = at.clip(0, len(labels) - 1)

    def sums(columns: Int32s) -> Float64s:
        """Return Σ r of the tokens of a window before each of its places, float64 [B, W + 1]."""
        values = scores[at, columns[:, None]].astype(np.float64)
        ratios = weights[at] * (strengths[columns, None] * values - offsets[columns, None])
        return np.cumsum(np.pad(np.where(is_inside, ratios, 0.0), ((0, 0), (1, 0))), axis=1)

    of_first, of_second = sums(before), sums(after)
    marked = of_first - of_second
    free = of_first[:, :-FREE] - of_second[:, FREE:]
    candidates = np.where(allowed[:, : free.shape[1]], free[:, : allowed.shape[1]], -np.inf)
    # Of equally likely places the nearest.
    best = (candidates - 1e-6 * np.abs(np.arange(candidates.shape[1]) - REACH)).argmax(axis=1)
    rows = np.arange(len(edges))
    can_move = allowed[rows, best]
    gained = (free[rows, best] - marked.max(axis=1))[can_move].sum()
    if not gained > 0:
        return
    last = 0
    for row in np.flatnonzero(can_move).tolist():
        edge, begin = int(edges[row]), int(edges[row] - REACH + best[row])
        if begin >= last + min_segment:  # the boundary before it may have moved towards it
            labels[begin:edge] = after[row]
            labels[edge:begin] = before[row]
            last = begin
