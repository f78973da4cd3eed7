"""The CUDA kernels on the CPU, to the bit against the reference: their arithmetic, indices and barriers.

The sources of csrc/cuda, launchers and bindings included, are compiled by the system's C++ compiler against
the folder cuda_on_host, which runs a block's threads one after another. The tests marked `gpu` cover the
rest: races, streams, graphs, the device's own rounding and conversion instructions, and speed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from iet.errors import BackendUnavailable, InputError
from iet.marks.families import FAMILIES
from iet.marks.keys import KeyTable
from iet.native import cuda, cuda_scores, host
from tests.support.cuda_cases import (
    DTYPES,
    LAYOUTS,
    bits,
    expected,
    laid_out,
    random_logits,
)
from tests.support.cuda_on_host import ROOT, failing, launches
from tests.support.keys import key_table

torch = pytest.importorskip("torch")


def embed_(module: Any, logits: Any, contexts: Any, slots: Any, keys: KeyTable, **options: Any) -> None:
    """Call the CUDA path of `iet.embed_` with tensors that lie on the host."""
    described = host.describe_logits(logits, keys.profile.vocab_size)._replace(device=logits.device)
    options = {"temperature": 1.0, "rows": None, **options}
    cuda.embed_(module, keys.marking, described, contexts, slots, **options)


def test_rejects_unknown_family_codes(module: Any) -> None:
    for family in FAMILIES.values():
        module.KernelParams(300, 2, family.code, 0, 0, 0, 0, 0)
    for code in {*range(5)} - {family.code for family in FAMILIES.values()}:
        with pytest.raises(ValueError, match="unknown family"):
            module.KernelParams(300, 2, code, 0, 0, 0, 0, 0)


def test_runtime_errors_are_raised_as_iet_errors(module: Any) -> None:
    # BackendUnavailable is an IetError: a bare RuntimeError would end the scheduler of an engine.
    words = "no kernel image is available for execution on the device"
    keys, fresh = key_table(300), key_table(300)
    logits, slots = torch.zeros(1, 300), torch.tensor([0])
    arguments = torch.tensor([[5]]), slots
    embed_(module, logits, *arguments, keys)
    device = logits.device
    with failing(module, words):
        for call in (
            lambda: embed_(module, logits, *arguments, keys),
            lambda: cuda_scores.score_tokens(module, keys.marking, slots),
            lambda: cuda_scores.score_spans(module, keys.marking, slots, [0, 1], None),
            lambda: cuda_scores.permute(module, [1], [1], 300, 1),
            lambda: module.load_kernels(),
        ):
            with pytest.raises(BackendUnavailable, match=f"CUDA: {words}"):
                call()
        refused = cuda._refused.pop(device)
        with pytest.raises(BackendUnavailable, match=words):  # at the start: when the keys are prepared
            cuda.table(module, fresh.marking, device)
        assert fresh.marking not in cuda._tables or not cuda._tables[fresh.marking]
        cuda._refused[device] = refused
    embed_(module, logits, *arguments, keys)


def test_second_stream_is_recorded_once(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, device = key_table(100), torch.device("cpu")
    made = cuda.table(module, keys.marking, device)
    recorded: list[object] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: recorded.append(stream))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "second")
    monkeypatch.setattr(cuda, "stream", lambda device: 2)
    for _ in range(3):
        assert cuda.table(module, keys.marking, device) is made
    assert recorded == ["second"] * len(made._tensors)
    monkeypatch.setattr(cuda, "stream", lambda device: 0)  # that on which they were made
    cuda.table(module, keys.marking, device)
    assert len(recorded) == len(made._tensors)


def test_only_torchs_guard_changes_the_device(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Ours would make a context on the device that it goes back to; torch's does not.
    sources = [path.read_text() for path in (ROOT / "csrc").rglob("*.*") if path.is_file()]
    assert not [source for source in sources if "cudaSetDevice" in source]
    entered: list[torch.device] = []

    @contextlib.contextmanager
    def guard(device: torch.device) -> Iterator[None]:
        entered.append(device)
        yield

    monkeypatch.setattr(cuda, "device_guard", guard)
    keys, ids = key_table(100), torch.tensor([1, 2])
    embed_(module, torch.zeros(2, 100), ids[:, None], ids, keys)
    assert len(entered) == 2  # the kernels and keys are loaded, the kernels are launched
    cuda_scores.score_tokens(module, keys.marking, ids)
    cuda_scores.score_spans(module, keys.marking, ids, [0, 2], None)
    assert entered == [ids.device] * 4


def test_embed_launches_two_kernels(module: Any) -> None:
    keys = key_table(300)
    logits, arguments = torch.zeros(2, 300), (torch.tensor([[5], [6]]), torch.tensor([0, 1]))
    embed_(module, logits, *arguments, keys)
    launched = launches(module)
    embed_(module, logits, *arguments, keys)
    assert launches(module) == launched + 2


def test_calls_in_a_graph_have_their_own_memory(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device, current = torch.device("cpu"), [7]
    monkeypatch.setattr(cuda, "stream", lambda device: current[0])
    plain = cuda.scratch(device, 10)
    assert cuda.scratch(device, 2000) is plain
    larger = cuda.scratch(device, 3000)
    assert larger.shape == (4096,)
    assert cuda.scratch(device, 10) is larger
    current[0] = 8
    assert cuda.scratch(device, 10) is not larger
    monkeypatch.setattr(cuda, "capturing", lambda device: True)
    captured = [cuda.scratch(device, 10) for _ in range(2)]
    assert captured[0] is not captured[1]
    assert set(captured) <= cuda._in_graphs
    cuda._in_graphs.clear()


@pytest.mark.parametrize("family", FAMILIES)
def test_copy_equals_the_reference(module: Any, family: str) -> None:
    # Out of place: unmarked rows, ids and columns above V are copied, and nothing else is written.
    rng = np.random.default_rng(12)
    for vocab_size, more in ((1, 40), (257, 0), (257, 7), (5000, 9000), (32003, 13), (128256, 0)):
        unmarked = (0, vocab_size - 1) if vocab_size > 2 else ()
        keys = key_table(vocab_size, n_gram=2, family=family, unmarked_ids=unmarked)
        contexts, slots = (
            torch.tensor(rng.integers(1, max(2, vocab_size - 1), (4, 1))),
            torch.tensor([2, -1, 0, 1]),
        )
        contexts[3] = -1 if vocab_size == 1 else vocab_size - 1
        for dtype in DTYPES if vocab_size < 1e5 else ("bfloat16",):
            values = random_logits(rng, 4, vocab_size + more, dtype)
            want = expected(
                values, contexts.clamp(min=0), slots, keys, np.full(4, np.float32(keys.marking.kappa))
            )
            if vocab_size == 1:
                want[3] = values[3]
            for layout in LAYOUTS:
                source, _ = laid_out(values, layout)
                target, memory = laid_out(torch.zeros_like(values), layout)
                described = [
                    host.describe_logits(tensor, vocab_size)._replace(device=tensor.device)
                    for tensor in (target, source)
                ]
                original = memory.clone()
                cuda.embed_(module, keys.marking, described[0], contexts, slots, 1.0, None, described[1])
                assert torch.equal(bits(target), bits(want)), (vocab_size, dtype, layout)
                assert torch.equal(bits(source), bits(values))
                target.zero_()
                assert torch.equal(bits(memory), bits(original)), "something beside the logits was written"
    with contextlib.suppress(InputError):
        cuda.raise_if_refused(torch.device("cpu"))
