"""The activity of each key: its likelihood ratio anywhere in a text, from sums over blocks."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from iet.errors import ShapeError
from iet.marks.families import Family
from iet.native.arrays import Bools, Float32s, Float64s, Int64s, UInt8s
from iet.native.load import loops

BLOCK = 16
"""Number of counted tokens in a block."""

MEAN_SEGMENT = 200.0
"""Expected number of counted tokens of a segment under the key."""

LEVELS = 16
"""Number of weights that a token can have as evidence: 1/16, 2/16, ..., 1."""

ENTRY_RATES = (1 / 25, 1 / 400, 1 / 6400)
"""Probabilities of entering a segment at a block outside of one."""

_EXPONENT_LIMIT = 40.0  # of a block's log-likelihood ratio
_CHUNK = 64  # number of keys at a time


def log_activity(
    sums: npt.NDArray[Any], counts: npt.NDArray[Any], family: Family, edges: Int64s | None = None
) -> Float64s:
    """Return log Λ of each key: how much likelier the text is if the key marks some of it.

        Λ_a = mean over λ, ρ of  P(x(a) | chain) / P(x(a) | null)

    The chain has two states, key a and not key a: it enters the first with probability ρ a block
    (`ENTRY_RATES`) and leaves it after `MEAN_SEGMENT` tokens on average; in it the scores are tilted by λ
    (`Family.strengths`). Under key a all other text, marked or not, follows the null law, so each key is
    tested alone. Over random keys E[Λ] = 1 on any text that a did not mark, so P(Λ >= c) <= 1/c;
    `iet.evidence.activity_log_p` has the law itself. Not in the paper.

    Args:
        sums: Σ x [B, K] over each block of `BLOCK` tokens with evidence: scored, each pair counted once.
        counts: tokens in each block, [B].
        family: of the scores.
        edges: int64 [D + 1], ascending from 0 to B: the first block of each of D texts. None: one text.

    Returns:
        log Λ [K] float64, natural logarithm; 0 for B = 0. With `edges` [D, K], a row for each text.

    Raises:
        ShapeError: `counts` is not [B].

    Cost: O(B·K), about 9 multiplications of 2 x 2 matrices a block and key. Deterministic.
    """
    if sums.ndim != 2 or counts.shape != (len(sums),):
        raise ShapeError("counts", got=list(counts.shape), expected=list(sums.shape[:1]))
    keys = sums.shape[1]
    stay = 1.0 - BLOCK / MEAN_SEGMENT
    tilts, offsets = _tilts(family)
    cuts = np.array([0, len(sums)]) if edges is None else edges
    log_ratios = np.empty((len(ENTRY_RATES), len(tilts), len(cuts) - 1, keys))
    for low in range(0, keys, _CHUNK):
        chunk = np.asarray(sums[:, None, low : low + _CHUNK], np.float64)
        ratios = chunk * tilts[:, None]  # [B, λ, K]
        ratios -= (counts[:, None] * offsets)[:, :, None]
        np.exp(np.minimum(ratios, _EXPONENT_LIMIT, out=ratios), out=ratios)
        flat = ratios.reshape(len(ratios), len(tilts) * chunk.shape[2])
        rows = np.zeros((len(cuts) - 1, len(ENTRY_RATES), flat.shape[1]))
        loops.two_states(flat, flat.shape[1], cuts, np.array(ENTRY_RATES), stay, rows)
        shaped = rows.reshape(len(rows), len(ENTRY_RATES), len(tilts), -1)
        log_ratios[..., low : low + _CHUNK] = shaped.transpose(1, 2, 0, 3)
    flat_ratios = log_ratios.reshape(-1, len(cuts) - 1, keys)
    highest = flat_ratios.max(axis=0)
    weights = np.exp(flat_ratios - highest)
    total = weights[0]
    for weight in weights[1:]:  # row by row, so that no sum depends on how many columns there are
        total = total + weight
    log_mean: Float64s = highest + np.log(total / len(weights))
    return log_mean[0] if edges is None else log_mean


@functools.cache
def _tilts(family: Family) -> tuple[Float64s, Float64s]:
    """Return `Family.strengths` and their log_mgf; cached, because log_mgf is slower than a short text."""
    log_mgfs = [float(family.log_mgf(strength)) for strength in family.strengths]
    return np.array(family.strengths), np.array(log_mgfs)


def evidence_blocks(scores: npt.NDArray[Any], counted: Bools) -> tuple[Float32s, Float64s]:
    """Return the input of `log_activity`: sums of `scores` [T, K] over blocks, and counted tokens of each."""
    sums, counts, _ = evidence_blocks_of(scores, counted, np.zeros(1, np.int64), np.array([len(counted)]))
    return sums, counts


def evidence_blocks_of(
    scores: npt.NDArray[Any], counted: Bools, starts: Int64s, ends: Int64s
) -> tuple[Float32s, Float64s, Int64s]:
    """Return `evidence_blocks` of the texts `[starts, ends)` [D], and the edges [D + 1] of their blocks."""
    texts = zip(starts.tolist(), ends.tolist(), strict=True)
    totals = np.array([np.count_nonzero(counted[start:end]) for start, end in texts], np.int64)
    counts, edges = block_counts(totals)
    sums = np.zeros((edges[-1], scores.shape[1]), np.float32)
    loops.counted_sums(scores, counted, starts, ends, edges, sums)
    return sums, counts, edges


def block_starts(counted: Bools) -> Int64s:
    """Return the position at which each block of `BLOCK` counted tokens begins."""
    return np.flatnonzero(counted)[::BLOCK].astype(np.int64)


def block_counts(totals: Int64s) -> tuple[Float64s, Int64s]:
    """Return the number of tokens in each block, and the edges [D + 1] of the blocks of D texts.

    Args:
        totals: [D], number of counted tokens of each text. Its blocks hold `BLOCK`, the last one the rest.
    """
    edges = np.append(0, np.cumsum(-(-totals // BLOCK)))
    counts = np.full(edges[-1], float(BLOCK))
    last = totals % BLOCK
    counts[edges[1:][last > 0] - 1] = last[last > 0]
    return counts, edges


@dataclasses.dataclass(frozen=True, eq=False)
class WeightedBlocks:
    """Tokens of D texts with weights as evidence, in blocks of about the same Σ c².

    For families with exponential scores. Predictable tokens say less, so their scores have a weight c < 1. A
    weighted sum of a block is replaced by the sum of `BLOCK` unweighted scores that is as improbable
    (`unweighted_sums`), which keeps the null law of `log_activity`: that of `BLOCK` tokens a block.

    Attributes:
        tokens: int64 [M], the tokens with a weight.
        levels: uint8 [M], their weights in sixteenths.
        firsts: int64 [B], the first token of each block, an index into `tokens`.
        edges: int64 [D + 1], the first block of each text.
    """

    tokens: Int64s
    levels: UInt8s
    firsts: Int64s
    edges: Int64s

    @classmethod
    def of(cls, levels: UInt8s, starts: Int64s, ends: Int64s) -> WeightedBlocks:
        """Form about a block for `BLOCK` tokens; `levels` [N] are 0 for tokens that are no evidence."""
        tokens = np.flatnonzero(levels)
        bounds = np.searchsorted(tokens, np.append(starts, ends[-1:]))
        counts = np.diff(bounds)
        text_of = np.repeat(np.arange(len(counts)), counts)
        squares = levels[tokens].astype(np.int64) ** 2
        before = np.append(0, np.cumsum(squares))
        lows, totals = before[bounds[:-1]], np.diff(before[bounds])
        blocks = np.maximum(1, np.rint(counts / BLOCK).astype(np.int64))
        places = (before[:-1] - lows[text_of]) * blocks[text_of] // np.maximum(1, totals[text_of])
        begins = np.append(True, (np.diff(places) != 0) | (np.diff(text_of) != 0))[: len(tokens)]
        firsts = np.flatnonzero(begins)
        return cls(tokens, levels[tokens], firsts, np.searchsorted(firsts, bounds))

    def __len__(self) -> int:
        return len(self.firsts)

    @property
    def counts(self) -> Int64s:
        """int64 [B, 16]: the tokens of each weight in each block."""
        places = np.repeat(np.arange(len(self)), np.diff(np.append(self.firsts, len(self.tokens))))
        cells = places * LEVELS + self.levels - 1
        return np.bincount(cells, minlength=len(self) * LEVELS).reshape(-1, LEVELS)

    def sums(self, scores: npt.NDArray[Any]) -> Float64s:
        """Return Σ c·x [B, K] over each block, of the scores [N, K] of all tokens."""
        if not len(self):
            return np.zeros((0, scores.shape[1]))
        weighted = scores[self.tokens] * (self.levels / np.float32(LEVELS)).astype(np.float32)[:, None]
        return np.asarray(np.add.reduceat(weighted, self.firsts, axis=0), np.float64)

    def log_activity(self, sums: Float64s, family: Family) -> Float64s:
        """Return `log_activity` [D, K] of weighted sums [B, K]; its null law is that of `number` tokens."""
        unweighted = unweighted_sums(sums, self.counts)
        return log_activity(unweighted, np.full(len(self), float(BLOCK)), family, self.edges)

    @property
    def number(self) -> Int64s:
        """int64 [D]: tokens of weight 1 with the same null law."""
        return BLOCK * np.diff(self.edges)


def unweighted_sums(sums: Float64s, counts: Int64s) -> Float64s:
    """Return for weighted sums of exponential scores the sums of `BLOCK` unweighted scores of equal tails.

    Robinson's and Barndorff-Nielsen's saddlepoint root on both sides: with K(λ) = -Σ log(1 - λ·c), K'(λ) = s,

        r = sign(λ)·√(2·(λ·s - K(λ))),    r* = r + log(λ·√K''(λ) / r) / r,    P(Σ c·x >= s) ≈ Φ(-r*)

    Args:
        sums: Σ c·x [B, K].
        counts: number of tokens of each weight [B, 16], as in `WeightedBlocks`.

    Returns:
        float64 [B, K]; 0 without tokens. The tail is off by at most 5 % down to 1e-8, where a single token
        dominates, and by less than 1 % elsewhere. r* is 40 at the most. Deterministic.
    """
    unweighted = np.array(sums, np.float64, order="C")
    loops.unweighted_sums(counts.astype(np.int32), unweighted)
    return unweighted
