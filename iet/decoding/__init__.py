"""From scores to segments: who wrote which tokens (§ Agent Attribution)."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from iet.decoding.activity import log_activity
from iet.decoding.candidates import CANDIDATES, SpanSums
from iet.decoding.chain import boundary_intervals, forward_backward
from iet.decoding.cusum import cusum, cusum_decode, refine, smooth
from iet.decoding.posterior import fit, posterior_decode
from iet.decoding.segmentation import (
    NOBODY,
    Segmentation,
    Span,
    check_mask,
    check_number,
    check_pairs,
    check_scores,
)
from iet.decoding.windows import column_summary, margin, span_sums, window_decode, windows
from iet.errors import InputError, ShapeError
from iet.marks.scheme import FAMILIES, Family
from iet.native.pairs import repeats

__all__ = [
    "DECODERS",
    "NOBODY",
    "Segmentation",
    "Span",
    "boundary_intervals",
    "candidates",
    "column_summary",
    "cusum",
    "decode",
    "fit",
    "forward_backward",
    "log_activity",
    "margin",
    "refine",
    "smooth",
    "span_sums",
    "windows",
]

DECODERS: Mapping[str, Callable[..., Segmentation]] = {
    "posterior": posterior_decode,
    "cusum": cusum_decode,
    "window": window_decode,
}
"""Name -> decoder. Its keyword-only arguments are the options that `decode` accepts for it."""

# What stands for a family where scores are log-likelihood ratios already: at strength 1, x - 0.
_RATIOS = Family("log-likelihood ratios", -1, 0, 0.0, np.zeros_like, np.zeros_like)


def decode(
    scores: npt.ArrayLike,
    decoder: str = "posterior",
    family: str | Family = "fourier",
    scored: npt.ArrayLike | None = None,
    repeated: npt.ArrayLike | None = None,
    allow_unattributed: bool = False,
    agents: int | None = None,
    pairs: npt.ArrayLike | None = None,
    log_ratios: npt.ArrayLike | None = None,
    **options: Any,
) -> Segmentation:
    """Attribute every token of a text to an agent, from the scores under every agent's key.

    Args:
        scores: x_t(a) [T, A], float32 as `score_tokens` gives it; not mutated, not copied (float64 is taken
            as it is, other real types become float32). One column per agent, A >= 1, 0 where not scored.
        decoder: "posterior" (ours, the default), "cusum" (the paper's) or "window" (for comparison).
        family: a key of `FAMILIES`, or a `Family`: what scores look like with and without a mark.
        scored: [T] bool, the positions with a score; None: all. The others carry no evidence.
        repeated: [T] bool, the positions whose (context, token) pair was there before; None: none. Only
            "posterior" reads it; see its option `repeats`.
        allow_unattributed: label text that no key explains -1. False: the paper's forced choice.
        agents: how many agents there are, at least A, where the columns are the `candidates` among them;
            None: A.
        pairs: [T] integers, `iet.kernels.pair_numbers`: equal where (context, token) pairs are equal, -1
            where not scored. They say all that `scored` and `repeated` say, which are not given then, and
            with what a repeat stands; None: unknown.
        log_ratios: [T, A] log-likelihood ratios of every agent against nobody, as
            `iet.LanguageModel.log_ratios` gives them. "posterior" then reads them in place of the scores:
            every scored token counts, repeated or not, no strengths are fitted, and none returned.
        **options: the decoder's own, see `posterior_decode`, `cusum_decode`, `window_decode`.

    Returns:
        Segmentation; all its columns are those of `scores`. T = 0 gives no segments.

    Raises:
        ShapeError: `scores` is not [T, A], or a mask is not bool [T].
        InputError: a score is not finite, or a name or option is unknown or out of range, or `log_ratios` are
            given to another decoder or with strengths.

    Deterministic. Cost: O(T·A) time.

    >>> import numpy as np
    >>> scores = np.zeros((400, 2), np.float32)
    >>> scores[:250, 1] = scores[250:, 0] = 0.4
    >>> decode(scores).segments
    (Span(start=0, end=250, agent=1), Span(start=250, end=400, agent=0))
    """
    function, options = _with_defaults(decoder, family, options)
    x = check_scores(scores)
    if agents is not None:
        check_number("agents", agents, x.shape[1])
    numbers = None
    if pairs is not None:
        if scored is not None or repeated is not None:
            raise InputError("pairs: got scored or repeated as well, expected pairs alone: it says both")
        numbers = check_pairs(pairs, len(x))
        scored, repeated = numbers >= 0, repeats(numbers)
    if log_ratios is not None:
        if decoder != "posterior":
            raise InputError(f"log_ratios: got decoder {decoder!r}, expected 'posterior', which reads them")
        if options["strengths"] is not None:
            raise InputError(
                "strengths: got some and log_ratios, expected one of them: ratios hold strengths"
            )
        ratios = check_scores(log_ratios)
        if ratios.shape != x.shape:
            raise ShapeError("log_ratios", got=list(ratios.shape), expected=list(x.shape))
        found = function(
            ratios,
            _RATIOS,
            check_mask(scored, len(x), "scored", True),
            np.zeros(len(x), np.bool_),
            allow_unattributed,
            agents or x.shape[1],
            None,
            **{**options, "strengths": np.ones(x.shape[1]), "repeats": "count"},
        )
        return dataclasses.replace(found, strengths=None)
    return function(
        x,
        family if isinstance(family, Family) else FAMILIES[family],
        check_mask(scored, len(x), "scored", True),
        check_mask(repeated, len(x), "repeated", False),
        allow_unattributed,
        agents,
        numbers,
        **options,
    )


def candidates(
    sums_of: SpanSums,
    agents: int,
    decoder: str,
    family: str | Family,
    scored: npt.NDArray[np.bool_],
    repeated: npt.NDArray[np.bool_],
    allow_unattributed: bool = False,
    activity: npt.NDArray[np.float64] | None = None,
    **options: Any,
) -> npt.NDArray[np.int64]:
    """Choose the agents that a decoder has to look at, without their scores [T, A].

    Args:
        sums_of: (boundaries, counted, low, high) -> Σ of the scores of agents [low, high) over the counted
            tokens of each span, [S, high - low].
        agents: A.
        decoder, family, scored, repeated, allow_unattributed: as in `decode`; the masks as arrays.
        activity: `log_activity` [A], where it is known; only "posterior" reads it.
        options: as in `decode`.

    Returns:
        Ascending columns, at least one and never more than 256: for "posterior" `likely_agents`, the same
        that it would not leave out of [T, A], for the others those that are first or second in a window
        (`window_candidates`).

    Raises:
        InputError: a name or option is unknown.

    Deterministic. Cost: O(T·A) time.
    """
    _, options = _with_defaults(decoder, family, options)
    if not len(scored):
        return np.zeros(1, np.int64)
    choose = CANDIDATES[decoder]
    return choose(
        sums_of,
        agents,
        family if isinstance(family, Family) else FAMILIES[family],
        scored,
        repeated,
        allow_unattributed,
        activity,
        **options,
    )


def _with_defaults(
    decoder: str, family: str | Family, options: dict[str, Any]
) -> tuple[Callable[..., Segmentation], dict[str, Any]]:
    """Return the decoder and all its options."""
    if not isinstance(decoder, str) or decoder not in DECODERS:
        raise InputError(f"decoder: got {decoder!r}, expected one of {sorted(DECODERS)}")
    if not isinstance(family, Family) and (not isinstance(family, str) or family not in FAMILIES):
        raise InputError(f"family: got {family!r}, expected one of {sorted(FAMILIES)}")
    accepted = _options(DECODERS[decoder])
    for name in options:
        if name not in accepted:
            raise InputError(f"options: got {name!r}, decoder {decoder!r} accepts {list(accepted)}")
    return DECODERS[decoder], {**accepted, **options}


@functools.cache
def _options(decoder: Callable[..., Segmentation]) -> dict[str, Any]:
    parameters = inspect.signature(decoder).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
