"""The g-values of transformers' `SynthIDTextWatermarkingConfig`."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError
from iet.marks.families import BernoulliSum, Family, sum_family
from iet.marks.foreign.keys import Ids, checked_integer
from iet.marks.foreign.scheme import EngineScheme, Keys, Mask
from iet.native.load import compiled
from iet.native.pairs import merged_numbers_of, number_pairs_of
from iet.native.texts import Texts

MAX_DEPTH = 100
"""Maximum number of keys of one agent, one for each depth."""

_TABLES = 1 << 26  # maximum bytes of cached tables


@dataclasses.dataclass(frozen=True)
class SynthId(EngineScheme):
    """The g-values of transformers' `SynthIDTextWatermarkingConfig`, standardised and summed over depth.

        x = Σ_d w_d·(g_d - 1/2) / (1/2·√Σ w_d²)

    So the mean g-value of a text is 1/2 + x̄ / (2·√D), with equal weights.

    Attributes:
        n_gram: `ngram_len`, 2 to 16.
        sampling_table_size: a power of two from 2 to 2^16.
        sampling_table_seed: 0 to 2^32 - 1.
        weighted: w_d falls from 10 to 1 over the D depths, as in the paper's weighted mean; else it is 1.
        depth: D, number of keys of an agent, 1 to 100. Default: that of the first agent.
        version: as in `EngineScheme`.
    """

    n_gram: int = 5
    sampling_table_size: int = 1 << 16
    sampling_table_seed: int = 0
    weighted: bool = False
    depth: int = 30

    name = "synthid"

    def __post_init__(self) -> None:
        checked_integer("n_gram", self.n_gram, 2, 16)
        size = checked_integer("sampling_table_size", self.sampling_table_size, 2, 1 << 16)
        if size & (size - 1):
            raise InputError(f"sampling_table_size: got {size}, expected a power of two")
        checked_integer("sampling_table_seed", self.sampling_table_seed, 0, (1 << 32) - 1)
        checked_integer("depth", self.depth, 1, MAX_DEPTH)
        if not isinstance(self.weighted, bool):
            raise InputError(f"weighted: got {self.weighted!r:.80}, expected True or False")

    @property
    def _weights(self) -> NDArray[np.int64]:
        # linspace(10, 1, D) in whole numbers, times D - 1
        last = self.depth - 1
        falling = self.weighted and last > 0
        weights = 10 * last - 9 * np.arange(self.depth) if falling else np.ones(self.depth)
        return weights.astype(np.int64)

    def law(self, vocab_size: int) -> Family:
        """Return the null distribution of the scores."""
        bits = _law(self)
        if not 0 < bits.chance < 1:
            raise InputError(
                f"sampling_table_seed: got {self.sampling_table_seed}, whose table of"
                f" {self.sampling_table_size} has {bits.chance:g} ones an entry; expected some, and not all"
            )
        return sum_family("synthid", bits)

    def checked_key(self, argument: str, key: Any) -> tuple[int, ...]:
        """Return a key as numbers, or raise an InputError that does not show it."""
        if not EngineScheme.is_list(key) or len(key) != self.depth:
            got = f"{len(key)} of them" if EngineScheme.is_list(key) else f"a {type(key).__name__}"
            raise InputError(f"{argument}: got {got}, expected a list of {self.depth} integers (depth)")
        return tuple(checked_integer(argument, number, 0, (1 << 63) - 1, secret=True) for number in key)

    def effective_key(self, key: tuple[int, ...]) -> tuple[int, ...]:
        """Return the numbers of a key modulo the table size, sorted if the weights are equal."""
        reduced = [number % self.sampling_table_size for number in key]
        return tuple(reduced if self.weighted else sorted(reduced))

    @staticmethod
    def is_list(key: Any) -> bool:
        """Return whether `key` is a list of keys instead of one key."""
        return EngineScheme.is_list(key) and len(key) > 0 and EngineScheme.is_list(key[0])

    def pair_numbers(self, texts: Texts, counting: Mask) -> tuple[Ids, Mask]:
        """Number the contexts and the hashes of n-grams; see `EngineScheme.pair_numbers`."""
        # The engine does not mark the token after a repeated context. An n-gram with the hash of an earlier
        # n-gram has the same g-values under every key. Neither adds evidence.
        bounds = texts.starts, texts.ends
        hashes = np.zeros(len(texts.ids), np.int64)
        if len(hashes) >= self.n_gram:
            n_grams = np.lib.stride_tricks.sliding_window_view(texts.ids, self.n_gram)
            hashed = synthid_hash(n_grams) & np.uint64(self.sampling_table_size - 1)
            hashes[self.n_gram - 1 :] = hashed
        contexts, _ = number_pairs_of(texts.ids, counting, *bounds, self.n_gram, contexts=True)
        return merged_numbers_of(contexts, number_pairs_of(hashes, counting, *bounds, 1)[0], *bounds)

    def prepare(self, keys: Keys) -> Any:
        """Return the weighted sums of g-values by hash and key, [H, K]; None if they need too much memory."""
        size = self.sampling_table_size
        if self._entry.itemsize * size * len(keys) > _TABLES:
            return None
        return self._tables(keys, 0)

    @property
    def _entry(self) -> np.dtype[Any]:
        return np.dtype(np.uint8 if self._weights.sum() < 1 << 8 else np.uint16)

    def _tables(self, keys: Keys, threads: int) -> NDArray[Any]:
        size = self.sampling_table_size
        # h maps to (h + k)·M + 1. With the table in that order, each depth is a rotation of it by k.
        order = np.arange(size, dtype=np.uint64) * np.uint64(6364136223846793005) + np.uint64(1)
        g = synthid_table(size, self.sampling_table_seed)[(order & np.uint64(size - 1)).astype(np.int64)]
        twice, weights = np.tile(g * np.uint8(255), 2), self._weights.astype(np.uint32)
        low = np.ascontiguousarray(keys & np.uint64(size - 1), np.uint32)
        tables = np.empty((size, len(keys)), self._entry)
        compiled.synthid_tables(
            size.bit_length() - 1,
            twice.ctypes.data,
            low.ctypes.data,
            len(keys),
            weights.ctypes.data,
            self.depth,
            tables.itemsize > 1,
            tables.ctypes.data,
            threads,
        )
        return tables

    def scores(
        self, ids: Ids, scored: Mask, keys: Keys, vocab_size: int, prepared: Any, threads: int
    ) -> NDArray[Any]:
        """Return x_j [N, K]."""
        bits = _law(self)
        scores = np.empty((len(ids), len(keys)), np.float32)
        words = ids.astype(np.uint32)  # the native loop reads scored positions only
        block = max(1, len(keys)) if prepared is not None else 256
        for first in range(0, len(keys), block):
            tables = self._tables(keys[first : first + block], threads) if prepared is None else prepared
            part = scores if block >= len(keys) else np.empty((len(ids), tables.shape[1]), np.float32)
            compiled.synthid_scores(
                self.sampling_table_size.bit_length() - 1,
                tables.itemsize > 1,
                tables.ctypes.data,
                tables.strides[0] // tables.itemsize,
                tables.shape[1],
                self.n_gram,
                words.ctypes.data,
                scored.ctypes.data,
                len(ids),
                bits.step,
                bits.low,
                part.ctypes.data,
                threads,
            )
            if part is not scores:
                scores[:, first : first + block] = part
        return scores


@functools.lru_cache(maxsize=16)
def _law(scheme: SynthId) -> BernoulliSum:
    # The probability of a 1 is the share of ones in the table, which is not exactly 1/2.
    weights = scheme._weights
    norm = math.sqrt(float((weights.astype(np.float64) ** 2).sum()))
    ones = float(synthid_table(scheme.sampling_table_size, scheme.sampling_table_seed).mean())
    return BernoulliSum(tuple(weights.tolist()), ones, -float(weights.sum()) / norm, 2 / norm)


def torch_words(seed: int, count: int) -> NDArray[np.uint64]:
    """Return the first 32-bit outputs of torch's generator on the CPU: MT19937, seeded with 32 bits."""
    state = np.random.RandomState(seed & 0xFFFFFFFF)
    return state.randint(0, 1 << 32, size=count, dtype=np.uint32).astype(np.uint64)


@functools.lru_cache(maxsize=4)
def synthid_table(size: int, seed: int) -> NDArray[np.uint8]:
    """Return SynthID's sampling table, torch.randint(0, 2, (size,)) after manual_seed(seed)."""
    return (torch_words(seed, size) & np.uint64(1)).astype(np.uint8)


def synthid_hash(words: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the hash of n-grams [N, n]: h = 1, then h = (h + id)·6364136223846793005 + 1 mod 2^64."""
    h = np.ones(len(words), np.uint64)
    for word in words.T:
        h = (h + word.astype(np.uint64)) * np.uint64(6364136223846793005) + np.uint64(1)
    return h
