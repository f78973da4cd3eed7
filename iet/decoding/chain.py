"""A hidden Markov chain over the agents and nobody, and who holds each token given all scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from iet.decoding.segmentation import NOBODY, check_vector
from iet.errors import InputError, ShapeError, check_number
from iet.native.arrays import Float32s, Float64s, Int64s
from iet.native.jit import njit

EXPONENT_LIMIT = 60.0
"""Maximum log-likelihood ratio of one token: exponentials stay in float32's range, also before scaling."""

# Keep both handing over and staying possible: else one state could fall behind another without a limit, and β
# would leave the range of float64.
_LOWEST_CHANCE, _LOWEST_SHARE = 1e-12, 1e-8

_STORED = 1 << 24  # values of α kept at a time: 64 MB

# Scale α and β only where a sum leaves this range: each token would wait for a scale at the one before it.
_LOW, _HIGH = 2.0**-20, 2.0**20


def forward_backward(
    log_ratios: npt.NDArray[np.floating],
    mean_segment: float = 200.0,
    nobody: float = 0.0,
    shares: npt.ArrayLike | None = None,
    stages: int = 3,
    odds: npt.ArrayLike | None = None,
    nobody_segment: float | None = None,
) -> tuple[Float32s, Float32s, float]:
    """Return the posterior of every agent, and of nobody, at every token, given all scores.

        e_t(i) = exp(log_ratios[t, i]), 1 for nobody
        a segment of i lasts m stages of 1/q tokens each on average, q = m / mean_segment;
        after an agent's the next one is j's with probability π_j / (1 - π_i), j ≠ i; after nobody's, π_j
        γ_t(i) = P(i holds token t | all scores), the sum over the stages of i

    A duration that is a sum of m geometric ones has a spread of 1/√m of its mean: turns of three tokens and
    of three thousand are both less likely than the geometric law of an ordinary chain (m = 1) has them.
    Nobody may follow himself: what nobody's key explains may be of any length. With `nobody_segment` he may
    not, as agents may not, and his segments have that mean length. The text begins and ends in the middle of
    a segment.

    Args:
        log_ratios: log p(x_t | i) / p(x_t | nobody), float [T, A]; 0 where a token carries no evidence. Cut
            at ±`EXPONENT_LIMIT`.
        mean_segment: expected tokens of a segment, at least 0; below `stages` counts as `stages`.
        nobody: π of nobody, 0 to 0.99; 0 leaves nobody out of the chain.
        shares: π of the agents [A], > 0; None: 1 - `nobody` in equal parts. They are scaled to that sum, and
            none counts for less than 1e-8 of it.
        stages: m, 1 to 16.
        odds: [T] > 0; q is multiplied by odds[t] for the step from t - 1 to t (and is 1 at most). None: 1.
        nobody_segment: expected tokens of nobody's segments, where they alternate with agents', at least 0;
            below `stages` counts as `stages`. None: `mean_segment`, and nobody may follow himself.

    Returns:
        (γ [T, A] float32, γ of nobody [T] float32, log-likelihood ratio of the text: all of it under the
        chain against nobody's). Rows sum to 1 with nobody's.

    Raises:
        ShapeError: `log_ratios` is not [T, A] with A >= 1, `shares` not [A], or `odds` not [T].
        InputError: a number is out of range, or a log ratio is no number.

    Cost: O(m·T·A) time, 12·T·A bytes and 64 MB at most (α is kept for a part of the text at a time, and
    computed once more for the others). Float64 inside, α and e in float32. Deterministic.
    """
    if log_ratios.ndim != 2 or log_ratios.shape[1] == 0:
        raise ShapeError("log_ratios", got=list(log_ratios.shape), expected="[T, A], A >= 1")
    check_number("mean_segment", mean_segment, 0, integer=False)
    check_number("nobody", nobody, 0, 0.99, integer=False)
    check_number("stages", stages, 1, 16)
    agents = log_ratios.shape[1]
    if shares is None:
        shares = np.ones(agents)
    each = check_vector("shares", shares, agents, "finite numbers above 0", lambda v: (v > 0) & (v < np.inf))
    if nobody_segment is not None:
        check_number("nobody_segment", nobody_segment, 0, integer=False)
    prior, ratios = prior_of(each, nobody), exponentials(log_ratios)
    posterior, left, found = posteriors(
        ratios, mean_segment, prior, stages, odds, nobody_segment=nobody_segment
    )
    return posterior, left, float(found[0])


def posteriors(
    ratios: Float32s,
    mean_segment: float,
    prior: Float64s,
    stages: int,
    odds: npt.ArrayLike | None = None,
    starts: Sequence[int] = (0,),
    nobody_segment: float | None = None,
) -> tuple[Float32s, Float32s, Float64s]:
    """Do what `forward_backward` does, from `exponentials` (which are changed) and `prior_of`.

    Of D texts, one behind the other, if their `starts` are given; log-likelihood ratios of the texts are [D].
    """
    tokens, agents = len(ratios), len(prior) - 1
    if prior[agents] == 0:
        ratios[:, agents] = 0.0  # else nobody's β grows on unmarked text, until 0·inf
    advances = _advances(tokens, stages / max(mean_segment, 1e-9), prior, odds)
    pace, alternates = _pace_of(mean_segment, nobody_segment, stages)
    leave = _leave_of(prior, alternates)
    found, ends = np.zeros(len(starts)), [*starts[1:], tokens]
    longest = max(map(int.__sub__, ends, starts), default=0)
    each = min(max(longest, 1), max(256, _STORED // (stages * (agents + 1))))
    alpha, onward = np.empty((each, stages, agents + 1), np.float32), np.empty(agents + 1)
    held, weights, beta = np.empty(agents + 1), np.empty(agents + 1), np.empty((stages, agents + 1))
    law = prior, leave, pace, alternates
    posterior, left = np.empty((tokens, agents), np.float32), np.empty(tokens, np.float32)
    begun = np.empty((stages, agents + 1))
    begun[:] = _occupied(prior, pace, alternates) / stages
    for d, (start, end) in enumerate(zip(starts, ends, strict=True)):
        advances[start : start + 1] = 0  # nothing comes before the first token
        state, states = begun.copy(), list[Float64s]()
        for begin in range(start, end, each):
            states.append(state.copy())
            if begin + each < end:
                found[d] += _forward_njit(
                    ratios, advances, *law, begin, begin + each, 0, onward, state, alpha
                )
        beta[:] = 1
        for begin in range(start + each * (len(states) - 1), start - 1, -each):
            stop = min(begin + each, end)
            log_ratio = _forward_njit(ratios, advances, *law, begin, stop, 1, onward, states.pop(), alpha)
            if stop == end:  # the other parts have been added above
                found[d] += log_ratio
            _backward_njit(ratios, advances, *law, begin, stop, alpha, held, weights, beta, posterior, left)
    if np.isnan(found).any():
        raise InputError("log_ratios: got NaN, expected numbers")
    return posterior, left, found


def exponentials(log_ratios: npt.NDArray[np.floating]) -> Float32s:
    """Return e [..., A + 1]: exponentials of log ratios, cut at ±`EXPONENT_LIMIT`, and 1 for nobody."""
    agents = log_ratios.shape[-1]
    cut = np.clip(log_ratios, -EXPONENT_LIMIT, EXPONENT_LIMIT, dtype=np.float32, casting="same_kind")
    ratios = np.empty((*log_ratios.shape[:-1], agents + 1), np.float32)
    ratios[..., :agents] = np.exp(cut, out=cut)  # in one piece: rows of a few agents are slow one by one
    ratios[..., agents] = 1
    return ratios


def log_likelihoods(
    ratios: Float32s,
    mean_segments: Float64s,
    priors: Float64s,
    odds: Float64s | None = None,
    nobody_segments: Float64s | None = None,
) -> Float64s:
    """Return the third result of `forward_backward` for several chains of three stages, [S, R].

    Args:
        ratios: S times `exponentials`, [S, T, A + 1], not changed.
        mean_segments: expected tokens of a segment in each chain, [R].
        priors: `prior_of` in each chain, [R, A + 1]; nobody's is 0 in all of them, or in none.
        odds: as in `forward_backward`.
        nobody_segments: as in `forward_backward`, in each chain, [R]; NaN or None: as agents' segments.

    O(S·R·T·A), in vectors over S·R.
    """
    texts, tokens, states = ratios.shape
    count = texts * len(mean_segments)
    rates = np.minimum(3 / np.maximum(mean_segments, 3), 1)
    limits = (_LOWEST_CHANCE, 1 - _LOWEST_CHANCE) if _hands_over(priors[0]) else (0.0, 0.0)
    wide = np.empty((5, states, count))  # π, 1 / (1 - π), and the three stages
    shaped = wide.reshape(5, states, texts, -1)
    shaped[0] = priors.T[:, None]
    own = np.full(len(mean_segments), np.nan) if nobody_segments is None else nobody_segments
    alternates = ~np.isnan(own)
    paces = np.where(alternates, np.maximum(mean_segments, 3) / np.maximum(own, 3), 1)
    shaped[1] = _leave_of(priors, alternates).T[:, None]
    shaped[2:] = _occupied(priors, paces, alternates).T[:, None] / 3
    rows = np.empty((7, count))  # q, what there is of nobody, and what is worked with
    rows[0].reshape(texts, -1)[:] = rates
    rows[5].reshape(texts, -1)[:] = paces
    rows[6].reshape(texts, -1)[:] = alternates
    found = np.zeros(count)
    each = np.ones(tokens) if odds is None else odds
    _likelihoods_njit(ratios, len(mean_segments), each, *limits, wide, rows, found)
    return found.reshape(texts, -1)


def _leave_of(prior: Float64s, alternates: npt.ArrayLike) -> Float64s:
    """Return 1 / (1 - π) of each state that another one follows, and 1 for others [..., A + 1]."""
    leave = 1 / np.maximum(1 - prior, 1e-9)
    leave[..., -1] = np.where(alternates, leave[..., -1], 1)
    return np.asarray(leave)


def _pace_of(mean_segment: float, nobody_segment: float | None, stages: int) -> tuple[float, float]:
    """Return how much faster nobody's stages end than agents', and 1 if he may not follow himself, else 0."""
    if nobody_segment is None:
        return 1.0, 0.0
    return max(mean_segment, stages) / max(nobody_segment, stages), 1.0


def _occupied(prior: Float64s, pace: npt.ArrayLike, alternates: npt.ArrayLike) -> Float64s:
    """Return the share of the tokens that each state holds [..., A + 1]; π where nobody is as agents are."""
    held = prior * np.where(np.expand_dims(alternates, -1), np.maximum(1 - prior, 1e-9), 1)
    held[..., -1] /= np.asarray(pace)
    return np.asarray(held / held.sum(axis=-1, keepdims=True))


def _hands_over(prior: Float64s) -> bool:
    """Tell whether there is anybody to hand over to."""
    return bool(prior.max() <= 1 - 1e-9)


def _advances(tokens: int, rate: float, prior: Float64s, odds: npt.ArrayLike | None) -> Float64s:
    """Return the chance that a stage ends before each token, for a rate q: [T].

    0 where there is nobody to hand over to.
    """
    chances = np.full(tokens, rate)
    if odds is not None:
        chances *= check_vector("odds", odds, tokens, "numbers above 0", lambda v: v > 0)
    if not _hands_over(prior):
        return np.zeros(tokens)
    return np.asarray(np.minimum(np.maximum(chances, _LOWEST_CHANCE), 1 - _LOWEST_CHANCE))


def prior_of(shares: Float64s, nobody: float) -> Float64s:
    """Return π of the agents, in proportion to `shares` [A], and, last, of nobody."""
    prior = np.empty(len(shares) + 1)
    np.multiply(shares, (1 - nobody) / shares.sum(), out=prior[:-1])
    prior[-1] = nobody
    there = prior if nobody > 0 else prior[:-1]
    np.maximum(there, _LOWEST_SHARE, out=there)
    prior /= prior.sum()
    return prior


@njit
def _forward_njit(
    ratios: Float32s,
    advances: Float64s,
    prior: Float64s,
    leave: Float64s,
    pace: float,
    alternates: float,
    begin: int,
    end: int,
    keep: int,
    onward: Float64s,
    state: Float64s,
    alpha: Float32s,
) -> float:
    # `state` [m, A + 1] holds α at token begin - 1 (at a text's beginning: π), and afterwards at end - 1. If
    # `keep` is 1, each row of `alpha` becomes α of a token, up to a factor; if it is 0, the first row takes
    # them all and nobody reads it, because a loop for each case would be compiled twice.
    stages, states = state.shape
    last, nobody, log_ratio = stages - 1, states - 1, 0.0
    for t in range(begin, end):
        row = (t - begin) * keep
        advance = advances[t]
        stay, arriving = 1.0 - advance, 0.0
        nobodys = min(advance * pace, 1.0 - _LOWEST_CHANCE)
        for i in range(nobody):
            onward[i] = state[last, i] * leave[i] * advance
            arriving += onward[i]
        from_nobody = state[last, nobody] * leave[nobody] * nobodys
        arriving += from_nobody
        onward[nobody] = alternates * from_nobody
        total = 0.0
        for i in range(states):
            if i == nobody:
                advance, stay = nobodys, 1.0 - nobodys
            ratio = ratios[t, i]
            before = state[0, i]
            now = (stay * before + prior[i] * (arriving - onward[i])) * ratio
            state[0, i] = now
            alpha[row, 0, i] = now
            held = now
            for m in range(1, stages):
                own = state[m, i]
                now = (stay * own + advance * before) * ratio
                state[m, i] = now
                alpha[row, m, i] = now
                held += now
                before = own
            total += held
        if t == end - 1 or not _LOW < total < _HIGH:
            log_ratio += math.log(total)
            for m in range(stages):
                for i in range(states):
                    state[m, i] /= total
    return log_ratio


@njit
def _likelihoods_njit(
    ratios: Float32s,
    each: int,
    odds: Float64s,
    lowest: float,
    highest: float,
    wide: Float64s,
    rows: Float64s,
    log_ratios: Float64s,
) -> None:
    # What `_forward_njit` returns, for R chains of three stages, `each` of them for one of `ratios`. The
    # inner loops run over chains, so that a compiler can turn them into vectors.
    priors, leave, first, second, third = wide[0], wide[1], wide[2], wide[3], wide[4]
    rates, advance, arriving, total, ratio = rows[0], rows[1], rows[2], rows[3], rows[4]
    paces, alternates = rows[5], rows[6]
    count, chains, tokens = len(priors), len(log_ratios), ratios.shape[1]
    for t in range(tokens):
        for r in range(chains):
            # Nothing comes before the first token.
            advance[r] = min(max(rates[r] * odds[t], lowest), highest) if t > 0 else 0.0
            arriving[r] = total[r] = 0.0
        for i in range(count - 1):
            for r in range(chains):
                arriving[r] += third[i, r] * leave[i, r] * advance[r]
        for r in range(chains):
            arriving[r] += third[count - 1, r] * leave[count - 1, r] * min(advance[r] * paces[r], highest)
        for i in range(count):
            if i == count - 1:
                for r in range(chains):
                    advance[r] = min(advance[r] * paces[r], highest)
            for s in range(len(ratios)):
                for r in range(s * each, s * each + each):
                    ratio[r] = ratios[s, t, i]
            for r in range(chains):
                one, two, three, q = first[i, r], second[i, r], third[i, r], advance[r]
                another = alternates[r] if i == count - 1 else 1.0
                entered = priors[i, r] * (arriving[r] - another * (three * leave[i, r] * q))
                now = ((1.0 - q) * one + entered) * ratio[r]
                then = ((1.0 - q) * two + q * one) * ratio[r]
                at_last = ((1.0 - q) * three + q * two) * ratio[r]
                first[i, r], second[i, r], third[i, r] = now, then, at_last
                total[r] += now + then + at_last
        low, high = total[0], total[0]
        for r in range(1, chains):
            low, high = min(low, total[r]), max(high, total[r])
        if t == tokens - 1 or not (low > _LOW and high < _HIGH):
            for r in range(chains):
                log_ratios[r] += math.log(total[r])
                total[r] = 1.0 / total[r]
            for i in range(count):
                for r in range(chains):
                    first[i, r] *= total[r]
                    second[i, r] *= total[r]
                    third[i, r] *= total[r]


@njit
def _backward_njit(
    ratios: Float32s,
    advances: Float64s,
    prior: Float64s,
    leave: Float64s,
    pace: float,
    alternates: float,
    begin: int,
    end: int,
    alpha: Float32s,
    held: Float64s,
    weights: Float64s,
    beta: Float64s,
    posterior: Float32s,
    left: Float32s,
) -> None:
    # β_t(m, i) ∝ P(scores after t | i in stage m at t): stay, or the next stage, or from the last one a
    # segment of somebody else. γ is α·β divided by its sum, so neither needs any scale but a safe one.
    stages, states = beta.shape
    last, agents = stages - 1, states - 1
    for t in range(end - 1, begin - 1, -1):
        for i in range(states):
            held[i] = alpha[t - begin, 0, i] * beta[0, i]
        for m in range(1, stages):
            for i in range(states):
                held[i] += alpha[t - begin, m, i] * beta[m, i]
        total = 0.0
        for i in range(states):
            total += held[i]
        scale = 1.0 / total
        left[t] = held[agents] * scale
        for i in range(agents):
            posterior[t, i] = held[i] * scale
        advance = advances[t]
        stay = 1.0 - advance
        factor = 1.0 if _LOW < total < _HIGH else scale
        entering = 0.0
        for i in range(states):
            weights[i] = factor * ratios[t, i]
            held[i] = prior[i] * beta[0, i] * weights[i]
            entering += held[i]
        held[agents] *= alternates
        for m in range(last):
            for i in range(agents):
                beta[m, i] = (stay * beta[m, i] + advance * beta[m + 1, i]) * weights[i]
        for i in range(agents):
            beta[last, i] = stay * weights[i] * beta[last, i] + advance * leave[i] * (entering - held[i])
        advance, weight = min(advance * pace, 1.0 - _LOWEST_CHANCE), weights[agents]
        stay, onward = 1.0 - advance, advance * leave[agents] * (entering - held[agents])
        for m in range(last):
            beta[m, agents] = (stay * beta[m, agents] + advance * beta[m + 1, agents]) * weight
        beta[last, agents] = stay * weight * beta[last, agents] + onward


def boundary_intervals(
    posterior: Float32s, spans: Sequence[tuple[int, int, int]], sure: float = 0.95
) -> list[tuple[int, int]]:
    """Return between which tokens each boundary may lie: up to the nearest `sure` token on either side.

    Args:
        posterior: γ [T, A] float32; what is missing to 1 is nobody's.
        spans: (start, end, agent) [S], in order and without gaps; agent -1 = nobody.
        sure: posterior of the span's own agent from which a token counts as decided.

    Returns:
        (low, high) [S + 1], low <= boundary <= high, within the two spans of the boundary. The first and last
        are the ends of the text.

    Raises:
        ShapeError: `posterior` is not a matrix, or `spans` are not three integers each.
        InputError: the spans have gaps or leave the text, or an agent is not in `posterior`.

    Cost: O(T·A). Deterministic.
    """
    if not spans:
        return []
    if posterior.ndim != 2:
        raise ShapeError("posterior", got=list(posterior.shape), expected="[T, A]")
    table = _span_table(spans, *posterior.shape)
    starts, ends = table[:, 0], table[:, 1]
    held = _posterior_of(posterior, table)
    sure_at = np.flatnonzero(~(held < np.float32(sure))) + starts[0]
    # One past the last sure token before each boundary, and the first one behind it, within the two spans.
    places = np.searchsorted(sure_at, ends[:-1])
    around = np.concatenate([[-1], sure_at, [len(posterior)]])
    lows, highs = np.maximum(around[places] + 1, starts[:-1]), np.minimum(around[places + 1], ends[1:])
    first, last = spans[0][0], spans[-1][1]
    return [(first, first), *zip(lows.tolist(), highs.tolist(), strict=True), (last, last)]


def _span_table(spans: Sequence[tuple[int, int, int]], tokens: int, agents: int) -> Int64s:
    table = np.array(spans)
    if table.ndim != 2 or table.shape[1] != 3 or table.dtype.kind not in "iu":
        raise ShapeError("spans", got=f"{table.dtype} {list(table.shape)}", expected="integers [S, 3]")
    starts, ends, owners = table.T
    bad = (starts < 0) | (ends < starts) | (ends > tokens) | (owners < NOBODY) | (owners >= agents)
    bad[1:] |= starts[1:] != ends[:-1]
    if bad.any():
        raise InputError(
            f"spans: got {tuple(table[bad][0].tolist())}, expected (start, end, agent) without gaps, up to"
            f" token {tokens} and agent {agents - 1}"
        )
    return table.astype(np.int64)


def _posterior_of(posterior: Float32s, spans: Int64s) -> Float32s:
    """Return γ of each token's agent in its span; nobody's γ is what the others leave of 1."""
    starts, ends, owners = spans.T
    agents = np.repeat(owners, ends - starts)
    inside = posterior[starts[0] : ends[-1]]
    held = inside[np.arange(len(inside)), agents]
    rest = agents < 0
    if rest.any():
        total = np.zeros(len(inside), np.float32)
        for column in inside.T:  # one after another, so that no sum depends on how many tokens there are
            total += column
        held[rest] = 1 - total[rest]
    return np.asarray(held)
