"""Choose the agents that are decoded token by token, from sums over spans instead of scores [T, A]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from iet.decoding.activity import WeightedBlocks, block_counts, block_starts, log_activity
from iet.decoding.posterior import at_most, likely_agents
from iet.marks.families import Family
from iet.native.arrays import Bools, Float64s, Int64s

SpanSums = Callable[[Int64s, Bools, int, int], Float64s]
"""(boundaries [S + 1], counted [T], first agent, last agent + 1) -> sums of scores [S, agents]."""

WeightedSums = Callable[[Int64s, int, int], Float64s]
"""(boundaries [S + 1], first agent, last agent + 1) -> weighted sums of scores [S, agents]."""

_CHUNK = 1024  # agents whose sums are in memory at a time


def posterior_candidates(
    sums_of: SpanSums,
    agents: int,
    family: Family,
    scored: Bools,
    repeated: Bools,
    activity: Float64s | None,
    options: Any,
) -> Int64s:
    """Return the agents that `posterior_decode` reads: `likely_agents`, from `activity` unless it is None."""
    if activity is None:
        activity = sum_activity(sums_of, agents, family, scored, repeated)
    return likely_agents(activity)


def sum_activity(sums_of: SpanSums, agents: int, family: Family, scored: Bools, repeated: Bools) -> Float64s:
    """Return `log_activity` of every agent from sums over spans: O(T·A) time, 8·T·1024/16 bytes."""
    counted = scored & ~repeated
    edges = np.append(block_starts(counted), len(counted))
    counts, _ = block_counts(np.array([np.count_nonzero(counted)]))
    activity = np.zeros(agents)
    for low in range(0, agents if len(counts) else 0, _CHUNK):
        high = min(low + _CHUNK, agents)
        activity[low:high] = log_activity(sums_of(edges, counted, low, high), counts, family)
    return activity


def weighted_activity(
    sums_of: WeightedSums, agents: int, family: Family, blocks: WeightedBlocks, tokens: int
) -> Float64s:
    """Return `WeightedBlocks.log_activity` of every agent of one text from sums over spans."""
    edges, activity = np.append(blocks.tokens[blocks.firsts], tokens), np.zeros(agents)
    for low in range(0, agents if len(blocks) else 0, _CHUNK):
        high = min(low + _CHUNK, agents)
        activity[low:high] = blocks.log_activity(sums_of(edges, low, high), family)[0]
    return activity


def window_candidates(
    sums_of: SpanSums,
    agents: int,
    family: Family,
    scored: Bools,
    repeated: Bools,
    activity: Float64s | None,
    options: Any,
) -> Int64s:
    """Return the agents with the highest or second highest score of some window (`windows`).

    `at_most` 256, by their highest score in a window. Only they can set the margin, but another agent could
    have the highest sum in a long segment without ever being second in a window of it.

    Cost: O(T·A) time, 8·T/step·1024 bytes.
    """
    tokens = len(scored)
    width = min(options.window, tokens)
    starts = np.arange(0, tokens - width + 1, min(getattr(options, "step", 16), width))
    edges = np.unique(np.concatenate([starts, starts + width]))
    firsts, lasts = np.searchsorted(edges, starts), np.searchsorted(edges, starts + width)
    values, columns = np.full((len(starts), 2), -np.inf), np.zeros((len(starts), 2), np.int64)
    for low in range(0, agents, _CHUNK):
        high = min(low + _CHUNK, agents)
        total = np.cumsum(sums_of(edges, np.ones(tokens, np.bool_), low, high), axis=0)
        total = np.concatenate([np.zeros((1, high - low)), total])
        values = np.hstack([values, total[lasts] - total[firsts]])
        columns = np.hstack([columns, np.broadcast_to(np.arange(low, high), (len(starts), high - low))])
        best = np.argpartition(values, -2, axis=1)[:, -2:]
        values, columns = np.take_along_axis(values, best, 1), np.take_along_axis(columns, best, 1)
    highest = np.full(agents, -np.inf)
    np.maximum.at(highest, columns, values)
    chosen = at_most(np.flatnonzero(highest > -np.inf), highest)
    return np.union1d([0], chosen)  # the first agent wins if nothing is scored
