"""The default decoder: a hidden Markov chain over the agents and a null state, fitted to each text."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from iet.decoding.activity import evidence_blocks, log_activity
from iet.decoding.answers import place_answers
from iet.decoding.chain import posteriors, prior_of
from iet.decoding.copies import concatenate, scatter, split_copies
from iet.decoding.fit import (
    MOST_ITERATIONS,
    STAGES,
    Fitted,
    HalfBlockSums,
    block_of,
    block_ratios,
    block_sums,
    fit,
    half_blocks_help,
    offsets_of,
    strength_range,
)
from iet.decoding.segmentation import UNATTRIBUTED, Scored, Scores, Segmentation, check_vector
from iet.errors import InputError, check_number
from iet.marks.families import Family
from iet.native.arrays import Bools, Float32s, Float64s, Int32s, Int64s
from iet.native.load import loops
from iet.native.pairs import far_sources, fresh_weights, shared_weights

MOST_CANDIDATES = 256
"""Maximum number of agents that are decoded token by token."""

MIN_CANDIDATES = 16
"""Number of agents that are decoded token by token even without evidence for them."""


_LOG_ODDS_MARKED = 5.0  # prior log odds that a text has any mark


@dataclasses.dataclass(frozen=True, eq=False)
class PosteriorOptions:
    """Options of the decoder "posterior".

    Args:
        mean_segment: expected tokens of a segment, 1 to 1e9; None: fitted.
        repeats: how w_t depends on repeats. "share": a (context, token) pair that occurs m times within 256
            tokens counts m^-3/4 each time, m^1/4 in total (needs `pairs`, else "drop"). "drop": a pair counts
            once in the text; "count": every time. With "share", repeated passages far from their source are
            decoded separately (`iet.decoding.copies`). Families that choose tokens ignore this option: w_t is
            0 if the pair occurred within the last 256 tokens (without `pairs`: anywhere before), else 1. Our
            own family has no repeated pairs. Engines' families number contexts instead of pairs, because a
            context that its writer has seen carries no mark.
        null_prior: prior share of unmarked tokens, 0 to 0.99, with `allow_unattributed`; shares near 0 and
            near 1 are equally likely (`null_prior` of `fit`).
        strengths: [A] λ, 0 to MAX_STRENGTH, to use instead of fitting.
        iterations, shrinkage: see `fit`.
        block: maximum tokens of a block in `fit`; short texts have smaller blocks of at least 4.
        resolution: tokens of a pool, which the chain treats as one token, 1 to 16. Each boundary is then
            moved to the likeliest position less than `resolution` away. All tokens of a pool have one
            posterior.
        min_segment: tokens. A shorter run of one label is assigned to the neighbour with the higher posterior
            over it, from left to right: it has too little evidence for a segment, but would add two false
            transitions. 1 keeps every run. The only run of a text stays.

    Raises:
        InputError: one is out of range.
    """

    mean_segment: float | None = None
    repeats: Literal["share", "drop", "count"] = "share"
    null_prior: float = 0.5
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
        check_number("null_prior", self.null_prior, 0, 0.99, integer=False)
        check_number("block", self.block, 1)
        check_number("min_segment", self.min_segment, 1)
        check_number("resolution", self.resolution, 1, 16)
        check_number("iterations", self.iterations, 0, MOST_ITERATIONS)
        check_number("shrinkage", self.shrinkage, 0, 1e9, integer=False)

    def check(self, family: Family | None, agents: int) -> None:
        """Raise if the options do not fit scores of this family under the keys of A agents.

        Raises:
            ShapeError: `strengths` is not [A].
            InputError: a strength is out of the family's range.
        """
        _fixed_strengths(self.strengths, family, agents)


def posterior_decode(text: Scored, options: PosteriorOptions, allow_unattributed: bool) -> Segmentation:
    """Label each token with the agent of highest posterior probability in a hidden Markov chain.

        log p(x_t | a) / p(x_t | null) = w_t·(λ_a·x_t(a) - log_mgf(λ_a))    (the family's likelihood ratio)

    γ_t(a) = p(a at t | all scores) in the chain of `forward_backward`, and ĝ(t) = argmax_a γ_t(a), which
    maximises the expected TokenAcc. λ, the agents' shares and the mean length of a segment are fitted to the
    text (`fit`). With a null state, γ of the agents is multiplied by the posterior probability that the text
    has any mark, from its `evidence` and prior odds of e^5. Not in the paper. In a text without evidence the
    null state wins; in forced choice the first agent. Log-likelihood ratios are used unchanged: λ = 1, and
    every scored token counts. In family "gumbel" boundaries then move to where answers begin
    (`iet.decoding.answers`), and γ stays.

    Args:
        text: the scores of the text. Family "gumbel" profits from `weights` of `novelty_weights`, which
            `Auditor` sets.
        options: see `PosteriorOptions`.
        allow_unattributed: whether the chain has a null state.

    Cost: O(T·A) time, 8·T·A + 16·T bytes and at most 64 MB. With more than 16 agents only `likely_agents` are
    decoded; the others get posterior 0 and the mean strength. Deterministic.
    """
    options.check(text.family, text.values.shape[1])
    shares_repeats = options.repeats == "share" and text.pairs is not None
    sources = far_sources(text.pairs) if shares_repeats and text.pairs is not None else None
    if sources is None:
        return _segmentation(text, options, *_decode(text, options, allow_unattributed))
    retained, counted, passages = split_copies(sources)
    without_copies, model = _decode(_select(text, retained, counted), options, allow_unattributed)
    labels, posterior, null_posterior = (scatter(values, retained, len(sources)) for values in without_copies)
    positions = [passage.sources for passage in passages]
    decoded = _decode_passages(text, positions, model, options, allow_unattributed)
    for passage, of_passage in zip(passages, decoded, strict=True):
        for start, end in passage.spans:
            labels[start:end], posterior[start:end], null_posterior[start:end] = of_passage
    # Runs next to a copy have new neighbours now.
    run_starts = np.empty(len(labels) // options.min_segment + 2, np.int64)
    loops.absorb_short_runs(posterior, null_posterior, options.min_segment, run_starts, labels)
    return _segmentation(text, options, _Decoded(labels, posterior, null_posterior), model)


class _Decoded(NamedTuple):
    """Labels int32 [T] among C decoded columns, γ float32 [T, C], γ of the null state float32 [T]."""

    labels: Int32s
    posterior: Float32s
    null_posterior: Float32s


class _Model(NamedTuple):
    """The decoded columns, int64 [C], and their fitted parameters."""

    columns: Int64s
    fitted: Fitted


def _segmentation(text: Scored, options: PosteriorOptions, decoded: _Decoded, model: _Model) -> Segmentation:
    """Return the result for all columns from that of the decoded ones."""
    columns, posterior, labels = text.values.shape[1], decoded.posterior, decoded.labels
    strengths = _fixed_strengths(options.strengths, text.family, columns)
    if len(model.columns) < columns:
        labels = np.append(model.columns, UNATTRIBUTED)[labels].astype(np.int32)
        posterior = np.zeros((len(labels), columns), np.float32)
        posterior[:, model.columns] = decoded.posterior
    if text.family is None:
        return Segmentation(labels, posterior)
    if strengths is None:
        strengths = np.full(columns, model.fitted.strengths.mean())
        strengths[model.columns] = model.fitted.strengths
    return Segmentation(labels, posterior, strengths.copy())


def _decode(text: Scored, options: PosteriorOptions, allow_unattributed: bool) -> tuple[_Decoded, _Model]:
    """Do what `posterior_decode` does for a text without repeated passages."""
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
    half_blocks = None
    if allow_unattributed and half_blocks_help(block):
        half_blocks = HalfBlockSums(*block_sums(scores, weight, block // 2), block // 2)
    fitted = fit(
        *block_sums(scores, weight, block),
        family,
        block=block,
        iterations=options.iterations,
        shrinkage=options.shrinkage,
        null_prior=options.null_prior if allow_unattributed else 0.0,
        mean_segment=options.mean_segment,
        strengths=None if fixed is None else fixed[keep],
        agents=text.agents or columns,
        shares=None if text.shares is None else text.shares[keep],
        half_blocks=half_blocks,
    )
    span = [(0, tokens)]
    (decoded,) = _decode_spans(
        scores, weight, family, span, fitted, fitted.evidence, options, allow_unattributed
    )
    return decoded, _Model(keep, fitted)


def _decode_passages(
    text: Scored, passages: list[Int64s], model: _Model, options: PosteriorOptions, allow_unattributed: bool
) -> list[_Decoded]:
    """Decode each passage separately, from the positions of its scores in the text and the fitted model."""
    positions, is_passage, spans = concatenate(passages, options.resolution)
    weight = np.zeros(len(positions), np.float32)
    weight[is_passage] = np.concatenate(
        [evidence_weight(text, options.repeats, passage) for passage in passages]
    )
    columns, fitted = model
    scores = text.values[positions]
    if len(columns) < scores.shape[1]:
        scores = scores[:, columns]
    # The fit without copies neither decides whether copies are marked, nor do its gaps apply to them.
    share = fitted.null_prior if fitted.null_segment is None else 0.0
    null_prior = max(share, options.null_prior) if allow_unattributed else 0.0
    fitted = dataclasses.replace(fitted, null_prior=null_prior, weaker=None, null_segment=None)
    return _decode_spans(scores, weight, text.family, spans, fitted, None, options, allow_unattributed)


def _decode_spans(
    scores: Scores,
    weight: Float32s,
    family: Family | None,
    spans: list[tuple[int, int]],
    fitted: Fitted,
    evidence: float | None,
    options: PosteriorOptions,
    allow_unattributed: bool,
) -> list[_Decoded]:
    """Decode the texts at `spans`, which start at multiples of `resolution`, with one fit.

    `evidence` is the log-likelihood ratio of the text, marked against unmarked; None: that of the chain.
    """
    resolution = options.resolution
    sums, totals = block_sums(scores, weight, resolution)
    strengths, shares, columns = fitted.strengths, fitted.shares, scores.shape[1]
    if fitted.weaker is not None:  # each agent has two states
        sums, strengths = np.tile(sums, 2), np.append(strengths, fitted.weaker)
        shares = np.tile(shares, 2)
    ratios = block_ratios(sums, totals, strengths, family)
    prior, starts = prior_of(shares, fitted.null_prior), [start // resolution for start, _ in spans]
    gap = None if fitted.null_segment is None else fitted.null_segment / resolution
    gamma, null_gamma, log_likelihood = posteriors(
        ratios, fitted.mean_segment / resolution, prior, STAGES, starts, gap
    )
    if fitted.weaker is not None:
        gamma = gamma[:, :columns] + gamma[:, columns:]
    if fitted.null_prior > 0:
        ends = [*starts[1:], len(gamma)]
        for start, end, log_ratio in zip(starts, ends, log_likelihood.tolist(), strict=True):
            nats = _LOG_ODDS_MARKED + (log_ratio if evidence is None else evidence)
            marked = 1 / (1 + math.exp(-max(nats, -700.0)))
            gamma[start:end] *= np.float32(marked)
            null_gamma[start:end] *= np.float32(marked)
            null_gamma[start:end] += np.float32(1 - marked)
    posterior, null_posterior = np.empty(scores.shape, np.float32), np.empty(len(scores), np.float32)
    labels = np.empty(len(scores), np.int32)
    loops.most_probable_labels(
        gamma, null_gamma, resolution, allow_unattributed, posterior, null_posterior, labels
    )
    longest = max(end - start for start, end in spans)
    run_starts = np.empty(longest // options.min_segment + 2, np.int64)
    offsets = offsets_of(fitted.strengths, family)
    decoded = []
    for start, end in spans:
        inside = slice(start, end)
        of_span = _Decoded(labels[inside], posterior[inside], null_posterior[inside])
        if resolution > 1:
            loops.place_boundaries(
                scores[inside], weight[inside], fitted.strengths, offsets, resolution, of_span.labels
            )
        loops.absorb_short_runs(
            of_span.posterior, of_span.null_posterior, options.min_segment, run_starts, of_span.labels
        )
        if family is not None and family.name == "gumbel":
            place_answers(
                *(scores[inside], weight[inside], fitted.strengths, offsets),
                options.min_segment,
                of_span.labels,
            )
        decoded.append(of_span)
    return decoded


def _select(text: Scored, positions: Int64s, counted: Bools) -> Scored:
    """Return the tokens at some positions; those that are not `counted` carry no evidence."""
    assert text.pairs is not None
    return dataclasses.replace(
        text,
        values=text.values[positions],
        scored=text.scored[positions] & counted,
        repeated=text.repeated[positions],
        pairs=np.where(counted, text.pairs[positions], -1),
        weights=None if text.weights is None else text.weights[positions],
    )


def _fixed_strengths(strengths: npt.ArrayLike | None, family: Family | None, agents: int) -> Float64s | None:
    """Return λ [A] if it is not fitted: the option, or 1 for log-likelihood ratios; else None."""
    if family is None:
        return np.ones(agents)
    if strengths is None:
        return None
    high = strength_range(family)[1]
    expected = f"numbers from 0 to {high}"
    fixed: Float64s = check_vector("strengths", strengths, agents, expected, lambda v: (v >= 0) & (v <= high))
    return fixed


def evidence_weight(text: Scored, repeats: str, positions: Int64s | slice = slice(None)) -> Float32s:
    """Return the weight w_t [T] of each token, 0 if it is not scored; `repeats` as in `PosteriorOptions`.

    The tokens at `positions` are read as a text of their own.
    """
    chooses = text.family is not None and text.family.chooses
    if chooses and text.pairs is not None:
        weights = fresh_weights(text.pairs[positions])
    elif text.family is None or (repeats == "count" and not chooses):
        weights = text.scored[positions].astype(np.float32)
    elif chooses or repeats == "drop" or text.pairs is None:
        weights = (text.scored[positions] & ~text.repeated[positions]).astype(np.float32)
    else:
        weights = shared_weights(text.pairs[positions])
    return weights if text.weights is None else weights * text.weights[positions]


def likely_agents(activity: Float64s) -> Int64s:
    """Return the agents that may occur in a text: the 16 with the highest log Λ, and all with Λ >= A·e^-4.

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
