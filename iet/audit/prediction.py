"""Predictions of a text by a language model, and the log-likelihood ratios that follow from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iet.audit.mixture import (
    SPREADS,
    TILE,
    NgramCachePredictor,
    choice_log_ratios,
    gumbel_log_ratios,
)
from iet.errors import ShapeError
from iet.marks.keys import KeyTable
from iet.native.arrays import Bools, Float32s, Float64s, Int32s, Int64s
from iet.native.texts import Texts


class LikelyTokens(NamedTuple):
    """The likeliest tokens at consecutive positions of a text."""

    here: slice  # R positions
    tokens: Int64s  # [R, top]
    q: Float64s  # [R, top]


@dataclasses.dataclass(frozen=True, eq=False)
class Prediction:
    """How probable each token of a text was, before it was written; no key is used.

    Attributes:
        ids: int64 [T].
        scored: bool [T], the tokens that the mixture was fitted on.
        temperature: of the model's distribution.
        chances: float64 [T], the probability of each token by the model alone.
        weights: float64 [S, T], those of the mixture: the model, chance, and the text itself.
        predictors: what the text predicts of itself.
        surprise: float64 [T], -log q(y) by the mixture.
        likely: the likeliest tokens everywhere; none by a model with another tokenizer.
    """

    ids: Int64s
    scored: Bools
    temperature: float
    chances: Float64s
    weights: Float64s
    predictors: tuple[NgramCachePredictor, ...]
    surprise: Float64s
    likely: tuple[LikelyTokens, ...]

    @property
    def share(self) -> float:
        """Mean weight of the model in the mixture; the others are the text itself, and chance."""
        return float(self.weights[0][self.scored].mean()) if self.scored.any() else 0.0

    @property
    def nats(self) -> float:
        """Mean surprise of the scored tokens."""
        return float(self.surprise[self.scored].mean()) if self.scored.any() else 0.0

    def log_ratios(
        self, keys: KeyTable, scores: npt.NDArray[np.floating], times: Int32s | None = None
    ) -> Float32s:
        """Return log P(token | marked under the key) - log P(token | unmarked), as in `LanguageModel`.

        Args:
            keys: K keys of one profile.
            scores: x [T, K] of the text under them.
            times: int32 [T], the counts in the seeds of `scores`; None: those in the text.

        Returns:
            float32 [T, K], 0 where not scored. Cost: O(T·K·(top + n + 4)). Deterministic.

        Raises:
            ShapeError: `scores` has another shape.
        """
        if scores.shape != (len(self.ids), len(keys)):
            raise ShapeError("scores", got=list(scores.shape), expected=[len(self.ids), len(keys)])
        chooses = keys.profile.family.chooses
        values = self._of_choices(keys, scores, times) if chooses else self._of_tilts(keys, scores, times)
        values[~self.scored] = 0.0
        return values.astype(np.float32)

    def _of_choices(self, keys: KeyTable, scores: npt.NDArray[np.floating], times: Int32s | None) -> Float64s:
        choices = None
        if self.likely:
            choices = np.zeros((*scores.shape, len(SPREADS)), np.float32)
            # As if one token in ten were drawn at random.
            at_random = 0.1 / keys.profile.vocab_size
            own_log_q = np.log(0.9 * self.chances + at_random)
            for here, tokens, q in self.likely:
                log_q = np.log(0.9 * q + at_random)
                log_q[tokens == self.ids[here, None]] = -np.inf
                for rows, of_tokens in likely_scores(self.ids, keys, times, here, tokens):
                    at = here.start + rows
                    choices[at] = choice_log_ratios(log_q[rows], of_tokens, own_log_q[at], scores[at])
        return gumbel_log_ratios(scores, np.exp(-self.surprise), self.scored, choices)

    def _of_tilts(self, keys: KeyTable, scores: npt.NDArray[np.floating], times: Int32s | None) -> Float64s:
        """Return κ·x - log Z, with Z(a) = Σ q(v)·exp(κ·φ_a(v))."""
        scheme = keys.profile.scheme
        kappa = scheme.kappa / (self.temperature if scheme.placement == "raw" else 1.0)
        at_chance = float(np.exp(keys.profile.family.log_mgf(kappa)))
        tilts = np.ones((len(self.ids), len(keys)))
        for here, tokens, q in self.likely:
            remainder = (1.0 - q.sum(axis=1)).clip(0.0)
            for rows, phi in likely_scores(self.ids, keys, times, here, tokens):
                of_tokens = np.einsum("rv,rva->ra", q[rows], np.exp(np.float32(kappa) * phi))
                tilts[here.start + rows] = of_tokens + at_chance * remainder[rows, None]
        tilts *= self.weights[0][:, None]
        tilts += at_chance * self.weights[1][:, None]
        factors = np.exp(kappa * scores.astype(np.float64))
        for predictor, weight in zip(self.predictors, self.weights[2:], strict=True):
            tilts += weight[:, None] * predictor.tilts(factors)
        return np.asarray(kappa * scores - np.log(tilts))


def likely_scores(
    ids: Int64s, keys: KeyTable, times: Int32s | None, here: slice, tokens: Int64s
) -> Iterator[tuple[Int64s, npt.NDArray[np.floating]]]:
    """Yield rows [r] and the scores [r, top, K] that `tokens` [R, top] would have `here` in a text.

    `times`: int32 [T], the counts in the seeds; None: those in the text.
    """
    n = keys.profile.scheme.n_gram
    times = keys.times_before(Texts.single(ids)) if times is None else times
    step = max(1, TILE // (tokens.shape[1] * (n + 1) * len(keys)))
    first = max(0, n - 1 - here.start)  # earlier ones have no context
    for low in range(first, len(tokens), step):
        rows = np.arange(low, min(low + step, len(tokens)))
        # Score them as one text: context, token, and -1, so that no other position is scored.
        pairs = np.full((len(rows), tokens.shape[1], n + 1), -1)
        pairs[..., : n - 1] = ids[here.start + rows[:, None] + np.arange(1 - n, 0)][:, None]
        pairs[..., n - 1] = tokens[rows]
        counts = None
        if times is not None:
            counts = np.broadcast_to(times[here.start + rows, None, None], pairs.shape).ravel()
        texts = Texts.single(pairs.ravel())
        yield rows, keys.scores(texts, 0, counts).reshape(*pairs.shape, -1)[..., n - 1, :]
