"""Name the agent of each piece of a text whose boundaries are given."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iet.decoding.fit import fit_strengths
from iet.decoding.posterior import PosteriorOptions
from iet.marks.families import Family

Floats = npt.NDArray[np.float64]


def piece_ratios(
    sums: Floats, counts: Floats, family: Family, nobody: float, shares: Floats, options: PosteriorOptions
) -> tuple[Floats, Floats]:
    """Return the log-likelihood ratio of every agent for every piece, as the decoder "posterior" weighs it.

        log Π_t p(x_t | a) / p(x_t | nobody) = λ_a·Σ_t x_t(a) - n·log_mgf(λ_a)

    λ is fitted by expectation maximisation (`fit_strengths`); pieces are taken as independent.

    Args:
        sums: Σ x [S, A] over the tokens of each piece that count as evidence.
        counts: n [S], number of these tokens.
        family: of the scores.
        nobody: prior share of pieces that no agent wrote, 0 to 0.99.
        shares: of each agent in the other pieces [A], in all at most 1.
        options: of which `strengths`, `iterations`, `start_strength` and `shrinkage` are used.

    Returns:
        [S, A] and λ [A], float64. O(S·A) an iteration. Deterministic.
    """
    if options.strengths is not None:
        strengths = np.asarray(options.strengths, np.float64)
    else:
        start, shrinkage = options.start_strength, options.shrinkage
        strengths = np.full(sums.shape[1], float(start))
        for _ in range(options.iterations):
            ratios = sums * strengths - np.outer(counts, family.log_mgf(strengths))
            gamma = piece_posterior(ratios, nobody, shares)
            strengths = fit_strengths(gamma, sums, counts, family, start, shrinkage)
    return sums * strengths - np.outer(counts, family.log_mgf(strengths)), strengths


def piece_posterior(ratios: Floats, nobody: float, shares: Floats) -> Floats:
    """Return p(a | piece) [S, A] from log-likelihood ratios [S, A], under the prior of `piece_ratios`."""
    logs = ratios + np.log((1 - nobody) * shares)
    with np.errstate(divide="ignore"):
        rest = np.log(nobody)
    top = np.maximum(logs.max(axis=1, keepdims=True), rest)
    weights = np.exp(logs - top)
    posterior: Floats = weights / (weights.sum(axis=1, keepdims=True) + np.exp(rest - top))
    return posterior
