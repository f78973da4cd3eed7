"""P-values of scores under the null law: of a key, of a segment, of many. The paper has no null law."""

from __future__ import annotations

import functools
import json
import math
import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt

from iet.audit.tails import LOG_TAILS, log_tail, log_tails
from iet.errors import InputError
from iet.marks.families import Family
from iet.native.load import loops

__all__ = [
    "LOG_TAILS",
    "activity_log_p",
    "benjamini_hochberg",
    "decoy_log_p",
    "holm",
    "log_tail",
    "log_tails",
    "piece_log_p",
    "segment_log_p",
    "session_log_p",
    "sidak_min_p",
]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.integer[Any]]


def segment_log_p(
    scores: npt.NDArray[Any],
    pairs: Integers,
    starts: Integers,
    ends: Integers,
    columns: Integers,
    family: Family,
    keys: int,
    texts: tuple[Integers, Integers] | None = None,
) -> Floats:
    """Return the log p-value of each segment under one key, corrected for both having been chosen.

    A union bound over everything that could have been chosen: the chance that unmarked text holds any segment
    with a p-value of at most α, under any of the K keys, is at most α. To keep that union small, not the
    segment itself is tested but its inside on a grid: ends move inwards to multiples of g, the largest power
    of two of at most an eighth of its length. Such an inside is 7 to 15 grid cells long (1 to 15 for g = 1)
    and starts at one of T/g + 1 places; every g from 1 to T/8 gets an equal share of the level.

    Args:
        scores: x_j [T, C] of the whole text, float32, under some keys.
        pairs: int64 [T], number of the (context, token) pair, 0 to T - 1, -1 where not scored. A pair counts
            once.
        starts, ends: int64 [S], the segments: tokens `[start, end)`.
        columns: int64 [S], the column of `scores` that each segment is tested with.
        family: of the profile.
        keys: K, number of keys to choose from.
        texts: int64 [S] and [S], the start of each segment's text and its length T, if `scores` and
            `pairs` are those of several texts; `starts` and `ends` are counted in each text. No pair has the
            number of one of another text. None: all segments are of one text.

    Returns:
        log_p [S] float64 <= 0, natural logarithms. O(T).
    """
    firsts, lengths = (0, np.array([len(scores)])) if texts is None else texts
    grid = 1 << (np.frexp(np.maximum(1, (ends - starts) // 8))[1].astype(np.int64) - 1)
    lows, highs = -(-starts // grid) * grid, ends // grid * grid
    totals, counts = np.zeros(len(lows)), np.zeros(len(lows), np.int64)
    seen = np.full(len(pairs), -1, np.int32)  # the last segment that a pair was counted in
    loops.distinct_sums(scores, pairs, lows + firsts, highs + firsts, columns, seen, totals, counts)
    cells, starts_possible = np.where(grid == 1, 15, 9), lengths // grid + 1
    grids = np.maximum(1, np.frexp((lengths // 8).astype(np.float64))[1])  # the bits of T/8
    choices = cells * starts_possible * grids * float(keys)
    corrected: Floats = np.minimum(0.0, log_tails(totals, counts, family) + np.log(choices))
    return corrected


def piece_log_p(
    scores: npt.NDArray[Any],
    pairs: Integers,
    starts: Integers,
    ends: Integers,
    columns: Integers,
    family: Family,
    choices: int,
) -> Floats:
    """Return the log p-value of each piece of a text under one key.

    Its boundaries were given, not chosen, so all of a piece is tested, and the union is over keys and pieces.

    Args:
        scores, pairs, starts, ends, columns, family: as in `segment_log_p`.
        choices: number of keys to choose from, times the number of pieces.

    Returns:
        log_p [S] float64 <= 0, natural logarithms. O(T).
    """
    totals, counts = np.zeros(len(starts)), np.zeros(len(starts), np.int64)
    seen = np.full(len(pairs), -1, np.int32)
    loops.distinct_sums(scores, pairs, starts, ends, columns, seen, totals, counts)
    corrected: Floats = np.minimum(0.0, log_tails(totals, counts, family) + np.log(float(choices)))
    return corrected


# ---------------------------------------------------------------- keys


def activity_log_p(log_ratios: Floats, count: int | Integers, family: Family) -> Floats:
    """Return the log p-value of each key's log Λ: how often a key that is not in the text has one as high.

    Over random keys the scores of a text without that key are independent draws from the family's null law,
    one for each distinct (context, token) pair, whatever the text says. So the law of log Λ depends on their
    number alone; it is tabulated (`benchmarks/accuracy/activity_null.py`) and interpolated in log n, from
    n = 131,072 on with the table's last row. Beyond the table it falls by e^-1 for each unit, as it nearly
    does inside. Where p is above e^-1, and for n below 128, it is not smooth enough in n, and the higher of
    the neighbouring rows is taken, as is the higher entry in log Λ if p is above e^-1. This is Markov's
    bound 1/Λ for texts shorter than the table (n < 32) and for families of `sum_family`, whose laws differ
    by their parameters. A key by itself: `holm` corrects for their number.

    Args:
        log_ratios: `iet.decoding.log_activity` [K], or [D, K] of several texts.
        count: n, distinct pairs in the text, or int64 [D] of several.
        family: of the profile.

    Returns:
        log_p, of the shape of `log_ratios`, float64 <= 0, natural logarithms; 0 for n = 0. O(K) a text.
    """
    if family.bits is not None:
        none = np.expand_dims(np.asarray(count) == 0, -1)
        return np.where(none, 0.0, -np.maximum(0.0, log_ratios))
    levels, counts, table = _activity_null(family.name)
    ratios = np.ascontiguousarray(log_ratios, np.float64).reshape(-1, np.shape(log_ratios)[-1])
    corrected_pairs = np.asarray(count, np.int64).reshape(-1)
    log_p = np.where(corrected_pairs[:, None] == 0, 0.0, -np.maximum(0.0, ratios))
    long = corrected_pairs >= counts[0]
    log_p[long] = _from_table(ratios[long], corrected_pairs[long], levels, counts, table)
    return log_p.reshape(np.shape(log_ratios))


def _from_table(ratios: Floats, texts: Integers, levels: Floats, counts: Floats, table: Floats) -> Floats:
    """Return `activity_log_p` of texts within the table: log Λ [D, K] and the number of pairs [D]."""
    logs, log_counts = np.array([math.log(count) for count in texts.tolist()]), np.log(counts)
    low = np.searchsorted(log_counts[1:-1], logs, "right")
    share = np.minimum(1.0, (logs - log_counts[low]) / (log_counts[low + 1] - log_counts[low]))
    lower, upper = table[low], table[low + 1]
    highest = np.maximum(lower, upper)
    rough = (highest > -1) | (texts < counts[2])[:, None]
    rows = np.where(rough, highest, lower + share[:, None] * (upper - lower))
    at = np.searchsorted(levels, ratios, "right") - 1
    values = np.where(at >= 0, np.take_along_axis(rows, np.maximum(at, 0), axis=1), 0.0)
    cell = np.clip(at, 0, len(levels) - 2)
    remaining, right = (np.take_along_axis(rows, cell + i, axis=1) for i in (0, 1))
    slope = (right - remaining) / (levels[cell + 1] - levels[cell])
    inside = (at < len(levels) - 1) & (values <= -1)
    values = np.where(inside, values + slope * (ratios - levels[cell]), values)
    return np.asarray(np.minimum(0.0, values - np.maximum(0.0, ratios - levels[-1])))


@functools.cache
def _activity_null(family: str) -> tuple[Floats, Floats, Floats]:
    path = pathlib.Path(__file__).with_name("activity_null.json")
    null = json.loads(path.read_text(encoding="utf-8"))
    if family not in null["log_p"]:
        raise InputError(f"family: got {family!r}, expected one of {sorted(null['log_p'])}")
    return np.array(null["log_ratios"]), np.array(null["counts"], np.float64), np.array(null["log_p"][family])


def decoy_log_p(log_ratios: Floats, decoys: Floats) -> Floats:
    """Return the log p-value of each key's log Λ by its rank among decoys, which are keys of no agent.

        p = (1 + number of decoys with at least this log Λ) / (1 + M)

    Nothing is assumed but that a key which is not in the text is as good as one that was never handed out.

    Args:
        log_ratios: log Λ [K].
        decoys: log Λ [M] of decoy keys on the same text.

    Returns:
        log_p [K] float64, at least -log(1 + M).
    """
    ranked = np.sort(decoys)
    above = len(ranked) - np.searchsorted(ranked, log_ratios, side="left")
    return np.asarray(np.log((1.0 + above) / (1.0 + len(ranked))))


def sidak_min_p(log_p: Floats, owners: Integers) -> Floats:
    """Return the p-value of each agent from those of its keys, rotated ones among them.

        p'_a = 1 - (1 - min p)^k,  over the k keys of agent a

    Unused keys are independent of each other, so this is exact: an agent that had no part in the text comes
    out at α or below with probability α. k keys cost log k nats, as they do in the mean of their likelihood
    ratios.

    Args:
        log_p: natural logarithms [K], or [D, K] of several texts.
        owners: agent of each key [K], ascending.

    Returns:
        log_p <= 0 [A], or [D, A], of the agents that have a key, ascending.

    >>> np.exp(sidak_min_p(np.log([0.001, 0.5, 0.3, 0.2]), np.array([0, 0, 0, 3]))).round(4).tolist()
    [0.003, 0.2]
    """
    firsts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))[: len(owners)]
    lowest = np.minimum.reduceat(np.asarray(log_p, np.float64), firsts, axis=-1)
    counts = np.diff(np.append(firsts, len(owners)))
    return np.where(counts == 1, lowest, _of_lowest(lowest, counts))


def session_log_p(log_p: Floats, owners: Numbers, sessions: Numbers, agents: int) -> Floats:
    """Return the p-value of each agent in each session, from those of its keys there.

        p'_as = min(1, A · (1 - (1 - min p)^k)),  min over the keys of a in s, k of all of a's keys

    Of all claims "a wrote in session s" about pairs that had no part in the text, with a chance of at most
    α one has a p' of at most α: k corrects for all sessions (and epochs), A for all agents.

    Args:
        log_p: natural logarithms [D, K].
        owners: agent of each key [K], ascending.
        sessions: session of each key [K], ascending for each agent.
        agents: A, number of agents with a key.

    Returns:
        log_p <= 0 [D, K]: that of the pair, at the first of its keys, 0 at the others.
    """
    new = np.append(True, (owners[1:] != owners[:-1]) | (sessions[1:] != sessions[:-1]))[: len(owners)]
    firsts = np.flatnonzero(new)
    lowest = np.minimum.reduceat(log_p, firsts, axis=-1)
    counts = np.unique(owners, return_inverse=True, return_counts=True)
    corrected = np.zeros(log_p.shape)
    corrected_pairs = _of_lowest(lowest, counts[2][counts[1][firsts]])
    corrected[:, firsts] = np.minimum(0.0, np.where(lowest < 0, corrected_pairs + math.log(agents), 0.0))
    return corrected


def _of_lowest(log_p: Floats, count: Integers) -> Floats:
    """Return log(1 - (1 - p)^k): how often the lowest of k independent p-values is at most p."""
    small = np.minimum(log_p, -1e-300)
    # k·p if p is too small for 1 - p to differ from 1.
    with np.errstate(divide="ignore"):
        exact = np.log(-np.expm1(count * np.log1p(-np.exp(small))))
    return np.asarray(np.minimum(0.0, np.where(small < -30, small + np.log(count), exact)))


def holm(log_p: Floats) -> Floats:
    """Return the p-values of K agents, or keys, corrected for their number, by Holm's steps.

        p'_(i) = max over j <= i of 1 - (1 - p_(j))^(K - j + 1)

    Unmarked keys are independent of each other and of the rest, so the chance that any key which is not in
    the text comes out at α or below is α at most, and with the lowest of them exactly α: the lowest p' is the
    p-value of the whole text.

    Args:
        log_p: natural logarithms [K], in any order, or [D, K] of several texts, each by itself.

    Returns:
        log_p <= 0, of the same shape.

    >>> np.exp(holm(np.log([0.001, 0.5, 0.04]))).round(4).tolist()
    [0.003, 0.5, 0.0784]
    """
    values = np.asarray(log_p, np.float64)
    order = np.argsort(values, axis=-1, kind="stable")
    remaining = np.arange(values.shape[-1], 0, -1)
    stepped = _of_lowest(np.take_along_axis(values, order, -1), remaining)
    corrected = np.empty(values.shape)
    np.put_along_axis(corrected, order, np.maximum.accumulate(stepped, axis=-1), -1)
    return corrected


def benjamini_hochberg(
    log_p: npt.ArrayLike, level: float = 0.01, *, dependent: bool = False
) -> npt.NDArray[np.bool_]:
    """Tell which p-values to report, so that of the reported ones at most `level` is false on average.

    Benjamini and Hochberg's step-up: the k lowest p-values, for the largest k with p_(k) <= k·level / m. Over
    documents pass the `log_p` of their reports.

    Args:
        log_p: natural logarithms of m p-values [m], each valid by itself.
        level: the false-discovery rate, 0 < level < 1.
        dependent: True holds under any dependence (Benjamini and Yekutieli: level / Σ 1/i), False needs
            independent or positively dependent p-values, which documents have.

    Returns:
        bool [m].

    Raises:
        InputError: a number is out of range.

    >>> benjamini_hochberg(np.log([0.001, 0.2, 0.019, 0.6]), level=0.05).tolist()
    [True, False, True, False]
    """
    try:
        values = np.asarray(log_p, np.float64)
    except (TypeError, ValueError):
        values = np.full((), np.nan)
    if values.ndim != 1 or not (values <= 0).all():
        raise InputError(
            f"log_p: got {log_p!r:.80}, expected logarithms of p-values, a vector of numbers <= 0"
        )
    if isinstance(level, bool) or not isinstance(level, (int, float, np.floating)) or not 0 < level < 1:
        raise InputError(f"level: got {level!r}, expected a number between 0 and 1")
    count = len(values)
    if count == 0:
        return np.zeros(0, np.bool_)
    ranks = np.arange(1, count + 1)
    share = level / count / (float((1 / ranks).sum()) if dependent else 1.0)
    ranked = np.sort(values)
    passing = np.flatnonzero(ranked <= np.log(ranks * share))
    return values <= (ranked[passing[-1]] if len(passing) else -np.inf)
