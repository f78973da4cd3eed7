"""The laws of scores: of marks that `iet` does not make, and drawn scores of any of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError
from iet.marks.families import FAMILIES, BernoulliSum, Family, sum_family

Floats = NDArray[np.float64]

_TRIANGLE = math.sqrt(18)  # one over the standard deviation of the density 2y on [0, 1], of mean 2/3


def _triangle_log_mgf(strength: Any) -> Any:
    s = _steepness(strength)
    return np.log(2 * (np.exp(s) * (s - 1) + 1) / s**2) - 2 * s / 3


def _triangle_mean(strength: Any) -> Any:
    s = _steepness(strength)
    return _TRIANGLE * (s * np.exp(s) / (np.exp(s) * (s - 1) + 1) - 2 / s - 2 / 3)


def _steepness(strength: Any) -> Any:
    # Both formulas cancel near 0: what lies nearer is taken there, where they are right to 1e-4.
    s = np.asarray(strength, np.float64) * _TRIANGLE
    return np.where(np.abs(s) < 1e-3, 1e-3, s)


GREEN = sum_family("green list", BernoulliSum((1,), 0.25, -1 / math.sqrt(3), 4 / math.sqrt(3)))
"""Tokens on a green list of a quarter of the vocabulary (Kirchenbauer et al. 2023), standardised."""

THREE_BITS = sum_family("three bits", BernoulliSum((1, 1, 1), 0.5, -math.sqrt(3), 2 / math.sqrt(3)))
"""The mean of three fair bits, standardised: scores of SynthID at depth 3."""

INVERSE = Family("inverse", -1, 1.0, _triangle_log_mgf, _triangle_mean)
"""1 - |u - rank/V| of inverse sampling (Kuditipudi et al. 2023), standardised: density 2y before that."""


def standardised(raw: Floats, family: Family) -> Floats:
    """Return published scores in the units of their family: only those of "inverse" and bits are not yet."""
    if family is INVERSE:
        return (raw - 2 / 3) * _TRIANGLE
    if family is THREE_BITS:
        return (raw - 0.5) * math.sqrt(12)
    return raw


def draw(family: Family, strength: float, rng: np.random.Generator, size: Any) -> Floats:
    """Draw scores of the null law of a family, tilted by exp(strength·x).

    Raises:
        InputError: the family's tilted law is not known here.
    """
    if family is FAMILIES["fourier"]:
        return np.asarray(np.cos(rng.vonmises(0.0, strength, size)))
    if family is FAMILIES["gumbel"]:
        return np.asarray(rng.exponential(1 / (1 - strength), size))
    if family.bits is not None and len(set(family.bits.weights)) == 1:
        draws, weight = family.bits, family.bits.weights[0]
        odds = draws.chance / (1 - draws.chance) * math.exp(strength * draws.step * weight)
        ones = rng.binomial(len(draws.weights), odds / (1 + odds), size)
        return np.asarray(draws.low + draws.step * weight * ones)
    if family is INVERSE and strength == 0:
        return standardised(1 - np.abs(rng.random(size) - rng.random(size)), INVERSE)
    raise InputError(f"family: got {family.name!r} at strength {strength}, expected one that can be drawn")
