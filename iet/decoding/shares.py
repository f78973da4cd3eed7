"""The share of a span that its agent wrote, with an interval."""

from __future__ import annotations

import numpy as np

from iet.errors import InputError, ShapeError, check_number
from iet.native.arrays import Float32s, Float64s, Int64s
from iet.native.load import loops

SHARE_SURE = 0.9
"""Minimum coverage of the interval of a share, if the posteriors are calibrated."""

_BINS = 64  # maximum number of steps of the law of a share; a shorter span has one for each token


def share_intervals(
    posterior: Float32s, starts: Int64s, ends: Int64s, agents: Int64s, sure: float = SHARE_SURE
) -> tuple[Float64s, Float64s]:
    """Return an interval of the share of each span that its agent wrote: the quantiles (1 ∓ `sure`) / 2.

    For a span of up to 64 tokens the ends are multiples of 1 / (end - start); for a longer one they are
    rounded outwards to multiples of 1/64.

    The share is N / (end - start), N = Σ_t 1[agent wrote t]; its mean is that of γ_t(agent). Posteriors of
    single tokens do not determine their joint law. If the agent certainly wrote a token, the tokens before
    and after it are independent, as in any Markov chain. So a span is cut at the likeliest token of each run
    with γ >= 0.99. Between two cuts the strongest dependence is assumed: one uniform U for all tokens, and
    the agent wrote those with γ_t >= U. That is exact if only the position of one boundary is uncertain;
    otherwise the variance is the largest that these posteriors allow.

    Args:
        posterior: γ [T, A] float32.
        starts, ends: int64 [S], spans `[start, end)` in any order.
        agents: int64 [S], the column of each span's agent.
        sure: 0 to 1.

    Returns:
        (low, high) [S] float64, 0 to 1; 0 and 0 for an empty span.

    Raises:
        ShapeError: `posterior` is no matrix, or the others are not of one length.
        InputError: a span or a column lies outside.

    Cost: O(tokens of the spans), and O(64²) for each of their parts. Deterministic.
    """
    if posterior.ndim != 2 or not len(starts) == len(ends) == len(agents):
        got = [list(posterior.shape), len(starts), len(ends), len(agents)]
        raise ShapeError("posterior, starts, ends, agents", got=got, expected="[T, A], [S], [S], [S]")
    check_number("sure", sure, 0, 1, integer=False)
    tokens, columns = posterior.shape
    bad = (starts < 0) | (ends < starts) | (ends > tokens) | (agents < 0) | (agents >= columns)
    if bad.any():
        at = int(bad.argmax())
        raise InputError(
            f"spans: got {(int(starts[at]), int(ends[at]), int(agents[at]))}, expected (start, end, agent) up"
            f" to token {tokens} and agent {columns - 1}"
        )
    low, high = np.zeros(len(starts)), np.zeros(len(starts))
    missing, laws = np.empty(tokens), np.empty((3, _BINS + 1))
    loops.share_intervals(posterior, starts, ends, agents, (1 - sure) / 2, missing, laws, low, high)
    return low, high
