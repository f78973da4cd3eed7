"""Foreign marks in NumPy: slow, readable references that tests and fuzzer compare csrc/foreign with."""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iet.marks.foreign.synthid import synthid_hash, torch_words
from iet.marks.foreign.waterfall import waterfall_phi
from iet.native.reference import minus_log

# ---------------------------------------------------------------- scheme `waterfall`


def waterfall_permutation(key: int, context: tuple[int, ...], vocab_size: int) -> NDArray[np.uint32]:
    """Return the permutation p of [0, V) of the Waterfall package for integer id `key` after `context`.

        p = RandomState((key, *context)).permutation(V);    p is the identity if an id of context is >= V

    The rank of token v is p[v]. NumPy promises that the stream of `RandomState` never changes.
    """
    if any(id >= vocab_size for id in context):
        return np.arange(vocab_size, dtype=np.uint32)
    seed = [int(key), *(int(id) for id in context)]
    return np.random.RandomState(seed).permutation(vocab_size).astype(np.uint32)


def waterfall_scores(
    token_ids: NDArray[np.integer[Any]],
    n_gram: int,
    *,
    keys: NDArray[np.integer[Any]],
    k_p: int,
    vocab_size: int,
) -> NDArray[np.float64]:
    """Return x_j(a) = φ(p[y_j]) for every position and key: float64 [T, K].

    0 if fewer than n-1 ids precede, if y_j is not in [0, V) or if an id of the context is negative.
    """
    ids, phi = [int(id) for id in token_ids], waterfall_phi(vocab_size, k_p)
    tokens: dict[tuple[int, ...], list[int]] = {}  # context -> the positions after it
    for j in range(n_gram - 1, len(ids)):
        context = tuple(ids[j - n_gram + 1 : j])
        if 0 <= ids[j] < vocab_size and min(context) >= 0:
            tokens.setdefault(context, []).append(j)
    scores = np.zeros((len(ids), len(keys)))
    for context, positions in tokens.items():
        for column, key in enumerate(keys):
            p = waterfall_permutation(key, context, vocab_size)
            scores[positions, column] = phi[p[np.asarray(token_ids)[positions]]]
    return scores


# ---------------------------------------------------------------- schemes of serving engines


_U32 = np.uint64(0xFFFFFFFF)


def philox4x32(counter: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return Philox4x32-10 (Salmon et al., 2011) of words [4, ...] under keys [2, ...], 32 bits in each.

    ten times:  c = (hi(m1·c2) ^ c1 ^ k0,  lo(m1·c2),  hi(m0·c0) ^ c3 ^ k1,  lo(m0·c0));   k += w
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c2 = (product1 >> np.uint64(32)) ^ c1 ^ k0, (product0 >> np.uint64(32)) ^ c3 ^ k1
        c1, c3 = product1 & _U32, product0 & _U32
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & _U32, (k1 + np.uint64(0xBB67AE85)) & _U32
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3))


def vllm_hash(words: NDArray[np.uint32], key: int, stream: int = 0) -> NDArray[np.uint32]:
    """Return the 32 bits of vLLM's uniform numbers for n-grams [N, n] of ids, the token last.

        state = (0x574D4358, w, 0, 0), w = n - 1
        for every four words of the context:  state = philox(state ^ words, (k0 ^ 4·i, k1))
        h = word (v mod 4) of philox((v div 4, state[:3]), (k0 ^ state[3] ^ s1, k1 ^ 0x574D544B ^ s0))

    Missing words of the last four are 2^32 - 1 - i at index i, 0 to 3. s0 and s1 are the low and the high
    half of `stream`.
    """
    rows, width = len(words), words.shape[1] - 1
    context, token = words[:, :-1].T.astype(np.uint64), words[:, -1].astype(np.uint64)
    low, high = np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)
    state = np.zeros((4, rows), np.uint64)
    state[0], state[1] = 0x574D4358, width
    for offset in range(0, width, 4):
        block = np.repeat(0xFFFFFFFF - np.arange(4, dtype=np.uint64)[:, None], rows, axis=1)
        block[: min(4, width - offset)] = context[offset : offset + 4]
        state = philox4x32(state ^ block, np.array([low ^ np.uint64(offset), high]))
    key0 = low ^ state[3] ^ np.uint64(stream >> 32)
    key1 = np.broadcast_to(high ^ np.uint64(0x574D544B ^ stream & 0xFFFFFFFF), rows)
    values = philox4x32(np.stack([token >> np.uint64(2), *state[:3]]), np.stack([key0, key1]))
    return values[(token & np.uint64(3)).astype(np.int64), np.arange(rows)].astype(np.uint32)


def hmac_hash(words: NDArray[np.uint32], key: int) -> NDArray[np.uint32]:
    """Return the first 4 bytes, little-endian, of vLLM's HMAC-SHA256 for n-grams [N, n] of ids.

    The message is a label, the number of ids in the context as 4 bytes, and all ids as 8 bytes, signed.
    """
    key_bytes = key.to_bytes(32, "little")
    label = b"vllm-watermark-hmac-sha256-v1\0" + struct.pack("<I", words.shape[1] - 1)
    digests = [
        hmac.digest(key_bytes, label + row.astype("<i8").tobytes(), hashlib.sha256)
        for row in words.view(np.int32)
    ]
    return np.array([int.from_bytes(digest[:4], "little") for digest in digests], np.uint32)


def sbw_hash(ids: NDArray[np.uint32]) -> NDArray[np.int32]:
    """Return Bob Jenkins' integer hash of ids + 1; right shifts keep the sign."""
    x = (ids + np.uint32(1)).view(np.int32)
    x = x - (x << 6)
    x = x ^ (x >> 17)
    x = x - (x << 9)
    x = x ^ (x << 4)
    x = x - (x << 3)
    x = x ^ (x << 10)
    return x ^ (x >> 15)


def sbw_hash_words(words: NDArray[np.uint32], key: int, selfhash: bool) -> NDArray[np.uint32]:
    """Return twice the word of SBW, modulo 2^32, for n-grams [N, n] of ids.

    seed = key · sum of the context, or the least of key · h(id) · h(v) over all n ids, as int64
    word (v mod 4) of philox((v div 4, 0, 0, 0), the low and the high half of the seed)
    """
    token = words[:, -1].astype(np.uint64)
    if selfhash:
        hashed = sbw_hash(words).astype(np.int64)
        seeds = (np.int64(key) * hashed[:, -1:] * hashed).min(axis=1).view(np.uint64)
    else:
        seeds = np.uint64(key) * words[:, :-1].astype(np.uint64).sum(axis=1, dtype=np.uint64)
    counter = np.zeros((4, len(words)), np.uint64)
    counter[0] = token >> np.uint64(2)
    values = philox4x32(counter, np.stack([seeds & _U32, seeds >> np.uint64(32)]))
    return values[(token & np.uint64(3)).astype(np.int64), np.arange(len(words))].astype(
        np.uint32
    ) << np.uint32(1)


def murmur(words: Sequence[ArrayLike]) -> NDArray[np.uint32]:
    """Return MurmurHash3 (x86, 32 bits, seed 0) of some words, each a number or [N]: SGLang's hash."""

    def rotated(x: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
        return (x << np.uint64(bits) | x >> np.uint64(32 - bits)) & _U32

    state: NDArray[np.uint64] = np.zeros((), np.uint64)
    for word in words:
        value = (np.asarray(word).astype(np.uint64) * np.uint64(0xCC9E2D51)) & _U32
        value = (rotated(value, 15) * np.uint64(0x1B873593)) & _U32
        state = (rotated(state ^ value, 13) * np.uint64(5) + np.uint64(0xE6546B64)) & _U32
    state = state ^ np.uint64(4 * len(words))
    state = ((state ^ state >> np.uint64(16)) * np.uint64(0x85EBCA6B)) & _U32
    state = ((state ^ state >> np.uint64(13)) * np.uint64(0xC2B2AE35)) & _U32
    return (state ^ state >> np.uint64(16)).astype(np.uint32)


def sglang_hash(words: NDArray[np.uint32], key: int) -> NDArray[np.uint32]:
    """Return murmur(low and high half of the key, murmur(context), token) of n-grams [N, n]."""
    context = murmur(list(words[:, :-1].T))
    return murmur([key & 0xFFFFFFFF, key >> 32, context, words[:, -1]])


def torch_permutation(seed: int, count: int) -> NDArray[np.int64]:
    """Return torch.randperm(count) on the CPU, after manual_seed(seed).

    Step i of count - 1 swaps the places i and i + w_i mod (count - i), w the generator's words.
    """
    draws = torch_words(seed, max(0, count - 1)) % (count - np.arange(count - 1, dtype=np.uint64))
    permutation = np.arange(count)
    for i, draw in enumerate(draws.tolist()):
        permutation[i], permutation[i + draw] = permutation[i + draw], permutation[i]
    return permutation


def green_tokens(
    seeds: NDArray[np.uint32], tokens: NDArray[np.integer[Any]], vocab_size: int, green: int
) -> NDArray[np.bool_]:
    """Tell of each token [N] whether it is in the green list of its seed [N]: KGW.

    The list is the first `green` of torch.randperm(V) after manual_seed(seed).
    """
    values = np.zeros(len(tokens), np.bool_)
    for seed in np.unique(seeds).tolist():
        selected = seeds == seed
        values[selected] = np.isin(tokens[selected], torch_permutation(seed, vocab_size)[:green])
    return values


def synthid_g_values(
    words: NDArray[np.int64], keys: NDArray[np.uint64], table: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Return g-values [N, D] of n-grams [N, n] under the keys [D] of the depths.

    The hash goes on with the key of a depth, and its rest by the size of the table, a power of two, is looked
    up there.
    """
    h = (synthid_hash(words)[:, None] + keys) * np.uint64(6364136223846793005) + np.uint64(1)
    return table[(h & np.uint64(len(table) - 1)).astype(np.int64)]


HASHES: tuple[Callable[[NDArray[np.uint32], int], NDArray[np.uint32]], ...] = (
    vllm_hash,
    sglang_hash,
    hmac_hash,
    lambda words, key: sbw_hash_words(words, key, True),
    lambda words, key: sbw_hash_words(words, key, False),
)
"""By `EnginePrf` of csrc/foreign/schemes.h."""


def word_scores(
    prf: int, n_grams: NDArray[np.uint32], key: int, rule: int, limit: int, scale: float, offset: float
) -> NDArray[np.float32]:
    """Return the scores of n-grams [N, n] under `EngineRule` of csrc/foreign/schemes.h.

    0  -log(1 - u), u = ((h >> 8) + 1) / (2^24 + 1), as -log((2^24 - (h >> 8)) / 2^24), which is the same
       but for less than 1.2e-7: vLLM rounds u to float32
    1  -log(1 - u), u = (h + 1/2) / 2^32
    2  whether h < limit
    3  scale times the ones among the first `limit` bits of SynthID's streams, plus offset
    """
    if rule == 3:
        ones = np.zeros(len(n_grams), np.float32)
        for depth in range(limit):
            words = vllm_hash(n_grams, key, 0x53594E54 << 32 | depth // 32)
            ones += (words >> np.uint32(depth % 32) & np.uint32(1)).astype(np.float32)
        return ones * np.float32(scale) + np.float32(offset)
    h = HASHES[prf](n_grams, key)
    if rule == 2:
        return (h < limit).astype(np.float32)
    if rule == 1:
        return minus_log(((~h).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32))
    remaining = (np.uint32(1 << 24) - (h >> np.uint32(8))).astype(np.float32)
    return minus_log(remaining * np.float32(2.0**-24))


def engine_scores(
    prf: int,
    rule: tuple[int, int, float, float],
    words: NDArray[np.uint32],
    n_gram: int,
    scored: NDArray[np.bool_],
    keys: Sequence[int],
) -> NDArray[np.float32]:
    """Return x_j [N, K] of marks that depend on a word of key, context and token, 0 where not `scored`.

    Args:
        prf: index into `HASHES`.
        rule: code, limit, scale and offset, see `word_scores`.
        words: n - 1 ids before the text, and its N ids.
        n_gram: n.
        scored: bool [N].
        keys: [K].
    """
    scores = np.zeros((len(scored), len(keys)), np.float32)
    if not scored.any():  # there may be fewer than n words
        return scores
    n_grams = np.lib.stride_tricks.sliding_window_view(words, n_gram)[scored]
    with np.errstate(over="ignore"):
        for column, key in enumerate(keys):
            scores[scored, column] = word_scores(prf, n_grams, key, *rule)
    return scores


def key_numbers(keys: NDArray[np.uint64]) -> list[int]:
    """Return keys [K, W] of 64-bit words, the lowest first, as K integers."""
    return [sum(int(word) << 64 * place for place, word in enumerate(row)) for row in keys]


def synthid_scores(
    ids: NDArray[np.int64],
    n_gram: int,
    scored: NDArray[np.bool_],
    keys: NDArray[np.uint64],
    table: NDArray[np.uint8],
    weights: NDArray[np.int64],
    scale: float,
    offset: float,
) -> NDArray[np.float32]:
    """Return x_j [N, K] of SynthID, 0 where not `scored`: `scale` times weighted g-values, plus `offset`."""
    scores = np.zeros((len(ids), len(keys)), np.float32)
    n_grams = ids[np.flatnonzero(scored)[:, None] + np.arange(1 - n_gram, 1)]
    for column, key in enumerate(keys):
        sums = synthid_g_values(n_grams, key, table) @ weights
        scores[scored, column] = sums.astype(np.float32) * np.float32(scale) + np.float32(offset)
    return scores
