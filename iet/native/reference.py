"""The readable twin of `csrc/keyed.h` and of every op: NumPy, slow, the oracle of all tests.

The scheme in five steps (§ Keyed Implicit Embedding; docs/internals/scheme.md is the specification):

    seed     k_π = h_π(a, c)  SipHash-2-4 of the n-1 context ids under the agent's 128-bit sub-key
    permute  P(k_π, v)        a four-round Feistel bijection of [0, V), computed for one v in O(1)
    phase    φ(r)             cos(2π·k_p·r/V) from a 32-bit phase
    mark     logits[v] += κ·φ(P(v))
    score    x_j(a) = φ(P(y_j))

Family gumbel takes a hash of (k_π, v) in place of steps 2 and 3 (`uniform`), adds -log(-log u) and scores
-log(1 - u).

The permutation passes 1276 tests of at least 10^7 draws each (benchmarks/notes/answered.md). Known
weakness: ids close together in one row of the grid meet in their high digit with probability 1/a after round
two, so a k_p near a multiple of a (of V/b, exactly) leaves them correlated, by at most 0.012 over all k_p.
Ids further apart, and the default k_p = 1, show nothing. A fifth round removes it, at a cost that its effect
on a reader, who sees one id per seed, does not justify.

Nothing here imports what it judges: no native module, no registry.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iet.native.marking import GUMBEL, KernelParams
from iet.native.siphash import sip_hash

_U16 = np.uint64(0xFFFF)  # all integer steps run in uint64 and are cut to their width by a mask

# ---------------------------------------------------------------- seed


def context_seed(subkeys: ArrayLike, contexts: ArrayLike, counts: ArrayLike = 0) -> NDArray[np.uint64]:
    """Return k_π = h_π(a, c) of Eq. (waterfall_keys): SipHash-2-4 of the context under the sub-key.

    Args:
        subkeys: uint8 [..., 16].
        contexts: ids [..., n-1] in [0, 2^32), oldest first; hashed as little-endian u32.
        counts: integers [...], the number of earlier occurrences of each context in its sequence (family
            `gumbel`, version 2); if above 0, three bytes after the ids, little-endian, mod 2^24.

    Returns:
        uint64 [...], the broadcast of all.
    """
    keys = np.ascontiguousarray(subkeys, dtype=np.uint8).view("<u8").astype(np.uint64)
    ids = np.asarray(contexts).astype(np.uint64)
    context_len = ids.shape[-1]
    # Blocks of two ids; the last one carries the length in bytes in its top byte.
    padded = np.zeros((*ids.shape[:-1], 2 * (context_len // 2 + 1)), dtype=np.uint64)
    padded[..., :context_len] = ids
    padded[..., -1] |= np.uint64(context_len * 4 << 24)
    blocks = padded[..., 0::2] | padded[..., 1::2] << np.uint64(32)
    # Three more bytes fit into the last block, after its last id.
    times = np.asarray(counts).astype(np.uint64)
    suffix = (times & np.uint64(0xFFFFFF)) << np.uint64(32 * (context_len % 2)) | np.uint64(3 << 56)
    last = blocks[..., -1] | np.where(times > 0, suffix, np.uint64(0))

    return sip_hash(keys[..., 0], keys[..., 1], (*np.moveaxis(blocks[..., :-1], -1, 0), last))


# ---------------------------------------------------------------- permute


@functools.lru_cache
def grid(vocab_size: int) -> tuple[int, int]:
    """Return (a, b), the grid on which [0, V) is permuted: b a multiple of 8 near √V, a = ⌈V/b⌉.

    Of the b in [0.8 √V, 1.25 √V] the one is taken that minimises (a·b - V, |b - ⌈√V⌉|, b).
    """
    s = math.isqrt(vocab_size - 1) + 1

    def ceil8(x: int) -> int:
        return (x + 7) // 8 * 8

    candidates = range(max(8, ceil8(s * 8 // 10)), max(8, ceil8(s * 5 // 4)) + 1, 8)
    b = min(candidates, key=lambda b: (-(-vocab_size // b) * b - vocab_size, abs(b - s), b))
    return -(-vocab_size // b), b


def _bmix(x: Any, k: Any, m: int) -> Any:
    h = (x * np.uint64(0x9E37) + k) & _U16
    h ^= h >> np.uint64(8)
    h = (h * np.uint64(0x88B5)) & _U16
    h ^= h >> np.uint64(7)
    h = (h * np.uint64(0xDB2D)) & _U16
    return h * np.uint64(m) >> np.uint64(16)


def _amix(x: Any, k: Any, m: int) -> Any:
    h = (x * np.uint64(0x9E37) + k) & _U16
    h ^= h >> np.uint64(7)
    h = (h * np.uint64(0x2C1B)) & _U16
    return h * np.uint64(m) >> np.uint64(16)


def mix(ids: ArrayLike, seeds: ArrayLike, vocab_size: int) -> NDArray[np.uint64]:
    """Return E(v), four Feistel rounds on the grid: a bijection of [0, a·b)."""
    a, b = grid(vocab_size)
    k1, k2, k3, k4 = (np.asarray(seeds, dtype=np.uint64) >> np.uint64(s) & _U16 for s in (0, 16, 32, 48))
    left_half, right_half = np.divmod(np.asarray(ids, dtype=np.uint64), np.uint64(b))
    right_half = (right_half + _bmix(left_half, k1, b)) % np.uint64(b)
    left_half = (left_half + _bmix(right_half, k2, a)) % np.uint64(a)
    right_half = (right_half + _amix(left_half, k3, b)) % np.uint64(b)
    left_half = (left_half + _amix(right_half, k4, a)) % np.uint64(a)
    return np.asarray(left_half * np.uint64(b) + right_half)


def permute(ids: ArrayLike, seeds: ArrayLike, vocab_size: int) -> NDArray[np.uint64]:
    """Return P(k_π, v): E walked until it lands in [0, V). A bijection of [0, V) for every seed.

    Args:
        ids: v in [0, V), any shape that broadcasts with `seeds`.
        seeds: k_π, uint64.
        vocab_size: V.
    """
    seeds = np.asarray(seeds, dtype=np.uint64)
    r = mix(ids, seeds, vocab_size)
    while (outside := r >= vocab_size).any():
        r = np.where(outside, mix(r, seeds, vocab_size), r)
    return r


# ---------------------------------------------------------------- perturb


def phase_step(k_p: ArrayLike, vocab_size: int) -> NDArray[np.uint32]:
    """Return ⌊(k_p·2^32 + ⌊V/2⌋) / V⌋ mod 2^32: the phase that one rank adds, in 2^-32 turns."""
    k = np.asarray(k_p).astype(np.uint64)
    turns = ((k << np.uint64(32)) + np.uint64(vocab_size // 2)) // np.uint64(vocab_size)
    return np.asarray(turns & np.uint64(0xFFFFFFFF)).astype(np.uint32)


_SINE = np.array([0x40C90FAE, 0xC225593C, 0x42A2AE79, 0xC28DFCA2], dtype=np.uint32).view(np.float32)


def phi(ranks: ArrayLike, k_p: ArrayLike, vocab_size: int) -> NDArray[np.float32]:
    """Return φ(r) as float32: the direction of the perturbation, and the score x_j(a), in family `fourier`.

    cos(2π·k_p·r/V), by a 32-bit phase and a polynomial of degree 7: within 7.4e-7 of the cosine of the
    phase, whose step is rounded by at most π·V/2^32 rad (9.4e-5 at V = 128256). Every operation is a float32
    multiply or add rounded to nearest, never fused.
    """
    r = np.asarray(ranks).astype(np.uint64)
    phase32 = (r * phase_step(k_p, vocab_size) & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32)
    x = phase32.astype(np.float32) * np.float32(2.0**-32)
    y = np.float32(0.25) - np.abs(x)
    z = y * y
    c0, c1, c2, c3 = _SINE
    return np.asarray((((c3 * z + c2) * z + c1) * z + c0) * y)


# ---------------------------------------------------------------- perturb: Gumbel noise


def uniform(ids: ArrayLike, seeds: ArrayLike) -> NDArray[np.uint32]:
    """Return u·2^24, u = ((h >> 9) + 0.5)·2^-23, with h a 32-bit hash of (seed, id): family `gumbel`.

        h = v·0x9E3779B1 + low;       h ^= h >> 16
        h = h·0x7FEB352D + high;      h ^= h >> 15
        h = h·0x846CA68B;             h ^= h >> 16

    mod 2^32, low and high being the halves of the seed. The result is odd, so neither u nor 1 - u is 0.

    Args:
        ids: v in [0, 2^32), any shape that broadcasts with `seeds`: special ids and those from V on, too.
        seeds: k_π, uint64.
    """
    seeds, u32 = np.asarray(seeds, dtype=np.uint64), np.uint64(0xFFFFFFFF)
    h = (np.asarray(ids).astype(np.uint64) * np.uint64(0x9E3779B1) + (seeds & u32)) & u32
    h ^= h >> np.uint64(16)
    h = (h * np.uint64(0x7FEB352D) + (seeds >> np.uint64(32))) & u32
    h ^= h >> np.uint64(15)
    h = (h * np.uint64(0x846CA68B)) & u32
    h ^= h >> np.uint64(16)
    return np.asarray(h >> np.uint64(8) | np.uint64(1)).astype(np.uint32)


_LOG = np.array(
    [0xBF7FFFFF, 0x3F00003D, 0xBEAAACEE, 0x3E7FB11F, 0xBE4BC719, 0x3E30A600, 0xBE261E85, 0x3DCEFD75],
    dtype=np.uint32,
).view(np.float32)
_MINUS_LOG_OF_2 = np.float32(-math.log(2))
_ROOT_HALF_BITS = np.uint32(0x3F3504F3)


def minus_log(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return -log(x) of normal float32 x > 0: x = 2^e·(1 + t), √½ <= 1 + t < √2, and a polynomial in t.

    Every operation is a float32 multiply or add rounded to nearest, never fused. The relative error is at
    most 2.8e-7 for all u and 1 - u of `uniform`.
    """
    bits = x.view(np.uint32) + (np.uint32(0x3F800000) - _ROOT_HALF_BITS)
    e = ((bits >> np.uint32(23)).astype(np.int32) - 127).astype(np.float32)
    t = ((bits & np.uint32(0x7FFFFF)) + _ROOT_HALF_BITS).view(np.float32) + np.float32(-1)
    total = np.full_like(t, _LOG[7])
    for c in _LOG[6::-1]:
        total = total * t + c
    return np.asarray(total * t + e * _MINUS_LOG_OF_2)


def gumbel_noise(ids: ArrayLike, seeds: ArrayLike) -> NDArray[np.float32]:
    """Return -log(-log u), what family `gumbel` adds to a logit: -2.82 to 16.64, within 1.2e-6."""
    u = uniform(ids, seeds).astype(np.float32) * np.float32(2.0**-24)
    return minus_log(minus_log(u))


def gumbel_score(ids: ArrayLike, seeds: ArrayLike) -> NDArray[np.float32]:
    """Return -log(1 - u), the score of an id in family `gumbel`: 0 to 16.64, 1 on average without a mark."""
    remainder = np.uint32(1 << 24) - uniform(ids, seeds)
    return minus_log(remainder.astype(np.float32) * np.float32(2.0**-24))


# ---------------------------------------------------------------- which positions carry a mark


def is_marked_id(ids: ArrayLike, vocab_size: int, unmarked_ids: tuple[int, ...]) -> NDArray[np.bool_]:
    """Tell which ids carry a mark: those in [0, V) that are neither special nor padding."""
    if not unmarked_ids:
        return (np.asarray(ids) >= 0) & (np.asarray(ids) < vocab_size)
    silent = np.zeros(vocab_size + 1, dtype=np.bool_)
    silent[[*unmarked_ids, vocab_size]] = True
    # A negative id is a very large one here; all from V on share the last entry.
    return ~silent[np.minimum(np.asarray(ids).astype(np.uint64), np.uint64(vocab_size))]


def is_scored(
    token_ids: ArrayLike, n_gram: int, vocab_size: int, unmarked_ids: tuple[int, ...] = ()
) -> NDArray[np.bool_]:
    """Tell which positions are scored: n-1 preceding ids exist, and they and the id itself carry a mark."""
    marked = is_marked_id(token_ids, vocab_size, unmarked_ids)
    scored = marked.copy()
    for back in range(1, n_gram):
        scored[:back] = False
        scored[back:] &= marked[:-back] if back < len(marked) else False
    return scored


def times_before(token_ids: ArrayLike, n_gram: int) -> NDArray[np.int32]:
    """Return the number of earlier occurrences of the n-1 ids before each position: int32 [T].

    0 for the first n-1 positions, which have no context.
    """
    ids = np.asarray(token_ids).tolist()
    counts, seen = np.zeros(len(ids), np.int32), collections.Counter[tuple[int, ...]]()
    for j in range(n_gram - 1, len(ids)):
        context = tuple(ids[j - n_gram + 1 : j])
        counts[j] = seen[context]
        seen[context] += 1
    return counts


def number_pairs(token_ids: NDArray[np.int64], scored: NDArray[np.bool_], n_gram: int) -> NDArray[np.int64]:
    """Number the n-grams that end at scored positions, by first occurrence: int64 [T], -1 elsewhere."""
    seen = dict[tuple[int, ...], int]()
    ids, numbers = token_ids.tolist(), np.full(len(token_ids), -1)
    for j in np.flatnonzero(scored).tolist():
        numbers[j] = seen.setdefault(tuple(ids[j - n_gram + 1 : j + 1]), len(seen))
    return numbers


# ---------------------------------------------------------------- the ops


def bfloat16_to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Widen bfloat16, given as its bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def float32_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to bfloat16 bits, to nearest even; NaN becomes the quiet NaN 0x7FC0 with its sign."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    quiet = bits >> np.uint32(16) & np.uint32(0x8000) | np.uint32(0x7FC0)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def embed_(
    marking: KernelParams,
    logits: NDArray[Any],
    contexts: NDArray[np.integer[Any]],
    slots: NDArray[np.integer[Any]],
    kappas: NDArray[np.float32],
    counts: NDArray[np.integer[Any]] | None = None,
) -> None:
    """Add κ·φ(P(v)) to the first V logits of every marked row, in place.

    Family `gumbel`: κ·(-log(-log u)) to all of them, special, padding and those from V on as well. Their
    maximum is one of the ordinary sampler's draws only if no id goes without noise.

    Args:
        marking: the keys and what they mark under; its κ is not read.
        logits: float32 or float16 [B, >= V], or uint16: the bits of bfloat16.
        contexts: [B, n-1], oldest first. A row whose context holds an id that carries no mark stays as it is.
        slots: [B], row -> key; -1 is an unmarked row.
        kappas: float32 [B].
        counts: [B], the number of earlier occurrences of each context, if the marking is `counted`; None: 0.
    """
    vocab_size, unmarked_ids = marking.vocab_size, marking.unmarked_ids
    if marking.code == GUMBEL:
        ids = np.arange(logits.shape[1])
    else:
        ids = np.delete(np.arange(vocab_size), np.asarray(unmarked_ids, dtype=np.int64))
    for row, slot in enumerate(slots):
        if slot < 0 or not is_marked_id(contexts[row], vocab_size, unmarked_ids).all():
            continue
        times = 0 if counts is None else counts[row]
        seed = context_seed(marking.subkeys[slot], contexts[row], times)
        if marking.code == GUMBEL:
            shift = kappas[row] * gumbel_noise(ids, seed)
        else:
            shift = kappas[row] * phi(permute(ids, seed, vocab_size), marking.k_p[slot], vocab_size)
        # float16 may overflow to infinity, and a signalling NaN becomes a quiet one, as in every backend.
        with np.errstate(over="ignore", invalid="ignore"):
            if logits.dtype == np.uint16:
                logits[row, ids] = float32_to_bfloat16(bfloat16_to_float32(logits[row, ids]) + shift)
            else:
                logits[row, ids] = (logits[row, ids].astype(np.float32) + shift).astype(logits.dtype)


def choose(
    marking: KernelParams,
    logits: NDArray[np.float32],
    contexts: NDArray[np.integer[Any]],
    slots: NDArray[np.integer[Any]],
    kappas: NDArray[np.float32],
    counts: NDArray[np.integer[Any]] | None = None,
    filters: NDArray[Any] | None = None,
) -> NDArray[np.int64]:
    """Return the token of each row that family `gumbel` chooses: the smallest id with the largest sum.

    The sum is what `embed_` makes of a float32 logit. -1 for an unmarked row, or if all logits are -inf or
    NaN. `filters` [B], of `iet.native.filters.FILTER`: then only the tokens count that `are_kept` returns.
    """
    sums = logits.copy()
    embed_(marking, sums, contexts, slots, kappas, counts)
    sums[np.isnan(sums)] = -np.inf
    if filters is not None:
        for row, record in enumerate(filters):
            sums[row, ~are_kept(logits[row], kappas[row], record)] = -np.inf
    chosen = sums.argmax(axis=1)
    for row, slot in enumerate(slots):
        marked = slot >= 0 and is_marked_id(contexts[row], marking.vocab_size, marking.unmarked_ids).all()
        if not marked or sums[row].max() == -np.inf:
            chosen[row] = -1
    return np.asarray(chosen, np.int64)


def forced_logit(highest: np.float32, temperature: np.float32, largest: float) -> np.float32:
    """Return what the logit of a chosen token becomes: max + 128·max(T, 1), at most the largest number."""
    raised = np.float32(highest + np.float32(128) * max(temperature, np.float32(1)))
    return np.float32(largest) if raised > largest > highest else raised


def are_kept(logits: NDArray[np.float32], temperature: np.float32, record: Any) -> NDArray[np.bool_]:
    """Return which tokens of a row a filter keeps.

        ℓ_v >= max + T·log(min_p),    n(ℓ > ℓ_v) < top_k,    w(ℓ > ℓ_v) < top_p·w(share_of)

    n is a number of tokens, w the sum of their `sampling_weights`. A token with no larger logit
    above it is within top_k and top_p.
    """
    ordered = np.sort(logits[~np.isnan(logits)])[::-1]
    if not len(ordered):
        return np.zeros(len(logits), np.bool_)
    with np.errstate(invalid="ignore"):
        lowest = ordered[0] + temperature * record["log_min_p"]
    weights = sampling_weights(ordered, temperature)
    has_top_k = 0 < record["top_k"] <= len(ordered)
    share = np.ones(len(ordered), np.bool_)
    if record["share_of"] & 2:
        share &= ~(ordered < lowest)
    if record["share_of"] & 1 and has_top_k:
        share &= ordered >= ordered[record["top_k"] - 1]
    above = np.searchsorted(-ordered, -logits, side="left")  # how many logits are larger
    within = above < (record["top_k"] if has_top_k else len(logits) + 1)
    if record["top_p"] < 1:
        mass = np.append(np.uint64(0), np.cumsum(weights, dtype=np.uint64))[above].astype(np.float64)
        total = float(weights[share].sum(dtype=np.uint64))
        within &= (above == 0) | (mass < np.float64(record["top_p"]) * total)
    return np.asarray(within & ~(logits < lowest) & ~np.isnan(logits))


_EXP2 = np.array([0x3F7FFFFF, 0x3F31727B, 0x3E75EAD3, 0x3D64AA28, 0x3C134808, 0x3AF618BC], np.uint32).view(
    "f4"
)


def sampling_weights(logits: NDArray[np.float32], temperature: np.float32) -> NDArray[np.uint64]:
    """Return exp((ℓ - max)/T) in units of 2^-38, as integers, whose sum does not depend on an order.

    Relative error 2e-7 for large weights; each is rounded down.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        y = (logits - logits.max()) * (np.float32(1.442695) / abs(temperature))
    y = np.where(y > -50, y, np.float32(-50)).astype(np.float32)
    exponent = np.floor(y)
    f, total = y - exponent, np.full_like(y, _EXP2[5])
    for c in _EXP2[4::-1]:
        total = total * f + c
    significand, shift = (total * np.float32(2**23)).astype(np.uint64), exponent.astype(np.int64) + 15
    left, right = np.maximum(shift, 0).astype(np.uint64), np.maximum(-shift, 0).astype(np.uint64)
    return np.where(y > -50, significand << left >> right, np.uint64(0))


_AT_ONCE = 1 << 14  # scores: so few that what is between seeds and scores stays in a cache


def score_tokens(
    marking: KernelParams, token_ids: NDArray[np.integer[Any]], counts: NDArray[np.int32] | None = None
) -> NDArray[np.float32]:
    """Return x_j(a) for every position and key: float32 [T, K], 0 where not scored.

    φ(P(k_π^(j), y_j)), or in family `gumbel` -log(1 - u) of y_j. If the marking is `counted`, `counts` [T]
    are the numbers of earlier occurrences of the contexts; None: `times_before`.
    """
    if counts is None and marking.counted:
        counts = times_before(token_ids, marking.n_gram)
    n_gram, vocab_size = marking.n_gram, marking.vocab_size
    scores = np.zeros((len(token_ids), len(marking)), dtype=np.float32)
    positions = np.flatnonzero(is_scored(token_ids, n_gram, vocab_size, marking.unmarked_ids))
    ids = np.asarray(token_ids)[positions]
    contexts = np.asarray(token_ids)[positions[:, None] + np.arange(1 - n_gram, 0)]
    times = 0 if counts is None else counts[positions]
    at_once = max(1, _AT_ONCE // max(1, len(positions)))
    for low in range(0, len(marking), at_once):
        chunk = slice(low, low + at_once)
        seeds = context_seed(marking.subkeys[chunk, None], contexts, times)  # [keys, positions]
        if marking.code == GUMBEL:
            result = gumbel_score(ids, seeds)
        else:
            result = phi(permute(ids, seeds, vocab_size), marking.k_p[chunk, None], vocab_size)
        scores[positions, chunk] = result.T
    return scores


SPAN_UNIT = 2.0**-22
"""Scores are rounded to multiples of it before they are summed: integers add up alike in any order."""


def score_spans(
    marking: KernelParams,
    token_ids: NDArray[np.integer[Any]],
    boundaries: NDArray[np.integer[Any]],
    counted: NDArray[np.bool_] | NDArray[np.uint8],
    counts: NDArray[np.int32] | None = None,
) -> NDArray[np.float64]:
    """Return Σ x_j(a) over the counted j of [boundaries[s], boundaries[s+1]): float64 [S, K].

    Every score is rounded to a multiple of 2^-22, half to even, so the sum does not depend on its order.
    `counted` may hold weights, uint8 of at most 16: then w·x is added.
    `counts` as in `score_tokens`.
    """
    if counts is None and marking.counted:
        counts = times_before(token_ids, marking.n_gram)
    sums = np.zeros((len(boundaries) - 1, len(marking)))
    for key in range(len(marking)):  # one column at a time: [T, K] is never there
        unit = slice(key, key + 1)
        alone = dataclasses.replace(marking, subkeys=marking.subkeys[unit], k_p=marking.k_p[unit])
        column = score_tokens(alone, token_ids, counts)[:, 0]
        units = np.rint((column * (counted / np.float32(SPAN_UNIT)).astype(np.float32)).astype(np.float64))
        total = np.append(0.0, np.cumsum(units))
        sums[:, key] = (total[boundaries[1:]] - total[boundaries[:-1]]) * SPAN_UNIT
    return sums
