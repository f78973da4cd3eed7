"""Marks of serving engines, read number for number: docs/engines.md has the equations and their sources.

    vllm-gumbel     vLLM's keyed Gumbel-max: Philox4x32-10 of (key, context, token)
    sglang-gumbel   SGLang's keyed Gumbel-max: MurmurHash3 of (key, context, token)
    kgw             the green lists of transformers' WatermarkingConfig
    synthid         the g-values of transformers' SynthIDTextWatermarkingConfig

Each is an entry of `SCHEMES`: its parameters, what a key is, its score and its null law. `EngineKeys` puts
agents under keys of one of them. Keys are secrets here: no repr, message or report shows one.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError, RegistryError
from iet.marks.files import read_private
from iet.marks.foreign.keys import ForeignKeys, ForeignProfile, Ids, checked_integer, runs_of_ids
from iet.marks.keys import checked_name
from iet.marks.scheme import FAMILIES, MAX_VOCAB_SIZE, Draws, Family, canonical_digest, drawn_family
from iet.marks.tokenizer import Tokenizer
from iet.native import reference
from iet.native.load import cpu

Keys = NDArray[np.uint64]
Mask = NDArray[np.bool_]

MAX_CONTEXT = 64
"""Ids in a context: SGLang's limit, and ours."""

MAX_DEPTH = 100
"""Keys of one agent under SynthID, one for each depth."""

_TABLES = 1 << 26  # bytes of SynthID's tables that keys hold on to


@dataclasses.dataclass(frozen=True, eq=False)
class Texts:
    """Texts that stand one behind the other, as many -1 before each as a context has, so that none crosses.

    Attributes:
        ids: int64 [N].
        starts, ends: int64 [D], the ids `[start, end)` of each text.
    """

    ids: Ids
    starts: Ids
    ends: Ids

    @classmethod
    def of(cls, texts: Sequence[Ids], n_gram: int) -> Texts:
        """Join the ids [T_d] of D texts."""
        gap = np.full(max(1, n_gram - 1), -1)
        lengths = np.array([len(text) for text in texts], np.int64)
        ends = np.cumsum(lengths + len(gap))
        return cls(np.concatenate([part for text in texts for part in (gap, text)]), ends - lengths, ends)

    @property
    def between(self) -> Mask:
        """What is of no text, [N]."""
        between = np.ones(len(self.ids), np.bool_)
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            between[start:end] = False
        return between


@dataclasses.dataclass(frozen=True)
class EngineScheme(abc.ABC):
    """The choices behind an engine's mark that a reader must know.

    Attributes:
        n_gram: n: a score depends on a token and the n-1 ids before it.
    """

    n_gram: int = 0
    version: int = dataclasses.field(default=1, kw_only=True)

    name: ClassVar[str]

    @abc.abstractmethod
    def family(self, vocab_size: int) -> Family:
        """Return the null law of the scores."""

    @abc.abstractmethod
    def checked_key(self, what: str, key: Any) -> tuple[int, ...]:
        """Return a key as numbers, or raise an InputError that does not show it."""

    @abc.abstractmethod
    def scores(
        self, ids: Ids, scored: Mask, keys: Keys, vocab_size: int, prepared: Any, threads: int
    ) -> NDArray[Any]:
        """Return x_j [N, K] of joined texts, of which `scored` says what is scored."""

    def prepare(self, keys: Keys) -> Any:
        """Return what a text does not change and is worth keeping, an array [..., K], or None."""
        return None

    def is_list(self, key: Any) -> bool:
        """Tell whether this is a list of keys, not a key."""
        return isinstance(key, (list, tuple, np.ndarray))

    def scored(self, texts: Texts, vocab_size: int) -> Mask:
        """Tell which positions are scored, and not alike under every key, [N]."""
        return runs_of_ids(texts.ids, self.n_gram, vocab_size)

    def pair_numbers(self, texts: Texts, counting: Mask) -> tuple[Ids, Mask]:
        """Number the positions of each text that are `counting`: the same number, no new evidence.

        Returns:
            Numbers [N] from 0 in the order of first occurrence, else -1; which of them stood before [N].
        """
        from iet.native.pairs import number_pairs_of  # here, because it imports numba

        return number_pairs_of(texts.ids, counting, texts.starts, texts.ends, self.n_gram)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"name": self.name, **dataclasses.asdict(self)}

    def __str__(self) -> str:
        values = {k: v for k, v in dataclasses.asdict(self).items() if k not in ("n_gram", "version")}
        return f"{self.name}, n {self.n_gram}" + "".join(f", {k} {v}" for k, v in values.items())


# ---------------------------------------------------------------- keyed Gumbel-max


@dataclasses.dataclass(frozen=True)
class _Gumbel(EngineScheme):
    # x = -log(1 - u), u a uniform number hashed from key, context and token; Exp(1) without a mark.
    n_gram: int = 5

    prf: ClassVar[int]  # of csrc/ops.h
    padded: ClassVar[bool]  # the first n-1 tokens have a context, which is filled up with -1

    @staticmethod
    @abc.abstractmethod
    def score(words: NDArray[np.uint32], key: int) -> NDArray[np.float32]:
        """Return the scores of n-grams [N, n]."""

    def __post_init__(self) -> None:
        checked_integer("n_gram", self.n_gram, 2, MAX_CONTEXT + 1)

    def family(self, vocab_size: int) -> Family:
        """Return the null law of the scores."""
        return FAMILIES["gumbel"]

    def scored(self, texts: Texts, vocab_size: int) -> Mask:
        """Tell which positions are scored, and not alike under every key, [N]."""
        if not self.padded:
            return super().scored(texts, vocab_size)
        between = texts.between
        return runs_of_ids(np.where(between, 0, texts.ids), self.n_gram, vocab_size) & ~between

    def pair_numbers(self, texts: Texts, counting: Mask) -> tuple[Ids, Mask]:
        """Number the positions of each text that are `counting`: the same number, no new evidence."""
        # Engines mark the first token after a context only, and their detectors count no other. A context may
        # begin before the text.
        from iet.native.pairs import number_pairs_of

        filled = np.where(texts.between, MAX_VOCAB_SIZE, texts.ids)
        starts = texts.starts - (self.n_gram - 1)
        return number_pairs_of(filled, counting, starts, texts.ends, self.n_gram, contexts=True)

    def scores(
        self, ids: Ids, scored: Mask, keys: Keys, vocab_size: int, prepared: Any, threads: int
    ) -> NDArray[Any]:
        """Return x_j [T, K]."""
        # -1 becomes 2^32 - 1, as in vLLM.
        words = np.concatenate([np.full(self.n_gram - 1, -1), ids]).astype(np.uint32)
        if cpu is not None:
            scores = np.empty((len(ids), len(keys)), np.float32)
            cpu.engine_gumbel(
                self.prf,
                words.ctypes.data,
                self.n_gram - 1,
                scored.ctypes.data,
                len(ids),
                keys.ctypes.data,
                len(keys),
                scores.ctypes.data,
                threads,
            )
            return scores
        scores = np.zeros((len(ids), len(keys)), np.float32)
        if scored.any():
            n_grams = np.lib.stride_tricks.sliding_window_view(words, self.n_gram)[scored]
            for column, key in enumerate(keys.tolist()):
                scores[scored, column] = self.score(n_grams, key)
        return scores


@dataclasses.dataclass(frozen=True)
class VllmGumbel(_Gumbel):
    """vLLM's `algorithm: gumbel`; of `dual_key_gumbel` each half, see `vllm_dual_keys`.

    Attributes:
        n_gram: vLLM's `context_width` + 1, 2 to 65.
        version: of this reading of the engine.
    """

    name = "vllm-gumbel"
    prf, padded = 0, True
    score = staticmethod(reference.vllm_score)

    def checked_key(self, what: str, key: Any) -> tuple[int, ...]:
        """Return a key as numbers, or raise an InputError that does not show it."""
        return (checked_integer(what, key, 0, (1 << 64) - 1, secret=True),)


@dataclasses.dataclass(frozen=True)
class SglangGumbel(_Gumbel):
    """SGLang's `watermark`.

    Attributes:
        n_gram: SGLang's `context_window` + 1, 2 to 65.
        version: of this reading of the engine.
    """

    name = "sglang-gumbel"
    prf, padded = 1, False
    score = staticmethod(reference.sglang_score)

    def checked_key(self, what: str, key: Any) -> tuple[int, ...]:
        """Return a key as numbers, or raise an InputError that does not show it."""
        digits = key[2:] if isinstance(key, str) and key[:2].lower() == "0x" else key
        if (
            not isinstance(digits, str)
            or not 1 <= len(digits) <= 16
            or not set(digits) <= set("0123456789abcdefABCDEF")
        ):
            got = f"a {type(key).__name__}" if not isinstance(key, str) else "another str"
            raise InputError(f"{what}: got {got}, expected a str of 1 to 16 hex digits")
        return (int(digits, 16),)


def vllm_dual_keys(key: int) -> list[int]:
    """Return the two keys of vLLM's `dual_key_gumbel`: A, of most tokens, and B, of a share alpha of them.

        SHA-256(label + key as 8 bytes, big-endian), the first 8 bytes, labels "key_a" and "key_b"

    Give an agent both: `EngineKeys("vllm-gumbel", {"planner": vllm_dual_keys(key)})`. Of their columns of
    scores vLLM's detector takes the mean with weights 1 - alpha and alpha.

    Args:
        key: 0 to 2^64 - 1.

    Raises:
        InputError: it is none.
    """
    data = checked_integer("key", key, 0, (1 << 64) - 1, secret=True).to_bytes(8, "big")
    return [int.from_bytes(hashlib.sha256(part + data).digest()[:8], "big") for part in (b"key_a", b"key_b")]


# ---------------------------------------------------------------- KGW


@dataclasses.dataclass(frozen=True)
class Kgw(EngineScheme):
    """The green lists of transformers' `WatermarkingConfig`, made on the CPU.

    Attributes:
        n_gram: with "lefthash" 2, whatever `context_width`: the seed depends on the last id alone. With
            "selfhash" `context_width`, 1 to 16: the token itself is one of the ids that are hashed.
        greenlist_ratio: γ, above 0 and below 1.
        seeding_scheme: "lefthash" or "selfhash".
        version: of this reading of the engine.
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
        ratio = self.greenlist_ratio
        if not isinstance(ratio, (int, float)) or not 0 < ratio < 1:
            raise InputError(f"greenlist_ratio: got {ratio!r:.80}, expected a number between 0 and 1")

    def _green(self, vocab_size: int) -> int:
        green = int(vocab_size * self.greenlist_ratio)
        if not 0 < green < vocab_size:
            raise InputError(
                f"greenlist_ratio: got {self.greenlist_ratio}, which makes {green} of {vocab_size} ids green;"
                " expected some, and not all"
            )
        return green

    def family(self, vocab_size: int) -> Family:
        """Return the null law of the scores."""
        return drawn_family("kgw", Draws((1,), self._green(vocab_size) / vocab_size, 0.0, 1.0))

    def checked_key(self, what: str, key: Any) -> tuple[int, ...]:
        """Return a key as numbers, or raise an InputError that does not show it."""
        return (checked_integer(what, key, 1, (1 << 63) - 1, secret=True),)

    def scored(self, texts: Texts, vocab_size: int) -> Mask:
        """Tell which positions are scored, and not alike under every key, [N]."""
        scored = super().scored(texts, vocab_size)
        if self.seeding_scheme == "lefthash":  # after id 0 the list is the same under every key
            scored[1:] &= texts.ids[:-1] != 0
        return scored

    def scores(
        self, ids: Ids, scored: Mask, keys: Keys, vocab_size: int, prepared: Any, threads: int
    ) -> NDArray[Any]:
        """Return x_j [T, K], also after id 0, where `scored` is false."""
        green = self._green(vocab_size)
        scores = np.zeros((len(ids), len(keys)), np.float32)
        where = np.flatnonzero(runs_of_ids(ids, self.n_gram, vocab_size))
        if not len(where):
            return scores
        # A list is made once for each distinct context, for each of the distinct tokens after it.
        n_grams = ids[where[:, None] + np.arange(1 - self.n_gram, 1)]
        if self.seeding_scheme == "lefthash":
            pairs, pair = np.unique(n_grams[:, 0] * vocab_size + n_grams[:, 1], return_inverse=True)
            contexts, context, counts = np.unique(
                pairs // vocab_size, return_inverse=True, return_counts=True
            )
            # Those with most tokens first: lists that are made side by side then have as many to find.
            falling = np.argsort(-counts, kind="stable")
            order = np.argsort(-counts[context], kind="stable")
            contexts, counts, tokens = contexts[falling], counts[falling], pairs[order] % vocab_size
            pair = np.argsort(order)[pair]
        else:
            contexts, pair = np.unique(n_grams, axis=0, return_inverse=True)
            counts, tokens = np.ones(len(contexts), np.int64), contexts[:, -1]
        offsets = np.append(0, np.cumsum(counts))
        tokens = np.ascontiguousarray(tokens, np.uint32)
        found = np.empty((len(tokens), len(keys)), np.uint8)
        for column, key in enumerate(keys.tolist()):
            seeds = _left_seeds(key, contexts) if contexts.ndim == 1 else _self_seeds(key, contexts)
            found[:, column] = _green_tokens(seeds, offsets, tokens, vocab_size, green, threads)
        scores[where] = found[pair.reshape(-1)]
        return scores


def _left_seeds(key: int, contexts: Ids) -> NDArray[np.uint32]:
    # key·id mod (2^64 - 1), of which torch's generator on the CPU takes the low 32 bits. The product is
    # high·2^64 + low, which leaves the same as high + low; if that is all bits set, it leaves 0.
    ids = contexts.astype(np.uint64)
    shift, upper, lower = np.uint64(32), np.uint64(key >> 32) * ids, np.uint64(key & 0xFFFFFFFF) * ids
    low = (upper << shift) + lower
    high = (upper >> shift) + (low < lower)
    sums = low + high
    sums += sums < high
    return np.where(sums == np.uint64(0xFFFFFFFFFFFFFFFF), 0, sums & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def _self_seeds(key: int, n_grams: Ids) -> NDArray[np.uint32]:
    # The least of key·a·b as int64, a and b what a table makes of each id and of the last, then the same.
    table = _hash_table(key & 0xFFFFFFFF)
    hashed = table[n_grams % len(table)].astype(np.int64) + 1
    with np.errstate(over="ignore"):
        seeds = (np.int64(key) * hashed * hashed[:, -1:]).min(axis=1)
    return np.asarray(np.where(seeds < 0, seeds - 1, seeds) & 0xFFFFFFFF, np.uint32)


@functools.lru_cache(maxsize=16)
def _hash_table(seed: int) -> NDArray[np.integer[Any]]:
    count = 1_000_003
    if cpu is None:
        return reference.torch_permutation(seed, count)
    table = np.empty(count, np.uint32)
    cpu.torch_permute(count, seed, table.ctypes.data)
    return table


def _green_tokens(
    seeds: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    tokens: NDArray[np.uint32],
    vocab_size: int,
    green: int,
    threads: int,
) -> NDArray[np.uint8]:
    # Whether each token is in the green list of its seed; those of seeds[s] are [offsets[s], offsets[s + 1]).
    if cpu is None:
        each = np.repeat(seeds, np.diff(offsets))
        return reference.green_tokens(each, tokens, vocab_size, green).astype(np.uint8)
    found = np.empty(len(tokens), np.uint8)
    cpu.kgw_green(
        vocab_size,
        green,
        seeds.ctypes.data,
        len(seeds),
        offsets.ctypes.data,
        tokens.ctypes.data,
        found.ctypes.data,
        threads,
    )
    return found


# ---------------------------------------------------------------- SynthID


@dataclasses.dataclass(frozen=True)
class SynthId(EngineScheme):
    """The g-values of transformers' `SynthIDTextWatermarkingConfig`, standardised and summed over depth.

        x = Σ_d w_d·(g_d - 1/2) / (1/2·√Σ w_d²)

    So the mean g-value of a text is 1/2 + x̄ / (2·√D), with equal weights.

    Attributes:
        n_gram: `ngram_len`, 2 to 16.
        sampling_table_size: a power of two from 2 to 2^24.
        sampling_table_seed: 0 to 2^32 - 1.
        weighted: w_d falls from 10 to 1 over the D depths, as in the paper's weighted mean; else it is 1.
        depth: D, keys of an agent, 1 to 100. Default: as many as the first agent has.
        version: of this reading of the engine.
    """

    n_gram: int = 5
    sampling_table_size: int = 1 << 16
    sampling_table_seed: int = 0
    weighted: bool = False
    depth: int = 30

    name = "synthid"

    def __post_init__(self) -> None:
        checked_integer("n_gram", self.n_gram, 2, 16)
        size = checked_integer("sampling_table_size", self.sampling_table_size, 2, 1 << 24)
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

    def family(self, vocab_size: int) -> Family:
        """Return the null law of the scores."""
        return drawn_family("synthid", _draws(self))

    def checked_key(self, what: str, key: Any) -> tuple[int, ...]:
        """Return a key as numbers, or raise an InputError that does not show it."""
        if not isinstance(key, (list, tuple, np.ndarray)) or len(key) != self.depth:
            got = f"{len(key)} of them" if isinstance(key, (list, tuple)) else f"a {type(key).__name__}"
            raise InputError(f"{what}: got {got}, expected a list of {self.depth} integers (depth)")
        return tuple(checked_integer(what, number, 0, (1 << 63) - 1, secret=True) for number in key)

    def is_list(self, key: Any) -> bool:
        """Tell whether this is a list of keys, not a key."""
        return super().is_list(key) and len(key) > 0 and super().is_list(key[0])

    def pair_numbers(self, texts: Texts, counting: Mask) -> tuple[Ids, Mask]:
        """Number the positions of each text that are `counting`: the same number, no new evidence."""
        # No new evidence is what follows a context that stood before, which the engine leaves unmarked, and
        # an n-gram with the hash of an earlier one: its g-values are the same under every key.
        from iet.native.pairs import merged_numbers_of, number_pairs_of

        where = texts.starts, texts.ends
        hashes = np.zeros(len(texts.ids), np.int64)
        if len(hashes) >= self.n_gram:
            n_grams = np.lib.stride_tricks.sliding_window_view(texts.ids, self.n_gram)
            hashed = reference.synthid_hash(n_grams) & np.uint64(self.sampling_table_size - 1)
            hashes[self.n_gram - 1 :] = hashed
        contexts, _ = number_pairs_of(texts.ids, counting, *where, self.n_gram, contexts=True)
        return merged_numbers_of(contexts, number_pairs_of(hashes, counting, *where, 1)[0], *where)

    def prepare(self, keys: Keys) -> Any:
        """Return what a text does not change and is worth keeping, an array [..., K], or None."""
        size = self.sampling_table_size
        if cpu is None or size > 1 << 16 or self._entry.itemsize * size * len(keys) > _TABLES:
            return None
        return self._tables(keys, 0)

    @property
    def _entry(self) -> np.dtype[Any]:
        return np.dtype(np.uint8 if self._weights.sum() < 1 << 8 else np.uint16)

    def _tables(self, keys: Keys, threads: int) -> NDArray[Any]:
        size = self.sampling_table_size
        # h goes to (h + k)·M + 1, so g is looked up in a table in that order: one rotation for each depth.
        order = np.arange(size, dtype=np.uint64) * np.uint64(6364136223846793005) + np.uint64(1)
        g = _sampling_table(size, self.sampling_table_seed)[(order & np.uint64(size - 1)).astype(np.int64)]
        twice, weights = np.tile(g * np.uint8(255), 2), self._weights.astype(np.uint32)
        low = np.ascontiguousarray(keys & np.uint64(size - 1), np.uint32)
        tables = np.empty((size, len(keys)), self._entry)
        assert cpu is not None
        cpu.synthid_tables(
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
        """Return x_j [T, K]."""
        draws = _draws(self)
        if cpu is None or self.sampling_table_size > 1 << 16:
            table = _sampling_table(self.sampling_table_size, self.sampling_table_seed)
            places = np.flatnonzero(scored)
            n_grams = ids[places[:, None] + np.arange(1 - self.n_gram, 1)]
            scores = np.zeros((len(ids), len(keys)), np.float32)
            for column, key in enumerate(keys):
                sums = reference.synthid_g_values(n_grams, key, table) @ self._weights
                scores[places, column] = sums.astype(np.float32) * np.float32(draws.step) + np.float32(
                    draws.low
                )
            return scores
        scores = np.empty((len(ids), len(keys)), np.float32)
        words = ids.astype(np.uint32)  # of which only what `scored` checks is read
        block = max(1, len(keys)) if prepared is not None else 256
        for first in range(0, len(keys), block):
            tables = self._tables(keys[first : first + block], threads) if prepared is None else prepared
            part = scores if block >= len(keys) else np.empty((len(ids), tables.shape[1]), np.float32)
            cpu.synthid_scores(
                self.sampling_table_size.bit_length() - 1,
                tables.itemsize > 1,
                tables.ctypes.data,
                tables.strides[0] // tables.itemsize,
                tables.shape[1],
                self.n_gram,
                words.ctypes.data,
                scored.ctypes.data,
                len(ids),
                draws.step,
                draws.low,
                part.ctypes.data,
                threads,
            )
            if part is not scores:
                scores[:, first : first + block] = part
        return scores


@functools.lru_cache(maxsize=16)
def _draws(scheme: SynthId) -> Draws:
    # The share of ones in the table is the chance of a 1, and not quite 1/2.
    weights = scheme._weights
    norm = math.sqrt(float((weights.astype(np.float64) ** 2).sum()))
    ones = float(_sampling_table(scheme.sampling_table_size, scheme.sampling_table_seed).mean())
    return Draws(tuple(weights.tolist()), ones, -float(weights.sum()) / norm, 2 / norm)


@functools.lru_cache(maxsize=4)
def _sampling_table(size: int, seed: int) -> NDArray[np.uint8]:
    return reference.synthid_table(size, seed)


SCHEMES: Mapping[str, type[EngineScheme]] = {
    scheme.name: scheme for scheme in (VllmGumbel, SglangGumbel, Kgw, SynthId)
}
"""Name -> what is read, with the defaults of its parameters."""


# ---------------------------------------------------------------- agents


class EngineKeys(ForeignKeys):
    """Agents under the keys that a serving engine marked their text with.

    It gives an `Auditor` and `score_tokens` what a `Registry` gives, and never changes.

    >>> keys = EngineKeys("vllm-gumbel", {"planner": 42, "critic": 43})
    >>> keys
    EngineKeys(2 agents: planner, critic; vllm-gumbel, n 5, V 16777216)

    Args:
        scheme: a key of `iet.marks.foreign.engines.SCHEMES`.
        keys: agent -> key, or a list of keys of one agent. Of "vllm-gumbel" an integer from 0 to 2^64 - 1, of
            "sglang-gumbel" a str of 1 to 16 hex digits, of "kgw" the `hashing_key`, an integer from 1 to
            2^63 - 1, of "synthid" a list of `depth` integers from 0 to 2^63 - 1.
        tokenizer: anything that `iet.marks.tokenizer.Tokenizer` takes. None: only token ids can be audited.
        vocab_size: V, 2 to 2^24. Of "kgw" that of the model's config, on which its lists depend, and needed;
            of the others only a limit of what is scored. Default: that of the tokenizer with added tokens,
            else 2^24.
        **parameters: of the scheme, see its class there: n_gram, of "kgw" greenlist_ratio and seeding_scheme,
            of "synthid" depth, sampling_table_size, sampling_table_seed and weighted.

    Raises:
        InputError: no agents, two of them with one key, an unknown scheme or parameter, or a value out of
            range.
        TokenizerMismatch: no tokenizer can be read there.
    """

    def __init__(
        self,
        scheme: str,
        keys: Mapping[str, Any],
        *,
        tokenizer: Any = None,
        vocab_size: int | None = None,
        **parameters: Any,
    ) -> None:
        self.scheme = _scheme(scheme, parameters, keys)
        if not isinstance(keys, Mapping) or not keys:
            got = "no agents" if isinstance(keys, Mapping) else f"a {type(keys).__name__}"
            raise InputError(f"keys: got {got}, expected agents and their keys, {{'planner': ...}}")
        owned: dict[tuple[int, ...], str] = {}
        owners = []
        for place, (name, value) in enumerate(keys.items()):
            what = f"keys: key of {checked_name(name)!r}"
            several = value if self.scheme.is_list(value) else [value]
            if len(several) == 0:
                raise InputError(f"{what}: got an empty list, expected at least one")
            for key in several:
                numbers = self.scheme.checked_key(what, key)
                if numbers in owned:
                    raise InputError(f"{what}: got that of {owned[numbers]!r}, expected one of its own")
                owned[numbers] = name
                owners.append(place)
        opened = None if tokenizer is None else Tokenizer(tokenizer)
        if vocab_size is None:
            if self.scheme.name == "kgw":
                raise InputError(
                    "vocab_size: got none, expected that of the model's config: green lists depend on it"
                )
            vocab_size = (
                MAX_VOCAB_SIZE if opened is None else opened.backend.get_vocab_size(with_added_tokens=True)
            )
        vocab_size = checked_integer("vocab_size", vocab_size, 2, MAX_VOCAB_SIZE)
        self.names = tuple(keys)
        numbers_of = np.array(list(owned), dtype=np.uint64)
        self.keys = numbers_of if self.scheme.name == "synthid" else numbers_of[:, 0].copy()
        self.owners = np.array(owners, np.int32)
        for array in (self.keys, self.owners):
            array.setflags(write=False)
        self.profile = ForeignProfile(
            self.scheme,
            vocab_size,
            None if opened is None else opened.digest,
            None if opened is None else opened.source,
        )
        self.scheme.family(vocab_size)  # refuses what goes with no vocabulary of this size
        self._tokenizer = opened
        self._prepared: Any = None
        self._rebuild: functools.partial[EngineKeys] | None = None

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        scheme: str,
        *,
        tokenizer: Any = None,
        vocab_size: int | None = None,
        secret_mount: bool = False,
        **parameters: Any,
    ) -> EngineKeys:
        """Read the keys from a JSON file, {agent: key}, that only its owner may read.

        Args:
            path: the file, of mode 0600.
            scheme, tokenizer, vocab_size: as for `EngineKeys`.
            secret_mount: accept a read-only mount of any file mode.
            **parameters: as for `EngineKeys`.

        Raises:
            RegistryError: the file cannot be read, others may read it, or it is no JSON object of agents.
            InputError: as for `EngineKeys`.
            TokenizerMismatch: as for `EngineKeys`.
        """
        where = pathlib.Path(path).absolute()
        data = read_private(where, secret_mount)
        try:
            keys = json.loads(data.decode(), object_pairs_hook=_distinct)
        except (ValueError, RecursionError):
            keys = None
        if not isinstance(keys, dict):
            raise RegistryError(f"{where}: expected a JSON object of agents, each once, and their keys")
        found = cls(scheme, keys, tokenizer=tokenizer, vocab_size=vocab_size, **parameters)
        found._rebuild = functools.partial(
            cls.load,
            where,
            scheme,
            tokenizer=tokenizer,
            vocab_size=vocab_size,
            secret_mount=secret_mount,
            **parameters,
        )
        return found

    @property
    def digest(self) -> str:
        """BLAKE2b-256, in hex, of profile and names; of no key: a short one could be found from it."""
        return canonical_digest({"profile": self.profile.digest, "agents": list(self.names)})

    def scores(self, token_ids: Ids, num_threads: int) -> NDArray[np.float32]:
        """Return x_j [T, K] of `token_ids`: `score_tokens`, which checks them and `num_threads`, here."""
        texts = self._text(token_ids)
        scored = self.scheme.scored(texts, self.profile.vocab_size)
        return self._scores(texts, scored, num_threads)[texts.starts[0] :]

    def _text(self, token_ids: Ids) -> Texts:
        return Texts.of([token_ids], self.scheme.n_gram)

    def _scores(self, texts: Texts, scored: Mask, threads: int) -> NDArray[np.float32]:
        self._prepare()
        size = self.profile.vocab_size
        return self.scheme.scores(texts.ids, scored, self.keys, size, self._prepared, threads)

    def _prepare(self) -> None:
        if self._prepared is None:
            self._prepared = self.scheme.prepare(self.keys)

    def scored(self, token_ids: Ids) -> Mask:
        """Tell which positions are scored, and not alike under every key, [T]."""
        texts = self._text(token_ids)
        return self.scheme.scored(texts, self.profile.vocab_size)[texts.starts[0] :]

    def pair_numbers(self, token_ids: Ids, counting: Mask) -> Ids:
        """Number the positions of `token_ids` that are `counting` [T]: `kernels.pair_numbers` here."""
        texts = self._text(token_ids)
        start = int(texts.starts[0])
        counted = np.concatenate([np.zeros(start, np.bool_), counting])
        return self.scheme.pair_numbers(texts, counted)[0][start:]

    def read(self, texts: Texts, num_threads: int) -> tuple[Ids, Mask, NDArray[np.float32]]:
        """Read many texts at once.

        Args:
            texts: `Texts.of` this scheme's n.
            num_threads: as for `scores`.

        Returns:
            Of each text `pair_numbers` of what is scored, which of them stood before [N], `scores` [N, K];
            between texts -1, false and 0. Each as if the text stood by itself, to the bit.
        """
        scored = self.scheme.scored(texts, self.profile.vocab_size)
        return *self.scheme.pair_numbers(texts, scored), self._scores(texts, scored, num_threads)

    def subset(self, columns: slice | NDArray[np.int64]) -> EngineKeys:
        """Return the same with some of the keys; `owners` are still places in all the names."""
        if isinstance(columns, slice):
            self._prepare()
        some = super().subset(columns)
        some.keys = np.ascontiguousarray(some.keys)
        # A view, or none: making tables again is cheaper than copying columns.
        kept = self._prepared is not None and isinstance(columns, slice)
        some._prepared = self._prepared[..., columns] if kept else None
        some._rebuild = None
        return some

    def __copy__(self) -> EngineKeys:
        return self  # it never changes

    def __deepcopy__(self, memo: object) -> EngineKeys:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._rebuild is None:
            raise RegistryError(
                "EngineKeys hold keys and are not pickled; those of EngineKeys.load are, as path"
            )
        return self._rebuild, ()

    def __repr__(self) -> str:
        shown = ", ".join(itertools.islice(self.names, 20)) + (", ..." if len(self.names) > 20 else "")
        profile = self.profile
        return f"EngineKeys({len(self.names)} agents: {shown}; {profile.scheme}, V {profile.vocab_size})"


def _scheme(name: str, parameters: dict[str, Any], keys: Any) -> EngineScheme:
    if not isinstance(name, str) or name not in SCHEMES:
        raise InputError(f"scheme: got {name!r:.80}, expected one of {sorted(SCHEMES)}")
    kind = SCHEMES[name]
    known = [field.name for field in dataclasses.fields(kind) if field.name != "version"]
    for parameter in parameters:
        if parameter not in known:
            raise InputError(f"{parameter}: scheme {name!r} has no such parameter, expected some of {known}")
    given = {key: value for key, value in parameters.items() if value is not None}
    if kind is SynthId and isinstance(keys, Mapping) and keys:
        first = next(iter(keys.values()))
        while isinstance(first, (list, tuple)) and first and isinstance(first[0], (list, tuple)):
            first = first[0]
        given.setdefault("depth", len(first) if isinstance(first, (list, tuple)) else 1)
    return kind(**given)


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name twice")
    return found
