"""A hidden Markov chain over the agents and a null state: posteriors given all scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from iet.decoding.segmentation import UNATTRIBUTED, check_vector
from iet.errors import InputError, ShapeError, check_number
from iet.native.arrays import Float32s, Float64s, Int64s
from iet.native.load import loops

EXPONENT_LIMIT = 60.0
"""Maximum log-likelihood ratio of one token: its exponential fits into float32 without scaling."""

_STORED = 1 << 24  # values of α that are stored at a time: 64 MB


def forward_backward(
    log_ratios: npt.NDArray[np.floating],
    mean_segment: float = 200.0,
    null_prior: float = 0.0,
    shares: npt.ArrayLike | None = None,
    stages: int = 3,
    null_segment: float | None = None,
) -> tuple[Float32s, Float32s, float]:
    """Return the posterior of every agent, and of the null state, at every token.

        e_t(i) = exp(log_ratios[t, i]), 1 for the null state
        a segment of i lasts m stages of 1/q tokens each on average, q = m / mean_segment;
        j follows agent i with probability π_j / (1 - π_i), j ≠ i; j follows the null state with π_j
        γ_t(i) = P(state i at token t | all scores), the sum over the stages of i

    A duration that is a sum of m geometric ones has a spread of 1/√m of its mean. So very short and very long
    segments are both less likely than in an ordinary chain (m = 1), whose durations are geometric. The null
    state may follow itself, because unmarked text may have any length. With `null_segment` it may not, and
    its segments have that mean length. The text begins and ends in the middle of a segment.

    Args:
        log_ratios: log p(x_t | i) / p(x_t | null), float [T, A]; 0 at tokens without evidence. Clipped to
            ±`EXPONENT_LIMIT`.
        mean_segment: expected tokens of a segment, at least 0; below `stages` counts as `stages`.
        null_prior: π of the null state, 0 to 0.99; 0 removes it from the chain.
        shares: π of the agents [A], > 0; None: equal. They are scaled to the sum 1 - `null_prior`, each at
            least 1e-8.
        stages: m, 1 to 16.
        null_segment: expected tokens of a null segment if null and agents' segments alternate, at least 0;
            below `stages` counts as `stages`. None: `mean_segment`, and the null state may follow itself.

    Returns:
        (γ [T, A] float32, γ of the null state [T] float32, log-likelihood ratio of the text under the chain
        against the null model). Each row of γ sums to 1 with the null state.

    Raises:
        ShapeError: `log_ratios` is not [T, A] with A >= 1, or `shares` not [A].
        InputError: a number is out of range, or a log ratio is NaN.

    Cost: O(m·T·A) time, 12·T·A bytes and at most 64 MB (α is stored for one part of the text at a time and
    recomputed for the others). Float64 inside, α and e in float32. Deterministic.
    """
    if log_ratios.ndim != 2 or log_ratios.shape[1] == 0:
        raise ShapeError("log_ratios", got=list(log_ratios.shape), expected="[T, A], A >= 1")
    check_number("mean_segment", mean_segment, 0, integer=False)
    check_number("null_prior", null_prior, 0, 0.99, integer=False)
    check_number("stages", stages, 1, 16)
    agents = log_ratios.shape[1]
    if shares is None:
        shares = np.ones(agents)
    weights = check_vector(
        "shares", shares, agents, "finite numbers above 0", lambda v: (v > 0) & (v < np.inf)
    )
    if null_segment is not None:
        check_number("null_segment", null_segment, 0, integer=False)
    prior, ratios = prior_of(weights, null_prior), exponentials(log_ratios)
    posterior, null_posterior, log_likelihood = posteriors(
        ratios, mean_segment, prior, stages, null_segment=null_segment
    )
    return posterior, null_posterior, float(log_likelihood[0])


def posteriors(
    ratios: Float32s,
    mean_segment: float,
    prior: Float64s,
    stages: int,
    starts: Sequence[int] = (0,),
    null_segment: float | None = None,
) -> tuple[Float32s, Float32s, Float64s]:
    """Do what `forward_backward` does, from `exponentials` (which are overwritten) and `prior_of`.

    `starts` are the first tokens of D concatenated texts; the log-likelihood ratios of the texts are [D].
    """
    tokens, agents = len(ratios), len(prior) - 1
    cuts = np.array([*starts, tokens])
    part = max(256, _STORED // (stages * (agents // 8 + 1) * 8))  # rows of α are padded to eight states
    posterior, null_posterior = np.empty((tokens, agents), np.float32), np.empty(tokens, np.float32)
    log_likelihood = np.zeros(len(starts))
    null_length = math.nan if null_segment is None else null_segment
    loops.posteriors(
        ratios,
        cuts,
        part,
        prior,
        stages,
        mean_segment,
        null_length,
        posterior,
        null_posterior,
        log_likelihood,
    )
    if np.isnan(log_likelihood).any():
        raise InputError("log_ratios: got NaN, expected numbers")
    return posterior, null_posterior, log_likelihood


def exponentials(log_ratios: npt.NDArray[np.floating]) -> Float32s:
    """Return e [..., A + 1]: exponentials of the clipped log ratios, and 1 for the null state."""
    agents = log_ratios.shape[-1]
    cut = np.clip(log_ratios, -EXPONENT_LIMIT, EXPONENT_LIMIT, dtype=np.float32, casting="same_kind")
    ratios = np.empty((*log_ratios.shape[:-1], agents + 1), np.float32)
    ratios[..., :agents] = np.exp(cut, out=cut)  # one call: rows of a few agents are slow one by one
    ratios[..., agents] = 1
    return ratios


def batched_log_likelihood(
    ratios: Float32s,
    mean_segments: Float64s,
    priors: Float64s,
    null_segments: Float64s | None = None,
) -> Float64s:
    """Return the log-likelihood ratio of `forward_backward` for several chains of three stages, [S, R].

    Args:
        ratios: `exponentials` of S texts, [S, T, A + 1], not changed.
        mean_segments: expected tokens of a segment in each chain, [R].
        priors: `prior_of` in each chain, [R, A + 1].
        null_segments: as in `forward_backward`, in each chain, [R]; NaN or None: as agents' segments.

    O(S·R·T·A), in vectors over chains.
    """
    log_likelihood = np.empty((len(ratios), len(mean_segments)))
    lengths = np.full(len(mean_segments), math.nan) if null_segments is None else null_segments
    loops.log_likelihoods(ratios, ratios.shape[1], mean_segments, lengths, priors, log_likelihood)
    return log_likelihood


def prior_of(shares: Float64s, null_prior: float) -> Float64s:
    """Return π [A + 1] of the agents, in proportion to `shares` [A], and of the null state."""
    prior = np.empty(len(shares) + 1)
    loops.fill_priors(shares, np.array([null_prior], np.float64), 1, prior[None])
    return prior


def boundary_intervals(
    posterior: Float32s, spans: Sequence[tuple[int, int, int]], sure: float = 0.95
) -> list[tuple[int, int]]:
    """Return an interval of tokens for each boundary: up to the nearest `sure` token on either side.

    Args:
        posterior: γ [T, A] float32; the rest to 1 belongs to the null state.
        spans: (start, end, agent) [S], in order and without gaps; agent -1 is the null state.
        sure: minimum posterior of the span's own agent for a token to count as decided.

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
    decided = np.flatnonzero(~(_posterior_of(posterior, table) < np.float32(sure))) + starts[0]
    # One past the last decided token before each boundary, and the next one, within the two spans.
    ranks = np.searchsorted(decided, ends[:-1])
    around = np.concatenate([[-1], decided, [len(posterior)]])
    lows, highs = np.maximum(around[ranks] + 1, starts[:-1]), np.minimum(around[ranks + 1], ends[1:])
    first, last = spans[0][0], spans[-1][1]
    return [(first, first), *zip(lows.tolist(), highs.tolist(), strict=True), (last, last)]


def _span_table(spans: Sequence[tuple[int, int, int]], tokens: int, agents: int) -> Int64s:
    table = np.array(spans)
    if table.ndim != 2 or table.shape[1] != 3 or table.dtype.kind not in "iu":
        raise ShapeError("spans", got=f"{table.dtype} {list(table.shape)}", expected="integers [S, 3]")
    starts, ends, owners = table.T
    bad = (starts < 0) | (ends < starts) | (ends > tokens) | (owners < UNATTRIBUTED) | (owners >= agents)
    bad[1:] |= starts[1:] != ends[:-1]
    if bad.any():
        raise InputError(
            f"spans: got {tuple(table[bad][0].tolist())}, expected (start, end, agent) without gaps, up to"
            f" token {tokens} and agent {agents - 1}"
        )
    return table.astype(np.int64)


def _posterior_of(posterior: Float32s, spans: Int64s) -> Float32s:
    """Return γ of each token's agent in its span; γ of the null state is 1 less the sum of the agents."""
    starts, ends, owners = spans.T
    agents = np.repeat(owners, ends - starts)
    inside = posterior[starts[0] : ends[-1]]
    values = inside[np.arange(len(inside)), agents]
    is_null = agents < 0
    if is_null.any():
        total = np.zeros(len(inside), np.float32)
        for column in inside.T:  # a fixed order, so that no sum depends on the number of tokens
            total += column
        values[is_null] = 1 - total[is_null]
    return np.asarray(values)
