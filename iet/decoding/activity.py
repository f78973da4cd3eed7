"""Which keys speak anywhere in a text: a likelihood ratio for each key alone, from sums over blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from iet.decoding.jit import njit
from iet.errors import ShapeError
from iet.scheme import Family

Floats = npt.NDArray[np.float64]

BLOCK = 16
"""Counted tokens whose scores are added up before a key is looked at."""

MEAN_SEGMENT = 200.0
ENTRY_RATES = (1 / 25, 1 / 400, 1 / 6400)
"""Chances that a key begins to speak at a block in which it did not."""

STRENGTHS: Mapping[str, tuple[float, ...]] = {
    "fourier": (0.25, 0.5, 0.9),
    "square": (0.25, 0.5, 0.9),
    "gumbel": (0.2, 0.45, 0.7),
}
"""Family -> the strengths λ that are tried."""

_EXPONENT_LIMIT = 40.0
_CHUNK = 256


def log_activity(sums: npt.NDArray[Any], counts: npt.NDArray[Any], family: Family) -> Floats:
    """Return log Λ of each key: how much likelier the text is if the key speaks somewhere in it.

        Λ_a = mean over λ, ρ of  P(x(a) | chain) / P(x(a) | nobody)

    The chain has two states, key a and not key a: it enters the first with probability ρ a block
    (`ENTRY_RATES`) and leaves it after `MEAN_SEGMENT` tokens on average; in it the scores are tilted by λ
    (`STRENGTHS`). Everything else in the text, whoever wrote it, looks to key a like nobody's, so keys are
    judged one by one. Over random keys E[Λ] = 1 on any text that a did not mark, so P(Λ >= c) <= 1/c;
    `iet.evidence.activity_log_p` has the law itself. Not in the paper.

    Args:
        sums: Σ x [B, K] over each block of `BLOCK` tokens with evidence: scored, each pair counted once.
        counts: tokens in each block, [B].
        family: of the scores.

    Returns:
        log Λ [K] float64, natural logarithm; 0 for B = 0.

    Raises:
        ShapeError: `counts` is not [B].

    Cost: O(B·K), about 9 multiplications of 2 x 2 matrices a block and key. Deterministic.
    """
    if sums.ndim != 2 or counts.shape != (len(sums),):
        raise ShapeError("counts", got=list(counts.shape), expected=list(sums.shape[:1]))
    strengths = STRENGTHS[family.name]
    keys = sums.shape[1]
    stay = 1.0 - BLOCK / MEAN_SEGMENT
    found = np.full((len(strengths) * len(ENTRY_RATES), keys), 0.0)
    for low in range(0, keys, _CHUNK):
        chunk = np.ascontiguousarray(sums[:, low : low + _CHUNK], dtype=np.float64)
        ratios = np.empty_like(chunk)
        for i, strength in enumerate(strengths):
            np.multiply(chunk, strength, out=ratios)
            ratios -= (counts * float(family.log_mgf(strength)))[:, None]
            np.exp(np.minimum(ratios, _EXPONENT_LIMIT, out=ratios), out=ratios)
            for j, rate in enumerate(ENTRY_RATES):
                row = found[i * len(ENTRY_RATES) + j, low : low + _CHUNK]
                _two_states_njit(ratios, rate, stay, row)
    highest = found.max(axis=0)
    log_mean: Floats = highest + np.log(np.exp(found - highest).mean(axis=0))
    return log_mean


def evidence_blocks(
    scores: npt.NDArray[Any], counted: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Return what `log_activity` takes: sums of `scores` [T, K] over blocks of counted tokens, and counts."""
    starts = block_starts(counted)
    sums = np.zeros((len(starts), scores.shape[1]), np.float32)
    if len(starts):
        _counted_sums_njit(scores, counted, BLOCK, sums)
    return sums, block_counts(counted)


def block_starts(counted: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the position at which each block of `BLOCK` counted tokens begins."""
    return np.flatnonzero(counted)[::BLOCK].astype(np.int64)


def block_counts(counted: npt.NDArray[np.bool_]) -> Floats:
    """Return how many tokens are counted in each block: `BLOCK`, and the rest in the last."""
    total = int(counted.sum())
    counts = np.full(-(-total // BLOCK), float(BLOCK))
    if total % BLOCK:
        counts[-1] = total % BLOCK
    return counts


@njit
def _counted_sums_njit(
    x: npt.NDArray[Any], counted: npt.NDArray[np.bool_], block: int, sums: npt.NDArray[np.float32]
) -> None:
    seen = 0
    for t in range(len(x)):
        if counted[t]:
            for a in range(x.shape[1]):
                sums[seen // block, a] += x[t, a]
            seen += 1


@njit
def _two_states_njit(ratios: Floats, enter: float, stay: float, log_ratio: Floats) -> None:
    blocks, keys = ratios.shape
    outside = np.full(keys, (1.0 - stay) / (enter + 1.0 - stay))
    inside = 1.0 - outside
    remain, leave = 1.0 - enter, 1.0 - stay
    for b in range(blocks):
        if b > 0:
            for a in range(keys):
                before = outside[a]
                outside[a] = before * remain + inside[a] * leave
                inside[a] = before * enter + inside[a] * stay
        for a in range(keys):
            inside[a] *= ratios[b, a]
        if b % 8 == 7 or b == blocks - 1:  # e^40 a block at most: eight of them stay in range
            for a in range(keys):
                total = outside[a] + inside[a]
                log_ratio[a] += np.log(total)
                outside[a] /= total
                inside[a] /= total
