"""`torch.ops.iet.embed_`: the operator's contract, and a compiled function that calls it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import iet
from iet import kernels
from iet.errors import InputError
from tests.support.keys import key_table

torch = pytest.importorskip("torch")

from iet.generation import torch_op  # noqa: E402  # needs torch

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and iet.backends().cuda_devices == 0:
        pytest.skip("no CUDA device")
    return str(request.param)


def batch(device: str, dtype: Any = torch.float32) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    logits = torch.tensor(rng.standard_normal((4, 320))).to(dtype)
    contexts, slots = torch.tensor(rng.integers(0, 320, (4, 1))), torch.tensor([2, -1, 0, 1])
    return logits.to(device), contexts.to(device), slots.to(device)


def test_operator_passes_opcheck(device: str) -> None:
    keys = key_table(320)
    number = torch_op.handle(keys)
    logits, contexts, slots = batch(device)
    temperature, rows = torch.tensor([0.5, 2.0], device=device), torch.tensor([3, 0], device=device)
    operator = torch.ops.iet.embed_.default
    for arguments in (
        (logits, contexts, slots, number),
        (logits.half(), contexts[:2], slots[2:], number, temperature, rows),
    ):
        checks = torch.library.opcheck(operator, arguments)
        assert {"test_schema", "test_faketensor", "test_aot_dispatch_dynamic"} <= set(checks)
        assert set(checks.values()) == {"SUCCESS"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_compiled_function_equals_eager(device: str, dtype: Any) -> None:
    keys = key_table(320)
    number = torch_op.handle(keys)

    def step(logits: Any, contexts: Any, slots: Any) -> Any:
        logits = logits * 2
        torch.ops.iet.embed_(logits, contexts, slots, number)
        return logits + 1

    # "aot_eager" traces and functionalises all the same, and needs no C++ compiler at run time.
    backend = "inductor" if device == "cuda" else "aot_eager"
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    logits, contexts, slots = batch(device, dtype)
    original = logits.clone()
    result = compiled(logits, contexts, slots)
    expected = original * 2
    kernels.embed_(expected, contexts, slots, keys)
    assert torch.equal(result, expected + 1)
    assert torch.equal(logits, original)
    # An argument that is marked itself, with other contexts and another number of rows.
    in_place = torch.compile(
        lambda logits, contexts, slots: torch.ops.iet.embed_(logits, contexts, slots, number),
        fullgraph=True,
        backend=backend,
    )
    for count in (4, 3):
        marked, expected = original[:count].clone(), original[:count].clone()
        in_place(marked, contexts[:count] + 1, slots[:count])
        kernels.embed_(expected, contexts[:count] + 1, slots[:count], keys)
        assert torch.equal(marked, expected)


def test_operator_passes_rows_and_temperature(device: str) -> None:
    keys = key_table(320)
    logits, contexts, slots = batch(device)
    expected = logits.clone()
    rows, temperature = torch.tensor([2, 0], device=device), torch.tensor([0.5, 2.0], device=device)
    kernels.embed_(expected, contexts[:2], slots[2:], keys, temperature=temperature, rows=rows)
    torch.ops.iet.embed_(logits, contexts[:2], slots[2:], torch_op.handle(keys), temperature, rows)
    assert torch.equal(logits, expected)
    assert not torch.equal(logits, batch(device)[0])


def test_embed_marks_selected_rows() -> None:
    keys = key_table(320)
    logits, contexts, slots = (values.numpy() for values in batch("cpu"))
    expected = logits.copy()
    everywhere = np.array([1, -1, 2, -1])
    kernels.embed_(expected, contexts[[1, 0, 0, 0]], everywhere, keys, temperature=[2.0, 1.0, 0.5, 1.0])
    kernels.embed_(logits, contexts[:2], [2, 1], keys, temperature=[0.5, 2.0], rows=[2, 0])
    assert np.array_equal(logits, expected)
    for rows, words in (([4, 0], "4"), ([-1, 0], "-1"), ([1, 1], "twice")):
        with pytest.raises(InputError, match=f"rows: got.*{words}"):
            kernels.embed_(logits, contexts[:2], slots[:2], keys, rows=rows)
    with pytest.raises(InputError, match=r"rows: got shape \[1, 2\]"):
        kernels.embed_(logits, contexts[:2], slots[:2], keys, rows=[[0, 1]])
    assert np.array_equal(logits, expected)


def test_handle_expires_with_its_keys() -> None:
    keys = key_table(320)
    number = torch_op.handle(keys)
    assert torch_op.handle(keys) == number
    new_keys = key_table(320)
    assert torch_op.handle(new_keys) != number
    del keys
    gc.collect()
    with pytest.raises(InputError, match=rf"keys: {number} is no handle"):
        torch.ops.iet.embed_(*batch("cpu"), number)


def test_operator_rejects_invalid_slots() -> None:
    keys = key_table(320)
    logits, contexts, slots = batch("cpu")
    with pytest.raises(InputError, match="slots: row 0 holds 3"):
        torch.ops.iet.embed_(logits, contexts, slots + 1, torch_op.handle(keys))


def test_only_the_operator_imports_torch() -> None:
    statement = "print('torch' in sys.modules)"
    code = f"import sys, iet; {statement}; import iet.generation.torch_op; {statement}"
    result = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True)
    assert result.stdout.split() == ["False", "True"], result.stderr
