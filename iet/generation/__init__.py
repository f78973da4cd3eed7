"""Marking while generating: one file per engine."""

from __future__ import annotations

import os

from iet.errors import InputError
from iet.marks.scheme import Scheme


def before_temperature(scheme: Scheme, temperature: object, instead: str) -> float:
    """Return what κ is multiplied by in a processor that runs before the sampler's temperature.

    κ counts in final logits, so that is the temperature that the sampler will divide by; with placement
    "raw", the paper's, 1.

    Args:
        scheme: of the profile.
        temperature: of the sampler, a finite number above 0; None only with placement "raw".
        instead: what to do with a scheme of family "gumbel".

    Raises:
        InputError: no temperature, or one out of range; or a scheme of family "gumbel", which chooses among
            the tokens that temperature, top-k and top-p leave.
    """
    if scheme.family == "gumbel":
        raise InputError(
            'family: got "gumbel", which chooses the token after temperature, top-k and top-p, while this'
            f" processor runs before them: {instead}"
        )
    if scheme.placement == "raw":
        return 1.0
    if temperature is None:
        raise InputError(
            "temperature: got None, expected the sampler's: this processor runs before it, κ counts after"
        )
    if (
        isinstance(temperature, bool)
        or not isinstance(temperature, (int, float))
        or not 0 < temperature < float("inf")
    ):
        raise InputError(f"temperature: got {temperature!r}, expected a finite number above 0")
    return float(temperature)


def switch(name: str) -> bool:
    """Tell whether an environment variable is 1; 0 or nothing is no.

    Args:
        name: of the variable.

    Raises:
        InputError: it is something else.
    """
    value = os.environ.get(name) or "0"
    if value not in ("0", "1"):
        raise InputError(f"{name}: got {value!r:.80}, expected 0 or 1")
    return value == "1"
