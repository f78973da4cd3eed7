"""Tokens that family `gumbel` chooses, with the filters of a sampler: every backend against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iet import kernels
from iet.errors import InputError, ShapeError
from iet.native import reference
from iet.native.filters import FILTER, SHARE_OF, filter_of
from tests.support.conditions import each_isa
from tests.support.keys import key_table


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("vocab_size", [1, 33, 257, 32003])
def test_chosen_tokens_have_the_largest_marked_logit(vocab_size: int, temperature: float) -> None:
    rng = np.random.default_rng([vocab_size, round(10 * temperature)])
    unmarked = (0,) if vocab_size > 1 else ()
    keys = key_table(vocab_size, n_gram=3, family="gumbel", k_p=1, unmarked_ids=unmarked)
    rows = 24
    contexts = rng.integers(len(unmarked), vocab_size, (rows, 2))
    slots, counts = rng.integers(0, len(keys), rows), rng.integers(0, 4, rows)
    slots[0], contexts[1, 0] = -1, vocab_size
    values = rng.normal(0, rng.choice([0.01, 1, 4, 30], (rows, 1)), (rows, vocab_size + 3)).astype(np.float32)
    values[2], values[3], values[7] = -np.inf, 7.0, values[7] + 1e4
    values[4, rng.random(vocab_size + 3) < 0.9] = -np.inf
    values[4, -1], values[5, :2], values[6, -1] = 0.0, np.nan, np.inf
    filters = np.array([drawn_filter(rng) for _ in range(rows)], FILTER)
    options: Any = {"counts": counts, "temperature": temperature}
    kappas = np.full(rows, temperature, np.float32)
    for dtype in (np.float32, np.float16):
        floats = values.astype(dtype).astype(np.float32)
        arguments = keys.marking, floats, contexts, slots, kappas, counts
        for given in (None, filters):
            expected = reference.choose(*arguments, given).tolist()
            for isa in each_isa():
                logits = values.astype(dtype)
                for layout in (logits, np.asfortranarray(logits)):
                    chosen = kernels.choose(layout, contexts, slots, keys, filters=given, **options)
                    assert chosen.tolist() == expected, isa
                assert np.array_equal(logits, values.astype(dtype), equal_nan=True), isa
            assert expected[:3] == [-1, -1, -1]
            assert min(expected[3:]) >= 0


def drawn_filter(rng: np.random.Generator) -> tuple[Any, ...]:
    top_p = rng.choice([1.0, 0.95, 0.5, 1e-3])
    top_k = int(rng.choice([0, 1, 3, 20, 1000]))
    return filter_of(rng.choice([0.0, 0.05, 1.0]), top_k, top_p, str(rng.choice([*SHARE_OF])))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_chosen_tokens_are_forced(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    keys = key_table(500, n_gram=2, family="gumbel")
    contexts, slots = rng.integers(0, 500, (9, 1)), np.arange(9) % 4 - 1
    for temperature in (0.01, 0.7, 5.0, 300.0):
        values = torch.from_numpy(rng.normal(0, 8, (9, 510))).to(getattr(torch, dtype))
        for isa in each_isa():
            logits = values.clone()
            chosen = kernels.choose(logits, contexts, slots, keys, temperature=temperature, force=True)
            marked = torch.from_numpy(chosen >= 0)
            assert marked.tolist() == (slots >= 0).tolist()
            tokens = torch.from_numpy(chosen)[marked, None]
            assert torch.equal(logits[~marked], values[~marked])
            shares = (logits[marked].float() / temperature).softmax(dim=-1)
            assert (shares.gather(1, tokens) == 1).all(), isa
            # Nothing else has changed.
            restored = logits[marked].scatter(1, tokens, values[marked].gather(1, tokens))
            assert torch.equal(restored, values[marked])


def test_weights_of_a_filter_are_probabilities() -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 5, 4000).astype(np.float32)
    weights = reference.sampling_weights(logits, np.float32(0.7)).astype(float)
    shares = np.exp((logits.astype(float) - logits.max()) / 0.7)
    assert weights.max() == pytest.approx(2**38, rel=1e-6)
    np.testing.assert_allclose(weights * 2.0**-38, shares, rtol=1e-5, atol=2.0**-37)


def test_no_rows_are_chosen_for() -> None:
    keys = key_table(64, n_gram=2, family="gumbel", k_p=1)
    logits = np.zeros((0, 64), np.float32)
    nothing = np.zeros((0, 1), np.int64), np.zeros(0, np.int64)
    assert kernels.choose(logits, *nothing, keys).shape == (0,)
    with pytest.raises(ShapeError, match=r"filters: got float64 \[1\], expected records of .*FILTER \[0\]"):
        kernels.choose(logits, *nothing, keys, filters=np.zeros(1))


def test_a_family_that_adds_to_logits_chooses_no_token() -> None:
    logits = np.zeros((1, 64), np.float32)
    with pytest.raises(InputError, match="expected gumbel, which chooses tokens"):
        kernels.choose(logits, [[1]], [0], key_table(64))
