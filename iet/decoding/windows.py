"""Window scores f(t, a), the margin z_t, and the decoder that labels a token by the window around it."""

from __future__ import annotations

import dataclasses
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from iet.decoding.segmentation import NOBODY, Scored, Scores, Segmentation, check_scores
from iet.errors import InputError, ShapeError, check_number
from iet.marks.families import Family
from iet.native.arrays import Bools, Float32s, Float64s, Int32s, Int64s
from iet.native.loops import loop, njit


def windows(scores: npt.ArrayLike, window: int = 64, step: int = 16) -> Float64s:
    """Return the window means of every agent's scores.

        f(t, a) = 1/w · Σ_{j=t}^{t+w-1} x_j(a),    t = 0, step, 2·step, ...      (§ Local Consistency Scoring)

    as in the paper: every position counts, also repeats and positions without a score (x = 0). The paper
    gives w = 64 and step = 16. Only whole windows are taken, so up to step - 1 last tokens lie in none.
    A text shorter than a window, on which the paper is silent, is one window of its own length.

    Args:
        scores: [T, A] float.
        window: w in tokens, at least 1.
        step: tokens from one window's start to the next, at least 1.

    Returns:
        f [W, A] float64 with W = ⌊(T - w) / step⌋ + 1; 1 if 0 < T < w; 0 if T = 0.

    Raises:
        ShapeError, InputError: `scores` is not a finite matrix, or a parameter is out of range.

    Cost: O(T·A) time whatever w (running sums in float64), W·A·8 bytes. Deterministic.
    """
    check_number("window", window, 1)
    check_number("step", step, 1)
    x = check_scores(scores)
    width, step = min(int(window), len(x)), int(step)
    count = (len(x) - width) // step + 1 if width else 0
    f = np.empty((count, x.shape[1]))
    _windows(x, width, step, np.zeros(x.shape[1]), f)
    return f


@njit
def windows_njit(x: Scores, width: int, step: int, total: Float64s, f: Float64s) -> None:
    """Fill f as `windows` does; `total` [A] is zeros."""
    agents = x.shape[1]
    left = right = 0  # total = Σ x[left:right]
    for i in range(len(f)):
        start = i * step
        if start >= right:
            left = right = start
            for a in range(agents):
                total[a] = 0.0
        while right < start + width:
            for a in range(agents):
                total[a] += x[right, a]
            right += 1
        while left < start:
            for a in range(agents):
                total[a] -= x[left, a]
            left += 1
        for a in range(agents):
            f[i, a] = total[a] / width


_windows = loop(windows_njit)


def span_sums(scores: npt.ArrayLike, boundaries: npt.ArrayLike) -> Float64s:
    """Return the sums of every agent's scores over consecutive spans: Σ_{j=b_s}^{b_{s+1}-1} x_j(a).

    Args:
        scores: [T, A] float.
        boundaries: b [S + 1] ints, ascending, 0 to T.

    Returns:
        [S, A] float64.

    Raises:
        ShapeError: `scores` is not a matrix of real numbers, or `boundaries` no vector of integers.
        InputError: `boundaries` are not ascending within the text.

    Cost: O(T·A). Deterministic.
    """
    x, edges = np.ascontiguousarray(scores), np.asarray(boundaries)
    if x.ndim != 2 or x.dtype.kind not in "fiub":
        raise ShapeError("scores", got=f"{x.dtype} {list(x.shape)}", expected="real numbers [T, A]")
    if edges.ndim != 1 or not len(edges) or edges.dtype.kind not in "iu":
        raise ShapeError("boundaries", got=f"{edges.dtype} {list(edges.shape)}", expected="integers [S + 1]")
    if edges[0] < 0 or edges[-1] > len(x) or (edges[1:] < edges[:-1]).any():
        raise InputError(
            f"boundaries: got {edges[:8].tolist()} to {edges[-1]}, expected ascending from 0 to {len(x)}"
        )
    edges = edges.astype(np.int64)
    sums = np.zeros((len(edges) - 1, x.shape[1]))
    span_sums_njit(x, edges, sums)
    return sums


@njit
def span_sums_njit(x: Scores, boundaries: Int64s, sums: Float64s) -> None:
    """Add to the zeros `sums` what `span_sums` returns."""
    for s in range(len(sums)):
        for t in range(boundaries[s], boundaries[s + 1]):
            for a in range(x.shape[1]):
                sums[s, a] += x[t, a]


def column_summary(values: Float32s, boundaries: Int64s, columns: Int64s) -> tuple[Float64s, Float32s]:
    """Return mean and maximum [S] of one of the columns [T, A] in each of consecutive spans, 0 in empty ones.

    `values` are at least 0, `boundaries` [S + 1] ascend from 0 to T, `columns` is [S]. O(T). Deterministic.

    Raises:
        ShapeError: they are not of these shapes.
        InputError: a boundary or a column lies outside.
    """
    if values.ndim != 2 or boundaries.shape != (len(columns) + 1,):
        got = [list(values.shape), list(boundaries.shape), list(columns.shape)]
        raise ShapeError("values, boundaries, columns", got=got, expected="[T, A], [S + 1], [S]")
    tokens, agents = values.shape
    if boundaries[0] < 0 or boundaries[-1] > tokens or (boundaries[1:] < boundaries[:-1]).any():
        raise InputError(f"boundaries: got {boundaries[:8].tolist()}, expected ascending from 0 to {tokens}")
    if len(columns) and not 0 <= columns.min() <= columns.max() < agents:
        raise InputError(f"columns: got {columns.min()} to {columns.max()}, expected 0 to {agents - 1}")
    totals, highest = np.zeros(len(columns)), np.zeros(len(columns), np.float32)
    _column_summary_loop(values, boundaries, columns, totals, highest)
    return totals / np.maximum(1, np.diff(boundaries)), highest


@loop
def _column_summary_loop(
    values: Float32s, boundaries: Int64s, columns: Int64s, totals: Float64s, highest: Float32s
) -> None:
    for s in range(len(columns)):
        for t in range(boundaries[s], boundaries[s + 1]):
            value = values[t, columns[s]]
            totals[s] += value  # in float64, token by token
            if value > highest[s]:
                highest[s] = value


def margin(window_scores: npt.ArrayLike) -> Float64s:
    """Return how far the leading agent is ahead of the next one in every window.

        z_t = f(t, â_t) - max_{a' ≠ â_t} f(t, a'),    â_t = argmax_a f(t, a)

    (§ Competitive Change-Point Detection). With one agent there is no competitor and z_t is f(t, a) itself,
    where the paper is silent.

    Args:
        window_scores: f [W, A] float.

    Returns:
        z [W] float64, at least 0 for A >= 2.

    Raises:
        ShapeError, InputError: f is not a finite matrix.

    Cost: O(W·A). Deterministic.
    """
    f = check_scores(window_scores)
    z = np.empty(len(f))
    _margin(f, z)
    return z


@njit
def margin_njit(f: Scores, z: Float64s) -> None:
    """Fill z as `margin` does."""
    for i in range(f.shape[0]):
        first, second = f[i, 0], -np.inf
        for a in range(1, f.shape[1]):
            if f[i, a] > first:
                first, second = f[i, a], first
            elif f[i, a] > second:
                second = f[i, a]
        z[i] = first - second if f.shape[1] > 1 else first


_margin = loop(margin_njit)


def attribution_threshold(family: Family, agents: int, level: float) -> float:
    """Return the c for which the best agent's sum of n scores stands out if it exceeds n·mean(0) by c·√n.

    c = σ·Φ⁻¹(1 - level / A): the normal law of a sum of unmarked scores, Bonferroni over the agents. It
    decides what `allow_unattributed` means for decoders without a model of nobody. Scores whose law is skewed
    pass it more often, in few tokens and with many agents: at level 0.01 and with 100 agents a window of 64
    tokens in 7 % of cases in family "gumbel" and 4 % in KGW (γ = 1/4), of 10 in 16 %. p-values of an audit
    rest on exact laws.

    Args:
        family: gives σ², the variance of one unmarked score.
        agents: A.
        level: 1e-300 to 0.5.

    Raises:
        InputError: `level` is out of range.
    """
    check_number("level", level, 1e-300, 0.5, integer=False)
    return -float(np.sqrt(family.variance)) * NormalDist().inv_cdf(level / agents)


@dataclasses.dataclass(frozen=True)
class WindowOptions:
    """Options of the decoder "window".

    Args:
        window: w in tokens, at least 1.
        level: significance level of one window, for `allow_unattributed`.

    Raises:
        InputError: one is out of range.
    """

    window: int = 64
    level: float = 0.01

    def __post_init__(self) -> None:
        check_number("window", self.window, 1)

    def check(self, family: Family, agents: int) -> None:
        """Raise InputError if `level` is out of range; any `family` and number of `agents` will do."""
        attribution_threshold(family, agents, self.level)


def window_decode(text: Scored, options: WindowOptions, allow_unattributed: bool) -> Segmentation:
    """Label each token with the agent of the best window around it: the simplest reader, for comparison.

        ĝ(t) = argmax_a Σ_{|j - t| <= w/2} x_j(a)

    the window `[t - ⌊w/2⌋, t - ⌊w/2⌋ + w)` cut at the ends of the text. Not in the paper. Every position
    counts, repeats too. The first of equal agents wins.

    Args:
        text: what is read.
        options: see `WindowOptions`.
        allow_unattributed: a token is unattributed when the winner's sum, less the mean of unmarked scores,
            does not exceed `attribution_threshold`.

    Cost: O(T·A) time, 4·T bytes. Deterministic.
    """
    assert text.family is not None
    scores, family = text.values, text.family
    threshold = attribution_threshold(family, text.agents or scores.shape[1], options.level)
    labels = np.empty(len(scores), np.int32)
    total = np.zeros(scores.shape[1])
    mean = float(family.mean(0.0))
    _window_decode_njit(
        scores, text.scored, int(options.window), mean, threshold, allow_unattributed, total, labels
    )
    return Segmentation(labels)


@njit
def _window_decode_njit(
    x: Scores,
    scored: Bools,
    window: int,
    mean: float,
    threshold: float,
    allow_unattributed: bool,
    total: Float64s,
    labels: Int32s,
) -> None:
    tokens, agents = x.shape
    left, right, count = 0, 0, 0  # total = Σ x[left:right], count of them scored
    for t in range(tokens):
        while right < min(tokens, t - window // 2 + window):
            for a in range(agents):
                total[a] += x[right, a]
            count += scored[right]
            right += 1
        while left < t - window // 2:
            for a in range(agents):
                total[a] -= x[left, a]
            count -= scored[left]
            left += 1
        best = 0
        for a in range(1, agents):
            if total[a] > total[best]:
                best = a
        stands_out = not allow_unattributed or total[best] - mean * count > threshold * np.sqrt(count)
        labels[t] = best if stands_out else NOBODY
