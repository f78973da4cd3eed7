"""The paper's decoder as printed: fixed parameters, and splits that are searched forward only.

`cusum` of `iet` splits each half again, and its open options are tuned on other records. The text prints less
(§ Competitive Change-Point Detection): segment s begins at τ̂_{s-1},

    C_t = Σ_{i = τ̂_{s-1}}^{t} (z_i - z̄_s),    τ̂_s = argmax_{t > τ̂_{s-1}} |C_t|,    split if |C_τ̂_s| > τ

and the next segment begins there; nothing before a split is searched again. z̄_s is the mean from τ̂_{s-1} to
the end of the text, as no other end is known yet. The parameters are printed: windows of 64 tokens, step 16,
smooth_win 5, min_points_for_pair 10, local_radius 8. τ is not; 0.1 is the default of `iet`. The roles of
`min_points_for_pair` and `local_radius` are not printed either, and are here those of `iet`.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from iet.decoding.cusum import ANCHORS, CusumOptions, refine, smooth
from iet.decoding.windows import margin, windows

PRINTED = CusumOptions(window=64, step=16, smooth_windows=5, tau=0.1, min_points=10, radius=8)

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


def forward(margins: Floats, tau: float, min_points: int) -> Labels:
    """Return the change points of margins z [W], ascending; each is sought from the one before to the end.

    Only splits that leave at least `min_points` windows on both sides are candidates; the first of equal
    ones wins. Cost: O(W·S). Deterministic.
    """
    points: list[int] = []
    start = 0
    while True:
        rest = margins[start:]
        sums = np.abs(np.cumsum(rest - rest.mean())) if len(rest) else rest
        allowed = sums[min_points - 1 : len(rest) - min_points]
        if not len(allowed) or not allowed.max() > tau:
            return np.array(points, np.int64)
        start += min_points - 1 + int(allowed.argmax()) + 1
        points.append(start)


def labels(scores: NDArray[np.float32], options: CusumOptions = PRINTED) -> Labels:
    """Return the agent of every token [T] of scores [T, A]: the agent with the highest sum in its segment."""
    f = windows(scores, options.window, options.step)
    margins = smooth(margin(f), options.smooth_windows)
    points = refine(f, forward(margins, options.tau, options.min_points), options.radius)
    shift = int(ANCHORS[options.anchor] * options.window) - options.step // 2
    bounds = [0, *(points * options.step + shift).tolist(), len(scores)]
    agents = np.empty(len(scores), np.int64)
    for start, end in itertools.pairwise(bounds):
        agents[start:end] = scores[start:end].sum(axis=0, dtype=np.float64).argmax()
    return agents
