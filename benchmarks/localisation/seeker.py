"""WaterSeeker: windows that stand out, then the most significant interval near each run of them.

Pan et al. 2025, "WaterSeeker: Pioneering Efficient Detection of Watermarked Segments in Large Documents"
(NAACL findings). A window is suspicious if its mean exceeds that of all windows by `share` of what the 20
best are ahead, and by `spread` standard deviations of the windows; suspicious windows within `tolerance`
tokens are one place. Around each place every interval whose ends lie within a window of its own is tried, and
the one with the lowest p-value is marked if that is below `level`. P-values are those of the paper: of a sum
of exponential scores, or else the normal ones of a standardised sum.

Compared on 20 texts of each of the 28 published files with the published localisation and the published
p-values around it: the same tokens. (The variant that the WISER paper's table is made with takes the highest
sum in place of the lowest p-value, which is nearly always the longest interval; it was not followed.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from iet.marks.families import FAMILIES, Family

GRID = {
    "window": (20, 35, 50),
    "share": (0.15, 0.3, 0.5, 0.7),
    "spread": (0.0, 1.5),
    "tolerance": (20, 50, 100),
    "level": (1e-6, 1e-3),
}
_BEST = 20

Interval = tuple[int, int]


def detect(
    scores: NDArray[np.float64],
    family: Family,
    *,
    window: int = 50,
    share: float = 0.5,
    spread: float = 0.0,
    tolerance: int = 100,
    level: float = 1e-6,
    shortest: int | None = None,
) -> list[Interval]:
    """Return the intervals of one key's scores [T] that are marked; `shortest` is a window if None."""
    shortest = window if shortest is None else shortest
    if len(scores) < window:
        return []
    total = np.append(0.0, np.cumsum(scores))
    means = (total[window:] - total[:-window]) / window
    ahead = np.sort(means)[::-1][:_BEST].mean() - means.mean()
    high = np.flatnonzero(means > means.mean() + max(share * ahead, spread * means.std()))
    if not len(high):
        return []
    found = []
    for place in np.split(high, np.flatnonzero(np.diff(high) > tolerance) + 1):
        first, last = int(place[0]), int(place[-1]) + window - 1
        starts = np.arange(first, first + window)
        ends = np.arange(last, last - window, -1)
        lengths = ends[None, :] - starts[:, None]
        if last - first < shortest or not (lengths >= shortest).any():
            continue
        sums = total[ends][None, :] - total[np.minimum(starts, len(scores))][:, None]
        log_p = np.where(lengths >= shortest, log_p_of_sums(sums, np.maximum(lengths, 1), family), np.inf)
        start, end = np.unravel_index(int(log_p.argmin()), log_p.shape)
        if log_p[start, end] < np.log(level):
            found.append((int(starts[start]), int(ends[end])))
    return found


def log_p_of_sums(
    sums: NDArray[np.float64], counts: NDArray[np.int64], family: Family
) -> NDArray[np.float64]:
    """Return the logarithm of the chance that so many unmarked scores have a sum as high."""
    if family is FAMILIES["gumbel"]:
        x = np.maximum(sums, 1e-300)
        with np.errstate(divide="ignore", invalid="ignore"):
            tail = np.log(special.gammaincc(counts, x))
            # Far out, where that is below the range of float64: the first term of its continued fraction
            far = counts * np.log(x) - x - special.gammaln(counts) - np.log(np.maximum(x - counts + 1, 1.0))
        return np.asarray(np.where(np.isfinite(tail), tail, far))
    centred = sums - counts * family.mean(0.0)
    return np.asarray(special.log_ndtr(-centred / np.sqrt(counts * family.variance)))
