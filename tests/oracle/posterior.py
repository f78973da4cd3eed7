"""Labels from posteriors."""

from __future__ import annotations

from iet.decoding import UNATTRIBUTED
from iet.decoding.segmentation import Scores
from iet.native.arrays import Float32s, Float64s, Int32s, Int64s
from tests.oracle import twin


@twin
def absorb_short_runs(
    posterior: Float32s, null_posterior: Float32s, min_segment: int, standing: Int64s, labels: Int32s
) -> None:
    # Give runs shorter than `min_segment` to the likelier neighbour, in one pass from left to right.
    # `standing` holds the starts of the runs before the current one.
    tokens = len(labels)
    count, start, end = 0, 0, 0
    while end < tokens:
        end += 1
        if end < tokens and labels[end] == labels[end - 1]:
            continue
        if end - start < min_segment and end - start < tokens:
            best, likeliest = -1.0, labels[start]
            for side in range(2):
                neighbour = start - 1 if side == 0 else end
                if 0 <= neighbour < tokens:
                    label, mass = labels[neighbour], 0.0
                    for t in range(start, end):
                        mass += null_posterior[t] if label < 0 else posterior[t, label]
                    if mass > best:
                        best, likeliest = mass, label
            for t in range(start, end):
                labels[t] = likeliest
        joins_left = count > 0 and labels[start - 1] == labels[start]
        if end < tokens and labels[end] == labels[end - 1]:  # one run with the next
            if joins_left:
                count -= 1
                start = standing[count]
            continue
        if not joins_left:
            standing[count] = start
            count += 1
        start = end


@twin
def most_probable_labels(
    gamma: Float32s,
    remainder: Float32s,
    resolution: int,
    allow_unattributed: bool,
    posterior: Float32s,
    null_posterior: Float32s,
    labels: Int32s,
) -> None:
    # Give every token the posterior of its pool: the `resolution` tokens that the chain takes as one.
    for t in range(len(labels)):
        pool, best = t // resolution, 0
        null_posterior[t] = remainder[pool]
        for a in range(gamma.shape[1]):
            posterior[t, a] = gamma[pool, a]
            if gamma[pool, a] > gamma[pool, best]:
                best = a
        labels[t] = UNATTRIBUTED if allow_unattributed and gamma[pool, best] <= remainder[pool] else best


@twin
def place_boundaries(
    x: Scores,
    weights: Float32s,
    strengths: Float64s,
    offsets: Float64s,
    reach: int,
    labels: Int32s,
) -> None:
    # Move each boundary, from left to right, to the position with the highest `log_ratios` of the tokens
    # around it. It stays between its neighbours, and does not move if no position is likelier.
    begin, t = 0, 1
    while t < len(labels):
        if labels[t] == labels[t - 1]:
            t += 1
            continue
        old, new = labels[t - 1], labels[t]
        low, high = max(begin + 1, t - reach + 1), t
        while high < min(t + reach - 1, len(labels) - 1) and labels[high + 1] == new:
            high += 1
        best, boundary = 0.0, t
        for side in range(2):  # the boundary at j: [j, t) is the new one's, or [t, j) stays the old one's
            more, less, count = new, old, t - low
            if side:
                more, less, count = old, new, high - t
            gained = 0.0
            for away in range(count):
                j = t - 1 - away + side * (2 * away + 1)
                if more >= 0:
                    gained += weights[j] * (strengths[more] * x[j, more] - offsets[more])
                if less >= 0:
                    gained -= weights[j] * (strengths[less] * x[j, less] - offsets[less])
                if gained > best:
                    best, boundary = gained, j + side
        for j in range(boundary, t):
            labels[j] = new
        for j in range(t, boundary):
            labels[j] = old
        begin = boundary
        t = max(t, boundary) + 1
