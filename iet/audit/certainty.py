"""The probability that an attribution is wrong, for whole spans and token by token."""

from __future__ import annotations

import math

import numpy as np

from iet.audit.decode import Spans
from iet.decoding import column_summary
from iet.decoding.shares import share_intervals
from iet.native.arrays import Float32s, Float64s, Int64s

DOUBT, LEAST_NATS = 4.0, 4.0
"""The odds against an agent are scaled by 1 + DOUBT / nats of its evidence, taken for `LEAST_NATS` at least.

Chosen on tuning texts, see docs/internals/evidence.md.
"""


def chance_factors(spans: Spans, texts: int) -> Float64s:
    """Return the factors [D], at least 1, that scale the odds of an error in each of D `texts`.

        √(1 + number of unattributed tokens / number of attributed tokens)

    Strengths, shares and lengths are fitted to the text that they then decode, and unmarked text gives
    chance more opportunities the longer it is. If agents wrote all of a text, the posterior's own error is
    right or too high; with one turn in 8,000 tokens it was about six times too low. The root was chosen on
    tuning texts (docs/internals/evidence.md). Padding is in no span.
    """
    lengths = (spans.ends - spans.starts).astype(np.float64)
    someone = np.bincount(spans.texts, lengths * (spans.agents >= 0), texts)
    unattributed = np.bincount(spans.texts, lengths * (spans.agents < 0), texts)
    return np.asarray(np.sqrt(1 + unattributed / np.maximum(1, someone)))


def temper_posteriors(posterior: Float32s, texts: Int64s, evidence: Float64s) -> Float32s:
    """Return γ [N, P] with the odds against each agent scaled by 1 + 4 / nats of its evidence in the text.

    Strengths are fitted to the text that they then decode, and of many agents and texts chance favours those
    that are found. The evidence measures how much: an agent found at p = 0.01 was wrong about twice as often
    as its posteriors stated, an agent found at p = e^-30 hardly more often.

    Args:
        posterior: γ of D texts, float32 [N, P].
        texts: int64 [N], the text of each token.
        evidence: log p-value of the agents of the columns in each text [D, P]; NaN is no evidence.
    """
    nats = np.maximum(np.nan_to_num(-evidence), LEAST_NATS)
    odds = (1 + DOUBT / nats).astype(np.float32)[texts]
    return np.asarray(posterior / (posterior + odds * np.maximum(1 - posterior, np.float32(1e-30))))


def scale_odds(errors: Float64s, factors: Float64s | float) -> Float64s:
    """Return the probabilities of errors with their odds multiplied by `factors`."""
    return np.asarray(factors * errors / (1 + (factors - 1) * errors))


def certainty(
    posterior: Float32s,
    firsts: Int64s,
    present: Int64s,
    factors: Float64s,
    spans: Spans,
    guesses: Int64s,
) -> dict[str, Float64s]:
    """Return how sure it is that the guesses [S] wrote in their spans: columns of `AuditResult.segments`.

    `posterior` is the mean posterior of the guess, the expected share of the tokens that are the guess's;
    `error` the probability that the guess wrote none of the span; `share_low` and `share_high` the interval
    of that share (`share_intervals`), which contains the expected one.

    Args:
        posterior: γ of D texts, float32 [N, P].
        firsts: int64 [D], the first token of each text.
        present: int64 [P], the agents of the columns, ascending; others have posterior 0.
        factors: `chance_factors` [D].
    """
    texts, starts, ends = spans.texts, firsts[spans.texts] + spans.starts, firsts[spans.texts] + spans.ends
    columns = np.searchsorted(present, guesses).clip(0, len(present) - 1)
    means, highest = column_summary(posterior, starts, ends, columns)
    # P(a wrote none of it) is at most 1 - γ_t(a) at any of its tokens.
    errors = scale_odds(1 - np.minimum(highest, 1), factors[texts])
    lows, highs = share_intervals(posterior, starts, ends, columns)
    is_scored = present[columns] == guesses  # others were not looked at: their posterior is 0
    return {
        "posterior": np.where(is_scored, means, 0.0),
        "error": np.where(is_scored, errors, 1.0),
        "share_low": np.where(is_scored, np.minimum(lows, means), 0.0),
        "share_high": np.where(is_scored, np.maximum(highs, np.minimum(means, 1)), 0.0),
    }


def cut_by_token(
    posterior: Float32s,
    firsts: Int64s,
    present: Int64s,
    factors: Float64s,
    spans: Spans,
    evidence: Float64s,
    level: float,
) -> Spans:
    """Cut the spans of found agents into pieces that are attributed at `level` and pieces that stay open.

    A token is attributed if 1 - γ_t(agent), with its odds scaled by the text's factor, is at most `level`. So
    of two adjacent pieces one has an error of at most `level`, as `certainty` gives it, and the other a
    higher one.

    Args:
        posterior, firsts, present, factors: as in `certainty`.
        evidence: log p-value of every agent in every text [D, A].
    """
    starts, counts = list[int](), np.ones(len(spans.starts), np.int64)
    for s, (d, start, end, agent) in enumerate(zip(*(column.tolist() for column in spans), strict=True)):
        starts.append(start)
        column = int(np.searchsorted(present, agent))
        if agent < 0 or not evidence[d, agent] <= math.log(level):
            continue
        inside = slice(firsts[d] + start, firsts[d] + end)
        of_agent = np.minimum(posterior[inside, column].astype(np.float64), 1)
        named = scale_odds(1 - of_agent, float(factors[d])) <= level
        cuts = np.flatnonzero(named[1:] != named[:-1]) + 1 + start
        starts += cuts.tolist()
        counts[s] += len(cuts)
    begins = np.array(starts, np.int64)
    ends = np.append(begins[1:], 0)[: len(begins)]
    ends[np.cumsum(counts) - 1] = spans.ends
    return Spans(np.repeat(spans.texts, counts), begins, ends, np.repeat(spans.agents, counts))
