"""The green lists of transformers' `WatermarkingConfig`: KGW."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError
from iet.marks.families import BernoulliSum, Family, sum_family
from iet.marks.foreign.keys import Ids, checked_integer
from iet.marks.foreign.prf import checked_share
from iet.marks.foreign.scheme import EngineScheme, Keys, Mask
from iet.native.load import compiled
from iet.native.reference import is_scored
from iet.native.texts import Texts


@dataclasses.dataclass(frozen=True)
class Kgw(EngineScheme):
    """The green lists of transformers' `WatermarkingConfig`, made on the CPU.

    Attributes:
        n_gram: with "lefthash" 2, whatever `context_width`: the seed depends on the last id alone. With
            "selfhash" `context_width`, 1 to 16: the token itself is one of the ids that are hashed.
        greenlist_ratio: γ, above 0 and below 1.
        seeding_scheme: "lefthash" or "selfhash".
        version: as in `EngineScheme`.
    """

    n_gram: int = 0
    greenlist_ratio: float = 0.25
    seeding_scheme: str = "lefthash"

    name = "kgw"

    def __post_init__(self) -> None:
        if self.seeding_scheme not in ("lefthash", "selfhash"):
            raise InputError(
                f'seeding_scheme: got {self.seeding_scheme!r:.80}, expected "lefthash" or "selfhash"'
            )
        lefthash = self.seeding_scheme == "lefthash"
        if self.n_gram == 0:
            object.__setattr__(self, "n_gram", 2 if lefthash else 1)
        checked_integer("n_gram", self.n_gram, *((2, 2) if lefthash else (1, 16)))
        checked_share("greenlist_ratio", self.greenlist_ratio)

    @property
    def evidence_ids(self) -> int:
        """With "selfhash" 1, because the least hash may be that of the token itself."""
        return self.n_gram if self.seeding_scheme == "lefthash" else 1

    def _green(self, vocab_size: int) -> int:
        green = int(vocab_size * self.greenlist_ratio)
        if not 0 < green < vocab_size:
            raise InputError(
                f"greenlist_ratio: got {self.greenlist_ratio}, which makes {green} of {vocab_size} ids green;"
                " expected some, and not all"
            )
        return green

    def law(self, vocab_size: int) -> Family:
        """Return the null distribution of the scores."""
        bits = BernoulliSum((1,), self._green(vocab_size) / vocab_size, 0.0, 1.0)
        return sum_family("kgw", bits, strengths=(0.5, 1.0, 2.0))

    def checked_key(self, argument: str, key: Any) -> tuple[int, ...]:
        """Return a key as numbers, or raise an InputError that does not show it."""
        return (checked_integer(argument, key, 1, (1 << 63) - 1, secret=True),)

    def effective_key(self, key: tuple[int, ...]) -> tuple[int, ...]:
        """Return the low 32 bits of a key, which determine its scores.

        With "selfhash", and for the largest keys, the other bits change some lists but not all.
        """
        return (key[0] & 0xFFFFFFFF,)

    def scored(self, texts: Texts, vocab_size: int) -> Mask:
        """Return which positions [N] are scored, with scores that differ between keys."""
        scored = super().scored(texts, vocab_size)
        if self.seeding_scheme == "lefthash":  # after id 0 the list is the same under every key
            scored[1:] &= texts.ids[:-1] != 0
        return scored

    def scores(
        self, ids: Ids, scored: Mask, keys: Keys, vocab_size: int, prepared: Any, threads: int
    ) -> NDArray[Any]:
        """Return x_j [N, K], also after id 0, which `scored` excludes."""
        green = self._green(vocab_size)
        scores = np.zeros((len(ids), len(keys)), np.float32)
        positions = np.flatnonzero(is_scored(ids, self.n_gram, vocab_size))
        if not len(positions):
            return scores
        # Each distinct context needs one green list, for the distinct tokens that follow it.
        n_grams = ids[positions[:, None] + np.arange(1 - self.n_gram, 1)]
        if self.seeding_scheme == "lefthash":
            pairs, pair = np.unique(n_grams[:, 0] * vocab_size + n_grams[:, 1], return_inverse=True)
            contexts, context, counts = np.unique(
                pairs // vocab_size, return_inverse=True, return_counts=True
            )
            # Contexts with most tokens first, so that lists that are made in parallel have similar lengths.
            falling = np.argsort(-counts, kind="stable")
            order = np.argsort(-counts[context], kind="stable")
            contexts, counts, tokens = contexts[falling], counts[falling], pairs[order] % vocab_size
            pair = np.argsort(order)[pair]
        else:
            contexts, pair = np.unique(n_grams, axis=0, return_inverse=True)
            counts, tokens = np.ones(len(contexts), np.int64), contexts[:, -1]
        offsets = np.append(0, np.cumsum(counts))
        tokens = np.ascontiguousarray(tokens, np.uint32)
        is_green = np.empty((len(tokens), len(keys)), np.uint8)
        for column, key in enumerate(keys[:, 0].tolist()):
            seeds = _left_seeds(key, contexts) if contexts.ndim == 1 else _self_seeds(key, contexts)
            is_green[:, column] = _green_tokens(seeds, offsets, tokens, vocab_size, green, threads)
        scores[positions] = is_green[pair.reshape(-1)]
        return scores


def _left_seeds(key: int, contexts: Ids) -> NDArray[np.uint32]:
    # The low 32 bits of key·id mod (2^64 - 1), because torch's generator on the CPU uses no others. The
    # product is high·2^64 + low, which is congruent to high + low. A sum of 2^64 - 1 is congruent to 0.
    ids = contexts.astype(np.uint64)
    shift, upper, lower = np.uint64(32), np.uint64(key >> 32) * ids, np.uint64(key & 0xFFFFFFFF) * ids
    low = (upper << shift) + lower
    high = (upper >> shift) + (low < lower)
    sums = low + high
    sums += sums < high
    return np.where(sums == np.uint64(0xFFFFFFFFFFFFFFFF), 0, sums & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def _self_seeds(key: int, n_grams: Ids) -> NDArray[np.uint32]:
    # The minimum of key·a·b as int64, with a and b the table entries of each id and of the last id.
    table = _hash_table(key & 0xFFFFFFFF)
    hashed = table[n_grams % len(table)].astype(np.int64) + 1
    with np.errstate(over="ignore"):
        seeds = (np.int64(key) * hashed * hashed[:, -1:]).min(axis=1)
    return np.asarray(np.where(seeds < 0, seeds - 1, seeds) & 0xFFFFFFFF, np.uint32)


@functools.lru_cache(maxsize=16)
def _hash_table(seed: int) -> NDArray[np.integer[Any]]:
    count = 1_000_003
    table = np.empty(count, np.uint32)
    compiled.torch_permute(count, seed, table.ctypes.data)
    return table


def _green_tokens(
    seeds: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    tokens: NDArray[np.uint32],
    vocab_size: int,
    green: int,
    threads: int,
) -> NDArray[np.uint8]:
    # Whether each token is in the green list of its seed; seeds[s] has the tokens [offsets[s], offsets[s +
    # 1]).
    is_green = np.empty(len(tokens), np.uint8)
    compiled.kgw_green(
        vocab_size,
        green,
        seeds.ctypes.data,
        len(seeds),
        offsets.ctypes.data,
        tokens.ctypes.data,
        is_green.ctypes.data,
        threads,
    )
    return is_green
