"""What a text tells about itself: strengths of marks, shares of agents, the length of segments."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from iet.decoding.chain import exponentials, log_likelihoods, posteriors, prior_of
from iet.decoding.segmentation import Scores
from iet.errors import check_number
from iet.marks.families import Family
from iet.native.arrays import Float32s, Float64s
from iet.native.jit import njit

MIN_STRENGTH, MAX_STRENGTH = 0.2, 4.0
"""The range of λ. A weaker mark cannot be told from none in a segment of some hundred tokens."""

STAGES = 3
"""Number of stages of a segment's duration, see `forward_backward`."""

_SEGMENT_LENGTHS = np.array([30.0, 50.0, 80.0, 125.0, 200.0, 320.0, 500.0, 1000.0])
_USUAL_LENGTH, _LENGTH_SPREAD = 60.0, 0.7
_SHARE_TOKENS = 1000.0


@dataclasses.dataclass(frozen=True, eq=False)
class Fitted:
    """What a text tells about itself.

    Attributes:
        strengths: λ [A].
        shares: π of the agents [A], without nobody's.
        nobody: π of nobody.
        mean_segment: expected tokens of a segment.
    """

    strengths: Float64s
    shares: Float64s
    nobody: float
    mean_segment: float


def fit(
    sums: Scores,
    weights: Float32s,
    family: Family | None,
    *,
    block: int = 16,
    iterations: int = 2,
    start_strength: float = 0.4,
    shrinkage: float = 200.0,
    nobody: float = 0.0,
    mean_segment: float | None = None,
    strengths: Float64s | None = None,
    agents: int | None = None,
    odds: Float64s | None = None,
    shares: Float64s | None = None,
) -> Fitted:
    """Fit λ, shares and the length of segments by expectation maximisation over blocks of tokens.

        mean(λ_a) = (Σ_b γ_b(a)·x_b(a) + m·mean(λ₀)) / (Σ_b γ_b(a)·w_b + m)
        π_a       ∝ block·Σ_b γ_b(a) + 1000·(1 - nobody) / A, and of nobody alike (with `shares` for 1 / A)

    The m = `shrinkage` tokens at λ₀ = `start_strength` and the 1000 at equal shares keep an agent with little
    text where it started. The mean length of a segment is the geometric mean of a grid from 30 to 1000
    tokens, weighted in the first iteration by the likelihood of the text and by a log-normal guess around 60
    (spread 0.7): a longer one lets one agent's segment cover text whose marks are too weak to be told apart.

    Args:
        sums, weights: Σ w·x [B, A] and Σ w [B] over blocks of tokens, as `block_sums` returns them.
        family: of the scores; None: they are log-likelihood ratios, which need `strengths` of 1.
        block: tokens of a block.
        iterations: maximum number of iterations, 0 for none; it stops where no λ moves by 0.005.
        start_strength: λ₀.
        shrinkage: m in tokens, 0 to 1e9.
        nobody: share of the tokens that no agent wrote, before the text is seen; 0: nobody may win.
        mean_segment: in tokens, instead of fitting it.
        strengths: λ [A], instead of fitting them.
        agents: how many there are, where some are not in `sums`.
        odds: of `forward_backward`, for blocks [B].
        shares: of each column in what agents wrote, before the text is seen [A], in all at most 1; None: the
            same for all `agents`.

    Returns:
        Fitted; λ within `strength_range`.

    Raises:
        InputError: a parameter is out of range.

    Cost: O(iterations·B·A): 2 passes of the chain each, and 8 in the first. Deterministic.
    """
    check_number("iterations", iterations, 0)
    check_number("shrinkage", shrinkage, 0, 1e9, integer=False)
    check_number("block", block, 1)
    check_number("nobody", nobody, 0, 0.99, integer=False)
    check_number("start_strength", start_strength, *strength_range(family), integer=False)
    if mean_segment is not None:
        check_number("mean_segment", mean_segment, 1, 1e9, integer=False)
    columns = sums.shape[1]
    found = np.full(columns, float(start_strength)) if strengths is None else strengths
    alike = np.full(columns, (1 - nobody) / (agents or columns))
    before = alike if shares is None else (1 - nobody) * shares
    shares, p_nobody = before, nobody
    length = _USUAL_LENGTH if mean_segment is None else float(mean_segment)
    for i in range(iterations):
        ratios = exponentials(log_ratios(sums, weights, found, family, blocks=True))
        prior = prior_of(shares, p_nobody)
        if mean_segment is None and i == 0:
            length = _segment_length(ratios, block, prior, odds)
        gamma, left, _ = posteriors(ratios, length / block, prior, STAGES, odds)
        held = block * gamma.sum(axis=0, dtype=np.float64) + _SHARE_TOKENS * before
        rest = block * left.sum(dtype=np.float64) + _SHARE_TOKENS * nobody
        shares = held / (held.sum() + rest)
        p_nobody = min(0.99, float(rest / (held.sum() + rest))) if nobody > 0 else 0.0
        if strengths is not None or family is None:
            continue
        fitted = fit_strengths(gamma, sums, weights, family, start_strength, shrinkage)
        moved = np.abs(fitted - found).max()
        found = fitted
        if moved < 0.005 and i > 0:
            break
    return Fitted(found, shares, p_nobody, length)


def fit_strengths(
    gamma: npt.NDArray[Any],
    sums: npt.NDArray[Any],
    weights: npt.NDArray[Any],
    family: Family,
    start_strength: float,
    shrinkage: float,
) -> Float64s:
    """Return the λ [A] of `fit`, given who holds each block: γ [B, A], Σ w·x [B, A] and Σ w [B]."""
    grid, mean, _ = _strength_table(family)
    start = _mean_at(start_strength, family)
    total = np.einsum("ta,ta->a", gamma, sums, dtype=np.float64) + shrinkage * start
    tokens = np.einsum("ta,t->a", gamma, weights, dtype=np.float64) + shrinkage
    fitted = np.interp(total / np.maximum(tokens, 1e-9), mean, grid)
    return np.asarray(fitted.clip(*strength_range(family)))


def _segment_length(ratios: Float32s, block: int, prior: Float64s, odds: Float64s | None) -> float:
    likelihood = log_likelihoods(ratios, _SEGMENT_LENGTHS / block, prior, STAGES, odds)
    logs = np.log(_SEGMENT_LENGTHS)
    likelihood -= ((logs - math.log(_USUAL_LENGTH)) / _LENGTH_SPREAD) ** 2 / 2
    weight = np.exp(likelihood - likelihood.max())
    return float(np.exp((weight * logs).sum() / weight.sum()))


def block_sums(scores: Scores, weight: Float32s, block: int) -> tuple[Float32s, Float32s]:
    """Return Σ w·x and Σ w over blocks of `block` tokens, float32 [T / block, A] and [T / block]."""
    count = -(-len(scores) // block)
    sums, weights = np.zeros((count, scores.shape[1]), np.float32), np.zeros(count, np.float32)
    _blocks_njit(scores, weight, block, sums, weights)
    return sums, weights


@njit
def _blocks_njit(x: Scores, weight: Float32s, block: int, sums: Float32s, weights: Float32s) -> None:
    for b in range(len(weights)):
        for t in range(b * block, min(b * block + block, len(x))):
            if weight[t] > 0:
                weights[b] += weight[t]
                for a in range(x.shape[1]):
                    sums[b, a] += weight[t] * x[t, a]


def log_ratios(
    scores: Scores, weights: Float32s, strengths: Float64s, family: Family | None, blocks: bool = False
) -> Float32s:
    """Return w_t·(λ_a·x_t(a) - log_mgf(λ_a)), float32 [T, A].

    Args:
        scores: x [T, A]; with `blocks`, Σ w·x over each block.
        weights: w [T]; with `blocks`, Σ w.
        strengths: λ [A], 0 to `strength_range`.
        family: of the scores; None: x are log-likelihood ratios, and λ is 1.
    """
    ratios = np.empty(scores.shape, np.float32)
    _log_ratios_njit(scores, weights, strengths, offsets_of(strengths, family), blocks, ratios)
    return ratios


def offsets_of(strengths: Float64s, family: Family | None) -> Float64s:
    """Return log_mgf(λ) [A]; nothing is taken off log-likelihood ratios."""
    if family is None:
        return np.zeros(len(strengths))
    grid, _, log_mgf = _strength_table(family)
    return np.interp(strengths, grid, log_mgf)


@njit
def _log_ratios_njit(
    x: Scores, weights: Float32s, strengths: Float64s, offsets: Float64s, blocks: bool, ratios: Float32s
) -> None:
    for t in range(len(x)):
        once = 1.0 if blocks else weights[t]
        for a in range(x.shape[1]):
            ratios[t, a] = once * strengths[a] * x[t, a] - weights[t] * offsets[a]


def strength_range(family: Family | None) -> tuple[float, float]:
    """Return the lowest and the highest λ that is fitted."""
    limit = math.inf if family is None else family.strength_limit
    return MIN_STRENGTH, min(MAX_STRENGTH, 0.98 * limit)


@functools.cache
def _mean_at(strength: float, family: Family) -> float:
    grid, mean, _ = _strength_table(family)
    return float(np.interp(strength, grid, mean))


@functools.cache
def _strength_table(family: Family) -> tuple[Float64s, Float64s, Float64s]:
    # λ, mean(λ), log_mgf(λ) on a grid; linear interpolation, good to 1e-5, inverts the mean for all agents.
    grid = np.linspace(0.0, strength_range(family)[1], 512)
    return grid, family.mean(grid), family.log_mgf(grid)
