"""What a text tells about itself: strengths of marks, shares of agents, the length of segments."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from iet.decoding.chain import EXPONENT_LIMIT, log_likelihoods, posteriors, prior_of
from iet.decoding.segmentation import Scores
from iet.errors import check_number
from iet.marks.families import Family
from iet.native.arrays import Float32s, Float64s
from iet.native.load import loops

MIN_STRENGTH, MAX_STRENGTH = 0.2, 4.0
"""The range of λ. A weaker mark cannot be told from none in a segment of some hundred tokens."""

STAGES = 3
"""Number of stages of a segment's duration, see `forward_backward`."""

MOST_ITERATIONS = 100
"""Of the fit, which then has long stood still."""

SMALLEST_BLOCK, BLOCKS = 4, 100
"""A text has at least so many blocks, unless they would be smaller than that; see `block_of`."""

# What is tried: nats a token of the marks, the mean length of a segment, and nobody's share where he is rare,
# or where marks are.
_NATS = (0.02, 0.08, 0.3, 1.2)
_SEGMENT_LENGTHS = np.array([25.0, 70.0, 220.0, 1000.0])
_RARELY, _MOSTLY = 0.02, 0.98
_AROUND = np.array([0.5, 0.71, 1.0, 1.41, 2.0])
_SHORTER = np.array([0.25, 0.35])  # where nobody may not win, who would have what short segments leave

# Spreads are those of logarithms.
_USUAL_NATS, _NATS_SPREAD = 0.06, 2.0
_USUAL_LENGTH, _LENGTH_SPREAD = 75.0, 1.0
_LENGTH_OF_ONE = 150.0  # where there is one agent, who takes turns with nobody

# Where marks vary in a text: how many fewer nats weaker ones carry, and how unlikely they are. Logarithms.
_WEAKER_NATS, _ODDS_OF_TWO = 2.0, 4.0

# Where gaps of nobody's alternate with agents' segments: his share of what begins, the mean lengths of a gap
# that are tried, and how unlikely such texts are (a logarithm).
GAPS = 0.95
_GAP_LENGTHS = np.array([20.0, 60.0, 180.0])
_SHORT_GAP = np.array([30.0])  # for which a block may be too long
_ODDS_OF_GAPS = 2.0

# An agent who holds less than this part of an equal share keeps what he holds, and how unlikely it is that
# anybody does (a logarithm).
_LITTLE, _ODDS_OF_LITTLE = 0.5, 2.0


@dataclasses.dataclass(frozen=True, eq=False)
class Fitted:
    """What a text tells about itself.

    Attributes:
        strengths: λ [A].
        shares: π of the agents [A], without nobody's: equal ones, but for those who hold little.
        nobody: π of nobody.
        mean_segment: expected tokens of a segment.
        evidence: log-likelihood ratio of the text, over all that was tried: marked against unmarked.
        weaker: λ [A] of the agents' other segments, where marks of one strength do not explain the text.
        nobody_segment: `nobody_segment` of `forward_backward`, where gaps alternate with agents' segments;
            `nobody` is then his share of the segments that begin.
    """

    strengths: Float64s
    shares: Float64s
    nobody: float
    mean_segment: float
    evidence: float
    weaker: Float64s | None = None
    nobody_segment: float | None = None


class Halves(NamedTuple):
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
    nobody: float = 0.0,
    mean_segment: float | None = None,
    strengths: Float64s | None = None,
    agents: int | None = None,
    shares: Float64s | None = None,
    halves: Halves | None = None,
) -> Fitted:
    """Fit λ, shares and the length of segments: first a guess by the text's likelihood, then by EM.

    The guess: the text's likelihood where every agent's marks carry 0.02, 0.08, 0.3 or 1.2 nats a token,
    segments have one of the mean lengths of a grid, and nobody has his share, or 0.02 or 0.98 of the text.
    Nats are log-normal around 0.06 (spread 2), lengths around 75 (spread 1), or around 150 where there is one
    agent, the three shares equally likely. The guess is the mean under the posterior, for λ and lengths that
    of their logarithms. Then, in each iteration over blocks of tokens,

        mean(λ̄)   = (Σ_a Σ_b γ_b(a)·x_b(a) + 150·mean(λ₀)) / (Σ_a Σ_b γ_b(a)·w_b + 150)
        mean(λ_a) = (Σ_b γ_b(a)·x_b(a) + m·mean(λ̄)) / (Σ_b γ_b(a)·w_b + m)
        π_a       ∝ block·Σ_b γ_b(a) + 1000·(1 - π₀) / A, and of nobody alike (with `shares` for 1 / A)

    with the guesses λ₀ and π₀ (nobody's). The m tokens keep an agent with little text near all agents, the
    1000 at equal shares near the same part of the text. m is `shrinkage`, or up to 1000 where agents differ
    by less than twice what chance would make of equal ones (Cochran's Q): fitted to the tokens it holds, a
    strength that is too high takes tokens of others. In the last iteration the mean length is looked for anew
    at 0.5 to 2 times the guess, where nobody may not win at 0.25 to 2 times.

    There, where nobody may win, the text is also tried as agents' segments with gaps between them: what
    begins is nobody's with a share of 0.95, he may not follow himself, and has a mean length of his own, 20,
    60 or 180 tokens (log-normal around 75, spread 1). Where the text is e^2 times likelier so, that is kept.
    A gap is three blocks or more; where that is more than 30 tokens, and none of these is kept, gaps of 30
    are tried in blocks of half the size.

    Then agents' shares are made equal again. Where the text is e^2 times likelier so, those who hold less
    than half an equal share (of what agents hold) have what they hold, and the others the same each. Fitted
    shares serve for the fit alone: with weak marks whoever has a large one takes tokens of others.

    Where nobody may win and the text is e^4 times likelier so, each agent has a second λ, whose marks carry
    e^-2 of the nats of the first, for as many segments.

    Args:
        sums, weights: Σ w·x [B, A] and Σ w [B] over blocks of tokens, as `block_sums` returns them.
        family: of the scores; None: they are log-likelihood ratios, which need `strengths` of 1.
        block: tokens of a block.
        iterations: number of them, 0 for the guess; at most `MOST_ITERATIONS`.
        shrinkage: least m in tokens, 0 to 1e9.
        nobody: share of the tokens that no agent wrote, where neither he nor marks are rare, before the text
            is seen; 0: he may not win. It is not guessed where `mean_segment` and `strengths` are given.
        mean_segment: in tokens, instead of fitting it.
        strengths: λ [A], instead of fitting them.
        agents: how many there are, where some are not in `sums`.
        shares: of each column in what agents wrote, before the text is seen [A], in all at most 1; None: the
            same for all `agents`.
        halves: the same text in blocks of half the size, of use where `halves_help`; None: not looked at.

    Returns:
        Fitted; λ within `strength_range`.

    Raises:
        InputError: a parameter is out of range.

    Cost: O(B·A): 16 chains, or 48 where nobody may win, side by side, then 2 passes an iteration, and 7
    to 9 chains side by side, and 4 where nobody may win, with `halves` up to 2 more of twice the length.
    Deterministic.
    """
    check_number("iterations", iterations, 0, MOST_ITERATIONS)
    check_number("shrinkage", shrinkage, 0, 1e9, integer=False)
    check_number("block", block, 1)
    check_number("nobody", nobody, 0, 0.99, integer=False)
    if mean_segment is not None:
        check_number("mean_segment", mean_segment, 1, 1e9, integer=False)
    columns = sums.shape[1]
    alike = np.full(columns, 1 / (agents or columns)) if shares is None else shares
    alone = (agents or columns) == 1
    start = _guess(sums, weights, family, block, alike, nobody, mean_segment, strengths, alone)
    found, shares, left_share, length = start.strengths, start.shares, start.nobody, start.mean_segment
    gap, held = None, None
    for i in range(iterations):
        ratios = block_ratios(sums, weights, found, family)
        prior = prior_of(shares, left_share)
        if mean_segment is None and i == iterations - 1:
            length = _length_near(length, ratios, block, prior, alone)
            if left_share > 0:
                gap = _gap_near(length, _GAP_LENGTHS, ratios, block, prior)
                if gap is None and halves is not None:
                    finer = block_ratios(halves.sums, halves.weights, found, family)
                    gap = _gap_near(length, _SHORT_GAP, finer, halves.block, prior)
        if gap is not None:
            prior = prior_of(shares, GAPS)
        own = None if gap is None else gap / block
        gamma, left, _ = posteriors(ratios, length / block, prior, STAGES, nobody_segment=own)
        shares, held = np.empty(columns), gamma.sum(axis=0, dtype=np.float64)
        rest = loops.shares(gamma, left, block, start.shares, start.nobody, shares)
        left_share = min(0.99, rest) if nobody > 0 else 0.0
        if strengths is None and family is not None:
            found = fit_strengths(gamma, sums, weights, family, float(start.strengths[0]), shrinkage)
    fitted = Fitted(found, shares, left_share, length, start.evidence)
    if gap is not None:
        fitted = dataclasses.replace(fitted, nobody=GAPS, nobody_segment=gap)
    if held is not None and columns > 1:
        equal = _equal_shares(fitted, held, alike, sums, weights, family, block)
        fitted = dataclasses.replace(fitted, shares=equal)
    if strengths is None and family is not None and left_share > 0:
        fitted = dataclasses.replace(fitted, weaker=_weaker(fitted, sums, weights, family, block))
    return fitted


def _equal_shares(
    fitted: Fitted,
    held: Float64s,
    alike: Float64s,
    sums: Scores,
    weights: Float32s,
    family: Family | None,
    block: int,
) -> Float64s:
    """Return `Fitted.shares`, given how many blocks each agent holds [A] and the shares before [A]."""
    found = alike / alike.sum()
    held = held / max(held.sum(), 1e-9)
    little = held < _LITTLE * found
    if little.any() and not little.all():  # all where nobody holds the text
        some = np.where(little, held, found)
        priors = np.array([prior_of(each, fitted.nobody) for each in (found, some)])
        ratios = block_ratios(sums, weights, fitted.strengths, family)
        lengths = np.full(2, fitted.mean_segment / block)
        gaps = None if fitted.nobody_segment is None else np.full(2, fitted.nobody_segment / block)
        equal, unequal = log_likelihoods(ratios[None], lengths, priors, gaps)[0]
        if unequal - equal > _ODDS_OF_LITTLE:
            found = some / some.sum()
    return np.asarray((1 - fitted.nobody) * found)


def _weaker(fitted: Fitted, sums: Scores, weights: Float32s, family: Family, block: int) -> Float64s | None:
    """Return `Fitted.weaker`; None, too, where its marks would carry less than the least that is tried."""
    grid, carried = _strength_table(family)[0], _nats_table(family)
    nats = np.interp(fitted.strengths, grid, carried) * math.exp(-_WEAKER_NATS)
    if nats.max() < _NATS[0]:
        return None
    weaker = np.interp(nats, carried, grid)
    both = np.concatenate([fitted.strengths, weaker])
    ratios = block_ratios(np.tile(sums, 2), weights, both, family)
    shares = [np.append(fitted.shares, 0 * fitted.shares), np.tile(fitted.shares, 2)]
    priors = np.array([prior_of(each, fitted.nobody) for each in shares])
    lengths = np.full(2, fitted.mean_segment / block)
    gaps = None if fitted.nobody_segment is None else np.full(2, fitted.nobody_segment / block)
    one, two = log_likelihoods(ratios[None], lengths, priors, gaps)[0]
    return weaker if two - one > _ODDS_OF_TWO else None


def _gap_near(length: float, gaps: Float64s, ratios: Float32s, block: int, prior: Float64s) -> float | None:
    """Return the mean length of a gap, by the text's likelihood where gaps alternate with segments.

    None where the text is not e^2 times likelier so.
    """
    gaps = np.maximum(gaps, STAGES * block)  # each stage lasts a block at least
    priors, own = np.empty((1 + len(gaps), len(prior))), np.empty(1 + len(gaps))
    priors[0], priors[1:] = prior, prior_of(prior[:-1], GAPS)
    own[0], own[1:] = np.nan, gaps
    lengths = np.full(len(own), length / block)
    joint = log_likelihoods(ratios[None], lengths, priors, own / block)[0]
    found = np.empty(2)
    loops.mean_length(joint[1:], gaps, _USUAL_LENGTH, _LENGTH_SPREAD, found)
    gap, log_ratio = found.tolist()
    return None if log_ratio - joint[0] < _ODDS_OF_GAPS else gap


def _length_near(length: float, ratios: Float32s, block: int, prior: Float64s, alone: bool) -> float:
    """Return the mean length of a segment, by the text's likelihood at lengths around one."""
    lengths = length * (_AROUND if prior[-1] > 0 else np.append(_SHORTER, _AROUND))
    priors = np.empty((len(lengths), len(prior)))
    priors[:] = prior
    joint = log_likelihoods(ratios[None], lengths / block, priors)[0]
    found = np.empty(2)
    loops.mean_length(joint, lengths, _LENGTH_OF_ONE if alone else _USUAL_LENGTH, _LENGTH_SPREAD, found)
    return float(found[0])


def _guess(
    sums: Scores,
    weights: Float32s,
    family: Family | None,
    block: int,
    shares: Float64s,
    nobody: float,
    mean_segment: float | None,
    strengths: Float64s | None,
    alone: bool,
) -> Fitted:
    """Return what `fit` starts from: the mean over all that is tried, weighted by how likely it is."""
    lengths = _SEGMENT_LENGTHS if mean_segment is None else np.array([float(mean_segment)])
    nobodys = np.array([nobody], np.float64)
    if nobody > 0 and (strengths is None or mean_segment is None):
        nobodys = np.array([min(_RARELY, nobody), nobody, max(_MOSTLY, nobody)])
    if strengths is not None or family is None:
        tried = np.ones((1, sums.shape[1])) if strengths is None else strengths[None]
        plausible = log_strengths = np.zeros(1)
    else:
        tried = starts_of(family).repeat(sums.shape[1]).reshape(len(_NATS), -1)
        plausible, log_strengths = _PLAUSIBLE, np.log(starts_of(family))
    ratios = block_ratios(sums, weights, tried, family)
    priors = np.empty((len(nobodys) * len(lengths), sums.shape[1] + 1))
    loops.priors(shares, nobodys, len(lengths), priors)
    each = np.empty((len(nobodys), len(lengths)))
    each[:] = lengths / block
    joint = log_likelihoods(ratios, each.ravel(), priors)
    log_lengths, found = np.log(lengths), np.empty(4)
    usual = _log_normal(log_lengths, _LENGTH_OF_ONE if alone else _USUAL_LENGTH, _LENGTH_SPREAD)
    loops.mean_start(joint, plausible, usual, log_lengths, nobodys, log_strengths, found)
    strength, length, share, evidence = found.tolist()
    start = tried[0] if len(tried) == 1 else np.full(sums.shape[1], strength)
    return Fitted(start, (1 - share) * shares, share, length, evidence)


def _log_normal(logs: Float64s, middle: float, spread: float) -> Float64s:
    return -(((logs - math.log(middle)) / spread) ** 2) / 2


_PLAUSIBLE = _log_normal(np.log(_NATS), _USUAL_NATS, _NATS_SPREAD)


@functools.cache
def starts_of(family: Family) -> Float64s:
    """Return the λ that are tried: marks that carry 0.02, 0.08, 0.3 and 1.2 nats a token.

    λ·mean(λ) - log_mgf(λ) nats, the relative entropy of marked from unmarked scores, within `strength_range`.
    """
    nats = np.interp(_NATS, _nats_table(family), _strength_table(family)[0])
    return np.asarray(nats.clip(*strength_range(family)))


def start_strength(log_likelihood: Float64s, family: Family) -> float:
    """Return λ₀ of `fit`, given the log-likelihood of a text under each of `starts_of`."""
    joint = log_likelihood + _PLAUSIBLE
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
    """Return the λ [A] of `fit`, given who holds each block: γ [B, A], Σ w·x [B, A] and Σ w [B]."""
    grid, mean, _, variances = _strength_table(family)
    total, tokens = np.zeros(gamma.shape[1]), np.zeros(gamma.shape[1])
    loops.held_sums(gamma, sums, weights, total, tokens)
    strengths = np.empty(len(total))
    loops.strengths(
        total, tokens, start, shrinkage, grid, mean, variances, *strength_range(family), strengths
    )
    return strengths


def block_of(tokens: int, largest: int) -> int:
    """Return the tokens of a block: `largest`, or fewer in a text that would have less than 100 blocks."""
    return min(largest, max(SMALLEST_BLOCK, tokens // BLOCKS))


def halves_help(block: int) -> bool:
    """Tell whether `fit` has any use for blocks of half the size."""
    return bool(STAGES * block > _SHORT_GAP[0])


def block_sums(scores: Scores, weight: Float32s, block: int) -> tuple[Float32s, Float32s]:
    """Return Σ w·x and Σ w over blocks of `block` tokens, float32 [T / block, A] and [T / block]."""
    count = -(-len(scores) // block)
    sums, weights = np.zeros((count, scores.shape[1]), np.float32), np.zeros(count, np.float32)
    loops.blocks(scores, weight, block, sums, weights)
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
    each = strengths.reshape(-1, scores.shape[1])
    ratios = np.empty((len(each), *scores.shape), np.float32)
    loops.log_ratios(scores, weights, each, offsets_of(each, family), blocks, ratios)
    return ratios[0] if strengths.ndim == 1 else ratios


def block_ratios(sums: Scores, weights: Float32s, strengths: Float64s, family: Family | None) -> Float32s:
    """Return `exponentials` of the log-likelihood ratios of blocks, float32 [B, A + 1].

    Args:
        sums, weights: as `block_sums` returns them.
        strengths: λ [A], 0 to `strength_range`; or several, [S, A], for a result [S, B, A + 1].
        family: of the scores; None: they are log-likelihood ratios, and λ is 1.
    """
    each = strengths.reshape(-1, sums.shape[1])
    ratios = np.empty((len(each), len(sums), sums.shape[1] + 1), np.float32)
    loops.cut_ratios(sums, weights, each, offsets_of(each, family), EXPONENT_LIMIT, ratios)
    np.exp(ratios, out=ratios)
    return ratios[0] if strengths.ndim == 1 else ratios


def offsets_of(strengths: Float64s, family: Family | None) -> Float64s:
    """Return log_mgf(λ) of each; nothing is taken off log-likelihood ratios."""
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
    # What marks carry at each λ of that grid, in nats a token.
    grid, mean, log_mgf, _ = _strength_table(family)
    return np.asarray(grid * mean - log_mgf)
