"""A hidden Markov chain over the agents and nobody, and who holds each token given all scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from iet.decoding.segmentation import NOBODY, check_vector
from iet.errors import InputError, ShapeError, check_number
from iet.native.arrays import Float32s, Float64s, Int64s
from iet.native.loops import loop

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
        nobody_segment: expected tokens of nobody's segments, where they alternate with agents', at least 0;
            below `stages` counts as `stages`. None: `mean_segment`, and nobody may follow himself.

    Returns:
        (γ [T, A] float32, γ of nobody [T] float32, log-likelihood ratio of the text: all of it under the
        chain against nobody's). Rows sum to 1 with nobody's.

    Raises:
        ShapeError: `log_ratios` is not [T, A] with A >= 1, or `shares` not [A].
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
    posterior, left, found = posteriors(ratios, mean_segment, prior, stages, nobody_segment=nobody_segment)
    return posterior, left, float(found[0])


def posteriors(
    ratios: Float32s,
    mean_segment: float,
    prior: Float64s,
    stages: int,
    starts: Sequence[int] = (0,),
    nobody_segment: float | None = None,
) -> tuple[Float32s, Float32s, Float64s]:
    """Do what `forward_backward` does, from `exponentials` (which are changed) and `prior_of`.

    Of D texts, one behind the other, if their `starts` are given; log-likelihood ratios of the texts are [D].
    """
    tokens, agents = len(ratios), len(prior) - 1
    cuts = np.array([*starts, tokens])
    each = max(256, _STORED // (stages * (agents // 8 + 1) * 8))  # rows of α are filled up to eight states
    posterior, left = np.empty((tokens, agents), np.float32), np.empty(tokens, np.float32)
    found, own = np.zeros(len(starts)), math.nan if nobody_segment is None else nobody_segment
    _posteriors_loop(ratios, cuts, each, prior, stages, mean_segment, own, posterior, left, found)
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
    nobody_segments: Float64s | None = None,
) -> Float64s:
    """Return the third result of `forward_backward` for several chains of three stages, [S, R].

    Args:
        ratios: S times `exponentials`, [S, T, A + 1], not changed.
        mean_segments: expected tokens of a segment in each chain, [R].
        priors: `prior_of` in each chain, [R, A + 1].
        nobody_segments: as in `forward_backward`, in each chain, [R]; NaN or None: as agents' segments.

    O(S·R·T·A), in vectors over chains.
    """
    found = np.empty((len(ratios), len(mean_segments)))
    own = np.full(len(mean_segments), math.nan) if nobody_segments is None else nobody_segments
    _likelihoods_loop(ratios, ratios.shape[1], mean_segments, own, priors, found)
    return found


def prior_of(shares: Float64s, nobody: float) -> Float64s:
    """Return π of the agents, in proportion to `shares` [A], and, last, of nobody."""
    prior = np.empty(len(shares) + 1)
    priors_loop(shares, np.array([nobody], np.float64), 1, prior[None])
    return prior


@loop
def priors_loop(shares: Float64s, nobodys: Float64s, each: int, priors: Float64s) -> None:
    """Fill `priors` with `prior_of` shares [A] and each of nobody's, so many times: [N·each, A + 1]."""
    agents, given = len(shares), 0.0
    for i in range(agents):
        given += shares[i]
    for r in range(len(priors)):
        nobody = nobodys[r // each]
        total = priors[r, agents] = max(nobody, _LOWEST_SHARE) if nobody > 0 else nobody
        for i in range(agents):
            priors[r, i] = max(shares[i] * ((1 - nobody) / given), _LOWEST_SHARE)
            total += priors[r, i]
        for i in range(agents + 1):
            priors[r, i] /= total


@loop
def _posteriors_loop(
    ratios: Float32s,
    cuts: Int64s,
    each: int,
    prior: Float64s,
    stages: int,
    mean_segment: float,
    nobody_segment: float,
    posterior: Float32s,
    left: Float32s,
    found: Float64s,
) -> None:
    # Where nobody alternates with agents he has a mean length, else NaN.
    states = len(prior)
    nobody, last = states - 1, stages - 1
    alternates, pace = 0.0, 1.0  # of nobody's stages, against those of agents
    if not math.isnan(nobody_segment):
        alternates, pace = 1.0, max(mean_segment, stages) / max(nobody_segment, stages)
    rate = stages / max(mean_segment, stages)
    leave, begun = np.empty(states), np.empty(states)  # 1 / (1 - π), and the share of the tokens each holds
    most = held_by_all = 0.0
    for i in range(states):
        others = max(1 - prior[i], 1e-9)
        leave[i] = 1 / others if i < nobody or alternates > 0 else 1.0
        begun[i] = prior[i] * others if alternates > 0 else prior[i]
        if i == nobody:
            begun[i] /= pace
        held_by_all += begun[i]
        most = max(most, prior[i])
    lowest = highest = 0.0  # where there is nobody to hand over to
    if most <= 1 - 1e-9:
        lowest, highest = _LOWEST_CHANCE, 1 - _LOWEST_CHANCE
    if prior[nobody] == 0:
        for t in range(len(left)):
            ratios[t, nobody] = 0.0  # else nobody's β grows on unmarked text, until 0·inf
    longest = 1
    for d in range(len(cuts) - 1):
        longest = max(longest, cuts[d + 1] - cuts[d])
    alpha = np.empty((min(each, longest), stages, states), np.float32)
    kept = np.empty((-(-longest // each), stages, states))
    state, beta = np.empty((stages, states)), np.empty((stages, states))
    onward, held, weights = np.empty(states), np.empty(states), np.empty(states)
    for d in range(len(cuts) - 1):
        for m in range(stages):
            for i in range(states):
                state[m, i], beta[m, i] = begun[i] / held_by_all / stages, 1.0
        final = -(-(cuts[d + 1] - cuts[d]) // each) - 1
        # To the last part and back: the α of one of them are kept at a time.
        for step in range(2 * final + 1):
            keep = step >= final
            p = 2 * final - step if keep else step
            begin = cuts[d] + p * each
            end = min(begin + each, cuts[d + 1])
            for m in range(stages):
                for i in range(states):
                    if not keep:
                        kept[p, m, i] = state[m, i]
                    elif p < final:
                        state[m, i] = kept[p, m, i]
            log_ratio = 0.0
            for t in range(begin, end):  # each row of `alpha` becomes α of a token, up to a factor
                row = t - begin if keep else 0
                advance = min(max(rate, lowest), highest) if t > cuts[d] else 0.0
                nobodys = min(max(rate * pace, lowest), highest) if t > cuts[d] else 0.0
                arriving = 0.0
                for i in range(states):
                    onward[i] = state[last, i] * leave[i] * (advance if i < nobody else nobodys)
                    arriving += onward[i]
                onward[nobody] *= alternates
                total = 0.0
                for i in range(states):
                    q, ratio = advance if i < nobody else nobodys, ratios[t, i]
                    before = state[0, i]
                    now = ((1 - q) * before + prior[i] * (arriving - onward[i])) * ratio
                    state[0, i] = alpha[row, 0, i] = now
                    together = now
                    for m in range(1, stages):
                        own = state[m, i]
                        now = ((1 - q) * own + q * before) * ratio
                        state[m, i] = alpha[row, m, i] = now
                        together += now
                        before = own
                    total += together
                if t == end - 1 or not _LOW < total < _HIGH:
                    log_ratio += math.log(total)
                    for m in range(stages):
                        for i in range(states):
                            state[m, i] /= total
            if p == final or not keep:
                found[d] += log_ratio
            if not keep:
                continue
            # β_t(m, i) ∝ P(scores after t | i in stage m at t): stay, or the next stage, or from the last one
            # a segment of somebody else. γ is α·β divided by its sum: neither needs any scale but a safe one.
            for t in range(end - 1, begin - 1, -1):
                total = 0.0
                for i in range(states):
                    held[i] = alpha[t - begin, 0, i] * beta[0, i]
                    for m in range(1, stages):
                        held[i] += alpha[t - begin, m, i] * beta[m, i]
                    total += held[i]
                scale = 1 / total
                left[t] = held[nobody] * scale
                for i in range(nobody):
                    posterior[t, i] = held[i] * scale
                factor, entering = (1.0 if _LOW < total < _HIGH else scale), 0.0
                for i in range(states):
                    weights[i] = factor * ratios[t, i]
                    held[i] = prior[i] * beta[0, i] * weights[i]
                    entering += held[i]
                held[nobody] *= alternates
                advance = min(max(rate, lowest), highest) if t > cuts[d] else 0.0
                nobodys = min(max(rate * pace, lowest), highest) if t > cuts[d] else 0.0
                for i in range(states):
                    q = advance if i < nobody else nobodys
                    for m in range(last):
                        beta[m, i] = ((1 - q) * beta[m, i] + q * beta[m + 1, i]) * weights[i]
                    others = entering - held[i]
                    beta[last, i] = (1 - q) * weights[i] * beta[last, i] + q * leave[i] * others


@loop
def _likelihoods_loop(
    ratios: Float32s,
    tokens: int,
    mean_segments: Float64s,
    nobody_segments: Float64s,
    priors: Float64s,
    found: Float64s,
) -> None:
    # What `_posteriors_loop` says of whole texts, for chains of three stages.
    nobody = priors.shape[1] - 1
    leave, first = np.empty(nobody + 1), np.empty(nobody + 1)
    second, third = np.empty(nobody + 1), np.empty(nobody + 1)
    for s in range(len(ratios)):
        for r in range(len(mean_segments)):
            mean, alternates, pace = max(mean_segments[r], 3.0), 0.0, 1.0
            if not math.isnan(nobody_segments[r]):
                alternates, pace = 1.0, mean / max(nobody_segments[r], 3.0)
            rate = min(3 / mean, 1.0)
            most = held_by_all = 0.0
            for i in range(nobody + 1):
                others = max(1 - priors[r, i], 1e-9)
                leave[i] = 1 / others if i < nobody or alternates > 0 else 1.0
                first[i] = priors[r, i] * others if alternates > 0 else priors[r, i]
                if i == nobody:
                    first[i] /= pace
                held_by_all += first[i]
                most = max(most, priors[r, i])
            for i in range(nobody + 1):
                first[i] = second[i] = third[i] = first[i] / held_by_all / 3
            lowest = highest = 0.0
            if most <= 1 - 1e-9:
                lowest, highest = _LOWEST_CHANCE, 1 - _LOWEST_CHANCE
            log_ratio = 0.0
            for t in range(tokens):
                advance = min(max(rate, lowest), highest) if t > 0 else 0.0
                nobodys = min(max(rate * pace, lowest), highest) if t > 0 else 0.0
                arriving = total = 0.0
                for i in range(nobody + 1):
                    arriving += third[i] * leave[i] * (advance if i < nobody else nobodys)
                for i in range(nobody + 1):
                    q, ratio = advance if i < nobody else nobodys, ratios[s, t, i]
                    own = third[i] * leave[i] * q * (1.0 if i < nobody else alternates)
                    now = ((1 - q) * first[i] + priors[r, i] * (arriving - own)) * ratio
                    then = ((1 - q) * second[i] + q * first[i]) * ratio
                    at_last = ((1 - q) * third[i] + q * second[i]) * ratio
                    first[i], second[i], third[i] = now, then, at_last
                    total += now + then + at_last
                if t == tokens - 1 or not _LOW < total < _HIGH:
                    log_ratio += math.log(total)
                    scale = 1 / total
                    for i in range(nobody + 1):
                        first[i] *= scale
                        second[i] *= scale
                        third[i] *= scale
            found[s, r] = log_ratio


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
