"""The default decoder: a hidden Markov model over the agents and nobody, fitted on the text itself."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from iet.decoding.jit import njit
from iet.decoding.segmentation import NOBODY, Scores, Segmentation, check_number
from iet.errors import InputError, ShapeError
from iet.scheme import Family

MIN_STRENGTH, MAX_STRENGTH = 0.2, 4.0
"""The range of λ: below it a mark is not told from none in a segment of some hundred tokens."""

MOST_CANDIDATES = 256
"""So many agents of a large registry are looked at token by token."""

_PRUNED = 1e-3
_EXPONENT_LIMIT = 80.0

Floats = npt.NDArray[np.float64]
Posterior = npt.NDArray[np.float32]


def posterior_decode(
    scores: Scores,
    family: Family,
    scored: npt.NDArray[np.bool_],
    repeated: npt.NDArray[np.bool_],
    allow_unattributed: bool,
    agents: int | None = None,
    *,
    mean_segment: float = 200.0,
    repeats: Literal["drop", "count"] = "drop",
    nobody: float = 0.5,
    strengths: npt.ArrayLike | None = None,
    iterations: int = 4,
    start_strength: float = 0.4,
    shrinkage: float = 200.0,
    block: int = 16,
    min_segment: int = 16,
) -> Segmentation:
    """Label each token with the agent of highest posterior probability in a sticky hidden Markov model.

        log p(x_t | a) / p(x_t | nobody) = λ_a·x_t(a) - log_mgf(λ_a)      (the family's likelihood ratio)
        P(state t + 1 = i | state t = j) = (1 - r)·[i = j] + r·π_i

    π spreads 1 - `nobody` evenly over the agents, and r is such that an agent stays `mean_segment` tokens on
    average. λ is fitted on the text (`fit_strengths`), γ_t(a) = p(a at t | all scores) by `forward_backward`,
    and ĝ(t) = argmax_a γ_t(a), which maximises the expected TokenAcc. Not in the paper. In a text without
    evidence the first agent wins, or nobody where nobody may.

    Args:
        scores, family, scored, repeated, allow_unattributed, agents: as in `decode`. If nothing may be left
            unattributed, the chain has no state for nobody.
        mean_segment: expected tokens of a segment, 1 to 1e9.
        repeats: "drop" counts a (context, token) pair once per text, "count" every time. Pairs repeat where
            text is predictable and so carries little mark, while their chance score adds up: on synthetic
            text with one fifth of such pairs, dropping them raised TokenAcc from 0.85 to 0.92.
        nobody: prior share of tokens that no agent wrote, 0 to 0.99, where nobody may win. This is a prior,
            not a test: on unmarked synthetic text some percent of the tokens still go to an agent, and
            testing each segment at a level is `evidence`'s work.
        strengths: [A] λ, 0 to MAX_STRENGTH, to use instead of fitting.
        iterations, start_strength, shrinkage, block: see `fit_strengths`.
        min_segment: tokens. A shorter run of one label goes to that neighbour whose posterior over it is
            higher, from left to right: it holds too little evidence to be a turn, but would be two false
            transitions. 1 keeps every run. The text's only run stays.

    Cost: O(T·A) time, 4·T·A bytes. An agent whose posterior at λ₀ stays below 0.001 in every block is left
    out from there on (`likely_agents`): its posterior is 0 and its strength λ₀. Deterministic.
    """
    if repeats not in ("drop", "count"):
        raise InputError(f'repeats: got {repeats!r}, expected "drop" or "count"')
    check_number("mean_segment", mean_segment, 1, 1e9, integer=False)
    check_number("nobody", nobody, 0, 0.99, integer=False)
    check_number("block", block, 1)
    check_number("min_segment", min_segment, 1)
    check_number("start_strength", start_strength, MIN_STRENGTH, MAX_STRENGTH, integer=False)
    tokens, columns = scores.shape
    weight = evidence_weight(scored, repeated, repeats)
    p_nobody = nobody if allow_unattributed else 0.0
    everyone = agents or columns
    chain: dict[str, Any] = {"mean_segment": mean_segment / block, "nobody": p_nobody, "agents": everyone}
    fixed = strengths is not None
    try:
        strength = np.array(strengths, np.float64) if fixed else np.full(columns, float(start_strength))
    except (TypeError, ValueError):
        raise InputError(
            f"strengths: got {strengths!r:.80}, expected numbers from 0 to {MAX_STRENGTH}"
        ) from None
    if not ((strength >= 0) & (strength <= MAX_STRENGTH)).all():
        raise InputError(f"strengths: got {strength}, expected numbers from 0 to {MAX_STRENGTH}")
    count = -(-tokens // block)
    sums, weights = np.zeros((count, columns), np.float32), np.zeros(count, np.float32)
    _blocks_njit(scores, weight, block, sums, weights)
    keep = np.arange(columns)
    if agents is None:
        keep = likely_agents(sums, weights, strength, family, **chain)
    elif strength.shape != (columns,):
        raise ShapeError("strengths", got=list(strength.shape), expected=[columns])
    if len(keep) < columns:
        scores, sums = scores[:, keep], sums[:, keep]
    if not fixed:
        strength[keep] = fit_strengths(sums, weights, family, iterations, start_strength, shrinkage, **chain)
    posterior, left = forward_backward(
        scores, weight, strength[keep], family, mean_segment, p_nobody, everyone
    )
    labels = np.empty(tokens, np.int32)
    _likeliest_njit(posterior, left, allow_unattributed, labels)
    _absorb_short_runs(labels, posterior, left, min_segment)
    token_agents = np.append(keep, NOBODY)[labels].astype(np.int32)
    if len(keep) < columns:
        kept, posterior = posterior, np.zeros((tokens, columns), np.float32)
        posterior[:, keep] = kept
    return Segmentation(token_agents, posterior, strength)


def evidence_weight(
    scored: npt.NDArray[np.bool_], repeated: npt.NDArray[np.bool_], repeats: str
) -> npt.NDArray[np.float32]:
    """Return n_t [T]: 1 where a token carries evidence, else 0; `repeats` as in `posterior_decode`."""
    return (scored if repeats == "count" else scored & ~repeated).astype(np.float32)


def likely_agents(
    sums: Scores, weights: npt.NDArray[np.float32], strengths: Floats, family: Family, **chain: Any
) -> npt.NDArray[np.int64]:
    """Return the agents whose posterior at λ reaches 0.001 in some block, or at least the likeliest of all.

    Args:
        sums, weights, strengths, family: as in `fit_strengths`.
        chain: the other arguments of `forward_backward`.

    Returns:
        Columns, ascending; `at_most` 256 of them, or as many as reach 0.5 where those are more.
    """
    gamma, _ = forward_backward(sums, weights, strengths, family, **chain)
    highest = gamma.max(axis=0, initial=0)
    chosen = np.flatnonzero(highest >= min(_PRUNED, highest.max()))
    return at_most(chosen, highest, int((highest >= 0.5).sum()))


def at_most(
    columns: npt.NDArray[np.int64], rank: npt.NDArray[np.floating[Any]], more: int = 0
) -> npt.NDArray[np.int64]:
    """Return those of the columns with the highest `rank` [A]: `MOST_CANDIDATES`, or `more`; ascending."""
    kept = max(MOST_CANDIDATES, more)
    if len(columns) <= kept:
        return columns
    return np.sort(columns[np.argsort(-rank[columns], kind="stable")[:kept]])


def _absorb_short_runs(
    labels: npt.NDArray[np.int32], posterior: Posterior, left: Posterior, min_segment: int
) -> None:
    """Give runs below `min_segment` to the likelier neighbour, in place, in one pass from left to right."""
    standing: list[int] = []  # starts of the runs before the one at hand
    start = 0
    for end in [*(np.flatnonzero(np.diff(labels)) + 1).tolist(), len(labels)]:
        sides = [labels[at] for at in (start - 1, end) if 0 <= at < len(labels)]
        if end - start < min_segment and sides:
            mass = [(left if a < 0 else posterior[:, a])[start:end].sum(dtype=np.float64) for a in sides]
            labels[start:end] = sides[int(np.argmax(mass))]
        joins_left = bool(standing) and labels[start - 1] == labels[start]
        if end < len(labels) and labels[end] == labels[end - 1]:  # one run with the next
            start = standing.pop() if joins_left else start
            continue
        if not joins_left:
            standing.append(start)
        start = end


def boundary_intervals(
    posterior: Posterior, spans: Sequence[tuple[int, int, int]], sure: float = 0.95
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
    lows, highs = np.empty((2, len(spans) - 1), np.int64)
    _intervals_njit(posterior, table, np.float32(sure), lows, highs)
    first, last = spans[0][0], spans[-1][1]
    return [(first, first), *zip(lows.tolist(), highs.tolist(), strict=True), (last, last)]


def _span_table(spans: Sequence[tuple[int, int, int]], tokens: int, agents: int) -> npt.NDArray[np.int64]:
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


@njit
def _intervals_njit(
    posterior: Posterior,
    spans: npt.NDArray[np.int64],
    sure: np.float32,
    lows: npt.NDArray[np.int64],
    highs: npt.NDArray[np.int64],
) -> None:
    for s in range(len(spans) - 1):
        at, left, right = spans[s, 1], spans[s, 2], spans[s + 1, 2]
        low, high = at, at
        while low > spans[s, 0] and _of_njit(posterior, low - 1, left) < sure:
            low -= 1
        while high < spans[s + 1, 1] and _of_njit(posterior, high, right) < sure:
            high += 1
        lows[s], highs[s] = low, high


@njit
def _of_njit(posterior: Posterior, t: int, agent: int) -> Any:
    if agent >= 0:
        return posterior[t, agent]
    total = np.float32(0.0)
    for a in range(posterior.shape[1]):
        total += posterior[t, a]
    return np.float32(1.0) - total


def fit_strengths(
    sums: Scores,
    weights: npt.NDArray[np.float32],
    family: Family,
    iterations: int = 4,
    start_strength: float = 0.4,
    shrinkage: float = 200.0,
    mean_segment: float = 12.5,
    nobody: float = 0.0,
    agents: int | None = None,
) -> Floats:
    """Fit every agent's λ by expectation maximisation.

        mean(λ_a) = (Σ_t γ_t(a)·x_t(a) + m·mean(λ₀)) / (Σ_t γ_t(a)·n_t + m)

    where x_t is the sum of the scores of block t and n_t the number of its tokens with evidence. The
    m = `shrinkage` tokens at λ₀ = `start_strength` keep an agent with little text where it started. Blocks
    stand for tokens: a step costs 1/16, and on synthetic text TokenAcc was the same to 0.002 for blocks
    of 8 to 32 and for 3 to 8 iterations.

    Args:
        sums: [T, A] float, sums of scores over blocks (or scores).
        weights: [T] float32, tokens with evidence in each.
        family: the family of the scores.
        iterations: at most so many, 0 for none; fewer if no λ moves by 0.005.
        start_strength: λ₀, MIN_STRENGTH to MAX_STRENGTH.
        shrinkage: m in tokens, at least 0.
        mean_segment, nobody, agents: as in `forward_backward`, the first in blocks.

    Returns:
        λ [A] float64, MIN_STRENGTH to MAX_STRENGTH.

    Raises:
        InputError: a parameter is out of range.

    Cost: O(iterations·T·A). Deterministic.
    """
    check_number("iterations", iterations, 0)
    check_number("shrinkage", shrinkage, 0, integer=False)
    grid, mean, _ = _strength_table(family)
    prior = np.interp(start_strength, grid, mean)
    strengths = np.full(sums.shape[1], float(start_strength))
    for _ in range(iterations):
        gamma, _ = forward_backward(sums, weights, strengths, family, mean_segment, nobody, agents)
        total = np.einsum("ta,ta->a", gamma, sums, dtype=np.float64) + shrinkage * prior
        tokens = np.einsum("ta,t->a", gamma, weights, dtype=np.float64) + shrinkage
        fitted = np.interp(total / np.maximum(tokens, 1e-9), mean, grid).clip(MIN_STRENGTH, MAX_STRENGTH)
        moved = np.abs(fitted - strengths).max()
        strengths = fitted
        if moved < 0.005:
            break
    return strengths


def forward_backward(
    scores: Scores,
    weights: npt.NDArray[np.float32],
    strengths: Floats,
    family: Family,
    mean_segment: float = 200.0,
    nobody: float = 0.0,
    agents: int | None = None,
) -> tuple[Posterior, Posterior]:
    """Return the posterior of every agent, and of nobody, at every token, given all scores.

        e_t(i) = exp(λ_i·x_t(i) - n_t·log_mgf(λ_i)), 1 for nobody
        α_t(i) ∝ e_t(i)·Σ_j α_{t-1}(j)·P_ji
        γ_t(i) = α_t(i)·Σ_j P_ij·γ_{t+1}(j) / Σ_k α_t(k)·P_kj

    with P (from j to i: P_ji) and π of `posterior_decode` and α_0 ∝ π·e_0. P is a multiple of the identity
    plus a matrix of equal rows, so every sum over states is one for all i; the last line needs no e, so no
    exponential is taken twice. The exponent is cut at ±80; α and γ are normalised at every token, so the
    length of the text does not matter.

    Args:
        scores: [T, A] float.
        weights: [T] float32, n_t: 1 where a token carries evidence, else 0 (more for a sum over several).
        strengths: λ [A] float64.
        family: the family of the scores.
        mean_segment: expected tokens of a segment; below 1 counts as 1.
        nobody: π of nobody, 0 to 0.99; 0 leaves nobody out of the chain.
        agents: the number of agents that share the rest of π, if some of them are not in `scores`.

    Returns:
        (γ [T, A], γ of nobody [T]), float32; without pruned agents each row sums to 1 with nobody's.

    Raises:
        ShapeError: `strengths` is not [A], or `weights` not [T].

    Cost: O(T·A) time, one exponential and one division per token and agent. Float64 inside. Deterministic.
    """
    if strengths.shape != (scores.shape[1],):
        raise ShapeError("strengths", got=list(strengths.shape), expected=[scores.shape[1]])
    if weights.shape != (len(scores),):
        raise ShapeError("weights", got=list(weights.shape), expected=[len(scores)])
    grid, _, log_mgf = _strength_table(family)
    share = (1.0 - nobody) / (agents or scores.shape[1])
    redraw = min(1.0, 1.0 / max(mean_segment, 1.0) / (1.0 - share)) if share < 1 else 0.0
    offsets = np.interp(strengths, grid, log_mgf)
    posterior, left = np.empty(scores.shape, np.float32), np.empty(len(scores), np.float32)
    state = np.full(scores.shape[1], share)
    _forward_backward_njit(scores, weights, strengths, offsets, redraw, share, nobody, state, posterior, left)
    return posterior, left


@njit
def _forward_backward_njit(
    x: Scores,
    weights: npt.NDArray[np.float32],
    strengths: Floats,
    log_mgf: Floats,
    redraw: float,
    share: float,
    nobody: float,
    state: Floats,
    posterior: Posterior,
    left: Posterior,
) -> None:
    tokens, agents = x.shape
    stay, enter, leave = 1.0 - redraw, redraw * share, redraw * nobody
    outside = nobody
    for t in range(tokens):
        if t > 0:
            for a in range(agents):
                state[a] = stay * state[a] + enter
            outside = stay * outside + leave
        total = outside
        for a in range(agents):
            if weights[t] > 0:
                exponent = strengths[a] * x[t, a] - weights[t] * log_mgf[a]
                state[a] *= np.exp(min(max(exponent, -_EXPONENT_LIMIT), _EXPONENT_LIMIT))
            total += state[a]
        scale = 1.0 / total
        outside *= scale
        left[t] = outside
        for a in range(agents):
            state[a] *= scale
            posterior[t, a] = state[a]
    for t in range(tokens - 2, -1, -1):  # posterior[t] is α_t, state is γ_{t+1}
        back = 0.0
        for a in range(agents):
            state[a] /= stay * posterior[t, a] + enter
            back += state[a]
        back *= enter
        if nobody > 0:
            outside /= stay * left[t] + leave
            back += outside * leave
        outside = left[t] * (stay * outside + back)
        total = outside
        for a in range(agents):
            state[a] = posterior[t, a] * (stay * state[a] + back)
            total += state[a]
        scale = 1.0 / total
        outside *= scale
        left[t] = outside
        for a in range(agents):
            state[a] *= scale
            posterior[t, a] = state[a]


@njit
def _likeliest_njit(
    posterior: Posterior, left: Posterior, allow_unattributed: bool, labels: npt.NDArray[np.int32]
) -> None:
    for t in range(len(posterior)):
        best = 0
        for a in range(1, posterior.shape[1]):
            if posterior[t, a] > posterior[t, best]:
                best = a
        labels[t] = NOBODY if allow_unattributed and posterior[t, best] <= left[t] else best


@njit
def _blocks_njit(
    x: Scores,
    weight: npt.NDArray[np.float32],
    block: int,
    sums: npt.NDArray[np.float32],
    weights: npt.NDArray[np.float32],
) -> None:
    for t in range(len(x)):
        if weight[t] > 0:
            weights[t // block] += weight[t]
            for a in range(x.shape[1]):
                sums[t // block, a] += x[t, a]


@functools.cache
def _strength_table(family: Family) -> tuple[Floats, Floats, Floats]:
    # λ, mean(λ), log_mgf(λ) on a grid; linear interpolation, good to 1e-5, inverts the mean for all agents.
    grid = np.linspace(0.0, MAX_STRENGTH, 512)
    return grid, family.mean(grid), family.log_mgf(grid)
