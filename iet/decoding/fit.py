"""Fit the chain to one text: strengths of the marks, shares of the agents, and the length of segments."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from iet.decoding.chain import EXPONENT_LIMIT, batched_log_likelihood, posteriors, prior_of
from iet.decoding.segmentation import Scores
from iet.marks.families import Family
from iet.native.arrays import Float32s, Float64s
from iet.native.load import loops

MIN_STRENGTH, MAX_STRENGTH = 0.2, 4.0
"""Range of λ. A weaker mark cannot be distinguished from none in a segment of some hundred tokens."""

STAGES = 3
"""Number of stages of a segment's duration, see `forward_backward`."""

MOST_ITERATIONS = 100
"""Maximum number of EM iterations; the fit converges much earlier."""

SMALLEST_BLOCK, BLOCKS = 4, 100
"""Minimum number of tokens of a block, and the number of blocks of a short text; see `block_of`."""

# The grid of the first guess: nats a token of the marks, mean lengths of a segment, and the null share if
# unmarked or marked text is rare.
_NATS = (0.02, 0.08, 0.3, 1.2)
_SEGMENT_LENGTHS = np.array([25.0, 70.0, 220.0, 1000.0])
_RARE_NULL, _COMMON_NULL = 0.02, 0.98
_LENGTH_FACTORS = np.array([0.5, 0.71, 1.0, 1.41, 2.0])
_SHORT_LENGTH_FACTORS = np.array(
    [0.25, 0.35]
)  # without a null state (forced choice), also try short segments

# Medians and spreads of log-normal priors; spreads are those of logarithms.
_USUAL_NATS, _NATS_SPREAD = 0.06, 2.0
_USUAL_LENGTH, _LENGTH_SPREAD = 75.0, 1.0
_SINGLE_AGENT_LENGTH = 150.0  # one agent alternates with the null state

# Two strengths of one agent: the log of how much less nats the weaker marks carry, and the minimum log Bayes
# factor to accept them.
_WEAKER_NATS, LOG_BAYES_FACTOR_TWO_AGENTS = 2.0, 4.0

# Null segments (gaps) that alternate with agents' segments: the share of gaps among the segments that begin,
# the grid of their mean lengths, and the minimum log Bayes factor to accept them.
GAPS = 0.95
_GAP_LENGTHS = np.array([20.0, 60.0, 180.0])
_SHORT_GAP = np.array([30.0])  # shorter than the three stages of a gap in large blocks
_LOG_BAYES_FACTOR_GAPS = 2.0

# Unequal shares: the part of an equal share below which an agent keeps its own, and the minimum log
# Bayes factor to accept unequal shares.
_SMALL_SHARE, _LOG_BAYES_FACTOR_SHARES = 0.5, 2.0


@dataclasses.dataclass(frozen=True, eq=False)
class Fitted:
    """The parameters of the chain for one text.

    Attributes:
        strengths: λ [A].
        shares: π of the agents [A], without the null state: equal, except for agents with small shares.
        null_prior: π of the null state.
        mean_segment: expected tokens of a segment.
        evidence: log-likelihood ratio of the text, averaged over the grid of the first guess: marked against
            unmarked.
        weaker: λ [A] of the agents' other segments, if marks of one strength do not explain the text.
        null_segment: `null_segment` of `forward_backward`, if gaps alternate with agents' segments;
            `null_prior` is then the share of gaps among the segments that begin.
    """

    strengths: Float64s
    shares: Float64s
    null_prior: float
    mean_segment: float
    evidence: float
    weaker: Float64s | None = None
    null_segment: float | None = None


class HalfBlockSums(NamedTuple):
    """A text in blocks of half the size: as `block_sums` returns them, and their size."""

    sums: Float32s
    weights: Float32s
    block: int


def fit(
    sums: Scores,
    weights: Float32s,
    family: Family | None,
    *,
    block: int = 16,
    iterations: int = 2,
    shrinkage: float = 30.0,
    null_prior: float = 0.0,
    mean_segment: float | None = None,
    strengths: Float64s | None = None,
    agents: int | None = None,
    shares: Float64s | None = None,
    half_blocks: HalfBlockSums | None = None,
) -> Fitted:
    """Fit λ, shares and the length of segments: first a guess by the text's likelihood, then by EM.

    The guess averages over a grid: every agent's marks carry 0.02, 0.08, 0.3 or 1.2 nats a token, segments
    have one of four mean lengths, and the null state has the share `null_prior`, 0.02 or 0.98. The prior of
    nats is log-normal around 0.06 (spread 2), that of lengths around 75 (spread 1), or around 150 if there is
    one agent; the three null shares are equally likely. The guess is the posterior mean, for λ and lengths
    the mean of their logarithms. Then, in each iteration over blocks of tokens,

        mean(λ̄)   = (Σ_a Σ_b γ_b(a)·x_b(a) + 150·mean(λ₀)) / (Σ_a Σ_b γ_b(a)·w_b + 150)
        mean(λ_a) = (Σ_b γ_b(a)·x_b(a) + m·mean(λ̄)) / (Σ_b γ_b(a)·w_b + m)
        π_a       ∝ block·Σ_b γ_b(a) + 1000·(1 - π₀) / A, and the same for the null state with π₀
                    (with `shares` for 1 / A)

    with the guesses λ₀ and π₀ (the null share). The m pseudo-tokens shrink an agent with little text toward
    the pooled mean, the 1000 shrink its share toward an equal one. m is `shrinkage`, or up to 1000 if agents
    differ by less than twice what chance explains (Cochran's Q): a strength that is fitted to its own tokens
    and too high takes tokens of other agents. The last iteration refines the mean length on a grid of 0.5 to
    2 times the guess; without a null state (forced choice) of 0.25 to 2 times.

    With a null state the last iteration also tries gaps between agents' segments: gaps have a share of 0.95
    of the segments that begin, do not follow each other, and have a mean length of 20, 60 or 180 tokens
    (log-normal around 75, spread 1). Gaps are accepted if the text is e^2 times likelier with them. A gap
    lasts three blocks or more; if that exceeds 30 tokens and no gaps were accepted, gaps of 30 tokens are
    tried in blocks of half the size.

    Finally agents' shares are made equal again, because a large fitted share takes tokens of other agents if
    marks are weak. If the text is e^2 times likelier so, agents with less than half an equal share (of the
    marked text) keep their own share, and the others share the rest equally.

    With a null state each agent gets a second λ, whose marks carry e^-2 of the nats of the first and which
    has as many segments, if the text is e^4 times likelier so.

    Args:
        sums, weights: Σ w·x [B, A] and Σ w [B] over blocks of tokens, as `block_sums` returns them.
        family: of the scores; None: they are log-likelihood ratios, which need `strengths` of 1.
        block: tokens of a block.
        iterations: number of them, 0 for the guess; at most `MOST_ITERATIONS`.
        shrinkage: minimum of m in tokens, 0 to 1e9.
        null_prior: prior share of unmarked tokens if neither unmarked nor marked text is rare; 0: forced
            choice, without a null state. It is not guessed if `mean_segment` and `strengths` are set.
        mean_segment: in tokens, instead of fitting it.
        strengths: λ [A], instead of fitting them.
        agents: number of agents, if `sums` has only some of them.
        shares: prior share of each column in the marked text [A], in all at most 1; None: equal shares of all
            `agents`.
        half_blocks: the same text in blocks of half the size, which short gaps need (`half_blocks_help`);
            None: short gaps are not tried.

    Returns:
        Fitted; λ within `strength_range`.

    The parameters are not checked: `PosteriorOptions` does so.

    Cost: O(B·A): 16 chains (48 with a null state) in one batch, then 2 passes an iteration, and batches of 7
    to 9 chains; with a null state 4 more, and with `half_blocks` up to 2 more of twice the length.
    Deterministic.
    """
    columns = sums.shape[1]
    uniform_prior = np.full(columns, 1 / (agents or columns)) if shares is None else shares
    single_agent = (agents or columns) == 1
    start = _guess(
        sums, weights, family, block, uniform_prior, null_prior, mean_segment, strengths, single_agent
    )
    fitted_strengths, shares, null_share, length = (
        start.strengths,
        start.shares,
        start.null_prior,
        start.mean_segment,
    )
    gap, occupancy = None, None
    for i in range(iterations):
        ratios = block_ratios(sums, weights, fitted_strengths, family)
        prior = prior_of(shares, null_share)
        if mean_segment is None and i == iterations - 1:
            length = _refine_length(length, ratios, block, prior, single_agent)
            if null_share > 0:
                gap = _fit_gap(length, _GAP_LENGTHS, ratios, block, prior)
                if gap is None and half_blocks is not None:
                    finer = block_ratios(half_blocks.sums, half_blocks.weights, fitted_strengths, family)
                    gap = _fit_gap(length, _SHORT_GAP, finer, half_blocks.block, prior)
        if gap is not None:
            prior = prior_of(shares, GAPS)
        null_segment = None if gap is None else gap / block
        gamma, null_posterior, _ = posteriors(
            ratios, length / block, prior, STAGES, null_segment=null_segment
        )
        shares, occupancy = np.empty(columns), gamma.sum(axis=0, dtype=np.float64)
        fitted_null = loops.set_shares(gamma, null_posterior, block, start.shares, start.null_prior, shares)
        null_share = min(0.99, fitted_null) if null_prior > 0 else 0.0
        if strengths is None and family is not None:
            fitted_strengths = fit_strengths(
                gamma, sums, weights, family, float(start.strengths[0]), shrinkage
            )
    fitted = Fitted(fitted_strengths, shares, null_share, length, start.evidence)
    if gap is not None:
        fitted = dataclasses.replace(fitted, null_prior=GAPS, null_segment=gap)
    if occupancy is not None and columns > 1:
        equal = _equal_shares(fitted, occupancy, uniform_prior, sums, weights, family, block)
        fitted = dataclasses.replace(fitted, shares=equal)
    if strengths is None and family is not None and null_share > 0:
        fitted = dataclasses.replace(fitted, weaker=_weaker(fitted, sums, weights, family, block))
    return fitted


def _equal_shares(
    fitted: Fitted,
    occupancy: Float64s,
    uniform_prior: Float64s,
    sums: Scores,
    weights: Float32s,
    family: Family | None,
    block: int,
) -> Float64s:
    """Return `Fitted.shares` from the expected number of blocks of each agent [A] and prior shares [A]."""
    shares = uniform_prior / uniform_prior.sum()
    occupancy = occupancy / max(occupancy.sum(), 1e-9)
    is_small = occupancy < _SMALL_SHARE * shares
    if is_small.any() and not is_small.all():  # all are small if the text is unmarked
        unequal_shares = np.where(is_small, occupancy, shares)
        ratios = block_ratios(sums, weights, fitted.strengths, family)
        equal, unequal = _compare_shares(fitted, ratios, (shares, unequal_shares), block)
        if unequal - equal > _LOG_BAYES_FACTOR_SHARES:
            shares = unequal_shares / unequal_shares.sum()
    return np.asarray((1 - fitted.null_prior) * shares)


def _weaker(fitted: Fitted, sums: Scores, weights: Float32s, family: Family, block: int) -> Float64s | None:
    """Return `Fitted.weaker`; None also if its marks would carry less than the minimum of the grid."""
    grid, nats_of_grid = _strength_table(family)[0], _nats_table(family)
    nats = np.interp(fitted.strengths, grid, nats_of_grid) * math.exp(-_WEAKER_NATS)
    if nats.max() < _NATS[0]:
        return None
    weaker = np.interp(nats, nats_of_grid, grid)
    strengths = np.concatenate([fitted.strengths, weaker])
    ratios = block_ratios(np.tile(sums, 2), weights, strengths, family)
    shares = np.append(fitted.shares, 0 * fitted.shares), np.tile(fitted.shares, 2)
    one, two = _compare_shares(fitted, ratios, shares, block)
    return weaker if two - one > LOG_BAYES_FACTOR_TWO_AGENTS else None


def _compare_shares(
    fitted: Fitted, ratios: Float32s, shares: tuple[Float64s, Float64s], block: int
) -> Float64s:
    """Return the text's log-likelihood ratio under each of two shares of the agents."""
    priors = np.array([prior_of(of_agents, fitted.null_prior) for of_agents in shares])
    lengths = np.full(2, fitted.mean_segment / block)
    gaps = None if fitted.null_segment is None else np.full(2, fitted.null_segment / block)
    return np.asarray(batched_log_likelihood(ratios[None], lengths, priors, gaps)[0])


def _fit_gap(length: float, gaps: Float64s, ratios: Float32s, block: int, prior: Float64s) -> float | None:
    """Return the posterior mean length of a gap, from the text's likelihood for each of some lengths.

    None if the text is less than e^2 times likelier with gaps than without.
    """
    gaps = np.maximum(gaps, STAGES * block)  # each stage lasts at least a block
    priors, null_segments = np.empty((1 + len(gaps), len(prior))), np.empty(1 + len(gaps))
    priors[0], priors[1:] = prior, prior_of(prior[:-1], GAPS)
    null_segments[0], null_segments[1:] = np.nan, gaps
    lengths = np.full(len(null_segments), length / block)
    joint = batched_log_likelihood(ratios[None], lengths, priors, null_segments / block)[0]
    means = np.empty(2)
    loops.mean_length(joint[1:], gaps, _USUAL_LENGTH, _LENGTH_SPREAD, means)
    gap, log_likelihood = means.tolist()
    return None if log_likelihood - joint[0] < _LOG_BAYES_FACTOR_GAPS else gap


def _refine_length(length: float, ratios: Float32s, block: int, prior: Float64s, single_agent: bool) -> float:
    """Return the posterior mean length of a segment, from the text's likelihood for lengths near `length`."""
    factors = _LENGTH_FACTORS if prior[-1] > 0 else np.append(_SHORT_LENGTH_FACTORS, _LENGTH_FACTORS)
    lengths = length * factors
    priors = np.empty((len(lengths), len(prior)))
    priors[:] = prior
    joint = batched_log_likelihood(ratios[None], lengths / block, priors)[0]
    means = np.empty(2)
    usual = _SINGLE_AGENT_LENGTH if single_agent else _USUAL_LENGTH
    loops.mean_length(joint, lengths, usual, _LENGTH_SPREAD, means)
    return float(means[0])


def _guess(
    sums: Scores,
    weights: Float32s,
    family: Family | None,
    block: int,
    shares: Float64s,
    null_prior: float,
    mean_segment: float | None,
    strengths: Float64s | None,
    single_agent: bool,
) -> Fitted:
    """Return the first guess of `fit`: the mean over the grid, weighted by the posterior."""
    lengths = _SEGMENT_LENGTHS if mean_segment is None else np.array([float(mean_segment)])
    null_shares = np.array([null_prior], np.float64)
    if null_prior > 0 and (strengths is None or mean_segment is None):
        null_shares = np.array([min(_RARE_NULL, null_prior), null_prior, max(_COMMON_NULL, null_prior)])
    if strengths is not None or family is None:
        grid = np.ones((1, sums.shape[1])) if strengths is None else strengths[None]
        log_prior = log_strengths = np.zeros(1)
    else:
        grid = starts_of(family).repeat(sums.shape[1]).reshape(len(_NATS), -1)
        log_prior, log_strengths = _LOG_PRIOR_NATS, np.log(starts_of(family))
    ratios = block_ratios(sums, weights, grid, family)
    priors = np.empty((len(null_shares) * len(lengths), sums.shape[1] + 1))
    loops.fill_priors(shares, null_shares, len(lengths), priors)
    in_blocks = np.empty((len(null_shares), len(lengths)))
    in_blocks[:] = lengths / block
    joint = batched_log_likelihood(ratios, in_blocks.ravel(), priors)
    log_lengths, means = np.log(lengths), np.empty(4)
    usual = _SINGLE_AGENT_LENGTH if single_agent else _USUAL_LENGTH
    log_prior_lengths = _log_normal(log_lengths, usual, _LENGTH_SPREAD)
    loops.mean_start(joint, log_prior, log_prior_lengths, log_lengths, null_shares, log_strengths, means)
    strength, length, null_share, evidence = means.tolist()
    start = grid[0] if len(grid) == 1 else np.full(sums.shape[1], strength)
    return Fitted(start, (1 - null_share) * shares, null_share, length, evidence)


def _log_normal(logs: Float64s, middle: float, spread: float) -> Float64s:
    return -(((logs - math.log(middle)) / spread) ** 2) / 2


_LOG_PRIOR_NATS = _log_normal(np.log(_NATS), _USUAL_NATS, _NATS_SPREAD)


@functools.cache
def starts_of(family: Family) -> Float64s:
    """Return the λ of the grid: marks that carry 0.02, 0.08, 0.3 and 1.2 nats a token.

    λ·mean(λ) - log_mgf(λ) nats, the relative entropy of marked from unmarked scores, within `strength_range`.
    """
    nats = np.interp(_NATS, _nats_table(family), _strength_table(family)[0])
    return np.asarray(nats.clip(*strength_range(family)))


def start_strength(log_likelihood: Float64s, family: Family) -> float:
    """Return λ₀ of `fit`, given the log-likelihood of a text under each of `starts_of`."""
    joint = log_likelihood + _LOG_PRIOR_NATS
    weight = np.exp(joint - joint.max())
    return float(np.exp(weight @ np.log(starts_of(family)) / weight.sum()))


def fit_strengths(
    gamma: npt.NDArray[Any],
    sums: npt.NDArray[Any],
    weights: npt.NDArray[Any],
    family: Family,
    start: float,
    shrinkage: float,
) -> Float64s:
    """Return the λ [A] of `fit` from γ [B, A], Σ w·x [B, A] and Σ w [B] of each block."""
    grid, mean, _, variances = _strength_table(family)
    total, tokens = np.zeros(gamma.shape[1]), np.zeros(gamma.shape[1])
    loops.occupancy_sums(gamma, sums, weights, total, tokens)
    strengths = np.empty(len(total))
    loops.set_strengths(
        total, tokens, start, shrinkage, grid, mean, variances, *strength_range(family), strengths
    )
    return strengths


def block_of(tokens: int, largest: int) -> int:
    """Return the tokens of a block: `largest`, or fewer if the text would have less than 100 blocks."""
    return min(largest, max(SMALLEST_BLOCK, tokens // BLOCKS))


def half_blocks_help(block: int) -> bool:
    """Return whether `fit` can use blocks of half the size."""
    return bool(STAGES * block > _SHORT_GAP[0])


def block_sums(scores: Scores, weight: Float32s, block: int) -> tuple[Float32s, Float32s]:
    """Return Σ w·x and Σ w over blocks of `block` tokens, float32 [T / block, A] and [T / block]."""
    count = -(-len(scores) // block)
    sums, weights = np.zeros((count, scores.shape[1]), np.float32), np.zeros(count, np.float32)
    loops.block_sums(scores, weight, block, sums, weights)
    return sums, weights


def log_ratios(
    scores: Scores, weights: Float32s, strengths: Float64s, family: Family | None, blocks: bool = False
) -> Float32s:
    """Return w_t·(λ_a·x_t(a) - log_mgf(λ_a)), float32 [T, A].

    Args:
        scores: x [T, A]; with `blocks`, Σ w·x over each block.
        weights: w [T]; with `blocks`, Σ w.
        strengths: λ [A], 0 to `strength_range`; or several, [S, A], for a result [S, T, A].
        family: of the scores; None: x are log-likelihood ratios, and λ is 1.
    """
    grid = strengths.reshape(-1, scores.shape[1])
    ratios = np.empty((len(grid), *scores.shape), np.float32)
    loops.log_ratios(scores, weights, grid, offsets_of(grid, family), blocks, ratios)
    return ratios[0] if strengths.ndim == 1 else ratios


def block_ratios(sums: Scores, weights: Float32s, strengths: Float64s, family: Family | None) -> Float32s:
    """Return `exponentials` of the log-likelihood ratios of blocks, float32 [B, A + 1].

    Args:
        sums, weights: as `block_sums` returns them.
        strengths: λ [A], 0 to `strength_range`; or several, [S, A], for a result [S, B, A + 1].
        family: of the scores; None: they are log-likelihood ratios, and λ is 1.
    """
    grid = strengths.reshape(-1, sums.shape[1])
    ratios = np.empty((len(grid), len(sums), sums.shape[1] + 1), np.float32)
    loops.clipped_ratios(sums, weights, grid, offsets_of(grid, family), EXPONENT_LIMIT, ratios)
    np.exp(ratios, out=ratios)
    return ratios[0] if strengths.ndim == 1 else ratios


def offsets_of(strengths: Float64s, family: Family | None) -> Float64s:
    """Return log_mgf(λ) for each λ; 0 for log-likelihood ratios."""
    if family is None:
        return np.zeros(strengths.shape)
    grid, _, log_mgf, _ = _strength_table(family)
    return np.interp(strengths, grid, log_mgf)


def strength_range(family: Family | None) -> tuple[float, float]:
    """Return the lowest and the highest λ that is fitted."""
    limit = math.inf if family is None else family.strength_limit
    return MIN_STRENGTH, min(MAX_STRENGTH, 0.98 * limit)


@functools.cache
def _strength_table(family: Family) -> tuple[Float64s, Float64s, Float64s, Float64s]:
    # λ, mean(λ), log_mgf(λ) and the variance on a grid; linear interpolation, good to 1e-5, inverts the mean
    # for all agents.
    grid = np.linspace(0.0, strength_range(family)[1], 512)
    mean = family.mean(grid)
    return grid, mean, family.log_mgf(grid), np.gradient(mean, grid)


@functools.cache
def _nats_table(family: Family) -> Float64s:
    # Nats a token that marks carry at each λ of the grid of `_strength_table`.
    grid, mean, log_mgf, _ = _strength_table(family)
    return np.asarray(grid * mean - log_mgf)
