"""Decode scores into segments: the agent of every token (§ Agent Attribution)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from iet.decoding.activity import log_activity
from iet.decoding.candidates import SpanSums, posterior_candidates, window_candidates
from iet.decoding.chain import boundary_intervals, forward_backward
from iet.decoding.cusum import CusumOptions, cusum, cusum_decode, cusum_decode_many, refine, smooth
from iet.decoding.fit import fit
from iet.decoding.posterior import PosteriorOptions, posterior_decode
from iet.decoding.segmentation import (
    UNATTRIBUTED,
    Scored,
    Segmentation,
    Span,
    check_mask,
    check_pairs,
    check_scores,
    check_vector,
)
from iet.decoding.shares import share_intervals
from iet.decoding.windows import WindowOptions, column_summary, margin, window_decode, windows
from iet.errors import InputError, ShapeError, check_number
from iet.marks.families import FAMILIES, Family
from iet.native.arrays import Bools, Float64s, Int32s, Int64s

__all__ = [
    "DECODERS",
    "UNATTRIBUTED",
    "CusumOptions",
    "PosteriorOptions",
    "Scored",
    "Segmentation",
    "Span",
    "WindowOptions",
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
    "share_intervals",
    "smooth",
    "windows",
]


class Decoder(NamedTuple):
    """A way to turn scores into segments.

    Attributes:
        options: a frozen dataclass, which raises if a value is out of range; its `check(family, agents)`
            raises if the options do not fit the scores of a text.
        decode: (text, options, allow_unattributed) -> Segmentation.
        candidates: (sums_of, agents, family, scored, repeated, activity, options) -> columns [C], see
            `candidates`.
        of_each_text: names of options of `decode` that belong to one text: attributes of `Scored`.
        has_posterior: whether it has a null state, and so the posterior of every agent at every token. Such a
            decoder weighs tokens, takes log-likelihood ratios, and joins the tokens of several profiles.
        decode_many: (scores, scored, starts, ends, family, options, allow_unattributed) -> labels int32 [N]
            of all texts; None: texts are decoded one at a time.
    """

    options: Callable[..., Any]
    decode: Callable[[Scored, Any, bool], Segmentation]
    candidates: Callable[..., Int64s]
    of_each_text: tuple[str, ...] = ()
    has_posterior: bool = False
    decode_many: Callable[..., Int32s] | None = None

    @property
    def defaults(self) -> dict[str, Any]:
        """The options by name, with their defaults."""
        return {field.name: field.default for field in dataclasses.fields(self.options)}  # type: ignore[arg-type]

    def decode_each(
        self, texts: Scored, starts: Int64s, ends: Int64s, options: Any, allow_unattributed: bool
    ) -> list[Segmentation]:
        """Decode each of D joined texts, the tokens `[start, end)`, by itself."""
        spans = zip(starts.tolist(), ends.tolist(), strict=True)
        return [self.decode(texts.part(slice(*span)), options, allow_unattributed) for span in spans]


DECODERS: Mapping[str, Decoder] = {
    "posterior": Decoder(PosteriorOptions, posterior_decode, posterior_candidates, ("weights",), True),
    "cusum": Decoder(CusumOptions, cusum_decode, window_candidates, decode_many=cusum_decode_many),
    "window": Decoder(WindowOptions, window_decode, window_candidates),
}
"""Name -> decoder."""


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
        agents: number of agents, at least A, if the columns are only the `candidates`; None: A.
        pairs: [T] integers, `iet.kernels.pair_numbers`: equal for equal (context, token) pairs, -1 if not
            scored. They replace `scored` and `repeated`, which must be None, and also show which pair a
            repeat belongs to. None: unknown.
        log_ratios: [T, A] log-likelihood ratios of every agent against the null model, as
            `iet.LanguageModel.log_ratios` returns them. "posterior" then reads them instead of the scores:
            every scored token counts, repeated or not, and no strengths are fitted or returned.
        **options: options of the decoder, see `PosteriorOptions`, `CusumOptions`, `WindowOptions`.
            "posterior" also accepts `weights` [T] >= 0, the weight of each token of this text (None: 1).

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
    of_text = {name: options.pop(name) for name in _decoder(decoder).of_each_text if name in options}
    chosen = options_of(decoder, options)
    law = _family(family)
    x = check_scores(scores)
    if agents is not None:
        check_number("agents", agents, x.shape[1])
    numbers = None
    if pairs is not None:
        if scored is not None or repeated is not None:
            raise InputError("pairs: got scored or repeated as well, expected pairs alone: it says both")
        numbers, repeated = check_pairs(pairs, len(x))
        scored = numbers >= 0
    weights = of_text.get("weights")
    if weights is not None:
        weights = check_vector(
            "weights", weights, len(x), "finite numbers from 0", lambda v: (v >= 0) & (v < np.inf), np.float32
        )
    text = Scored(
        x,
        law,
        check_mask(scored, len(x), "scored", True),
        check_mask(repeated, len(x), "repeated", False),
        numbers,
        agents,
        weights,
    )
    if log_ratios is not None:
        if not _decoder(decoder).has_posterior:
            raise InputError(f"log_ratios: got decoder {decoder!r}, expected 'posterior', which reads them")
        if chosen.strengths is not None:
            raise InputError(
                "strengths: got some and log_ratios, expected one of them: ratios hold strengths"
            )
        ratios = check_scores(log_ratios)
        if ratios.shape != x.shape:
            raise ShapeError("log_ratios", got=list(ratios.shape), expected=list(x.shape))
        text = dataclasses.replace(text, values=ratios, family=None)
    return DECODERS[decoder].decode(text, chosen, allow_unattributed)


def options_of(decoder: str, options: Mapping[str, Any]) -> Any:
    """Return the options of a decoder, checked: `PosteriorOptions`, `CusumOptions` or `WindowOptions`.

    Raises:
        InputError: a name is unknown, or an option is unknown or out of range.
    """
    chosen = _decoder(decoder)
    for name in options:
        if name not in chosen.defaults:
            known = [*chosen.defaults, *chosen.of_each_text]
            raise InputError(
                f"options: got {name!r:.80}, decoder {decoder!r} accepts {known}; iet.AuditOptions has"
                " those of every audit"
            )
    return chosen.options(**options)


def candidates(
    sums_of: SpanSums,
    agents: int,
    decoder: str,
    family: str | Family,
    scored: Bools,
    repeated: Bools,
    allow_unattributed: bool = False,
    activity: Float64s | None = None,
    **options: Any,
) -> Int64s:
    """Choose the agents that a decoder has to read, without their scores [T, A].

    Args:
        sums_of: (boundaries, counted, low, high) -> Σ of the scores of agents [low, high) over the counted
            tokens of each span, [S, high - low].
        agents: A.
        decoder, family, scored, repeated, allow_unattributed: as in `decode`; the masks as arrays.
        activity: `log_activity` [A], or None to compute it; only "posterior" reads it.
        options: as in `decode`.

    Returns:
        Ascending columns, 1 to 256 of them: for "posterior" `likely_agents`, which it would read of [T, A],
        for the others the agents that are first or second in a window (`window_candidates`).

    Raises:
        InputError: a name or option is unknown.

    Deterministic. Cost: O(T·A) time.
    """
    chosen = options_of(decoder, options)
    law = _family(family)
    if not len(scored):
        return np.zeros(1, np.int64)
    return DECODERS[decoder].candidates(sums_of, agents, law, scored, repeated, activity, chosen)


def _decoder(name: str) -> Decoder:
    if not isinstance(name, str) or name not in DECODERS:
        raise InputError(f"decoder: got {name!r}, expected one of {sorted(DECODERS)}")
    return DECODERS[name]


def _family(family: str | Family) -> Family:
    if isinstance(family, Family):
        return family
    if not isinstance(family, str) or family not in FAMILIES:
        raise InputError(f"family: got {family!r}, expected one of {sorted(FAMILIES)}")
    return FAMILIES[family]
