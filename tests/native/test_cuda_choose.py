"""Tokens that the CUDA kernels choose, as PTX and compiled for the CPU, against the reference."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from iet.errors import InputError, ShapeError
from iet.marks.keys import KeyTable
from iet.native import cuda, reference
from tests.support.choose_cases import Case
from tests.support.cuda_cases import DTYPES, LAYOUTS
from tests.support.cuda_on_host import launches
from tests.support.keys import key_table
from tests.support.ptx import instructions
from tests.support.ptx.device import Device
from tests.support.ptx.ops import Kernels, choose

torch = pytest.importorskip("torch")


@functools.lru_cache(maxsize=30)
def case(*arguments: Any) -> Case:
    return Case(*arguments)


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("vocab_size", [1, 33, 511, 5003, 40000])
def test_chosen_tokens_equal_the_reference(device: Kernels, vocab_size: int, filtered: bool) -> None:
    layouts = LAYOUTS if vocab_size < 6000 else ("aligned", "misaligned")
    chooser = functools.partial(choose, device)
    for dtype in DTYPES:
        for layout in layouts:
            case(vocab_size, vocab_size + 5, dtype, filtered).check(chooser, layout)
    assert cuda._refused[torch.device("cpu")].tolist() == [0] * len(cuda._REFUSED)


def test_warps_take_several_pieces(device: Kernels) -> None:
    # So many rows that a block takes more than one piece a warp; one marked row in a hundred.
    keys = key_table(9000, n_gram=2, family="gumbel")
    rng = np.random.default_rng(2)
    rows = 900
    slots = torch.full((rows,), -1)
    marked = np.arange(7, rows, 100)
    slots[marked] = 1
    contexts = torch.tensor(rng.integers(0, 9000, (rows, 1)))
    values = torch.zeros(rows, 9000)
    values[marked] = torch.tensor(rng.normal(0, 3, (len(marked), 9000)), dtype=torch.float32)
    want = reference.choose(
        keys.marking,
        values[marked].numpy(),
        contexts[marked].numpy(),
        slots[marked].numpy(),
        np.ones(9, "f4"),
    )
    chosen = choose(device, values, contexts, slots, keys)
    assert chosen[marked].tolist() == want.tolist()
    assert int((chosen >= 0).sum()) == len(marked)


def test_three_kernels_are_launched(device: Kernels) -> None:
    keys = key_table(300, n_gram=2, family="gumbel")
    arguments = torch.zeros(2, 300), torch.tensor([[5], [6]]), torch.tensor([0, 1]), keys

    def launched() -> int:
        return launches(device.module) if device.target == "host" else sum(device.launches.values())  # type: ignore[union-attr]

    choose(device, *arguments)
    before = launched()
    choose(device, *arguments)
    assert launched() == before + 3


@pytest.mark.parametrize(("name", "most"), [("none", 65), ("top-k 50", 68), ("top-p 0.9", 130)])
def test_instructions_of_a_logit(interpreted: Device, name: str, most: float) -> None:
    # 115 if every column gets noise. The larger steps of benchmarks/results/instructions.md need fewer.
    interpreted.target = "80"
    found = instructions.count(interpreted, "gumbel", "float32", name, 2.0, vocab_size=40000)
    assert found["instructions"] < most


def test_invalid_rows_are_not_chosen_for(device: Kernels) -> None:
    keys: KeyTable = key_table(300, n_gram=2, family="gumbel")
    for slots, contexts, temperature, words in (
        ([0, 1], [[5], [-1]], 1.0, "contexts: row 1"),
        ([5, 1], [[5], [6]], 1.0, "slots: row 0"),
        ([0, 1], [[5], [6]], [1.0, float("nan")], "temperature: row 1"),
    ):
        logits = torch.zeros(2, 300)
        given = torch.tensor(temperature) if isinstance(temperature, list) else temperature
        chosen = choose(device, logits, torch.tensor(contexts), torch.tensor(slots), keys, temperature=given)
        assert int((chosen >= 0).sum()) == 1
        assert int(logits.any(dim=1).sum()) == 1
        with pytest.raises(InputError, match=words):
            cuda.raise_if_refused(logits.device)
    wrong = torch.zeros(2, 3, dtype=torch.int32)
    with pytest.raises(ShapeError, match=r"filters: got Tensor of .*int32.*, expected int32 \[2, 4\]"):
        choose(
            device, torch.zeros(2, 300), torch.tensor([[5], [6]]), torch.tensor([0, 1]), keys, filters=wrong
        )
