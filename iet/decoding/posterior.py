"""The default decoder: a hidden Markov chain over the agents and nobody, fitted on the text itself."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from iet.decoding.activity import evidence_blocks, log_activity
from iet.decoding.chain import posteriors, prior_of
from iet.decoding.copies import parted, side_by_side, wide
from iet.decoding.fit import (
    MOST_ITERATIONS,
    STAGES,
    Fitted,
    Halves,
    block_of,
    block_ratios,
    block_sums,
    fit,
    halves_help,
    offsets_of,
    strength_range,
)
from iet.decoding.segmentation import NOBODY, Scored, Scores, Segmentation, check_vector
from iet.errors import InputError, check_number
from iet.marks.families import Family
from iet.native.arrays import Bools, Float32s, Float64s, Int32s, Int64s
from iet.native.load import loops
from iet.native.pairs import far_sources, fresh_weights, shared_weights

MOST_CANDIDATES = 256
"""Maximum number of agents that are read token by token."""

MIN_CANDIDATES = 16
"""Number of agents that are read token by token even if no score speaks for them."""


_LOG_ODDS_MARKED = 5.0  # that a text holds any mark, before it is seen


@dataclasses.dataclass(frozen=True, eq=False)
class PosteriorOptions:
    """Options of the decoder "posterior".

    Args:
        mean_segment: expected tokens of a segment, 1 to 1e9; None: fitted, with 60 as the guess before.
        repeats: what w_t is. "share": a (context, token) pair that stands m times within 256 tokens around it
            counts m^-3/4 each time, m^1/4 in all (needs `pairs`, else as "drop"). "drop": a pair counts once
            in the whole text; "count": every time. With "share", passages that come back from afar are read
            apart (`iet.decoding.copies`). In family "gumbel", whatever `repeats` is, w_t is 0 where
            the pair stood within the last 256 tokens, and 1 elsewhere (without `pairs`: 0 where it ever
            stood before). In our own family no pair stood before. In those of engines pairs are contexts,
            because one that its writer had seen carries no mark.
        nobody: share of the tokens that no agent wrote, 0 to 0.99, before the text is seen, where nobody may
            win; that he has hardly any, or nearly all, is as likely.
        strengths: [A] λ, 0 to MAX_STRENGTH, to use instead of fitting.
        iterations, shrinkage: see `fit`.
        block: maximum tokens of a block in `fit`; texts of fewer than 100 blocks have smaller ones (4 or
            more).
        resolution: tokens that the chain takes as one; it then moves each boundary to the likeliest place
            less than `resolution` away. 1 to 16. The posterior is the same for tokens that are taken as one.
        min_segment: tokens. A shorter run of one label goes to that neighbour whose posterior over it is
            higher, from left to right: it holds too little evidence to be a turn, but would be two false
            transitions. 1 keeps every run. The text's only run stays.

    Raises:
        InputError: one is out of range.
    """

    mean_segment: float | None = None
    repeats: Literal["share", "drop", "count"] = "share"
    nobody: float = 0.5
    strengths: npt.ArrayLike | None = None
    iterations: int = 2
    shrinkage: float = 30.0
    block: int = 16
    resolution: int = 2
    min_segment: int = 8

    def __post_init__(self) -> None:
        if self.repeats not in ("share", "drop", "count"):
            raise InputError(f'repeats: got {self.repeats!r}, expected "share", "drop" or "count"')
        if self.mean_segment is not None:
            check_number("mean_segment", self.mean_segment, 1, 1e9, integer=False)
        check_number("nobody", self.nobody, 0, 0.99, integer=False)
        check_number("block", self.block, 1)
        check_number("min_segment", self.min_segment, 1)
        check_number("resolution", self.resolution, 1, 16)
        check_number("iterations", self.iterations, 0, MOST_ITERATIONS)
        check_number("shrinkage", self.shrinkage, 0, 1e9, integer=False)

    def check(self, family: Family | None, agents: int) -> None:
        """Refuse options that do not go with scores of this family under the keys of A agents.

        Raises:
            ShapeError: `strengths` is not [A].
            InputError: a strength is out of the family's range.
        """
        _fixed_strengths(self.strengths, family, agents)


def posterior_decode(text: Scored, options: PosteriorOptions, allow_unattributed: bool) -> Segmentation:
    """Label each token with the agent of highest posterior probability in a hidden Markov chain.

        log p(x_t | a) / p(x_t | nobody) = w_t·(λ_a·x_t(a) - log_mgf(λ_a))    (the family's likelihood ratio)

    γ_t(a) = p(a at t | all scores) in the chain of `forward_backward`, and ĝ(t) = argmax_a γ_t(a), which
    maximises the expected TokenAcc. λ, the agents' shares of the text and the mean length of a segment are
    fitted on the text (`fit`). Where nobody may win, γ of the agents is multiplied by the probability that
    the text is marked at all, given its `evidence` and odds of e^5 before it is seen. Not in the paper. In a
    text without evidence the first agent wins, or nobody where nobody may. Log-likelihood ratios are read as
    they are: λ = 1, and every scored token counts.

    Args:
        text: what is read. Family "gumbel" is read better with `weights` of `novelty_weights`, which
            `Auditor` gives.
        options: see `PosteriorOptions`.
        allow_unattributed: False: the chain has no state for nobody.

    Cost: O(T·A) time, 8·T·A + 16·T bytes and 64 MB at most. With more than 16 agents only `likely_agents` are
    decoded; the others have posterior 0 and the mean of the strengths. Deterministic.
    """
    options.check(text.family, text.values.shape[1])
    apart = options.repeats == "share" and text.pairs is not None
    sources = far_sources(text.pairs) if apart and text.pairs is not None else None
    if sources is None:
        return _segmentation(text, options, *_decode(text, options, allow_unattributed))
    stay, counted, passages = parted(sources)
    rest, known = _decode(_taken(text, stay, counted), options, allow_unattributed)
    labels, posterior, left = (wide(values, stay, len(sources)) for values in rest)
    each = _decode_passages(text, [places for places, _ in passages], known, options, allow_unattributed)
    for (_, spans), own in zip(passages, each, strict=True):
        for start, end in spans:
            labels[start:end], posterior[start:end], left[start:end] = own
    # What stands between two copies was not beside them when its runs were compared with their neighbours.
    standing = np.empty(len(labels) // options.min_segment + 2, np.int64)
    loops.absorb_short_runs(posterior, left, options.min_segment, standing, labels)
    return _segmentation(text, options, _Decoded(labels, posterior, left), known)


class _Decoded(NamedTuple):
    """Labels int32 [T] among C columns that were looked at, γ float32 [T, C], γ of nobody float32 [T]."""

    labels: Int32s
    posterior: Float32s
    left: Float32s


class _Known(NamedTuple):
    """The columns that were looked at, int64 [C], and what was fitted of them."""

    columns: Int64s
    fitted: Fitted


def _segmentation(text: Scored, options: PosteriorOptions, found: _Decoded, known: _Known) -> Segmentation:
    """Return what was found among the columns that were looked at as that of all."""
    columns, posterior, labels = text.values.shape[1], found.posterior, found.labels
    strengths = _fixed_strengths(options.strengths, text.family, columns)
    if len(known.columns) < columns:
        labels = np.append(known.columns, NOBODY)[labels].astype(np.int32)
        posterior = np.zeros((len(labels), columns), np.float32)
        posterior[:, known.columns] = found.posterior
    if text.family is None:
        return Segmentation(labels, posterior)
    if strengths is None:
        strengths = np.full(columns, known.fitted.strengths.mean())
        strengths[known.columns] = known.fitted.strengths
    return Segmentation(labels, posterior, strengths.copy())


def _decode(text: Scored, options: PosteriorOptions, allow_unattributed: bool) -> tuple[_Decoded, _Known]:
    """Do what `posterior_decode` does where no passage comes back."""
    family, scores = text.family, text.values
    tokens, columns = scores.shape
    weight = evidence_weight(text, options.repeats)
    fixed = _fixed_strengths(options.strengths, family, columns)
    keep = np.arange(columns)
    if text.agents is None and family is not None and columns > MIN_CANDIDATES:
        blocks = evidence_blocks(scores, text.scored & ~text.repeated)
        keep = likely_agents(log_activity(*blocks, family))
        scores = scores[:, keep]
    block = block_of(tokens, options.block)
    halves = None
    if allow_unattributed and halves_help(block):
        halves = Halves(*block_sums(scores, weight, block // 2), block // 2)
    fitted = fit(
        *block_sums(scores, weight, block),
        family,
        block=block,
        iterations=options.iterations,
        shrinkage=options.shrinkage,
        nobody=options.nobody if allow_unattributed else 0.0,
        mean_segment=options.mean_segment,
        strengths=None if fixed is None else fixed[keep],
        agents=text.agents or columns,
        shares=None if text.shares is None else text.shares[keep],
        halves=halves,
    )
    whole = [(0, tokens)]
    (found,) = _read(scores, weight, family, whole, fitted, fitted.evidence, options, allow_unattributed)
    return found, _Known(keep, fitted)


def _decode_passages(
    text: Scored, passages: list[Int64s], known: _Known, options: PosteriorOptions, allow_unattributed: bool
) -> list[_Decoded]:
    """Decode each passage by itself, given the places of its scores in the text and what is known of that."""
    places, there, spans = side_by_side(passages, options.resolution)
    weight = np.zeros(len(places), np.float32)
    weight[there] = np.concatenate([evidence_weight(text, options.repeats, each) for each in passages])
    columns, fitted = known
    scores = text.values[places] if len(columns) == text.values.shape[1] else text.values[places][:, columns]
    # The rest does not tell whether anybody wrote the copies, and its gaps are not theirs.
    share = fitted.nobody if fitted.nobody_segment is None else 0.0
    nobody = max(share, options.nobody) if allow_unattributed else 0.0
    fitted = dataclasses.replace(fitted, nobody=nobody, weaker=None, nobody_segment=None)
    return _read(scores, weight, text.family, spans, fitted, None, options, allow_unattributed)


def _read(
    scores: Scores,
    weight: Float32s,
    family: Family | None,
    spans: list[tuple[int, int]],
    fitted: Fitted,
    evidence: float | None,
    options: PosteriorOptions,
    allow_unattributed: bool,
) -> list[_Decoded]:
    """Read the texts that stand at `spans`, each from a multiple of `resolution` tokens on, with one fit.

    `evidence`: log-likelihood ratio of the text, marked against unmarked; None: that of the chain.
    """
    resolution = options.resolution
    sums, totals = block_sums(scores, weight, resolution)
    strengths, shares, columns = fitted.strengths, fitted.shares, scores.shape[1]
    if fitted.weaker is not None:  # each agent has two states
        sums, strengths = np.tile(sums, 2), np.append(strengths, fitted.weaker)
        shares = np.tile(shares, 2)
    ratios = block_ratios(sums, totals, strengths, family)
    prior, starts = prior_of(shares, fitted.nobody), [start // resolution for start, _ in spans]
    gap = None if fitted.nobody_segment is None else fitted.nobody_segment / resolution
    gamma, rest, found = posteriors(ratios, fitted.mean_segment / resolution, prior, STAGES, starts, gap)
    if fitted.weaker is not None:
        gamma = gamma[:, :columns] + gamma[:, columns:]
    if fitted.nobody > 0:
        for start, end, log_ratio in zip(starts, [*starts[1:], len(gamma)], found.tolist(), strict=True):
            nats = _LOG_ODDS_MARKED + (log_ratio if evidence is None else evidence)
            marked = 1 / (1 + math.exp(-max(nats, -700.0)))
            gamma[start:end] *= np.float32(marked)
            rest[start:end] *= np.float32(marked)
            rest[start:end] += np.float32(1 - marked)
    posterior, left = np.empty(scores.shape, np.float32), np.empty(len(scores), np.float32)
    labels = np.empty(len(scores), np.int32)
    loops.likeliest(gamma, rest, resolution, allow_unattributed, posterior, left, labels)
    longest = max(end - start for start, end in spans)
    standing = np.empty(longest // options.min_segment + 2, np.int64)
    offsets = offsets_of(fitted.strengths, family)
    read = []
    for start, end in spans:
        inside = slice(start, end)
        own = _Decoded(labels[inside], posterior[inside], left[inside])
        if resolution > 1:
            loops.place_boundaries(
                scores[inside], weight[inside], fitted.strengths, offsets, resolution, own.labels
            )
        loops.absorb_short_runs(own.posterior, own.left, options.min_segment, standing, own.labels)
        read.append(own)
    return read


def _taken(text: Scored, places: Int64s, counted: Bools) -> Scored:
    """Return the tokens at some places, without evidence where they are not counted."""

    def taken(values: Any) -> Any:
        return None if values is None else values[places]

    assert text.pairs is not None
    return dataclasses.replace(
        text,
        values=text.values[places],
        scored=text.scored[places] & counted,
        repeated=text.repeated[places],
        pairs=np.where(counted, text.pairs[places], -1),
        weights=taken(text.weights),
    )


def _fixed_strengths(given: npt.ArrayLike | None, family: Family | None, agents: int) -> Float64s | None:
    """Return λ [A] where it is not fitted: the given ones, or 1 for log-likelihood ratios; else None."""
    if family is None:
        return np.ones(agents)
    if given is None:
        return None
    high = strength_range(family)[1]
    expected = f"numbers from 0 to {high}"
    found: Float64s = check_vector("strengths", given, agents, expected, lambda v: (v >= 0) & (v <= high))
    return found


def evidence_weight(text: Scored, repeats: str, places: Int64s | slice = slice(None)) -> Float32s:
    """Return w_t [T]: how much each token counts, 0 where not scored; `repeats` as in `PosteriorOptions`.

    Of the text that the tokens at `places` make.
    """
    chooses = text.family is not None and text.family.chooses
    if chooses and text.pairs is not None:
        weights = fresh_weights(text.pairs[places])
    elif text.family is None or (repeats == "count" and not chooses):
        weights = text.scored[places].astype(np.float32)
    elif chooses or repeats == "drop" or text.pairs is None:
        weights = (text.scored[places] & ~text.repeated[places]).astype(np.float32)
    else:
        weights = shared_weights(text.pairs[places])
    return weights if text.weights is None else weights * text.weights[places]


def likely_agents(activity: Float64s) -> Int64s:
    """Return the agents that may speak in a text: the 16 with the highest log Λ, and all with Λ >= A·e^-4.

    Under unmarked text log Λ of one agent exceeds log A - 4 with a probability of about 1 in A, so in a
    registry of any size about one agent passes that bound by chance.

    Args:
        activity: `log_activity` [A].

    Returns:
        Columns, ascending; `at_most` 256 of them.
    """
    ranked = np.argsort(-activity, kind="stable")
    chosen = activity >= math.log(len(activity)) - 4
    chosen[ranked[:MIN_CANDIDATES]] = True
    return at_most(np.flatnonzero(chosen), activity)


def at_most(columns: Int64s, rank: npt.NDArray[np.floating[Any]]) -> Int64s:
    """Return the `MOST_CANDIDATES` columns of highest `rank` [A], or all if they are fewer; ascending."""
    if len(columns) <= MOST_CANDIDATES:
        return columns
    return np.sort(columns[np.argsort(-rank[columns], kind="stable")[:MOST_CANDIDATES]])
