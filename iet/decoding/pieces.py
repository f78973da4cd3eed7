"""Who wrote each piece of a text whose boundaries are known: the oracle beside the decoders."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iet.decoding.fit import fit_strengths
from iet.decoding.posterior import PosteriorOptions
from iet.marks.scheme import Family

Floats = npt.NDArray[np.float64]


def piece_ratios(
    sums: Floats, counts: Floats, family: Family, nobody: float, agents: int, options: PosteriorOptions
) -> tuple[Floats, Floats]:
    """Return how well every agent explains every piece, as the decoder "posterior" weighs it.

        log Π_t p(x_t | a) / p(x_t | nobody) = λ_a·Σ_t x_t(a) - n·log_mgf(λ_a)

    λ is fitted by expectation maximisation (`fit_strengths`), the pieces being independent of each other.

    Args:
        sums: Σ x [S, A] over the tokens with evidence of each piece.
        counts: n [S] of them.
        family: of the scores.
        nobody: prior share of pieces that no agent wrote, 0 to 0.99.
        agents: how many agents share the rest of it, at least A.
        options: used are `strengths`, `iterations`, `start_strength` and `shrinkage`.

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
            gamma = piece_posterior(ratios, nobody, agents)
            strengths = fit_strengths(gamma, sums, counts, family, start, shrinkage)
    return sums * strengths - np.outer(counts, family.log_mgf(strengths)), strengths


def piece_posterior(ratios: Floats, nobody: float, agents: int) -> Floats:
    """Return p(a | piece) [S, A] from log-likelihood ratios [S, A], under the prior of `piece_ratios`."""
    logs = ratios + np.log((1 - nobody) / agents)
    with np.errstate(divide="ignore"):
        rest = np.log(nobody)
    top = np.maximum(logs.max(axis=1, keepdims=True), rest)
    weights = np.exp(logs - top)
    posterior: Floats = weights / (weights.sum(axis=1, keepdims=True) + np.exp(rest - top))
    return posterior
