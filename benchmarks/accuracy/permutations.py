"""The keyed permutation as `scheme_quality` tests it, φ of its ranks, and other permutations beside it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy import judged
from benchmarks.accuracy.judged import Floats, Ids, Seeds
from iet import kernels
from iet.native import reference

SET_SIZE = 64

Permutation = Callable[[Ids, Seeds, int], NDArray[np.integer[Any]]]


@dataclasses.dataclass(frozen=True)
class Setup(judged.Setup):
    """What every measure needs; V is at least 8192, so that both digits have more than 64 values."""

    permute: Permutation = kernels.permute  # under test

    @property
    def grid(self) -> tuple[int, int]:
        return reference.grid(self.vocab_size)

    def frequencies(self) -> dict[str, int]:
        """Return the k_p that are tested: small ones, those around multiples of a, and two large ones."""
        a, _ = self.grid
        named = {"1": 1, "2": 2, "7": 7, "a-1": a - 1, "a": a, "a+1": a + 1, "2a": 2 * a}
        chosen = np.random.default_rng(self.vocab_size)  # the same ones in every run
        for name, low in (("large", self.vocab_size // 4), ("larger", 3 * self.vocab_size // 8)):
            k_p = low + int(chosen.integers(self.vocab_size // 8 - 2))
            named[name] = k_p + 2 * bool(near_multiple(self.vocab_size)[k_p])
        return named

    def ranks(self, ids: Ids, seeds: Seeds) -> NDArray[np.integer[Any]]:
        """Permute ids [N] or [N, M] under seeds [N]."""
        if ids.ndim == 2:
            seeds = np.repeat(seeds, ids.shape[1])
        return self.permute(ids.ravel(), seeds, self.vocab_size).reshape(ids.shape)


@functools.lru_cache
def near_multiple(vocab_size: int) -> NDArray[np.bool_]:
    """Tell which k_p in [0, V/2] are the nearest to a multiple of V/b (a or just below) above 0.

    There φ depends on the low digit of the rank alone, or nearly so.
    """
    _, b = reference.grid(vocab_size)
    k_p = np.arange(vocab_size // 2 + 1)
    multiple = np.round(k_p * b / vocab_size)
    return np.asarray((np.abs(k_p - multiple * vocab_size / b) <= 0.5) & (multiple > 0))


@functools.lru_cache(maxsize=64)
def phi_table(vocab_size: int, k_p: int, family: str) -> NDArray[np.float32]:
    """Return φ(r) for every rank."""
    return reference.phi(np.arange(vocab_size), k_p, vocab_size, family)


def moments(phi: Floats) -> tuple[float, float]:
    """Return mean and variance of φ of a uniform rank."""
    return float(np.mean(phi, dtype=np.float64)), float(np.var(phi, dtype=np.float64))


def feistel(*rounds: str) -> Permutation:
    """Return the scheme with other rounds: "R b 0" adds Bmix of the high digit, under k1, to the low one."""
    mixes = {"a": reference._amix, "b": reference._bmix}

    def mix(ids: NDArray[np.uint64], seeds: Seeds, vocab_size: int) -> NDArray[np.uint64]:
        sides = dict(zip("LR", reference.grid(vocab_size), strict=True))
        digit = dict(zip("LR", np.divmod(ids, np.uint64(sides["R"])), strict=True))
        for line in rounds:
            changed, kind, key = line.split()
            other, side = digit["L" if changed == "R" else "R"], sides[changed]
            word = seeds >> np.uint64(16 * int(key) % 64)
            word = (word ^ seeds >> np.uint64(37) if int(key) == 4 else word) & np.uint64(0xFFFF)
            digit[changed] = (digit[changed] + mixes[kind](other, word, side)) % np.uint64(side)
        return np.asarray(digit["L"] * np.uint64(sides["R"]) + digit["R"])

    def permute(ids: Ids, seeds: Seeds, vocab_size: int) -> NDArray[np.integer[Any]]:
        ranks = mix(ids.astype(np.uint64), seeds, vocab_size)
        while (outside := ranks >= vocab_size).any():
            ranks[outside] = mix(ranks[outside], seeds[outside], vocab_size)
        return ranks

    return permute


WITHOUT_FIRST = feistel("L b 1", "R a 2", "L a 3")
WITHOUT_LAST = feistel("R b 0", "L b 1", "R a 2")
FIVE_ROUNDS = feistel("L a 4", "R b 0", "L b 1", "R a 2", "L a 3")  # a fifth round key from the other bits
