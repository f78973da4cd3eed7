"""The quality tests of the permutation, on few draws; and that they find a bad permutation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.accuracy import scheme_quality
from benchmarks.accuracy.correlations import (
    FIVE_ROUNDS,
    WITHOUT_FIRST,
    WITHOUT_LAST,
    Permutation,
    Setup,
    feistel,
)
from benchmarks.accuracy.judged import Row, failures
from benchmarks.accuracy.scheme_quality import MEASURES
from iet import kernels

V = 32003  # below a·b: some ranks are walked
DRAWS, FEW_DRAWS = 200_000, 40_000
QUICK = [name for name in MEASURES if name != "other permutations"]


def measure(name: str, permute: Permutation = kernels.permute, draws: int = FEW_DRAWS) -> list[Row]:
    return MEASURES[name](Setup(V, draws, np.random.default_rng(7), permute))


@pytest.mark.parametrize("name", QUICK)
def test_the_scheme_passes(name: str) -> None:
    rows = measure(name, draws=DRAWS)
    assert rows
    # Rows with a limit on a correlation need more draws than there are here.
    found = [row for row in failures(rows) if row.kind == "test" or name in ("mean shift", "bijection")]
    assert found == []


def identity(ids: Any, seeds: Any, vocab_size: int) -> Any:
    return ids


def shift(ids: Any, seeds: Any, vocab_size: int) -> Any:
    return (ids + seeds % np.uint64(vocab_size)) % np.uint64(vocab_size)


def not_a_bijection(ids: Any, seeds: Any, vocab_size: int) -> Any:
    return kernels.permute(ids, seeds, vocab_size) & ~np.uint32(1)


BAD: dict[Callable[..., Any], tuple[str, ...]] = {
    identity: ("uniformity", "digits", "pairs", "every distance", "contexts and keys", "sums", "mean shift"),
    shift: ("digits", "pairs", "every distance", "every k_p", "sums", "mean shift"),
    not_a_bijection: ("uniformity", "bijection"),
    WITHOUT_LAST: ("sums",),
}


@pytest.mark.parametrize(
    ("permute", "name"), [(permute, name) for permute, names in BAD.items() for name in names]
)
def test_a_bad_permutation_fails(permute: Permutation, name: str) -> None:
    assert failures(measure(name, permute))


def test_the_variants_are_bijections_and_four_rounds_are_the_scheme() -> None:
    ids, seeds = np.arange(V, dtype=np.uint32), np.full(V, 0x0123456789ABCDEF, dtype=np.uint64)
    variants = WITHOUT_FIRST, WITHOUT_LAST, FIVE_ROUNDS
    for permute in variants:
        np.testing.assert_array_equal(np.sort(permute(ids, seeds, V)), ids)
    four = feistel("R b 0", "L b 1", "R a 2", "L a 3")
    np.testing.assert_array_equal(four(ids, seeds, V), kernels.permute(ids, seeds, V))


def test_the_ideal_mean_shift_of_two_tokens_is_that_of_their_logistic_choice() -> None:
    # With φ and φ' of the two tokens: E[(φ - φ')/2 · tanh(κ(φ - φ')/2)].
    phi = np.cos((np.arange(128) + 0.5) * np.pi / 128)
    half = (phi[:, None] - phi) / 2
    found = scheme_quality.ideal_shift((0.5, 0.5), 0.8)
    assert found == pytest.approx((half * np.tanh(0.8 * half)).mean(), abs=1e-9)


def test_the_table_names_what_failed() -> None:
    rows = measure("pairs", shift)
    text = scheme_quality.markdown(rows, FEW_DRAWS, 7)
    assert "rows FAIL" in text
    assert "| NO |" in text
    assert "All pass" in scheme_quality.markdown(measure("bijection"), FEW_DRAWS, 7)
