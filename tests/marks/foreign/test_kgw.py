"""KGW: green lists against torch, seeds against plain integers, what counts once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import iet
from iet import kernels
from iet.marks.foreign import kgw
from tests.support.conditions import each_isa, needs_native
from tests.support.engine_texts import keys_of


@needs_native
@pytest.mark.parametrize(
    ("vocab_size", "green"), [(3, 2), (700, 690), (2090, 60), (4096, 2000), (6000, 5990), (1 << 24, 1 << 20)]
)
def test_green_lists_equal_torch(vocab_size: int, green: int) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    lists = 3 if vocab_size > 1 << 20 else 70  # more than are made side by side
    seeds = np.append(rng.integers(0, 1 << 32, lists - 1), (1 << 32) - 1).astype(np.uint32)
    all_ids = np.arange(vocab_size, dtype=np.uint32) if vocab_size < 10_000 else None
    tokens, expected = [], []
    for number, seed in enumerate(seeds.tolist()):
        order = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(seed)).numpy()
        # Whole lists, and lists of a few tokens between them.
        sampled = order[rng.integers(0, vocab_size, number % 7)] if all_ids is None or number % 3 else all_ids
        tokens.append(sampled.astype(np.uint32))
        is_green = np.zeros(vocab_size, np.bool_)
        is_green[order[:green]] = True
        expected.append(is_green[sampled])
    offsets = np.cumsum([0, *(len(sampled) for sampled in tokens)])
    for isa in each_isa():
        for threads in (1, 2):
            green_flags = kgw._green_tokens(
                seeds, offsets, np.concatenate(tokens), vocab_size, green, threads
            )
            assert np.array_equal(green_flags, np.concatenate(expected)), (isa, threads)


def test_list_seeds_equal_plain_integers() -> None:
    ids = np.append(np.random.default_rng(0).integers(0, 1 << 24, 500), [0, 1, 255, (1 << 24) - 1])
    top = (1 << 64) - 1
    # The third is a divisor of 2^64 - 1: with an id of 255 nothing is left.
    for key in (1, 15485863, top // 255, 3 * (top // 255) // 2, (1 << 63) - 1, (1 << 62) + 987654321):
        expected = [key * id % top & 0xFFFFFFFF for id in ids.tolist()]
        assert kgw._left_seeds(key, ids).tolist() == expected


@pytest.mark.parametrize("n_gram", [1, 4])
def test_selfhash_counts_each_token_once(n_gram: int) -> None:
    options: dict[str, Any] = {"seeding_scheme": "selfhash", "n_gram": n_gram, "vocab_size": 4096}
    keys = iet.EngineKeys.unnamed("kgw", keys_of("kgw", 120), **options)
    ids = np.random.default_rng(3).zipf(1.3, 3000) % 4096  # as in prose, few tokens are frequent
    pairs = kernels.pair_numbers(ids, keys)
    positions = np.flatnonzero(pairs >= 0)
    firsts = positions[np.unique(pairs[positions], return_index=True)[1]]
    assert len(firsts) == len(np.unique(ids[positions]))  # each token counts once, whatever its context
    sums, green = iet.score_tokens(ids, keys)[firsts].sum(axis=0), 0.25
    z = (sums - green * len(firsts)) / math.sqrt(green * (1 - green) * len(firsts))
    assert z.var() < 1.6  # counted by n-grams it is above 3 for n = 4
