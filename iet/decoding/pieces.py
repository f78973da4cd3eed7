"""Who wrote each piece of a text whose boundaries are known: the oracle beside the decoders."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from iet.decoding.posterior import fit_strengths
from iet.scheme import Family

Floats = npt.NDArray[np.float64]


def piece_ratios(
    sums: Floats, counts: Floats, family: Family, nobody: float, agents: int, **options: Any
) -> tuple[Floats, Floats]:
    """Return how well every agent explains every piece, as the decoder "posterior" weighs it.

        log Π_t p(x_t | a) / p(x_t | nobody) = λ_a·Σ_t x_t(a) - n·log_mgf(λ_a)

    λ is fitted by `fit_strengths`, with the pieces as blocks that are independent of each other.

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
        names = ("iterations", "start_strength", "shrinkage")
        fitting = {name: options[name] for name in names if name in options}
        blocks, sizes = sums.astype(np.float32), counts.astype(np.float32)
        strengths = fit_strengths(
            blocks, sizes, family, mean_segment=1.0, nobody=nobody, agents=agents, **fitting
        )
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
