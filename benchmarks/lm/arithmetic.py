"""Expressions a+b*c+d-e*f, which the arithmetic model of `benchmarks/paper/quality` solves."""

from __future__ import annotations

import numpy as np

LARGEST = 30
"""Of the six numbers."""

Numbers = tuple[int, int, int, int, int, int]


def expressions(count: int, seed: int) -> list[Numbers]:
    """Return the numbers a..f of expressions, each uniform on 0..30."""
    drawn = np.random.default_rng(seed).integers(0, LARGEST + 1, (count, 6))
    return [(a, b, c, d, e, f) for a, b, c, d, e, f in drawn.tolist()]


def shown(numbers: Numbers) -> str:
    a, b, c, d, e, f = numbers
    return f"{a}+{b}*{c}+{d}-{e}*{f}"


def value(numbers: Numbers) -> int:
    a, b, c, d, e, f = numbers
    return a + b * c + d - e * f
