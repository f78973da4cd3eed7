"""Attribute the pieces of a text with known boundaries."""

from __future__ import annotations

import numpy as np

from iet.decoding.fit import fit_strengths, start_strength, starts_of
from iet.decoding.posterior import PosteriorOptions
from iet.marks.families import Family
from iet.native.arrays import Float64s


def piece_ratios(
    sums: Float64s,
    counts: Float64s,
    family: Family,
    null_prior: float,
    shares: Float64s,
    options: PosteriorOptions,
) -> tuple[Float64s, Float64s]:
    """Return the log-likelihood ratio of every agent for every piece, in the model of "posterior".

        log Π_t p(x_t | a) / p(x_t | null) = λ_a·Σ_t x_t(a) - n·log_mgf(λ_a)

    λ is fitted as in `fit`, by a guess and expectation maximisation; pieces are assumed to be independent.

    Args:
        sums, counts: Σ x [S, A], and number n [S] of the tokens of each piece that count as evidence.
        family: of the scores.
        null_prior: prior share of unmarked pieces, 0 to 0.99.
        shares: of each agent in the other pieces [A], in all at most 1.
        options: `strengths`, `iterations` and `shrinkage` are read.

    Returns:
        [S, A] and λ [A], float64. O(S·A) an iteration.
    """
    if options.strengths is not None:
        strengths = np.asarray(options.strengths, np.float64)
    else:
        likelihoods = [
            _log_weights(sums * strength - (counts * family.log_mgf(strength))[:, None], null_prior, shares)[
                1
            ].sum()
            for strength in starts_of(family).tolist()
        ]
        start = start_strength(np.array(likelihoods), family)
        strengths = np.full(sums.shape[1], start)
        for _ in range(options.iterations):
            ratios = sums * strengths - np.outer(counts, family.log_mgf(strengths))
            gamma = piece_posterior(ratios, null_prior, shares)
            strengths = fit_strengths(gamma, sums, counts, family, start, options.shrinkage)
    return sums * strengths - np.outer(counts, family.log_mgf(strengths)), strengths


def piece_posterior(ratios: Float64s, null_prior: float, shares: Float64s) -> Float64s:
    """Return p(a | piece) [S, A] from log-likelihood ratios [S, A], under the prior of `piece_ratios`."""
    logs, total = _log_weights(ratios, null_prior, shares)
    posterior: Float64s = np.exp(logs - total[:, None])
    return posterior


def _log_weights(ratios: Float64s, null_prior: float, shares: Float64s) -> tuple[Float64s, Float64s]:
    """Return log(prior · likelihood) of every agent [S, A], and of all with the null state [S]."""
    logs = ratios + np.log((1 - null_prior) * shares)
    with np.errstate(divide="ignore"):
        log_null = np.log(null_prior)
    top = np.maximum(logs.max(axis=1), log_null)
    total: Float64s = top + np.log(np.exp(logs - top[:, None]).sum(axis=1) + np.exp(log_null - top))
    return logs, total
