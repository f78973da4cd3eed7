"""The distributions of scores: of green lists, which `iet` does not make, and drawn scores of any of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError
from iet.marks.families import FAMILIES, BernoulliSum, Family, sum_family

Floats = NDArray[np.float64]

GREEN = sum_family("green list", BernoulliSum((1,), 0.25, -1 / math.sqrt(3), 4 / math.sqrt(3)))
"""Tokens on a green list of a quarter of the vocabulary (Kirchenbauer et al. 2023), standardised."""

PUBLISHED: Mapping[str, Family] = {
    "gumbel": FAMILIES["gumbel"],
    "pf": FAMILIES["gumbel"],  # -log u of a low u has the same distribution
    "redgreen": GREEN,
    "strong": GREEN,
    "weak": GREEN,
}
"""Name of a mark in WISER's files -> distribution of its scores."""


def draw(family: Family, strength: float, rng: np.random.Generator, size: Any) -> Floats:
    """Draw scores of the null distribution of a family, tilted by exp(strength·x).

    Raises:
        InputError: the family's tilted distribution is not known here.
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
    raise InputError(f"family: got {family.name!r} at strength {strength}, expected one that can be drawn")
