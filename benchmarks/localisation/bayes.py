"""The ceiling: a reader that knows the law of scores and of the lengths of segments.

A hidden semi-Markov chain with explicit durations, for any number of keys. Each state (an agent, or unmarked
text) lasts d tokens with the probability of its distribution of lengths; the next state is drawn in
proportion to its share. Every token goes to its likeliest state given all scores, which maximises the
expected share of right tokens; mean IoU is another figure, so on that a reader can be ahead by chance.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from iet.decoding.jit import njit

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class Lengths:
    """How texts are laid out.

    Attributes:
        agents, null: probability of 1, 2, ... tokens of a segment.
        shares: of the agents, then unmarked text [A + 1]; in all 1.
        first: the same for the first segment.
    """

    agents: Floats
    unmarked: Floats
    shares: Floats
    first: Floats


def uniform(low: int, high: int) -> Floats:
    """Return the law of lengths from `low` to `high` tokens, all alike."""
    law = np.zeros(high)
    law[low - 1 :] = 1 / (high - low + 1)
    return law


def read(log_ratios: Floats, lengths: Lengths) -> tuple[NDArray[np.int64], Floats]:
    """Return the likeliest label of each token [T], -1 unmarked, and the posterior [T, A + 1], unmarked last.

    Args:
        log_ratios: log p(score | agent) / p(score | unmarked) [T, A].
        lengths: what is known of the layout.

    Cost: O(T·A·D), D the most tokens of a segment. Deterministic.
    """
    tokens, agents = log_ratios.shape
    path = np.zeros((tokens + 1, agents + 1))
    path[1:, :agents] = np.cumsum(log_ratios, axis=0)
    longest = max(len(lengths.agents), len(lengths.unmarked))
    law = np.zeros((agents + 1, longest))
    law[:agents, : len(lengths.agents)] = lengths.agents
    law[agents, : len(lengths.unmarked)] = lengths.unmarked
    with np.errstate(divide="ignore"):
        log_law = np.log(law)
        log_lasting = np.log(np.maximum(law[:, ::-1].cumsum(axis=1)[:, ::-1], 0))
        first, shares = np.log(lengths.first), np.log(lengths.shares)
    begins, ends = np.full(path.shape, -np.inf), np.full(path.shape, -np.inf)
    after_begin, after_end = np.full(path.shape, -np.inf), np.full(path.shape, -np.inf)
    _chain_njit(path, log_law, log_lasting, first, shares, begins, ends, after_begin, after_end)
    total = np.logaddexp.reduce(begins[0] + after_begin[0])
    change = np.exp(begins + after_begin - total) - np.exp(ends + after_end - total)
    posterior = np.cumsum(change, axis=0)[:tokens]
    labels = posterior.argmax(axis=1)
    return np.where(labels == agents, -1, labels), posterior


@njit
def _chain_njit(
    path: Floats,
    log_law: Floats,
    log_lasting: Floats,
    first: Floats,
    shares: Floats,
    begins: Floats,
    ends: Floats,
    after_begin: Floats,
    after_end: Floats,
) -> None:
    # begins, ends [t, i]: log P(scores before t, a segment of i begins or ends at t), over unmarked text
    # after_begin, after_end: log P(scores from t on | the same). The text's end cuts off the last segment.
    tokens, states, longest = len(path) - 1, path.shape[1], log_law.shape[1]
    log_other_shares = np.empty(states)
    for i in range(states):
        log_other_shares[i] = np.log(max(1 - np.exp(shares[i]), 1e-300))
    for t in range(tokens):
        for i in range(states):
            if t == 0:
                begins[t, i] = first[i]
            else:
                high = -np.inf
                for j in range(states):
                    if j != i:
                        high = max(high, ends[t, j] - log_other_shares[j])
                if high > -np.inf:
                    total = 0.0
                    for j in range(states):
                        if j != i:
                            total += np.exp(ends[t, j] - log_other_shares[j] - high)
                    begins[t, i] = shares[i] + high + np.log(total)
        for i in range(states):
            high = -np.inf
            for d in range(1, min(longest, t + 1) + 1):
                high = max(high, begins[t + 1 - d, i] + log_law[i, d - 1] - path[t + 1 - d, i])
            if high > -np.inf:
                total = 0.0
                for d in range(1, min(longest, t + 1) + 1):
                    total += np.exp(begins[t + 1 - d, i] + log_law[i, d - 1] - path[t + 1 - d, i] - high)
                ends[t + 1, i] = path[t + 1, i] + high + np.log(total)
    for t in range(tokens - 1, -1, -1):
        for i in range(states):
            high = -np.inf
            remaining = tokens - t
            if remaining <= longest:
                high = log_lasting[i, remaining - 1] + path[tokens, i]
            for d in range(1, min(longest, remaining - 1) + 1):
                high = max(high, log_law[i, d - 1] + path[t + d, i] + after_end[t + d, i])
            if high > -np.inf:
                total = 0.0
                if remaining <= longest:
                    total += np.exp(log_lasting[i, remaining - 1] + path[tokens, i] - high)
                for d in range(1, min(longest, remaining - 1) + 1):
                    total += np.exp(log_law[i, d - 1] + path[t + d, i] + after_end[t + d, i] - high)
                after_begin[t, i] = high + np.log(total) - path[t, i]
        for i in range(states):
            high = -np.inf
            for j in range(states):
                if j != i:
                    high = max(high, shares[j] + after_begin[t, j])
            if high > -np.inf:
                total = 0.0
                for j in range(states):
                    if j != i:
                        total += np.exp(shares[j] + after_begin[t, j] - high)
                after_end[t, i] = high + np.log(total) - log_other_shares[i]
