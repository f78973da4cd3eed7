"""Foreign marks in NumPy: slow, readable references that tests and fuzzer compare csrc/foreign with."""

from __future__ import annotations

from collections.abc import Sequence
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


def vllm_hash(words: NDArray[np.uint32], key: int) -> NDArray[np.uint32]:
    """Return the 32 bits of vLLM's uniform numbers for n-grams [N, n] of ids, the token last.

        state = (0x574D4358, w, 0, 0), w = n - 1
        for every four words of the context:  state = philox(state ^ words, (k0 ^ 4·i, k1))
        h = word (v mod 4) of philox((v div 4, state[:3]), (k0 ^ state[3], k1 ^ 0x574D544B))

    Missing words of the last four are 2^32 - 1 - i at index i, 0 to 3.
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
    key1 = np.broadcast_to(high ^ np.uint64(0x574D544B), rows)
    values = philox4x32(np.stack([token >> np.uint64(2), *state[:3]]), np.stack([low ^ state[3], key1]))
    return values[(token & np.uint64(3)).astype(np.int64), np.arange(rows)].astype(np.uint32)


def vllm_score(words: NDArray[np.uint32], key: int) -> NDArray[np.float32]:
    """Return -log(1 - u) of n-grams [N, n] under vLLM's u = ((h >> 8) + 1) / (2^24 + 1).

    As -log((2^24 - (h >> 8)) / 2^24), which is the same but for less than 1.2e-7: vLLM rounds u to float32.
    """
    remaining = (np.uint32(1 << 24) - (vllm_hash(words, key) >> np.uint32(8))).astype(np.float32)
    return minus_log(remaining * np.float32(2.0**-24))


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


def sglang_score(words: NDArray[np.uint32], key: int) -> NDArray[np.float32]:
    """Return -log(1 - u) of n-grams [N, n] under SGLang's u = (h + 1/2) / 2^32.

    h = murmur(low and high half of the key, murmur(context), token).
    """
    context = murmur(list(words[:, :-1].T))
    h = murmur([key & 0xFFFFFFFF, key >> 32, context, words[:, -1]])
    return minus_log(((~h).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32))


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


def gumbel_scores(
    prf: int, words: NDArray[np.uint32], n_gram: int, scored: NDArray[np.bool_], keys: Sequence[int]
) -> NDArray[np.float32]:
    """Return x_j [N, K] of keyed Gumbel-max, 0 where not `scored`.

    Args:
        prf: 0 for vLLM, 1 for SGLang.
        words: n - 1 ids before the text, and its N ids.
        n_gram: n.
        scored: bool [N].
        keys: [K].
    """
    score = (vllm_score, sglang_score)[prf]
    scores = np.zeros((len(scored), len(keys)), np.float32)
    if not scored.any():  # there may be fewer than n words
        return scores
    n_grams = np.lib.stride_tricks.sliding_window_view(words, n_gram)[scored]
    for column, key in enumerate(keys):
        scores[scored, column] = score(n_grams, key)
    return scores


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
