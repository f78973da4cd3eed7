"""Input and output of a decoder: a `Scored` text, and its `Segmentation` as labels and as spans."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from iet.errors import InputError, ShapeError
from iet.marks.families import Family
from iet.native.arrays import Bools, Float32s, Float64s, Int32s, Int64s
from iet.native.pairs import checked_repeats

Scores = npt.NDArray[Any]
"""[T, A], float32 (or float64): the score of token t under the key of agent a."""

UNATTRIBUTED = -1
"""The label of a token that is attributed to no agent."""


class Span(NamedTuple):
    """Tokens `[start, end)` of one agent (a column of the scores), or unattributed (-1)."""

    start: int
    end: int
    agent: int


@dataclasses.dataclass(frozen=True, eq=False)
class Segmentation:
    """ĝ(t), the agent of every token (Eq. attribution_function).

    Neighbouring segments of one agent are one span here: a change point is a change of agent.

    Attributes:
        token_agents: [T] int32, the column of each token's agent, -1 = unattributed.
        posterior: [T, A] float32, the probability of each agent at each token (the rest to 1 is the null
            state), or None if the decoder has none.
        strengths: [A] float64, the fitted λ of each agent, or None if the decoder fits none.
        window_scores: f [W, A] float64 as `windows` returns it, or None if the decoder does not use windows.
        segments: the maximal runs of one label, in order; they cover `[0, T)`.
        change_points: [S - 1] int64, the index at which each segment but the first starts.
    """

    token_agents: Int32s
    posterior: Float32s | None = None
    strengths: Float64s | None = None
    window_scores: Float64s | None = None
    change_points: Int64s = dataclasses.field(init=False)
    segments: tuple[Span, ...] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        labels = self.token_agents
        change_points = np.flatnonzero(labels[1:] != labels[:-1]) + 1
        starts = [0, *change_points.tolist()] if len(labels) else []
        ends = [*starts[1:], len(labels)]
        spans = tuple(map(Span, starts, ends, labels[starts].tolist() if starts else []))
        object.__setattr__(self, "change_points", change_points)
        object.__setattr__(self, "segments", spans)


@dataclasses.dataclass(frozen=True, eq=False)
class Scored:
    """One text (or several that are joined) as decoders read it: T tokens under A keys.

    Attributes:
        values: [T, A] scores of `family`; log-likelihood ratios of every agent against the null model if
            `family` is None.
        family: the law of the scores with and without a mark.
        scored: bool [T], the tokens that carry evidence.
        repeated: bool [T], the tokens whose (context, token) pair occurred before.
        pairs: int64 [T], numbers of the pairs, -1 where not scored; None: unknown.
        agents: number of agents, if the columns are only the `candidates`; None: A.
        weights: float32 [T], the weight of each token; None: 1.
        shares: float64 [A], the prior share of each column in the marked text: the share of an agent is split
            over its keys. None: equal shares.
    """

    values: Scores
    family: Family | None
    scored: Bools
    repeated: Bools
    pairs: Int64s | None = None
    agents: int | None = None
    weights: Float32s | None = None
    shares: Float64s | None = None

    def part(self, inside: slice) -> Scored:
        """Return some of the tokens, without a copy."""
        return Scored(
            self.values[inside],
            self.family,
            self.scored[inside],
            self.repeated[inside],
            None if self.pairs is None else self.pairs[inside],
            self.agents,
            None if self.weights is None else self.weights[inside],
            self.shares,
        )


def check_scores(scores: npt.ArrayLike) -> Scores:
    """Return `scores` as a C-contiguous float32 or float64 array [T, A] without NaN, copied only if needed.

    Raises:
        ShapeError: it is not a matrix of real numbers with at least one column.
        InputError: it holds NaN or infinity.
    """
    array = np.asarray(scores)
    if array.ndim != 2 or array.shape[1] == 0 or array.dtype.kind not in "fiub":
        raise ShapeError(
            "scores", got=f"{array.dtype} {list(array.shape)}", expected="real numbers [T, A], A >= 1"
        )
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32)
    # The sum is finite unless an entry is not (or float64 entries overflow): one pass, no [T, A] mask.
    if not np.isfinite(array.sum(dtype=np.float64)) and not np.isfinite(array).all():
        t, a = np.argwhere(~np.isfinite(array))[0].tolist()
        raise InputError(f"scores: got {array[t, a]} at token {t}, agent {a}, expected finite numbers")
    return np.ascontiguousarray(array)


def check_mask(mask: npt.ArrayLike | None, length: int, name: str, default: bool) -> Bools:
    """Return `mask` as bool [T], all `default` if it is None, or raise ShapeError."""
    if mask is None:
        return np.full(length, default)
    array = np.asarray(mask)
    if array.shape != (length,) or array.dtype != np.bool_:
        raise ShapeError(name, got=f"{array.dtype} {list(array.shape)}", expected=f"bool [{length}]")
    return array


def check_vector(
    name: str,
    values: npt.ArrayLike,
    length: int,
    expected: str,
    fits: Callable[[npt.NDArray[Any]], Bools],
    dtype: Any = np.float64,
) -> Any:
    """Return `values` as an array [length] of `dtype`, or raise ShapeError or InputError.

    `expected` describes in words the numbers that `fits` accepts.
    """
    try:
        if np.iscomplexobj(values):
            raise TypeError
        with np.errstate(over="ignore"):
            array = np.asarray(values, dtype)
    except (TypeError, ValueError):
        raise InputError(f"{name}: got {values!r:.80}, expected {expected}") from None
    if array.shape != (length,):
        raise ShapeError(name, got=list(array.shape), expected=[length])
    bad = array[~fits(array)]
    if len(bad):
        raise InputError(f"{name}: got {bad[0]}, expected {expected}")
    return array


def check_pairs(pairs: npt.ArrayLike, length: int) -> tuple[Int64s, Bools]:
    """Return `pairs` as int64 [T] and their `repeats`, or raise ShapeError, or InputError if misnumbered."""
    array = np.asarray(pairs)
    if array.shape != (length,) or (array.dtype.kind not in "iu" and array.size):
        raise ShapeError("pairs", got=f"{array.dtype} {list(array.shape)}", expected=f"integers [{length}]")
    numbers = array.astype(np.int64, copy=False)
    repeated = checked_repeats(numbers)
    if repeated is None:
        raise InputError(
            f"pairs: got numbers from {numbers.min()} to {numbers.max()}, expected 0, 1, 2, ... in the order"
            " of first occurrence, and -1"
        )
    return numbers, repeated
