"""Tokens that the CUDA kernels choose, as PTX and compiled for the CPU, against the reference."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from iet.errors import InputError, ShapeError
from iet.marks.keys import KeyTable
from iet.native import cuda, reference
from iet.native.filters import FILTER, NO_FILTER, filter_of
from tests.support.cuda_cases import DTYPES, LAYOUTS, bits, laid_out
from tests.support.cuda_on_host import launches
from tests.support.keys import key_table
from tests.support.ptx import instructions
from tests.support.ptx.device import Device
from tests.support.ptx.ops import Kernels, choose

torch = pytest.importorskip("torch")

FILTERS = (
    NO_FILTER,
    filter_of(min_p=0.05),
    filter_of(top_k=1),
    filter_of(top_k=20),
    filter_of(top_p=0.9),
    filter_of(0.01, 50, 0.6),
    filter_of(0.01, 50, 0.6, "all"),
    filter_of(top_k=5000, top_p=1e-6),
)
LARGEST = {"float32": np.finfo(np.float32).max, "float16": 65504.0, "bfloat16": float.fromhex("0x1.fep127")}


class Case:
    """Rows whose tokens are chosen, and what the reference makes of them."""

    def __init__(self, vocab_size: int, columns: int, dtype: str, filtered: bool, rows: int = 8) -> None:
        rng = np.random.default_rng([vocab_size, columns, filtered])
        self.keys = key_table(
            vocab_size, n_gram=3, family="gumbel", unmarked_ids=(0,) if vocab_size > 2 else ()
        )
        self.contexts = torch.tensor(rng.integers(min(1, vocab_size - 1), vocab_size, (rows, 2)))
        self.slots = torch.tensor(rng.integers(0, 3, rows))
        self.slots[1] = -1
        self.counts = torch.tensor(rng.integers(0, 4, rows), dtype=torch.int32)
        self.temperatures = torch.tensor(rng.choice([0.0, 1e-30, 0.3, 1.0, 1.7], rows), dtype=torch.float32)
        values = rng.normal(0, rng.choice([0.1, 2, 6], (rows, 1)), (rows, columns))
        values[2, rng.random(columns) < 0.9] = -np.inf
        values[3, : columns // 2] = np.nan
        values[4] = 7.0
        values[5, [0, -1]] = np.inf
        self.values = torch.tensor(values).to(getattr(torch, dtype))
        self.filters = np.array([FILTERS[row % len(FILTERS)] for row in range(rows)], FILTER)
        self.options: dict[str, Any] = {"counts": self.counts, "temperature": self.temperatures}
        if filtered:
            self.options["filters"] = torch.from_numpy(self.filters.view(np.int32).reshape(-1, 4))
        floats = self.values.float().numpy()
        arguments = self.contexts.numpy(), self.slots.numpy(), self.temperatures.numpy(), self.counts.numpy()
        self.chosen = reference.choose(
            self.keys.marking, floats, *arguments, self.filters if filtered else None
        ).tolist()
        self.forced = self.values.clone()
        for row in np.flatnonzero(np.array(self.chosen) >= 0):
            highest = np.nanmax(floats[row])
            raised = reference.forced_logit(highest, self.temperatures[row].numpy(), LARGEST[dtype])
            self.forced[row, self.chosen[row]] = float(raised)

    def check(self, device: Kernels, layout: str) -> None:
        logits, memory = laid_out(self.values, layout)
        original = memory.clone()
        chosen = choose(device, logits, self.contexts, self.slots, self.keys, **self.options)
        assert chosen.tolist() == self.chosen
        assert torch.equal(bits(logits), bits(self.forced)), layout
        logits.copy_(self.values)
        assert torch.equal(bits(memory), bits(original)), "something beside the logits was written"


@functools.lru_cache(maxsize=30)
def case(*arguments: Any) -> Case:
    return Case(*arguments)


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("vocab_size", [1, 33, 511, 5003, 40000])
def test_chosen_tokens_equal_the_reference(device: Kernels, vocab_size: int, filtered: bool) -> None:
    layouts = LAYOUTS if vocab_size < 6000 else ("aligned", "misaligned")
    for dtype in DTYPES:
        for layout in layouts:
            case(vocab_size, vocab_size + 5, dtype, filtered).check(device, layout)
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
    with pytest.raises(ShapeError, match=r"filters: got Tensor .*int32.*, expected int32 \[2, 4\]"):
        choose(
            device, torch.zeros(2, 300), torch.tensor([[5], [6]]), torch.tensor([0, 1]), keys, filters=wrong
        )
