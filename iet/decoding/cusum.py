"""The paper's decoder: recursive CUSUM of the margin between the leading agent and the next one."""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from iet.decoding.segmentation import UNATTRIBUTED, Scored, Scores, Segmentation, check_scores
from iet.decoding.windows import attribution_threshold, windows
from iet.errors import InputError, ShapeError, check_number
from iet.marks.families import Family
from iet.native.arrays import Bools, Float64s, Int32s, Int64s
from iet.native.load import loops

ANCHORS = {"start": 0.0, "centre": 0.5, "end": 1.0}
"""Where in a window a boundary that falls on it lies, as a share of its width."""


def smooth(margins: npt.ArrayLike, width: int = 5) -> Float64s:
    """Return the centred moving average of the margins, over fewer windows at both ends.

    The paper gives `smooth_win = 5` and no formula: a centred mean is our choice.

    Args:
        margins: z [W] float.
        width: windows to average, an odd int of at least 1.

    Returns:
        [W] float64.

    Raises:
        ShapeError, InputError: `margins` is not a vector, or `width` is even or below 1.

    Cost: O(W). Deterministic.
    """
    z = _vector("margins", margins)
    check_number("smooth", width, 1)
    if width % 2 == 0:
        raise InputError(f"smooth: got {width}, expected an odd int")
    from iet.decoding.cusum_loops import smooth_loop

    mean = np.empty(len(z))
    smooth_loop(z, int(width), mean)
    return mean


def cusum(margins: npt.ArrayLike, tau: float = 0.1, min_points: int = 10) -> Int64s:
    """Return the change points of a margin sequence.

        C_t = Σ_{i=τ̂_{s-1}}^{t} (z_i - z̄_s)      (Eq. recursive_cusum)
        split after argmax_t |C_t| if max_t |C_t| > τ      (Eq. detector_definition)

    then both halves again, each against its own mean z̄. Left open by the paper: τ, and what
    `min_points_for_pair` restricts. Here only splits that leave both halves `min_points` windows are
    candidates; the first of equal candidates wins.

    Args:
        margins: z [W] float, smoothed or not.
        tau: τ >= 0, in units of the score times windows. 0.1 is our choice: on synthetic text TokenAcc rises
            as τ falls, because a needless split costs nothing once segments of one agent are merged.
        min_points: windows that a segment must at least have.

    Returns:
        [S - 1] int64, ascending: the windows at which new segments start.

    Raises:
        ShapeError, InputError: `margins` is not a finite vector, or a parameter is out of range.

    Cost: O(W·depth), O(W log W) for balanced splits; an explicit stack, no recursion. Deterministic.
    """
    check_number("tau", tau, 0, integer=False)
    check_number("min_points", min_points, 1)
    z = _vector("margins", margins)
    from iet.decoding.cusum_loops import cusum_loop

    change_points, stack = np.empty(len(z), np.int64), np.empty((len(z) + 1, 2), np.int64)
    return change_points[: cusum_loop(z, float(tau), int(min_points), stack, change_points)]


def refine(window_scores: npt.ArrayLike, change_points: npt.ArrayLike, radius: int = 8) -> Int64s:
    """Move each change point to where its two neighbours separate best, at most `radius` windows away.

    With L and R the dominant agents (highest sum of f) of the segments before and after boundary s,

        s' = argmax_{|b - s| <= radius} Σ_{i<b} f(i, L) + Σ_{i>=b} f(i, R)

    The paper gives `local_radius = 8` and no rule: this one, which splits where both sides are best
    explained, is ours. A boundary with L = R stays; none reaches a neighbouring one; of equal places
    the nearest to s wins, then the earlier one. L and R are taken from the segments before any move.

    Args:
        window_scores: f [W, A] float.
        change_points: [S - 1] ints, ascending, in windows, between 1 and W - 1.
        radius: in windows, at least 0.

    Returns:
        [S - 1] int64, ascending.

    Raises:
        ShapeError: `change_points` is no vector of integers.
        InputError: `radius` is out of range, or change points do not ascend within the windows.

    Cost: O(W·A + S·radius). Deterministic.
    """
    check_number("radius", radius, 0)
    points = np.asarray(change_points)
    if points.ndim != 1 or (points.dtype.kind not in "iu" and points.size):
        raise ShapeError("change_points", got=f"{points.dtype} {list(points.shape)}", expected="ints [S - 1]")
    if not len(points):
        return points.astype(np.int64)
    f = check_scores(window_scores)
    if not 1 <= points[0] <= points[-1] < len(f) or (points[1:] <= points[:-1]).any():
        raise InputError(
            f"change_points: got {points[:8].tolist()} to {points[-1]}, expected ascending, 1 to {len(f) - 1}"
        )
    from iet.decoding.cusum_loops import refine_loop

    refined = points.astype(np.int64)
    refine_loop(f, len(refined), int(radius), np.empty(f.shape[1]), refined)
    return refined


@dataclasses.dataclass(frozen=True)
class CusumOptions:
    """Options of the decoder "cusum".

    Args:
        window: w in tokens (the paper's `window_tokens`).
        step: tokens between windows (the paper's `step_tokens`).
        smooth_windows: the paper's `smooth_win`; see `smooth`; the formula is ours.
        tau: τ, which the paper leaves open; see `cusum`.
        min_points: the paper's `min_points_for_pair`; see `cusum`; its role is ours.
        radius: the paper's `local_radius`; see `refine`; the rule is ours.
        anchor: the position of a window: its first token, its centre, or one past its last.
            A boundary between windows i - 1 and i is the token halfway between their places. Left open by
            the paper; f looks ahead, so at the centre the window is half the next agent's.
        level: significance level of one segment, for `allow_unattributed`.

    Raises:
        InputError: one is out of range.
    """

    window: int = 64
    step: int = 16
    smooth_windows: int = 5
    tau: float = 0.1
    min_points: int = 10
    radius: int = 8
    anchor: Literal["start", "centre", "end"] = "centre"
    level: float = 0.01

    def __post_init__(self) -> None:
        if not isinstance(self.anchor, str) or self.anchor not in ANCHORS:
            raise InputError(f"anchor: got {self.anchor!r}, expected one of {sorted(ANCHORS)}")
        for name, value, low in (
            ("window", self.window, 1),
            ("step", self.step, 1),
            ("smooth", self.smooth_windows, 1),
            ("min_points", self.min_points, 1),
            ("radius", self.radius, 0),
        ):
            check_number(name, value, low)
        check_number("tau", self.tau, 0, integer=False)
        if self.smooth_windows % 2 == 0:
            raise InputError(f"smooth: got {self.smooth_windows}, expected an odd int")

    def check(self, family: Family, agents: int) -> None:
        """Raise InputError if `level` is out of range; any `family` and number of `agents` will do."""
        attribution_threshold(family, agents, self.level)


class CusumParameters(NamedTuple):
    """`CusumOptions` as the loops take them, for one family and number of agents."""

    window: int
    step: int
    smooth_windows: int
    tau: float
    min_points: int
    radius: int
    shift: int
    mean: float
    threshold: float

    @classmethod
    def of(
        cls, options: CusumOptions, family: Family, allow_unattributed: bool, agents: int
    ) -> CusumParameters:
        """Return what the loops take."""
        return cls(
            int(options.window),
            int(options.step),
            int(options.smooth_windows),
            float(options.tau),
            int(options.min_points),
            int(options.radius),
            # A boundary at window i lies between windows i - 1 and i: half a step before the anchor of i.
            int(ANCHORS[options.anchor] * options.window) - int(options.step) // 2,
            float(family.mean(0.0)),
            attribution_threshold(family, agents, options.level) if allow_unattributed else -np.inf,
        )


def cusum_decode(text: Scored, options: CusumOptions, allow_unattributed: bool) -> Segmentation:
    """Attribute a text as the paper does (§ Agent Attribution).

    Windows, margin, smoothing, recursive CUSUM, refinement; then labels. The label of a segment is its
    dominant agent, the one with the highest sum of token scores, every position counted; neighbouring
    segments of one agent are merged. A margin only dips where two equally strong agents meet, so boundaries
    are missed that `posterior` finds.

    Args:
        text: what is read. Repeats count.
        options: see `CusumOptions`.
        allow_unattributed: a segment is unattributed when its sum, less the mean of unmarked scores, does not
            exceed `attribution_threshold`. False: the paper's choice, always an agent.

    Cost: O(T·A) time, T·A/2 bytes at step 16. Deterministic.
    """
    assert text.family is not None
    f = windows(text.values, options.window, options.step)
    agents = text.agents or text.values.shape[1]
    parameters = CusumParameters.of(options, text.family, allow_unattributed, agents)
    spans = np.array([0]), np.array([len(text.values)])
    return Segmentation(
        _labels(text.values, text.scored, *spans, f, np.array([0, len(f)]), parameters), window_scores=f
    )


def cusum_decode_many(
    scores: Scores,
    scored: Bools,
    starts: Int64s,
    ends: Int64s,
    family: Family,
    options: CusumOptions,
    allow_unattributed: bool,
) -> Int32s:
    """Return the labels that `cusum_decode` gives the tokens `[start, end)` of each of D texts.

    They are int32 [T], -1 outside all texts, from x [T, A] and `scored` [T] of all texts. Cost: O(T·A).
    """
    parameters = CusumParameters.of(options, family, allow_unattributed, scores.shape[1])
    lengths = ends - starts
    widths = np.minimum(parameters.window, lengths)
    counts = np.where(widths > 0, (lengths - widths) // parameters.step + 1, 0)
    edges = np.append(0, np.cumsum(counts))
    f, total = np.empty((edges[-1], scores.shape[1])), np.zeros(scores.shape[1])
    texts = zip(
        starts.tolist(), ends.tolist(), widths.tolist(), edges.tolist(), edges[1:].tolist(), strict=False
    )
    for start, end, width, first, last in texts:
        loops.windows(scores[start:end], width, parameters.step, total, f[first:last])
    return _labels(scores, scored, starts, ends, f, edges, parameters)


def _labels(
    x: Scores,
    scored: Bools,
    starts: Int64s,
    ends: Int64s,
    f: Float64s,
    window_edges: Int64s,
    parameters: CusumParameters,
) -> Int32s:
    from iet.decoding.cusum_loops import labels_loop

    labels, margins = np.full(len(x), UNATTRIBUTED, np.int32), np.empty(len(f))
    loops.margin(f, margins)
    labels_loop(x, scored, starts, ends, f, margins, window_edges, parameters, labels)
    return labels


def _vector(name: str, values: npt.ArrayLike) -> Float64s:
    array = np.asarray(values, np.float64)
    if array.ndim != 1:
        raise ShapeError(name, got=list(array.shape), expected="[W]")
    if not np.isfinite(array).all():
        raise InputError(f"{name}: got NaN or infinity, expected finite numbers")
    return np.ascontiguousarray(array)
