"""The CUDA kernels on a device: bitwise equality, graphs, streams, memory, and rejected input.

Their arithmetic and indices are tested without a device in test_cuda_on_host.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import iet
from iet import kernels
from iet.errors import BackendUnavailable, InputError, ShapeError
from iet.marks.families import FAMILIES
from iet.native import reference
from tests.support.choose_cases import Case
from tests.support.cuda_cases import (
    DTYPES,
    LAYOUTS,
    bits,
    check_embed,
    check_many_rows,
    expected,
    random_logits,
)
from tests.support.keys import key_table
from tests.support.teams import team

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu
VOCAB_SIZES = (1, 2, 31, 32, 33, 255, 257, 32000, 32003, 128256, 151936, 262144, 409600, 410000)


@pytest.fixture(autouse=True)
def device() -> str:
    if iet.backends().cuda_devices == 0:
        assert not torch.cuda.is_available(), f"torch sees a device, iet does not: {iet.backends().cuda}"
        pytest.skip("no CUDA device")
    return "cuda"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_embed_equals_the_reference(device: str, vocab_size: int, family: str) -> None:
    check_embed(iet.embed_, vocab_size, family, LAYOUTS, device)
    kernels.raise_if_refused(device)


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("vocab_size", [1, 33, 5003, 32003, 128256])
def test_chosen_tokens_equal_the_reference(device: str, vocab_size: int, filtered: bool) -> None:
    def choose(*arguments: Any, **options: Any) -> Any:
        return kernels.choose(*arguments, **options, force=True)

    for dtype in DTYPES:
        for layout in LAYOUTS:
            case = Case(vocab_size, vocab_size + 5, dtype, filtered)
            case.check(choose, layout, device)
            assert case.chosen[1] == -1
    kernels.raise_if_refused(device)


def test_many_rows_equal_the_reference(device: str) -> None:
    rng = np.random.default_rng(13)
    check_many_rows(iet.embed_, rng, ((4096 * 3 + 100, 600), (70000, 300), (128256, 256)), device)


def test_half_types_round_once_to_nearest_even(device: str) -> None:
    keys = key_table(256, agents=1)
    contexts, slots = torch.arange(256)[:, None], torch.zeros(256, dtype=torch.int32)
    shifts = torch.zeros(256, 256, device=device)
    iet.embed_(shifts, contexts.to(device), slots.to(device), keys)
    for dtype in (torch.float16, torch.bfloat16):
        patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(dtype).reshape(256, 256)
        logits = patterns.to(device)
        want = (patterns.float() + shifts.cpu()).to(dtype)
        iet.embed_(logits, contexts.to(device), slots.to(device), keys)
        assert torch.equal(bits(logits.cpu()), bits(want))


def test_thousands_of_unmarked_ids_and_rows_by_index(device: str) -> None:
    rng = np.random.default_rng(8)
    unmarked = tuple(sorted(rng.choice(32003, 5000, replace=False).tolist()))
    keys = key_table(32003, unmarked_ids=unmarked)
    contexts = torch.tensor(rng.choice(np.setdiff1d(np.arange(32003), unmarked), (2, 1)), dtype=torch.int32)
    slots, rows, temperature = torch.tensor([1, 0]), torch.tensor([4, 1]), torch.tensor([0.5, 2.0])
    for dtype in DTYPES:
        values = random_logits(rng, 6, 32008, dtype)
        want = values.clone()
        kappas = np.float32(0.8) * temperature.numpy()
        want[rows] = expected(values[rows], contexts, slots, keys, kappas)
        logits = values.to(device)
        arguments = [tensor.to(device) for tensor in (contexts, slots, rows, temperature)]
        iet.embed_(logits, *arguments[:2], keys, rows=arguments[2], temperature=arguments[3])
        assert torch.equal(bits(logits.cpu()), bits(want))


def test_graph_replays_with_new_contents(device: str) -> None:
    keys = key_table(32003, agents=4)
    rng = np.random.default_rng(1)
    logits = torch.zeros(5, 32003, device=device)
    contexts = torch.zeros(5, 1, dtype=torch.int64, device=device)
    slots = torch.full((5,), -1, device=device)
    temperature = torch.ones(5, device=device)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(BackendUnavailable, match="before the capture"), torch.cuda.graph(graph):
        iet.embed_(logits, contexts, slots, keys, temperature=temperature)
    kernels.prepare(keys, device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits.mul_(2)
        iet.embed_(logits, contexts, slots, keys, temperature=temperature)
    for _ in range(4):
        values = torch.tensor(rng.standard_normal((5, 32003)), dtype=torch.float32)
        ids, chosen = torch.tensor(rng.integers(0, 32003, (5, 1))), torch.tensor(rng.integers(-1, 4, 5))
        warm = torch.tensor(rng.random(5), dtype=torch.float32)
        logits.copy_(values)
        contexts.copy_(ids)
        slots.copy_(chosen)
        temperature.copy_(warm)
        graph.replay()
        want = expected(values * 2, ids, chosen, keys, np.float32(0.8) * warm.numpy())
        assert torch.equal(logits.cpu(), want)
    contexts[2], slots[2] = -1, 0  # refused in a graph as elsewhere
    graph.replay()
    with pytest.raises(InputError, match="contexts: row 2"):
        kernels.raise_if_refused(device)


def test_runs_on_the_current_stream(device: str) -> None:
    keys = key_table(128256)
    values = torch.zeros(8, 128256)
    contexts, slots = torch.arange(8)[:, None], torch.zeros(8, dtype=torch.int64)
    want = expected(values, contexts, slots, keys, np.full(8, np.float32(0.8)))
    arguments = contexts.to(device), slots.to(device)
    kernels.prepare(keys, device)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        logits, on_stream = torch.empty(8, 128256, device=device), torch.empty(8, 128256, device=device)
        torch.cuda._sleep(100_000_000)  # work queued after this is only right in order
        logits.zero_()
        iet.embed_(logits, *arguments, keys)
        on_stream.copy_(logits)
    assert not stream.query()  # the call waited for nothing
    stream.synchronize()
    assert torch.equal(on_stream.cpu(), want)


def test_allocates_nothing(device: str) -> None:
    keys = key_table(32000)
    logits = torch.zeros(16, 32000, device=device)
    contexts, slots = (
        torch.zeros(16, 1, dtype=torch.int64, device=device),
        torch.zeros(16, device=device).int(),
    )
    kernels.prepare(keys, device)
    torch.cuda.synchronize()
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"], torch.cuda.memory_allocated()
    for _ in range(10):
        iet.embed_(logits, contexts, slots, keys)
    torch.cuda.synchronize()
    assert (torch.cuda.memory_stats()["allocation.all.allocated"], torch.cuda.memory_allocated()) == allocated


def test_rejected_rows_raise_at_a_synchronisation(device: str) -> None:
    keys = key_table(300)
    for slots, contexts, words in (
        ([0, 1], [[5], [-1]], "contexts: row 1"),
        ([3, 1], [[5], [6]], "slots: row 0"),
    ):
        logits = torch.zeros(2, 300, device=device)
        iet.embed_(logits, torch.tensor(contexts, device=device), torch.tensor(slots, device=device), keys)
        assert int(logits.any(dim=1).sum()) == 1
        with pytest.raises(InputError, match=words):
            kernels.raise_if_refused(device)
        kernels.raise_if_refused(device)
    with pytest.raises(ShapeError, match="nothing is copied"):
        iet.embed_(logits, [[1], [2]], [0, 1], keys)


def test_scores_equal_the_reference(device: str) -> None:
    rng = np.random.default_rng(3)
    for vocab_size, agents, n_gram in ((1, 1, 2), (257, 3, 3), (32003, 300, 2), (128256, 6, 5)):
        for family in FAMILIES:
            keys = key_table(vocab_size, agents=agents, n_gram=n_gram, family=family)
            ids = rng.integers(0, vocab_size + 1, 500)
            counted = rng.random(500) < 0.7
            tensor = torch.tensor(ids, device=device)
            want = reference.score_tokens(keys.marking, ids)
            assert torch.equal(iet.score_tokens(tensor, keys).cpu(), torch.tensor(want))
            for cuts in (
                np.array([0, 500]),
                np.arange(0, 501, 16)[:32],
                np.array([3, 3, 10, 300]),
                np.array([3, 10]),
            ):
                sums = reference.score_spans(keys.marking, ids, cuts, counted)
                scores = kernels.score_spans(tensor, cuts, keys, counted=torch.tensor(counted, device=device))
                assert torch.equal(scores.cpu(), torch.tensor(sums))


def test_generate_on_the_device_equals_the_host(device: str) -> None:
    pytest.importorskip("transformers")
    registry = team(("planner", "critic"), vocab_size=300)
    processor = iet.LogitsProcessor(registry, ["planner", None, "critic"], temperature=0.7)
    rng = np.random.default_rng(5)
    for _ in range(3):
        ids = torch.tensor(rng.integers(0, 300, (6, 9)))
        logits = torch.tensor(rng.standard_normal((6, 300)), dtype=torch.float32)
        assert torch.equal(processor(ids.to(device), logits.to(device)).cpu(), processor(ids, logits))
    processor(ids.to(device) * 0 - 1, logits.to(device))
    torch.cuda.synchronize()
    with pytest.raises(InputError, match="negative id"):
        processor(ids.to(device), logits.to(device))
