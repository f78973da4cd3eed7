"""Who wrote each piece of a text whose boundaries are known: the oracle beside the decoders."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import numpy.typing as npt

from iet.decoding.posterior import fit_strengths, posterior_decode
from iet.marks.scheme import Family

Floats = npt.NDArray[np.float64]


def piece_ratios(
    sums: Floats, counts: Floats, family: Family, nobody: float, agents: int, **options: Any
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
        options: of the decoder; used are `strengths`, `iterations`, `start_strength` and `shrinkage`.

    Returns:
        [S, A] and λ [A], float64. O(S·A) an iteration. Deterministic.
    """
    given = options.get("strengths")
    if given is not None:
        strengths = np.asarray(given, np.float64)
    else:
        defaults = inspect.signature(posterior_decode).parameters
        iterations, start, shrinkage = (
            options.get(name, defaults[name].default)
            for name in ("iterations", "start_strength", "shrinkage")
        )
        strengths = np.full(sums.shape[1], float(start))
        for _ in range(iterations):
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
