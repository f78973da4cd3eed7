"""Rows whose contexts are on the host, as they are copied to a device."""

from __future__ import annotations

import numpy as np
import pytest

import iet
from iet.native.filters import FILTER, NO_FILTER, filter_of
from tests.support.keys import key_table

torch = pytest.importorskip("torch")

from iet.generation.sampling import HostRows  # noqa: E402 - after the skip

CPU = torch.device("cpu")


def test_fields_are_the_same_in_one_copy() -> None:
    rows, rng = HostRows(4, 3, CPU), np.random.default_rng(1)
    expected = filter_of(0.1, 5, 0.9, "all")
    for row in (0, 2):
        rows.add(row, rng.integers(0, 500, 3).tolist(), row + 1, 7 * row, 0.5 + row, expected)
    sent = rows._fields_of(rows._staged.clone(), torch.float32)
    for field, on_host in zip(sent, rows._fields, strict=True):
        np.testing.assert_array_equal(field.numpy(), on_host)
    _, slots, counts, temperatures, filters = sent
    assert slots.tolist() == [1, -1, 3, -1]
    assert counts.tolist() == [0, 0, 14, 0]
    assert temperatures.tolist() == [0.5, 1.0, 2.5, 1.0]
    records = filters.view(torch.int32).numpy().view(FILTER)[:, 0]
    assert records[0] == np.array(expected, FILTER)
    assert records[1].item() == NO_FILTER
    assert filters.view(torch.int32).is_contiguous()


@pytest.mark.parametrize(("rows", "context_len"), [(1, 4), (3, 2), (5, 3)])
def test_filters_are_aligned(rows: int, context_len: int) -> None:
    made = HostRows(rows, context_len, CPU)
    filters = made._fields_of(made._staged, torch.float32)[-1]
    assert filters.data_ptr() % 16 == 0
    made.add(0, [5] * context_len, 0, 0, 1.0, filter_of(top_k=3_000_000_000))
    assert made._filters["top_k"][0] == 2**31 - 1


@pytest.mark.parametrize("family", ["fourier", "gumbel"])
def test_marks_equal_the_op(family: str) -> None:
    rng = np.random.default_rng(2)
    keys = key_table(300, n_gram=3, family=family)
    values = torch.tensor(rng.normal(0, 3, (5, 304)), dtype=torch.float32)
    rows, contexts, slots = HostRows(5, 2, CPU), rng.integers(0, 300, (5, 2)), np.array([2, -1, 0, 1, -1])
    for row in np.flatnonzero(slots >= 0):
        rows.add(row, contexts[row].tolist(), slots[row], 0, 0.7)
    logits, expected = values.clone(), values.clone()
    chosen = rows.mark_(logits, keys)
    if family == "fourier":
        assert chosen is None
        iet.embed_(expected, contexts, slots, keys, temperature=0.7)
    else:
        assert chosen is not None
        tokens = iet.kernels.choose(expected, contexts, slots, keys, temperature=0.7, force=True)
        assert chosen.tolist() == tokens.tolist()
    assert torch.equal(logits, expected)
