"""Rows whose tokens are chosen, for the interpreter and for a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from iet.native import reference
from iet.native.filters import FILTER, NO_FILTER, filter_of
from tests.support.cuda_cases import bits, laid_out
from tests.support.keys import key_table

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
        self.temperatures = torch.tensor(
            rng.choice([0.0, 1e-30, 1e-7, 0.3, 1.0, 1.7], rows), dtype=torch.float32
        )
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

    def check(self, choose: Callable[..., Any], layout: str, device: str = "cpu") -> None:
        """Compare what `choose(logits, contexts, slots, keys, ..)` returns and writes with the reference."""
        logits, memory = laid_out(self.values, layout, device)
        original, options = memory.clone(), {key: value.to(device) for key, value in self.options.items()}
        chosen = choose(logits, self.contexts.to(device), self.slots.to(device), self.keys, **options)
        assert chosen.tolist() == self.chosen
        assert torch.equal(bits(logits.cpu()), bits(self.forced)), layout
        logits.copy_(self.values)
        rest = torch.equal(bits(memory.cpu()), bits(original.cpu()))
        assert rest, "something beside the logits was written"
