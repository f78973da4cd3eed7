"""A forced token through vLLM's own samplers: temperature, min-p, top-k and top-p in PyTorch and in Triton.

Triton's interpreter runs the kernels. Only `row_id.to(..)` is changed in them: there a row is a number.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from iet.native import reference
from tests.support import vllm_stubs

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm's sources are not on the path (.ci/run puts them there)", allow_module_level=True)
torch = pytest.importorskip("torch")
vllm_stubs.install()

from vllm.v1.sample.ops import topk_topp_sampler  # noqa: E402 - after the skip

V, TEMPERATURES = 3000, (1e-4, 0.1, 0.7, 1.0, 5.0, 1e6)
Sampler = Callable[[Any, Any, Any], Any]


def forced(temperature: float, rows: int = 4) -> tuple[Any, list[int]]:
    """Rows of logits whose unlikeliest and other tokens are forced, and these tokens."""
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 4, (rows, V)).astype(np.float32)
    logits[1, ::2] = -np.inf
    tokens = [int(logits[0].argmin()), 1, int(logits[2].argmax()), V - 1]
    for row, token in enumerate(tokens):
        raised = reference.forced_logit(logits[row].max(), np.float32(temperature), 3e38)
        logits[row, token] = raised
    return torch.from_numpy(logits), tokens


@pytest.fixture
def in_triton(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Iterator[Any]:
    """vLLM's module of Triton kernels, interpreted."""
    triton = pytest.importorskip("triton")
    if "TRITON_INTERPRET" not in os.environ:  # Triton reads it when it is imported
        pytest.skip("needs TRITON_INTERPRET=1, as .ci/rest sets it")
    import vllm.triton_utils as utils

    for name, value in (("triton", triton), ("tl", triton.language), ("HAS_TRITON", True)):
        monkeypatch.setattr(utils, name, value)
    found = importlib.util.find_spec("vllm.v1.sample.ops.topk_topp_triton")
    assert found is not None
    assert found.origin is not None
    source = tmp_path / "interpreted_topk_topp.py"
    text = pathlib.Path(found.origin).read_text(encoding="utf-8")
    source.write_text(text.replace("row_id.to(tl.int64)", "row_id"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("interpreted_topk_topp")
    del sys.modules["interpreted_topk_topp"]


def faults(sample: Sampler, temperatures: tuple[float, ...] = TEMPERATURES) -> list[Any]:
    """Return the cases whose forced token is not drawn for certain."""
    found: list[Any] = []
    k = torch.tensor([20, 1, 50, V], dtype=torch.int32)
    p = torch.tensor([0.9, 0.1, 1.0, 0.999])
    for temperature in temperatures:
        logits, tokens = forced(temperature)
        scaled = logits / temperature
        kept = scaled >= scaled.amax(dim=1, keepdim=True) + np.log(0.05)  # min-p
        for final in (scaled, scaled.masked_fill(~kept, -torch.inf)):
            for filters in ((None, None), (k, None), (None, p), (k, p)):
                shares = sample(final.clone(), *filters).softmax(dim=-1)
                is_certain = bool((shares.amax(dim=1) == 1).all()) and int((shares > 0).sum()) == len(tokens)
                if shares.argmax(dim=1).tolist() != tokens or not is_certain:
                    found.append((temperature, filters))
    return found


def test_pytorch_keeps_only_the_forced_token() -> None:
    def sample(logits: Any, k: Any, p: Any) -> Any:
        return topk_topp_sampler.apply_top_k_top_p_pytorch(logits, k, p)

    assert faults(sample) == []


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_triton_keeps_only_the_forced_token(in_triton: Any) -> None:
    assert faults(in_triton.apply_top_k_top_p_triton, (0.7, 1e6)) == []

    def split(logits: Any, k: Any, p: Any) -> Any:
        if p is not None:
            in_triton._apply_topp_split(logits, k, p, -float("inf"), 4)
        return logits

    assert faults(split, (0.7,)) == []


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_end_that_a_thinking_budget_forces_is_drawn(temperature: float) -> None:
    # vLLM writes 1e9 after its processors.
    logits, _ = forced(temperature)
    logits[:, 7] = 1e9
    assert ((logits / temperature).softmax(dim=-1)[:, 7] == 1).all()
