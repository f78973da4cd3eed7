"""From labels without a name to agents: the best one-to-one assignment, with the truth's help.

    π = argmax_{π one-to-one} Σ_i |{t : label(t) = i, truth(t) = π(i)}|

(the assignment problem, solved by `scipy.optimize.linear_sum_assignment`). What is found this way is
"oracle-matched": the truth has told which label is which agent, and only the grouping of tokens is judged.

The paper does not say how a segment's index becomes an agent. For the segmentation methods there are three
readings: (1) segment s is speaker s mod n, in speaking order, and speakers are mapped to agents; (2) segments
are clustered into n speakers, which are mapped; (3) segments are mapped to turns, and each takes the agent of
its turn. **(3) is used here, because it favours the baseline most**: under (1) one missed boundary shifts all
speakers after it, and a walk along edges has no period; (2) adds the errors of a clustering to those of the
segmentation. Under (3) a segmentation with the true boundaries scores 1, and one without any content, such as
S equal parts, still scores far above chance. What is judged is where the boundaries are, never who speaks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from benchmarks.paper.baselines.reading import Labels
from iet.errors import InputError, ShapeError


def best_one_to_one(labels: npt.ArrayLike, truth: npt.ArrayLike) -> dict[int, int]:
    """Return the one-to-one map from labels to true labels under which most tokens agree.

    There are at most as many different labels as true ones. Of equally good maps always the same is taken.

    >>> best_one_to_one([0, 0, 1, 1], [5, 5, 5, 3])
    {0: 5, 1: 3}
    """
    found, true = np.asarray(labels), np.asarray(truth)
    if found.ndim != 1 or found.shape != true.shape:
        raise ShapeError("labels", got=f"{list(found.shape)} and {list(true.shape)}", expected="[T] twice")
    lowest = min(found.min(initial=0), true.min(initial=0))
    if lowest < 0:
        raise InputError(f"labels: got {lowest}, expected at least 0")
    kinds, rows = np.unique(found, return_inverse=True)
    true_kinds, columns = np.unique(true, return_inverse=True)
    if len(kinds) > len(true_kinds):
        raise InputError(f"labels: got {len(kinds)} different ones, expected at most {len(true_kinds)}")
    overlap = np.zeros((len(kinds), len(true_kinds)), np.int64)
    np.add.at(overlap, (rows, columns), 1)
    return {
        int(kinds[i]): int(true_kinds[j])
        for i, j in zip(*linear_sum_assignment(overlap, maximize=True), strict=True)
    }


def match_labels(labels: Labels, truth: Labels) -> Labels:
    """Return the agent of each token [T]: speakers without a name are mapped to agents."""
    names = best_one_to_one(labels, truth)
    return np.array([names[label] for label in labels.tolist()], np.int64)


def match_segments(segments: Labels, turns: Labels, agents: Labels) -> Labels:
    """Return the agent of each token [T]: segments are mapped to turns, one to one, and take their agents."""
    first = dict(zip(*np.unique(turns, return_index=True), strict=True))
    speaker = {segment: agents[first[turn]] for segment, turn in best_one_to_one(segments, turns).items()}
    return np.array([speaker[segment] for segment in segments.tolist()], np.int64)
