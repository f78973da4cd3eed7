"""A hidden Markov chain over the agents and nobody, and who holds each token given all scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from iet.decoding.segmentation import NOBODY, check_vector
from iet.errors import InputError, ShapeError, check_number
from iet.native.arrays import Float32s, Float64s, Int64s
from iet.native.load import loops

EXPONENT_LIMIT = 60.0
"""Maximum log-likelihood ratio of one token: exponentials stay in float32's range, also before scaling."""

_STORED = 1 << 24  # values of α kept at a time: 64 MB


def forward_backward(
    log_ratios: npt.NDArray[np.floating],
    mean_segment: float = 200.0,
    nobody: float = 0.0,
    shares: npt.ArrayLike | None = None,
    stages: int = 3,
    nobody_segment: float | None = None,
) -> tuple[Float32s, Float32s, float]:
    """Return the posterior of every agent, and of nobody, at every token, given all scores.

        e_t(i) = exp(log_ratios[t, i]), 1 for nobody
        a segment of i lasts m stages of 1/q tokens each on average, q = m / mean_segment;
        after an agent's the next one is j's with probability π_j / (1 - π_i), j ≠ i; after nobody's, π_j
        γ_t(i) = P(i holds token t | all scores), the sum over the stages of i

    A duration that is a sum of m geometric ones has a spread of 1/√m of its mean: turns of three tokens and
    of three thousand are both less likely than the geometric law of an ordinary chain (m = 1) has them.
    Nobody may follow himself: what nobody's key explains may be of any length. With `nobody_segment` he may
    not, as agents may not, and his segments have that mean length. The text begins and ends in the middle of
    a segment.

    Args:
        log_ratios: log p(x_t | i) / p(x_t | nobody), float [T, A]; 0 where a token carries no evidence. Cut
            at ±`EXPONENT_LIMIT`.
        mean_segment: expected tokens of a segment, at least 0; below `stages` counts as `stages`.
        nobody: π of nobody, 0 to 0.99; 0 leaves nobody out of the chain.
        shares: π of the agents [A], > 0; None: 1 - `nobody` in equal parts. They are scaled to that sum, and
            none counts for less than 1e-8 of it.
        stages: m, 1 to 16.
        nobody_segment: expected tokens of nobody's segments, where they alternate with agents', at least 0;
            below `stages` counts as `stages`. None: `mean_segment`, and nobody may follow himself.

    Returns:
        (γ [T, A] float32, γ of nobody [T] float32, log-likelihood ratio of the text: all of it under the
        chain against nobody's). Rows sum to 1 with nobody's.

    Raises:
        ShapeError: `log_ratios` is not [T, A] with A >= 1, or `shares` not [A].
        InputError: a number is out of range, or a log ratio is no number.

    Cost: O(m·T·A) time, 12·T·A bytes and 64 MB at most (α is kept for a part of the text at a time, and
    computed once more for the others). Float64 inside, α and e in float32. Deterministic.
    """
    if log_ratios.ndim != 2 or log_ratios.shape[1] == 0:
        raise ShapeError("log_ratios", got=list(log_ratios.shape), expected="[T, A], A >= 1")
    check_number("mean_segment", mean_segment, 0, integer=False)
    check_number("nobody", nobody, 0, 0.99, integer=False)
    check_number("stages", stages, 1, 16)
    agents = log_ratios.shape[1]
    if shares is None:
        shares = np.ones(agents)
    each = check_vector("shares", shares, agents, "finite numbers above 0", lambda v: (v > 0) & (v < np.inf))
    if nobody_segment is not None:
        check_number("nobody_segment", nobody_segment, 0, integer=False)
    prior, ratios = prior_of(each, nobody), exponentials(log_ratios)
    posterior, left, found = posteriors(ratios, mean_segment, prior, stages, nobody_segment=nobody_segment)
    return posterior, left, float(found[0])


def posteriors(
    ratios: Float32s,
    mean_segment: float,
    prior: Float64s,
    stages: int,
    starts: Sequence[int] = (0,),
    nobody_segment: float | None = None,
) -> tuple[Float32s, Float32s, Float64s]:
    """Do what `forward_backward` does, from `exponentials` (which are changed) and `prior_of`.

    Of D texts, one behind the other, if their `starts` are given; log-likelihood ratios of the texts are [D].
    """
    tokens, agents = len(ratios), len(prior) - 1
    cuts = np.array([*starts, tokens])
    each = max(256, _STORED // (stages * (agents // 8 + 1) * 8))  # rows of α are filled up to eight states
    posterior, left = np.empty((tokens, agents), np.float32), np.empty(tokens, np.float32)
    found, own = np.zeros(len(starts)), math.nan if nobody_segment is None else nobody_segment
    loops.posteriors(ratios, cuts, each, prior, stages, mean_segment, own, posterior, left, found)
    if np.isnan(found).any():
        raise InputError("log_ratios: got NaN, expected numbers")
    return posterior, left, found


def exponentials(log_ratios: npt.NDArray[np.floating]) -> Float32s:
    """Return e [..., A + 1]: exponentials of log ratios, cut at ±`EXPONENT_LIMIT`, and 1 for nobody."""
    agents = log_ratios.shape[-1]
    cut = np.clip(log_ratios, -EXPONENT_LIMIT, EXPONENT_LIMIT, dtype=np.float32, casting="same_kind")
    ratios = np.empty((*log_ratios.shape[:-1], agents + 1), np.float32)
    ratios[..., :agents] = np.exp(cut, out=cut)  # in one piece: rows of a few agents are slow one by one
    ratios[..., agents] = 1
    return ratios


def log_likelihoods(
    ratios: Float32s,
    mean_segments: Float64s,
    priors: Float64s,
    nobody_segments: Float64s | None = None,
) -> Float64s:
    """Return the third result of `forward_backward` for several chains of three stages, [S, R].

    Args:
        ratios: S times `exponentials`, [S, T, A + 1], not changed.
        mean_segments: expected tokens of a segment in each chain, [R].
        priors: `prior_of` in each chain, [R, A + 1].
        nobody_segments: as in `forward_backward`, in each chain, [R]; NaN or None: as agents' segments.

    O(S·R·T·A), in vectors over chains.
    """
    found = np.empty((len(ratios), len(mean_segments)))
    own = np.full(len(mean_segments), math.nan) if nobody_segments is None else nobody_segments
    loops.likelihoods(ratios, ratios.shape[1], mean_segments, own, priors, found)
    return found


def prior_of(shares: Float64s, nobody: float) -> Float64s:
    """Return π of the agents, in proportion to `shares` [A], and, last, of nobody."""
    prior = np.empty(len(shares) + 1)
    loops.priors(shares, np.array([nobody], np.float64), 1, prior[None])
    return prior


def boundary_intervals(
    posterior: Float32s, spans: Sequence[tuple[int, int, int]], sure: float = 0.95
) -> list[tuple[int, int]]:
    """Return between which tokens each boundary may lie: up to the nearest `sure` token on either side.

    Args:
        posterior: γ [T, A] float32; what is missing to 1 is nobody's.
        spans: (start, end, agent) [S], in order and without gaps; agent -1 = nobody.
        sure: posterior of the span's own agent from which a token counts as decided.

    Returns:
        (low, high) [S + 1], low <= boundary <= high, within the two spans of the boundary. The first and last
        are the ends of the text.

    Raises:
        ShapeError: `posterior` is not a matrix, or `spans` are not three integers each.
        InputError: the spans have gaps or leave the text, or an agent is not in `posterior`.

    Cost: O(T·A). Deterministic.
    """
    if not spans:
        return []
    if posterior.ndim != 2:
        raise ShapeError("posterior", got=list(posterior.shape), expected="[T, A]")
    table = _span_table(spans, *posterior.shape)
    starts, ends = table[:, 0], table[:, 1]
    held = _posterior_of(posterior, table)
    sure_at = np.flatnonzero(~(held < np.float32(sure))) + starts[0]
    # One past the last sure token before each boundary, and the first one behind it, within the two spans.
    places = np.searchsorted(sure_at, ends[:-1])
    around = np.concatenate([[-1], sure_at, [len(posterior)]])
    lows, highs = np.maximum(around[places] + 1, starts[:-1]), np.minimum(around[places + 1], ends[1:])
    first, last = spans[0][0], spans[-1][1]
    return [(first, first), *zip(lows.tolist(), highs.tolist(), strict=True), (last, last)]


def _span_table(spans: Sequence[tuple[int, int, int]], tokens: int, agents: int) -> Int64s:
    table = np.array(spans)
    if table.ndim != 2 or table.shape[1] != 3 or table.dtype.kind not in "iu":
        raise ShapeError("spans", got=f"{table.dtype} {list(table.shape)}", expected="integers [S, 3]")
    starts, ends, owners = table.T
    bad = (starts < 0) | (ends < starts) | (ends > tokens) | (owners < NOBODY) | (owners >= agents)
    bad[1:] |= starts[1:] != ends[:-1]
    if bad.any():
        raise InputError(
            f"spans: got {tuple(table[bad][0].tolist())}, expected (start, end, agent) without gaps, up to"
            f" token {tokens} and agent {agents - 1}"
        )
    return table.astype(np.int64)


def _posterior_of(posterior: Float32s, spans: Int64s) -> Float32s:
    """Return γ of each token's agent in its span; nobody's γ is what the others leave of 1."""
    starts, ends, owners = spans.T
    agents = np.repeat(owners, ends - starts)
    inside = posterior[starts[0] : ends[-1]]
    held = inside[np.arange(len(inside)), agents]
    rest = agents < 0
    if rest.any():
        total = np.zeros(len(inside), np.float32)
        for column in inside.T:  # one after another, so that no sum depends on how many tokens there are
            total += column
        held[rest] = 1 - total[rest]
    return np.asarray(held)
