"""The agents of a text whose turns have known speakers, in a known order (forced alignment).

Recursive, Semantic-BoW and TextTiling get S, the number of turns, and the best assignment of segments to
turns. Here marks are read with S and the speakers a_1 .. a_S; only the ends of turns are sought:

    P(bounds | scores) ∝ Π_t p_λ(x_t(a_s(t))) / p_0(x_t(a_s(t)))

Before the scores are seen, all divisions into turns are equally likely, so that turns without evidence are
equally long on average. λ is the same for all agents; the likelihood of the text weights a grid of values. A
token gets its likeliest agent. Repeated and predictable tokens have the weights of "posterior".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper.marks import Keys
from iet.decoding.jit import njit
from iet.decoding.posterior import PosteriorOptions, evidence_weight
from iet.decoding.segmentation import Scored
from iet.errors import InputError
from iet.native.pairs import novelty_weights, repeats

STRENGTHS = np.geomspace(0.02, 1.0, 12)
"""Values of λ; as shares of the limit, 0.95 at most, for a family that has one."""

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


def aligned(keys: Keys, ids: Labels, speakers: Sequence[int]) -> Labels:
    """Return the agent of every token [T] of a text whose turns have these speakers."""
    scores, pairs, family = keys.scores(ids), keys.pairs(ids), keys.family
    weights = novelty_weights(ids) if family.name == "gumbel" else None
    text = Scored(scores, family, pairs >= 0, repeats(pairs), pairs, weights=weights)
    counted = evidence_weight(text, PosteriorOptions().repeats).astype(np.float64)
    limit = family.strength_limit
    strengths = STRENGTHS if np.isinf(limit) else 0.95 * limit * STRENGTHS
    ratios = (s * scores.astype(np.float64) - float(family.log_mgf(s)) for s in strengths)
    return align([counted[:, None] * ratio for ratio in ratios], speakers)


def align(log_ratios: Sequence[Floats], speakers: Sequence[int]) -> Labels:
    """Return the likeliest agent of every token [T], given the speakers of the turns.

    Args:
        log_ratios: log p(score | agent) / p(score | unmarked) [T, A], for each possible strength.
        speakers: a_1 .. a_S, agents of the turns, 1 <= S <= T; neighbours may be the same.

    Raises:
        InputError: there are more turns than tokens, or none, or an agent has no column.

    Cost: O(T·S) per strength. Deterministic.
    """
    tokens, agents = log_ratios[0].shape
    order = np.array(speakers, np.int64)
    if not 1 <= len(order) <= tokens or order.min() < 0 or order.max() >= agents:
        raise InputError(
            f"speakers: got {len(order)} turns of {list(speakers)[:8]}, expected 1 to {tokens} turns of"
            f" agents 0 to {agents - 1}"
        )
    marginals = [_marginals_njit(ratio[:, order], np.empty((2, tokens, len(order)))) for ratio in log_ratios]
    logs = np.array([log for log, _ in marginals])
    shares = np.exp(logs - np.logaddexp.reduce(logs))
    turns = sum(share * of_turns for share, (_, of_turns) in zip(shares, marginals, strict=True))
    sums = np.zeros((tokens, agents))
    for turn, agent in enumerate(order.tolist()):
        sums[:, agent] += turns[:, turn]
    return np.asarray(sums.argmax(axis=1), np.int64)


@njit
def _marginals_njit(x: Floats, work: Floats) -> tuple[float, Floats]:
    # work[0][t, s]: log sum over the ways to be in turn s at token t, with its score; work[1]: after t
    tokens, turns = x.shape
    before, after = work[0], work[1]
    before[:] = -np.inf
    after[:] = -np.inf
    before[0, 0] = x[0, 0]
    for t in range(1, tokens):
        for s in range(min(turns, t + 1)):
            stay = before[t - 1, s]
            if s > 0:
                stay = np.logaddexp(stay, before[t - 1, s - 1])
            before[t, s] = stay + x[t, s]
    after[tokens - 1, turns - 1] = 0.0
    for t in range(tokens - 2, -1, -1):
        for s in range(turns):
            stay = after[t + 1, s] + x[t + 1, s]
            if s + 1 < turns:
                stay = np.logaddexp(stay, after[t + 1, s + 1] + x[t + 1, s + 1])
            after[t, s] = stay
    whole = before[tokens - 1, turns - 1]
    return whole, np.exp(before + after - whole)
