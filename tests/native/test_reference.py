"""The reference against published vectors and theory; all other backends are compared with it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iet.native import reference
from iet.native.marking import KernelParams

# SipHash-2-4 of the first bytes of 00 01 02 ... under the key 00 .. 0f: the vectors of the SipHash authors,
# which `openssl mac SIPHASH` prints too. Ids have four bytes, and a count has three.
SIPHASH = {
    4: "b7877127e09427cf",
    7: "37d1018bf50002ab",
    8: "6224939a79f5f593",
    11: "a7ad6b22462fb3f4",
    12: "fbe50e86bc8f1e75",
    15: "e545be4961ca29a1",
    16: "db9bc2577fcc2a3f",
    19: "bd6179a71dc96dbb",
    60: "e1915f5cb1eca46c",
    63: "724506eb4c328a95",
}


@pytest.mark.parametrize("size", SIPHASH)
def test_seed_is_siphash_of_context_and_count(size: int) -> None:
    message = bytes(range(size))
    context = np.frombuffer(message[: size // 4 * 4], dtype="<u4")
    count = int.from_bytes(message[size // 4 * 4 :], "little")
    for counts in (count, count + (1 << 24)) if count else (0,):
        seed = reference.context_seed(np.arange(16, dtype=np.uint8), context, counts)
        assert seed.astype("<u8").tobytes().hex() == SIPHASH[size]


def test_seed_broadcasts_keys_against_contexts() -> None:
    rng = np.random.default_rng(0)
    keys, contexts = rng.integers(0, 256, (3, 16), dtype=np.uint8), rng.integers(0, 100, (5, 2))
    seeds = reference.context_seed(keys[:, None], contexts)
    assert seeds.shape == (3, 5)
    assert seeds[2, 4] == reference.context_seed(keys[2], contexts[4])


@given(st.integers(1, 5000), st.integers(0, 2**64 - 1))
@settings(max_examples=200, deadline=None)
def test_permutation_is_a_bijection(vocab_size: int, seed: int) -> None:
    ranks = reference.permute(np.arange(vocab_size), np.uint64(seed), vocab_size)
    assert np.array_equal(np.sort(ranks), np.arange(vocab_size))


@given(st.integers(1, 1 << 24))
@settings(max_examples=300, deadline=None)
def test_grid_holds_the_vocabulary(vocab_size: int) -> None:
    a, b = reference.grid(vocab_size)
    assert b % 8 == 0
    assert (a - 1) * b < vocab_size <= a * b
    assert b <= 5120  # the size of the buffers in csrc/cpu/embed.cpp
    assert a < 1 << 15  # sums of two digits fit 16 bits


@pytest.mark.parametrize("vocab_size", [31, 32, 257, 32003, 128256, 1 << 24])
@pytest.mark.parametrize("k_p", [1, 2, 15])
def test_fourier_is_the_cosine(vocab_size: int, k_p: int) -> None:
    ranks = np.unique(np.linspace(0, vocab_size - 1, 10_000).astype(int))
    exact = np.cos(2 * np.pi * k_p * ranks / vocab_size)
    rounding_of_step = np.pi * vocab_size / 2**32  # radians, at most
    assert np.abs(reference.phi(ranks, k_p, vocab_size) - exact).max() <= 1.5e-6 + rounding_of_step


def test_scored_positions() -> None:
    #                  special        >= V         negative
    ids = [5, 6, 7, 8, 0, 5, 6, 7, 10, 5, 6, 7, 8, -1, 5, 6, 7]
    scored = reference.is_scored(ids, 3, 10, (0,))
    assert np.flatnonzero(scored).tolist() == [2, 3, 7, 11, 12, 16]
    for text in ([], [5], [5, 6]):
        assert reference.is_scored(text, 3, 10).tolist() == [False] * len(text)


def test_bfloat16_rounds_to_nearest_even_and_keeps_nan() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, np.inf, -np.inf, np.nan, 3.3961775e38], dtype=np.float32)
    bits = reference.float32_to_bfloat16(values)
    assert [f"{b:04x}" for b in bits] == ["3f80", "3f80", "3f82", "7f80", "ff80", "7fc0", "7f80"]
    back = reference.bfloat16_to_float32(bits[:5])
    assert back.tolist() == [1.0, 1.0, 1.015625, np.inf, -np.inf]


def test_mean_score_under_a_mark_equals_theory() -> None:
    # Every token equally likely: the mean of x under softmax(κ·φ) is I1(κ)/I0(κ).
    vocab_size, kappa = 1024, 0.8
    key = np.arange(16, dtype=np.uint8)[None]
    logits = np.zeros((1, vocab_size), dtype=np.float32)
    marking = KernelParams(vocab_size, 2, "fourier", 0, kappa, (), key, np.array([1]))
    reference.embed_(marking, logits, np.array([[7]]), np.array([0]), np.array([kappa], dtype=np.float32))
    probabilities = np.exp(logits[0]) / np.exp(logits[0]).sum()
    tokens = np.stack([np.full(vocab_size, 7), np.arange(vocab_size)], axis=1).reshape(-1)
    scores = reference.score_tokens(marking, tokens)[1::2, 0]
    from iet.marks.families import FAMILIES

    assert probabilities @ scores == pytest.approx(FAMILIES["fourier"].mean(kappa), abs=1e-4)
