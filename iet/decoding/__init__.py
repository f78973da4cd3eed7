"""From scores to segments: who wrote which tokens (§ Agent Attribution)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import numpy.typing as npt

from iet.decoding.cusum import cusum, cusum_decode, refine, smooth
from iet.decoding.posterior import fit_strengths, forward_backward, posterior_decode
from iet.decoding.segmentation import NOBODY, Segmentation, Span, check_mask, check_scores
from iet.decoding.windows import margin, window_decode, windows
from iet.errors import InputError
from iet.scheme import FAMILIES

__all__ = [
    "DECODERS",
    "NOBODY",
    "Segmentation",
    "Span",
    "cusum",
    "decode",
    "fit_strengths",
    "forward_backward",
    "margin",
    "refine",
    "smooth",
    "windows",
]

DECODERS: Mapping[str, Callable[..., Segmentation]] = {
    "posterior": posterior_decode,
    "cusum": cusum_decode,
    "window": window_decode,
}
"""Name -> decoder. Its keyword-only arguments are the options that `decode` accepts for it."""


def decode(
    scores: npt.ArrayLike,
    decoder: str = "posterior",
    family: str = "fourier",
    scored: npt.ArrayLike | None = None,
    repeated: npt.ArrayLike | None = None,
    allow_unattributed: bool = False,
    **options: object,
) -> Segmentation:
    """Attribute every token of a text to an agent, from the scores under every agent's key.

    Args:
        scores: x_t(a) [T, A], float32 as `score_tokens` gives it; not mutated, not copied (float64 is taken
            as it is, other real types become float32). One column per agent, A >= 1, 0 where not scored.
        decoder: "posterior" (ours, the default), "cusum" (the paper's) or "window" (for comparison).
        family: a key of `FAMILIES`: what scores look like with and without a mark.
        scored: [T] bool, the positions with a score; None: all. The others carry no evidence.
        repeated: [T] bool, the positions whose (context, token) pair was there before; None: none. Only
            "posterior" reads it; see its option `repeats`.
        allow_unattributed: label text that no key explains -1. False: the paper's forced choice.
        **options: the decoder's own, see `posterior_decode`, `cusum_decode`, `window_decode`.

    Returns:
        Segmentation; all its columns are those of `scores`. T = 0 gives no segments.

    Raises:
        ShapeError: `scores` is not [T, A], or a mask is not bool [T].
        InputError: a score is not finite, or a name or option is unknown or out of range.

    Deterministic. Cost: O(T·A) time.

    >>> import numpy as np
    >>> scores = np.zeros((400, 2), np.float32)
    >>> scores[:250, 1] = scores[250:, 0] = 0.4
    >>> decode(scores).segments
    (Span(start=0, end=250, agent=1), Span(start=250, end=400, agent=0))
    """
    if decoder not in DECODERS:
        raise InputError(f"decoder: got {decoder!r}, expected one of {sorted(DECODERS)}")
    if family not in FAMILIES:
        raise InputError(f"family: got {family!r}, expected one of {sorted(FAMILIES)}")
    function = DECODERS[decoder]
    accepted = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in accepted:
            raise InputError(f"options: got {name!r}, decoder {decoder!r} accepts {accepted}")
    x = check_scores(scores)
    return function(
        x,
        FAMILIES[family],
        check_mask(scored, len(x), "scored", True),
        check_mask(repeated, len(x), "repeated", False),
        allow_unattributed,
        **options,
    )
