"""Parameters of the fit from likelihoods and posteriors."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from iet.decoding.segmentation import Scores
from iet.native.arrays import Float32s, Float64s
from tests.oracle import twin

START_TOKENS, SHARE_TOKENS = 150.0, 1000.0
"""Tokens for which the first guess counts: for the strength of all agents together, and for their shares."""

_BY_CHANCE, _MOST_ALIKE = 2.0, 1000.0


@twin
def occupancy_sums(
    gamma: Scores,
    sums: Scores,
    weights: Scores,
    total: Float64s,
    tokens: Float64s,
) -> None:
    # Σ γ_b(a)·x_b(a) and Σ γ_b(a)·w_b in float64, all in float32 or all in float64.
    for b in range(len(gamma)):
        for a in range(gamma.shape[1]):
            occupancy = np.float64(gamma[b, a])
            total[a] += occupancy * sums[b, a]
            tokens[a] += occupancy * weights[b]


@twin
def block_sums(x: Scores, weight: Float32s, block: int, sums: Float32s, weights: Float32s) -> None:
    for b in range(len(weights)):
        for t in range(b * block, min(b * block + block, len(x))):
            if weight[t] > 0:
                weights[b] += weight[t]
                for a in range(x.shape[1]):
                    sums[b, a] += weight[t] * x[t, a]


@twin
def log_ratios(
    x: Scores, weights: Float32s, strengths: Float64s, offsets: Float64s, blocks: bool, ratios: Float32s
) -> None:
    # Rows of a few agents are slow in NumPy.
    for s in range(len(strengths)):
        for t in range(len(x)):
            once = 1.0 if blocks else weights[t]
            for a in range(x.shape[1]):
                ratios[s, t, a] = once * strengths[s, a] * x[t, a] - weights[t] * offsets[s, a]


@twin
def clipped_ratios(
    sums: Scores, weights: Float32s, strengths: Float64s, offsets: Float64s, limit: float, ratios: Float32s
) -> None:
    # Log ratios of blocks, at most the limit on either side, and 0 for the null state.
    agents = sums.shape[1]
    for s in range(len(strengths)):
        for b in range(len(sums)):
            for a in range(agents):
                ratio = strengths[s, a] * sums[b, a] - weights[b] * offsets[s, a]
                ratios[s, b, a] = limit if ratio > limit else (-limit if ratio < -limit else ratio)
            ratios[s, b, agents] = 0.0


@twin
def mean_start(
    joint: Float64s,
    plausible: Float64s,
    usual: Float64s,
    log_lengths: Float64s,
    null_priors: Float64s,
    log_strengths: Float64s,
    result: Float64s,
) -> None:
    """Average strengths, null shares and lengths, weighted by the likelihood of the text.

    `joint` [S, N·L], log-likelihoods, which are changed; log priors `plausible` [S] and `usual` [L]. `result`
    becomes the strength and the length, means of logarithms, the share, and the log of the mean likelihood.
    """
    lengths, highest = len(usual), -math.inf
    for s in range(len(plausible)):
        for i in range(len(null_priors) * lengths):
            joint[s, i] += plausible[s] + usual[i % lengths]
            if joint[s, i] > highest:
                highest = joint[s, i]
    total = previous = strength = length = share = 0.0
    for s in range(len(plausible)):
        for i in range(len(null_priors) * lengths):
            weight = math.exp(joint[s, i] - highest)
            total += weight
            strength += weight * log_strengths[s]
            length += weight * log_lengths[i % lengths]
            share += weight * null_priors[i // lengths]
            previous += math.exp(plausible[s] + usual[i % lengths])
    result[0], result[1] = math.exp(strength / total), math.exp(length / total)
    result[2], result[3] = share / total, math.log(total / previous) + highest


@twin
def mean_length(
    log_likelihoods: Float64s, lengths: Float64s, middle: float, spread: float, result: Float64s
) -> None:
    """Average lengths [R], log-normal around `middle`; `result` as `mean_start_loop` has its 2nd and 4th."""
    highest = -math.inf
    for r in range(len(lengths)):
        away = (math.log(lengths[r]) - math.log(middle)) / spread
        highest = max(highest, log_likelihoods[r] - away * away / 2)
    total = previous = length = 0.0
    for r in range(len(lengths)):
        away = (math.log(lengths[r]) - math.log(middle)) / spread
        weight = math.exp(log_likelihoods[r] - away * away / 2 - highest)
        total += weight
        length += weight * math.log(lengths[r])
        previous += math.exp(-away * away / 2)
    result[0], result[1] = math.exp(length / total), math.log(total / previous) + highest


@twin
def set_shares(
    gamma: Float32s,
    null_posterior: Float32s,
    block: int,
    previous: Float64s,
    null_prior: float,
    shares: Float64s,
) -> float:
    """Set the agents' shares [A] of a text from γ and the first guess, and return the null share."""
    remainder = 0.0
    for a in range(len(shares)):
        shares[a] = 0.0
    for b in range(len(null_posterior)):
        remainder += null_posterior[b]
        for a in range(len(shares)):
            shares[a] += gamma[b, a]
    remainder = block * remainder + SHARE_TOKENS * null_prior
    total = remainder
    for a in range(len(shares)):
        shares[a] = block * shares[a] + SHARE_TOKENS * previous[a]
        total += shares[a]
    for a in range(len(shares)):
        shares[a] /= total
    return remainder / total


@numba.njit
def interpolated(x: float, xs: Float64s, ys: Float64s) -> Any:
    # As np.interp.
    low, high = 0, len(xs) - 1
    if not x > xs[low]:
        return ys[low]
    if x >= xs[high]:
        return ys[high]
    while high - low > 1:
        middle = (low + high) // 2
        if xs[middle] <= x:
            low = middle
        else:
            high = middle
    return (ys[high] - ys[low]) / (xs[high] - xs[low]) * (x - xs[low]) + ys[low]


@twin
def set_strengths(
    total: Float64s,
    tokens: Float64s,
    start: float,
    shrinkage: float,
    grid: Float64s,
    mean: Float64s,
    variances: Float64s,
    low: float,
    high: float,
    strengths: Float64s,
) -> None:
    """Set the λ [A] of `fit` by the sums of scores and weights that agents hold.

    An agent is shrunk by at least as many tokens as say, at the strength of all, as much of one as that he is
    one of them: variance / τ², where τ² is by how much agents' means scatter beyond twice what chance would
    make of equal ones (Cochran's Q), as each agent's tokens were chosen for their scores.
    """
    count, occupancy, squares, scores = 0, 0.0, 0.0, 0.0
    for a in range(len(total)):
        scores += total[a]
        occupancy += tokens[a]
        squares += tokens[a] * tokens[a]
        count += tokens[a] > 0
    common = (scores + START_TOKENS * interpolated(start, grid, mean)) / (occupancy + START_TOKENS)
    if count >= 2:
        scatter = 0.0
        for a in range(len(total)):
            if tokens[a] > 0:
                deviation = total[a] / tokens[a] - common
                scatter += tokens[a] * (deviation * deviation)
        beyond = scatter / interpolated(common, mean, variances) - _BY_CHANCE * (count - 1)
        shrinkage = max(shrinkage, min(_MOST_ALIKE, (occupancy - squares / occupancy) / max(beyond, 1e-9)))
    for a in range(len(total)):
        shrunk = (total[a] + shrinkage * common) / max(tokens[a] + shrinkage, 1e-9)
        strengths[a] = min(max(interpolated(shrunk, mean, grid), low), high)
