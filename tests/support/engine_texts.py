"""Keys of the schemes of serving engines, and texts for them."""

from __future__ import annotations

from typing import Any

import numpy as np

import iet

V = 257


def text(length: int, vocab_size: int = 50_000, seed: int = 0) -> np.ndarray[Any, Any]:
    """Token ids with many repeated n-grams."""
    ids = np.random.default_rng([seed, length]).integers(0, vocab_size, length)
    ids[length // 2 :][: length // 5] = ids[length // 5 :][: length // 5]
    return ids


def keys_of(scheme: str, count: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng([seed, 7])
    if scheme == "synthid":
        return rng.integers(0, 2**62, (count, 30)).tolist()
    numbers = rng.integers(1, 2**62, count).tolist()
    return [f"{key:x}" for key in numbers] if scheme == "sglang-gumbel" else numbers


def options_of(scheme: str) -> dict[str, Any]:
    """Options that a scheme requires."""
    return {"vocab_size": V} if scheme == "kgw" else {}


def written_by(scheme: str, turns: list[tuple[Any, int]], options: dict[str, Any], seed: int) -> list[int]:
    """Text under some keys: each token has the highest score among 40 random ones."""
    rng = np.random.default_rng(seed)
    vocab_size = options.get("vocab_size", 5000)
    ids = rng.integers(1, vocab_size, 4).tolist()
    for key, length in turns:
        table = iet.EngineKeys(scheme, {"a": key}, **options)
        n_gram = table.profile.scheme.n_gram
        for _ in range(length):
            tokens = rng.choice(np.arange(1, vocab_size), 40, replace=False)
            context = np.tile(ids[len(ids) - n_gram + 1 :], (40, 1))
            scores = iet.score_tokens(np.column_stack([context, tokens]).reshape(-1), table)[
                n_gram - 1 :: n_gram
            ]
            ids.append(int(tokens[scores[:, 0].argmax()]))
    return ids
