"""Metrics of attributions (§ Evaluation Metrics). Labels are agents; -1 is unattributed.

All are deterministic; time is linear in the size of the arguments (boundary_f1 sorts them).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from iet.errors import InputError, ShapeError, check_number
from iet.native.arrays import Int64s


def token_accuracy(truth: npt.ArrayLike, found: npt.ArrayLike) -> float:
    """Return the share of tokens with the right agent.

        TokenAcc = 1/T · Σ_t 1[ĝ(t) = g(t)]

    A token with no agent (-1) is right if it is unattributed, and an agent's token that is unattributed is
    wrong. 1 for T = 0. In the paper every token has an agent.

    Args:
        truth, found: [T] ints of at least -1.

    Raises:
        ShapeError, InputError: the arguments are not labels of equal length.

    >>> token_accuracy([0, 0, 1, -1], [0, 1, 1, -1])
    0.75
    """
    g, estimate = _labels(truth, found)
    return float((g == estimate).mean()) if len(g) else 1.0


def mean_iou(truth: npt.ArrayLike, found: npt.ArrayLike, n_agents: int | None = None) -> float:
    """Return the mean over agents of intersection over union of their tokens.

        IoU = 1/|𝒜| · Σ_a |T_a ∩ T̂_a| / |T_a ∪ T̂_a|

    An agent in neither text has no union and is left out of 𝒜; one in only one of them counts 0. The label
    -1 is no agent. 1 if no agent is left. The paper then averages over logs.

    Args:
        truth, found: [T] ints of at least -1.
        n_agents: if given, labels must be below it; it does not change the result.

    Raises:
        ShapeError, InputError: the arguments are not labels of equal length below `n_agents`.

    >>> mean_iou([0, 0, 1, 1], [0, 1, 1, 1])
    0.5833333333333333
    """
    g, estimate = _labels(truth, found)
    top = int(max(g.max(initial=-1), estimate.max(initial=-1)))
    if n_agents is not None and top >= n_agents:
        raise InputError(f"labels: got {top}, expected below n_agents = {n_agents}")
    there, numbers = np.unique(np.concatenate([g, estimate]), return_inverse=True)
    g, estimate = numbers[: len(g)], numbers[len(g) :]
    in_truth, in_found, in_both = (
        np.bincount(part, minlength=len(there))[there >= 0] for part in (g, estimate, g[g == estimate])
    )
    union = in_truth + in_found - in_both
    return float((in_both / union).mean()) if len(union) else 1.0


def edge_similarity(truth: npt.ArrayLike, found: npt.ArrayLike) -> float:
    """Return the cosine between the true and the recovered adjacency matrix.

        EdgeSim = ⟨A*, Â⟩ / (‖A*‖_F · ‖Â‖_F),    Â_ij = P_ij

    The paper leaves matrices without edges open: 1 if both are zero, 0 if one is. A common factor cancels.

    Args:
        truth, found: [K, K] finite numbers, over the same agents in the same order.

    Raises:
        ShapeError, InputError: they are not square matrices of equal shape, or not finite.

    >>> edge_similarity([[0, 1], [0, 0]], [[0, 0.6], [0.6, 0]])
    0.7071067811865475
    """
    try:
        a, b = np.asarray(truth, np.float64), np.asarray(found, np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"adjacency: got {truth!r:.80} and {found!r:.80}, expected numbers [K, K] twice"
        ) from None
    if a.ndim != 2 or a.shape[0] != a.shape[1] or a.shape != b.shape:
        raise ShapeError("adjacency", got=f"{list(a.shape)} and {list(b.shape)}", expected="[K, K] twice")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise InputError("adjacency: got NaN or infinity, expected finite numbers")
    largest = np.abs(a).max(initial=0), np.abs(b).max(initial=0)
    if 0 in largest:
        return float(largest[0] == largest[1])
    a, b = a / largest[0], b / largest[1]  # whose squares are neither beyond float64 nor all below it
    return float(np.vdot(a / np.linalg.norm(a), b / np.linalg.norm(b)))


def boundary_f1(truth: npt.ArrayLike, found: npt.ArrayLike, margin: int = 16) -> float:
    """Return F1 of the change points, each matched to at most one within `margin` tokens.

        F1 = 2·m / (|truth| + |found|),    m = the most pairs (s, ŝ) with |s - ŝ| <= margin, no point twice

    Computed by pairing, in order, the first two points that are near enough. 1 if both are empty. Not in the
    paper.

    Args:
        truth, found: change points, ints in any order, without duplicates.
        margin: in tokens, at least 0.

    Raises:
        ShapeError, InputError: they are not vectors of ints, one has duplicates, or `margin` is negative.

    >>> boundary_f1([100, 200], [105, 150, 230], margin=10)
    0.4
    """
    check_number("margin", margin, 0, integer=False)
    points = [np.sort(_ints(name, values)) for name, values in (("truth", truth), ("found", found))]
    if any((np.diff(p) == 0).any() for p in points):
        raise InputError("change points: got duplicates, expected each once")
    a, b = (p.tolist() for p in points)
    i = j = matched = 0
    while i < len(a) and j < len(b):
        if abs(a[i] - b[j]) <= margin:
            i, j, matched = i + 1, j + 1, matched + 1
        elif a[i] < b[j]:
            i += 1
        else:
            j += 1
    return 2 * matched / (len(a) + len(b)) if a or b else 1.0


def coverage(found: npt.ArrayLike) -> float:
    """Return the share of tokens that are attributed to an agent; 0 for T = 0.

    Args:
        found: [T] ints of at least -1.

    Raises:
        ShapeError, InputError: it is not a vector of labels.

    >>> coverage([0, -1, 2, 2])
    0.75
    """
    labels = _labels(found, found)[0]
    return float((labels >= 0).mean()) if len(labels) else 0.0


def agent_accuracy(truth: Sequence[Hashable], found: Sequence[Hashable]) -> float:
    """Return the share of logs whose failure-responsible agent is named.

        AgentAcc = 1[â = a*], here the mean over logs

    The names must be equal, unlike in Who&When's own evaluator, which accepts substrings. None in `found`
    is no prediction and wrong. 1 without logs.

    Args:
        truth, found: one name per log.

    Raises:
        ShapeError: the numbers of logs differ.
    """
    if len(truth) != len(found):
        raise ShapeError("found", got=f"{len(found)} logs", expected=f"{len(truth)}")
    right = [a is not None and a == b for a, b in zip(found, truth, strict=True)]
    return sum(right) / len(right) if right else 1.0


def token_labels(spans: Sequence[tuple[int, int, int]], char_ends: npt.ArrayLike) -> Int64s:
    """Return the label of every token from labelled characters: that of the token's last character.

    Args:
        spans: (char_start, char_end, label) in order, not overlapping. Text between two spans (a joiner)
            belongs to the second.
        char_ends: [T], where each token ends, as `Tokenizer.encode` returns it.

    Returns:
        int64 [T]; -1 after the last span.

    Raises:
        InputError: spans overlap or are out of order.

    >>> token_labels([(0, 5, 0), (6, 9, 1)], [3, 5, 7, 9, 12]).tolist()
    [0, 0, 1, 1, -1]
    """
    starts, ends = [span[0] for span in spans], [span[1] for span in spans]
    if any(b < a for a, b in zip(starts, ends, strict=True)) or any(
        b < a for a, b in zip(ends, starts[1:], strict=False)
    ):
        raise InputError(f"spans: got {list(spans)}, expected ascending spans that do not overlap")
    labels = np.array([*(span[2] for span in spans), -1], dtype=np.int64)
    last_chars = np.asarray(char_ends, dtype=np.int64) - 1
    return np.asarray(labels[np.searchsorted(np.asarray(ends, dtype=np.int64), last_chars, side="right")])


def _labels(truth: npt.ArrayLike, found: npt.ArrayLike) -> tuple[Int64s, Int64s]:
    a, b = _ints("truth", truth), _ints("found", found)
    if a.shape != b.shape:
        raise ShapeError("found", got=list(b.shape), expected=list(a.shape))
    lowest = min(a.min(initial=0), b.min(initial=0))
    if lowest < -1:
        raise InputError(f"labels: got {lowest}, expected agents from 0, or -1 for unattributed")
    return a, b


def _ints(name: str, values: npt.ArrayLike) -> Int64s:
    try:
        array = np.asarray(values)
    except ValueError:
        raise ShapeError(name, got=f"{values!r:.80}", expected="ints [T]") from None
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise ShapeError(name, got=f"{array.dtype} {list(array.shape)}", expected="ints [T]")
    if array.dtype == np.uint64 and array.max(initial=0) >= 1 << 63:
        raise InputError(f"{name}: got {array.max()}, expected integers below 2^63")
    return array.astype(np.int64)
