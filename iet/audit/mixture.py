"""Fit on a text how much each prediction of it is worth: a model's, the text's own, and chance."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from iet.native.arrays import Bools, Float32s, Float64s, Int64s
from iet.native.pairs import number_pairs

FITTED_TOKENS = 8192
"""Number of tokens, at the start of the text, that the temperature and the trust in a model are fitted on."""

POWERS = (1.0, 0.75, 0.5, 0.25, 0.125)
"""Powers of q under which a Gumbel score is read: 1 where the model is right, less where it knows less."""

TILTS = (0.2, 0.45, 0.7)
"""λ of the score's own likelihood ratios λ·s + log(1 - λ), which need no q."""

SURPRISES = (0.02, 0.2, 0.7, 2.0)
"""Nats -log q between which tokens share weights."""

SPREADS = (0.3, 0.6, 1.0)
"""Scales of the Gumbel noise by which the model's log q may miss the sampler's, see `choice_log_ratios`."""

_BLOCK = 64  # tokens that are taken to be one key's, see `gumbel_log_ratios`
_PRIOR_TOKENS = 30.0  # at equal weights, which keep a weight from 0
_FITTED_KEYS = 32  # keys that the weights are fitted on

TILE = 1 << 22  # numbers in one array of a tile: 16 MB
MAX_CONTEXT = 15  # of `number_pairs`


class NgramCachePredictor(NamedTuple):
    """The text's prediction of itself: the tokens that followed the same ids earlier."""

    seen: Bools  # [T], whether the ids before a token occurred earlier in the text
    hits: Float64s  # [T], share of this token among those that followed them
    order: Int64s  # [T], the tokens sorted so that those after equal ids are side by side
    first: Int64s  # [T], for each place in `order` the first place with the same ids

    @classmethod
    def of(cls, ids: Int64s, context: int) -> NgramCachePredictor:
        """Predict from `context` ids."""
        t = np.arange(len(ids))
        ends = number_pairs(ids, t >= context - 1, context)
        numbers = np.append(np.full(min(1, len(ids)), -1), ends[:-1])  # of the ids before a token
        order, first = _groups(numbers)
        followed, first_pair = _groups(number_pairs(ids, t >= context, context + 1))
        earlier, same = np.empty(len(ids)), np.empty(len(ids))
        earlier[order], same[followed] = t - first, t - first_pair
        seen = (earlier > 0) & (numbers >= 0)
        return cls(seen, np.where(seen, same / np.maximum(earlier, 1), 0.0), order, first)

    def tilts(self, factors: Float64s) -> Float64s:
        """Return Z(a) [T, K]: the mean factor of the tokens that followed the same ids earlier.

        Such a token would have its factor again, because φ depends on the n - 1 ids before it.

        Args:
            factors: exp(κ·x) [T, K] of the text.
        """
        earlier_sums = np.cumsum(factors[self.order], axis=0) - factors[self.order]
        earlier_sums -= earlier_sums[self.first]
        earlier_sums /= np.maximum(np.arange(len(self.order)) - self.first, 1)[:, None]
        tilts = np.empty_like(factors)
        tilts[self.order] = earlier_sums
        tilts[~self.seen] = 1.0
        return tilts


def _groups(numbers: Int64s) -> tuple[Int64s, Int64s]:
    """Return the order with equal numbers side by side, and for each place in it where its group starts."""
    order = np.argsort(numbers, kind="stable")
    counted_tokens = np.arange(len(numbers))
    new = np.append(True, np.diff(numbers[order]) != 0)[: len(numbers)]
    return order, np.maximum.accumulate(np.where(new, counted_tokens, 0))


def mixture_weights(
    predictions: Float64s, depth: npt.NDArray[Any], counted: Bools, iterations: int = 120
) -> Float64s:
    """Fit the weights of a mixture of predictions by expectation maximisation.

        w_s ∝ Σ_t w_s·q_s(y_t) / Σ_r w_r·q_r(y_t) + m      for all tokens t of one depth

    Args:
        predictions: q_s(y_t) [S, T]: the probability that prediction s gave to the token in the text. At each
            token the first 2 + `depth` of them exist.
        depth: integers [T], 0 to S - 2.
        counted: bool [T], the tokens to fit on.
        iterations: number of steps of expectation and maximisation.

    Returns:
        w [S, T] float64, which sum to 1 for each token. m = 4 / S tokens for each weight keep it from 0 where
        a depth is rare. Deterministic, O(iterations·S·T).
    """
    weights = np.zeros_like(predictions)
    for d in np.unique(depth).tolist():
        tokens = depth == d
        q = predictions[: 2 + d, tokens & counted]
        prior = np.full(len(q), 4.0 / len(q))
        w = np.full(len(q), 1.0 / len(q))
        for _ in range(iterations):
            joint = w[:, None] * q
            w = (joint / joint.sum(axis=0)).sum(axis=1) + prior
            w /= w.sum()
        weights[: 2 + d, tokens] = w[:, None]
    return weights


def choice_log_ratios(
    log_q: Float64s, scores: npt.NDArray[Any], own_log_q: Float64s, own_scores: npt.NDArray[Any]
) -> Float32s:
    """Return how much likelier each key makes the choice of a token among the likely ones.

        g = -log(-log u);    marked, the sampler takes the largest log p + g
        P_s(y | key) = softmax((log q + g) / s)_y,    P_s(y) = softmax(log q / √(1 + s²))_y·exp(s / 10)
        llr_s = log P_s(y | key) - log P_s(y),    s = 0.3, 0.6, 1

    The u of the chosen token alone says nothing of the others: here a key also has to explain why none of
    them was larger. The model's q is not the sampler's p. If log p is log q and Gumbel noise of scale s,
    P_s(y | key) is exact. P_s(y), its mean over keys, has no closed form; the softmax is below it by 3 to 9 %
    in the middle of a model's distributions, which exp(s / 10) makes good.

    Args:
        log_q: [R, C] of the candidates; -inf for one that is the token itself.
        scores: -log(1 - u) [R, C, K] of them.
        own_log_q: [R], of the token in the text.
        own_scores: [R, K].

    Returns:
        llr [R, K, 3] float32. The rest of q competes as one token of median noise. O(R·C·K).
    """
    remainder = np.log((1 - np.exp(log_q).sum(axis=1) - np.exp(own_log_q)).clip(1e-9))
    everything = np.concatenate([log_q, own_log_q[:, None], remainder[:, None]], axis=1)
    noise = np.empty((len(log_q), everything.shape[1], own_scores.shape[1]))
    noise[:, :-2], noise[:, -2], noise[:, -1] = _noise(scores), _noise(own_scores), _MEDIAN_NOISE
    noise += everything[:, :, None]
    ratios_by_spread = np.empty((*own_scores.shape, len(SPREADS)), np.float32)
    for i, spread in enumerate(SPREADS):
        log_numerator = noise[:, -2] / spread - np.logaddexp.reduce(noise / spread, axis=1)
        flatter = everything / np.sqrt(1 + spread * spread)
        mean = flatter[:, -2] - np.logaddexp.reduce(flatter, axis=1) + spread / 10
        ratios_by_spread[:, :, i] = log_numerator - mean[:, None]
    return ratios_by_spread


_MEDIAN_NOISE = float(-np.log(np.log(2)))


def _noise(scores: npt.NDArray[Any]) -> Float64s:
    """Return -log(-log u) for u = 1 - exp(-score); that of a score of 0 is as low as u = 1e-12."""
    return np.asarray(-np.log(-np.log1p(-np.exp(-np.maximum(scores.astype(np.float64), 1e-12)))))


def gumbel_log_ratios(
    scores: npt.NDArray[Any],
    q: Float64s,
    counted: Bools,
    choices: Float32s | None = None,
    iterations: int = 12,
) -> Float64s:
    """Return the log-likelihood ratios of Gumbel scores, for tokens of about probability q.

        u = 1 - exp(-s);    under the mark of a key u^(1/q) is uniform, so u has the density
        f(u; q) = u^(1/q - 1) / q,    and 1 without a mark
        llr = log(w_0 + Σ_p w_p·f(u; q^p) + Σ_λ w_λ·(1 - λ)·exp(λ·s) + Σ_s v_s·exp(llr_s)),
              p = 1, 3/4, 1/2, 1/4, 1/8,    λ = 0.2, 0.45, 0.7

    One f alone fails where q is too small: a token of q = 1e-3 whose true probability was 1/2 counts -1,000
    against its writer. The text shows how far to trust q, and each llr_s of `choice_log_ratios`: w and v are
    fitted by expectation maximisation, apart for five ranges of -log q, on the assumption that each block of
    64 tokens is one key's. w_0 dominates in unmarked blocks.

    Args:
        scores: s [T, K], at least 0.
        q: [T], 0 < q <= 1.
        counted: bool [T], the tokens that may carry a mark.
        choices: llr_s [T, K, 3]; None: none.
        iterations: number of steps of expectation and maximisation, on the first 8192 tokens and the 32 keys
            with the highest sum in a block; 0 leaves equal weights.

    Returns:
        float64 [T, K]; 0 where not counted. Deterministic, O(iterations·T·K).
    """
    counted_tokens = np.flatnonzero(counted)
    count = len(POWERS) + len(TILTS) + 1 + (0 if choices is None else choices.shape[2])
    first = counted_tokens[:FITTED_TOKENS]
    kinds = np.searchsorted(SURPRISES, -np.log(q))
    weights = np.full((len(SURPRISES) + 1, count), 1.0 / count)
    edges = np.arange(0, len(first), _BLOCK)
    columns: Any = slice(None)
    if scores.shape[1] > _FITTED_KEYS and len(first):  # the keys that may have written a block
        highest = np.add.reduceat(scores[first], edges, axis=0).max(axis=0)
        columns = np.argsort(-highest, kind="stable")[:_FITTED_KEYS]

    def parts_of(tokens: Int64s, keys: Any) -> Float64s:
        logs = _log_densities(scores[tokens][:, keys], q[tokens])
        return logs if choices is None else np.concatenate([logs, choices[tokens][:, keys]], axis=2)

    logs = parts_of(first, columns)
    of_kind = [kinds[first] == kind for kind in range(len(weights))]
    for _ in range(iterations if len(logs) else 0):
        weighted = logs + np.log(weights)[kinds[first], None]
        ratios = np.logaddexp.reduce(weighted, axis=2)
        sums = np.add.reduceat(ratios, edges, axis=0)
        sums -= np.logaddexp.reduce(sums, axis=1)[:, None]
        whose = np.repeat(np.exp(sums), np.diff(np.append(edges, len(logs))), axis=0)
        parts = np.einsum("tk,tks->ts", whose, np.exp(weighted - ratios[:, :, None]))
        for kind, tokens in enumerate(of_kind):
            weights[kind] = parts[tokens].sum(axis=0) + _PRIOR_TOKENS / count
        weights /= weights.sum(axis=1, keepdims=True)
    values = np.zeros(scores.shape)
    step = max(1, TILE // (scores.shape[1] * count))
    for low in range(0, len(counted_tokens), step):
        tokens = counted_tokens[low : low + step]
        log_weights = np.log(weights)[kinds[tokens], None]
        values[tokens] = np.logaddexp.reduce(parts_of(tokens, slice(None)) + log_weights, axis=2)
    return values


def _log_densities(scores: npt.NDArray[Any], q: Float64s) -> Float64s:
    """Return log f(u; q^p) [T, K, powers], and 0 for no mark as the last."""
    inverses = 1.0 / q[:, None] ** np.array(POWERS)
    with np.errstate(divide="ignore"):
        log_u = np.log(-np.expm1(-scores.astype(np.float64))).clip(-1e6)[:, :, None]  # finite at u = 0
    logs = np.log(inverses)[:, None] + (inverses - 1)[:, None] * log_u
    tilts = np.array(TILTS)
    tilted = np.log1p(-tilts) + tilts * scores.astype(np.float64)[:, :, None]
    return np.concatenate([logs, tilted, np.zeros_like(log_u)], axis=2)
