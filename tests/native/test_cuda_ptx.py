"""The CUDA kernels without a GPU, to the bit against the reference: as PTX, and compiled for the CPU.

The host code of csrc/cuda runs as it is, but for the CUDA runtime (tests/support/ptx/runtime.cpp), and the
PTX that it launches is interpreted. The interpreter raises if a kernel leaves a buffer or its alignment,
reads unwritten memory, or lets threads race in shared memory or miss each other at a barrier.

Each case runs in the PTX of sm_80, and with IET_PTX=all in that of every target. Launches are counted.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from iet import kernels
from iet.errors import BackendUnavailable, InputError, ShapeError
from iet.marks.families import FAMILIES
from iet.marks.keys import KeyTable
from iet.native import cuda, reference
from iet.native.host import describe_logits
from tests.support.cuda_cases import (
    DTYPES,
    LAYOUTS,
    VOCAB_SIZES,
    bits,
    check_embed,
    check_many_rows,
    expected,
    laid_out,
    random_logits,
)
from tests.support.keys import key_table
from tests.support.known_answers import vectors
from tests.support.ptx.build import EVERYTHING
from tests.support.ptx.device import Device
from tests.support.ptx.ops import Kernels, embed_, permute, score_spans, score_tokens

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_embed_equals_the_reference(device: Kernels, vocab_size: int, family: str) -> None:
    layouts = LAYOUTS if vocab_size < 1000 else ("aligned", "misaligned")
    check_embed(functools.partial(embed_, device), vocab_size, family, layouts)
    assert cuda._refused[torch.device("cpu")].tolist() == [0] * len(cuda._REFUSED)


def test_embed_with_thousands_of_unmarked_ids(device: Kernels) -> None:
    rng = np.random.default_rng(8)
    unmarked = tuple(sorted(rng.choice(32003, 5000, replace=False).tolist()))
    keys = key_table(32003, unmarked_ids=unmarked)
    contexts = torch.tensor(rng.choice(np.setdiff1d(np.arange(32003), unmarked), (2, 1)))
    slots = torch.tensor([1, 0], dtype=torch.int32)
    for dtype in DTYPES:
        values = random_logits(rng, 2, 32008, dtype)
        want = expected(values, contexts, slots, keys, np.full(2, np.float32(0.8)))
        for layout in ("aligned", "misaligned"):
            logits, _ = laid_out(values, layout)
            embed_(device, logits, contexts, slots, keys)
            assert torch.equal(bits(logits), bits(want))


def test_small_vocabulary_sizes(device: Kernels) -> None:
    # Small grids, all of them: how far E leaves [0, V), how many grid rows a block touches, where tails end.
    rng = np.random.default_rng(9)
    sizes = [*range(1, 300), *range(4088, 4106), *range(8190, 8196), *rng.integers(300, 9000, 40).tolist()]
    for vocab_size in sizes:
        keys = key_table(vocab_size, agents=1)
        values = torch.zeros(1, vocab_size + 8 - vocab_size % 8)
        contexts = torch.tensor(rng.integers(0, vocab_size, (1, 1)))
        want = expected(values, contexts, [0], keys, np.full(1, np.float32(0.8)))
        logits, _ = laid_out(values, "aligned")
        embed_(device, logits, contexts, torch.tensor([0]), keys)
        assert torch.equal(logits, want), vocab_size


def test_large_and_narrow_grids(device: Kernels) -> None:
    # One row of the largest vocabulary, and of ones whose grid has many short rows.
    # 409,600 has the largest that is tabulated, of 640 columns.
    for vocab_size in (2500, 3600, 4900, 409600, 1 << 20, (1 << 20) + 7):
        keys = key_table(vocab_size, agents=1)
        values = torch.zeros(1, vocab_size + 8 - vocab_size % 8, dtype=torch.bfloat16)
        want = expected(values, [[5]], [0], keys, np.full(1, np.float32(0.8)))
        logits, _ = laid_out(values, "aligned")
        embed_(device, logits, torch.tensor([[5]]), torch.tensor([0]), keys)
        assert torch.equal(logits, want), vocab_size


def test_many_rows_equal_the_reference(device: Kernels) -> None:
    rng = np.random.default_rng(13)
    cases = ((4096 * 3 + 100, 600), (4096 * 9, 700), (70000, 300))
    check_many_rows(functools.partial(embed_, device), rng, cases if device.target == "host" else cases[:1])


def test_rows_are_gathered_by_an_index(device: Kernels) -> None:
    rng = np.random.default_rng(2)
    keys = key_table(257, agents=4)
    values = random_logits(rng, 9, 260, "float16")
    index, slots = torch.tensor([7, 2, 4, 0], dtype=torch.int32), torch.tensor([3, -1, 0, 3])
    contexts = torch.tensor(rng.integers(0, 257, (4, 1)), dtype=torch.int32)
    want = values.clone()
    temperature = torch.tensor([0.5, 1.0, 2.0, 0.0])
    kappas = (np.float32(0.8) * temperature.numpy()).astype(np.float32)
    for i, row in enumerate(index.tolist()):
        want[row] = expected(values[row : row + 1], contexts[i : i + 1], slots[i : i + 1], keys, kappas[i:])[
            0
        ]
    logits = values.clone()
    embed_(device, logits, contexts, slots, keys, rows=index, temperature=temperature)
    assert torch.equal(bits(logits), bits(want))
    on_cpu = values.clone()
    kernels.embed_(on_cpu, contexts, slots, keys, rows=index, temperature=temperature)
    assert torch.equal(bits(on_cpu), bits(want))


def test_accepts_views_as_arguments(device: Kernels) -> None:
    # input_ids[:, -words:], a column of a table of slots, one temperature for all rows: views, not copies.
    rng = np.random.default_rng(3)
    keys = key_table(1000, n_gram=4)
    input_ids = torch.tensor(rng.integers(0, 1000, (3, 20)))
    slots = torch.tensor([[0, 9], [2, 9], [1, 9]], dtype=torch.int32)[:, 0]
    temperature = torch.tensor(0.7)
    values = random_logits(rng, 3, 1000, "float32")
    kappas = np.full(3, np.float32(0.8) * np.float32(0.7))
    for contexts in (input_ids[:, -3:], input_ids.t().contiguous().t()[:, -3:]):
        logits = values.clone()
        embed_(device, logits, contexts, slots, keys, temperature=temperature)
        assert torch.equal(bits(logits), bits(expected(values, contexts, slots, keys, kappas)))
        logits = values.clone()
        embed_(device, logits, contexts, slots, keys, temperature=0.7)
        assert torch.equal(bits(logits), bits(expected(values, contexts, slots, keys, kappas)))


def test_more_rows_than_one_launch_takes(device: Kernels) -> None:
    keys = key_table(2, agents=2)
    rows = 65535 + 3
    rng = np.random.default_rng(4)
    slots = torch.full((rows,), -1)
    slots[[0, 65534, 65535, rows - 1]] = torch.tensor([0, 1, 0, 1])
    contexts, values = torch.tensor(rng.integers(0, 2, (rows, 1))), torch.zeros(rows, 2)
    want = expected(values, contexts, slots, keys, np.full(rows, np.float32(0.8)))
    embed_(device, values, contexts, slots, keys)
    assert torch.equal(values, want)
    assert int(values.any(dim=1).sum()) == 4


def test_invalid_rows_stay_unmarked_and_raise_later(device: Kernels) -> None:
    keys = key_table(300)
    for slots, contexts, rows, temperature, words in (
        ([0, 1], [[5], [-1]], None, 1.0, "contexts: row 1 holds a negative id"),
        ([3, 1], [[5], [6]], None, 1.0, "slots: row 0"),
        ([-2, 1], [[5], [6]], None, 1.0, "slots: row 0"),
        ([1, 1], [[5], [6]], [1, 2], 1.0, "rows: entry 1"),
        ([1, 1], [[5], [6]], [-1, 0], 1.0, "rows: entry 0"),
        ([1, 1], [[5], [6]], None, [1.0, float("nan")], "temperature: row 1"),
        ([1, 1], [[5], [6]], None, [-1.0, 1.0], "temperature: row 0"),
        ([1, 1], [[5], [6]], None, [1.0, float("inf")], "temperature: row 1"),
    ):
        logits = torch.zeros(2, 300)
        embed_(
            device,
            logits,
            torch.tensor(contexts),
            torch.tensor(slots),
            keys,
            rows=None if rows is None else torch.tensor(rows),
            temperature=torch.tensor(temperature) if isinstance(temperature, list) else temperature,
        )
        assert int(logits.any(dim=1).sum()) == 1  # the other row is marked
        with pytest.raises(InputError, match=words):
            cuda.raise_if_refused(logits.device)
        cuda.raise_if_refused(logits.device)  # it raises once
    logits = torch.zeros(2, 300)
    embed_(device, logits, torch.tensor([[-1], [400]]), torch.tensor([-1, 0]), keys)
    cuda.raise_if_refused(logits.device)  # an unmarked row may hold a placeholder, any row an id above V
    assert not logits.any()


def test_rejects_arguments_on_other_devices(device: Kernels) -> None:
    keys = key_table(100)
    logits = torch.zeros(2, 100)
    contexts, slots = torch.tensor([[1], [2]]), torch.tensor([0, 1])
    for options, error, words in (
        ({"contexts": [[1], [2]]}, ShapeError, "contexts: got list.*nothing is copied"),
        ({"contexts": contexts.float()}, ShapeError, "float32"),
        ({"contexts": contexts[:1]}, ShapeError, r"shape \[1, 1\]"),
        ({"contexts": contexts.to("meta")}, ShapeError, "device meta"),
        ({"slots": slots.to(torch.int16)}, ShapeError, "int16"),
        ({"slots": np.array([0, 1])}, ShapeError, "ndarray"),
        ({"rows": torch.tensor([0])}, ShapeError, "contexts"),
        ({"temperature": torch.tensor([1.0, 1.0], dtype=torch.float64)}, ShapeError, "float64"),
        ({"temperature": torch.tensor([1.0])}, ShapeError, r"shape \[1\]"),
        ({"temperature": [1.0, 1.0]}, InputError, "temperature: got list"),
        ({"temperature": float("nan")}, InputError, "κ = nan"),
        ({"temperature": "warm"}, InputError, "temperature: got str"),
    ):
        arguments = {"contexts": contexts, "slots": slots, **options}
        with pytest.raises(error, match=words):
            embed_(device, logits, arguments.pop("contexts"), arguments.pop("slots"), keys, **arguments)
    assert not logits.any()


@functools.lru_cache(maxsize=1)  # for all devices, one after another
def scored(n_gram: int, family: str) -> list[tuple[KeyTable, Any, Any]]:
    """Keys, ids, and the scores of the reference."""
    rng, outputs = np.random.default_rng(n_gram), []
    for vocab_size, agents in ((1, 1), (33, 5), (257, 3), (32003, 300), (128256, 6)):
        unmarked = (0,) if vocab_size > 2 else ()
        keys = key_table(vocab_size, agents=agents, n_gram=n_gram, family=family, unmarked_ids=unmarked)
        for length in (0, 1, n_gram - 1, n_gram, 64, 65, 200):
            ids = (
                rng.integers(-1, vocab_size + 2, length)
                if length < 200
                else rng.integers(1, vocab_size + 1, length)
            )
            outputs.append((keys, ids, torch.tensor(reference.score_tokens(keys.marking, ids))))
    return outputs


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n_gram", [2, 3, 4, 5, 16])
def test_scores_equal_the_reference(device: Kernels, n_gram: int, family: str) -> None:
    for keys, ids, want in scored(n_gram, family):
        if len(keys) == 300 and n_gram != 2 and not (EVERYTHING or device.target == "host"):
            continue
        for dtype in (torch.int64, torch.int32):
            assert torch.equal(score_tokens(device, keys, torch.tensor(ids, dtype=dtype)), want)


@functools.lru_cache(maxsize=1)  # for all devices, one after another
def summed(agents: int) -> list[tuple[str, KeyTable, Any, Any, list[Any]]]:
    """Family, keys, ids, which count, and boundaries with the sums of the reference: of these, of all."""
    rng, outputs = np.random.default_rng(agents), []
    for family in FAMILIES:
        keys = key_table(32003, agents=agents, n_gram=3, family=family, unmarked_ids=(5, 7))
        ids = rng.integers(0, 32010, 700)
        ids[400:600] = ids[100:300]  # contexts that return
        counted = rng.random(700) < 0.7
        cuts = (
            np.array([0, 700]),
            np.array([3, 3, 10, 11, 300, 300, 650]),
            np.arange(0, 701, 16)[:44],
            np.array([64, 128, 192]),
            np.array([200, 200]),
            np.array([3, 10]),  # all of them within one tile
            np.array([5]),
            *(np.sort(rng.integers(0, 701, rng.integers(1, 6))) for _ in range(6)),
        )
        # Sums are exact, so the sum of a span is the difference of two of these cumulative sums.
        totals = [
            np.vstack(
                [np.zeros(agents), reference.score_spans(keys.marking, ids, np.arange(701), mask)]
            ).cumsum(0)
            for mask in (counted, np.ones(700, bool))
        ]
        cases = [(at, *(torch.tensor(total[at[1:]] - total[at[:-1]]) for total in totals)) for at in cuts]
        outputs.append((family, keys, ids, torch.tensor(counted), cases))
    return outputs


@pytest.mark.parametrize("agents", [1, 6, 300])
def test_spans_equal_the_reference(device: Kernels, agents: int) -> None:
    is_complete = EVERYTHING or device.target == "host"
    for family, keys, ids, counted, cases in summed(agents):
        if agents == 300 and family != "gumbel" and not is_complete:
            continue
        tensor = torch.tensor(ids, dtype=torch.int32)
        for boundaries, want, everything in cases:
            for cuts in (
                (boundaries, torch.tensor(boundaries)) if agents == 1 or is_complete else (boundaries,)
            ):
                assert torch.equal(score_spans(device, keys, tensor, cuts, counted), want)
            assert torch.equal(score_spans(device, keys, tensor, boundaries, None), everything)


def test_rejects_invalid_spans(device: Kernels) -> None:
    keys, ids = key_table(100), torch.arange(9)
    for cuts in ([0, 10], [5, 4], [-1, 3], torch.tensor([0, 10])):
        with pytest.raises(InputError, match="boundaries: got"):
            score_spans(device, keys, ids, cuts, None)
    for cuts, words in (
        ([], "boundaries"),
        ([[0, 1]], "boundaries"),
        ([0.0], "float64"),
        (torch.zeros(2), "float32"),
    ):
        with pytest.raises(ShapeError, match=words):
            score_spans(device, keys, ids, cuts, None)
    for counted in (np.ones(9, bool), torch.ones(9), torch.ones(8, dtype=torch.bool)):
        with pytest.raises(ShapeError, match="counted"):
            score_spans(device, keys, ids, [0, 9], counted)
    for ids in (torch.zeros(2, 2, dtype=torch.int64), torch.zeros(3)):
        with pytest.raises(ShapeError, match="token_ids"):
            score_tokens(device, keys, ids)


def test_tables_are_cached_and_freed_with_their_keys(
    device: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, cpu = key_table(100), torch.device("cpu")
    made = cuda.table(device.module, keys.marking, cpu)
    assert cuda.table(device.module, keys.marking, cpu) is made
    monkeypatch.setattr(cuda, "capturing", lambda device: True)
    assert cuda.table(device.module, keys.marking, cpu) is made
    assert made in cuda._in_graphs  # a graph that holds its addresses keeps it
    with pytest.raises(BackendUnavailable, match=r"prepare\(registry, device\) before the capture"):
        cuda.table(device.module, key_table(100).marking, cpu)
    cuda._in_graphs.clear()
    count = len(cuda._tables)
    del keys
    assert len(cuda._tables) == count - 1


@pytest.mark.parametrize(
    "entry", vectors("scheme_v1")["permute"], ids=lambda entry: f"V{entry['vocab_size']}"
)
def test_permute_equals_known_answers(device: Kernels, entry: dict[str, Any]) -> None:
    seeds = np.full(len(entry["ids"]), int(entry["seed"], 16), dtype=np.uint64)
    ranks, phis = permute(device, entry["ids"], seeds, entry["vocab_size"])
    assert ranks.tolist() == entry["ranks"]
    assert np.array_equal(phis, reference.phi(ranks, 1, entry["vocab_size"]))


@pytest.mark.parametrize("device", ["80"], indirect=True)
def test_interpreter_detects_wrong_bounds(device: Kernels) -> None:
    # The last columns lie in another buffer's memory, which only the interpreter can detect.
    keys, memory = key_table(264, agents=1), torch.zeros(2, 264)
    for columns, words in ((264, None), (263, "OutOfBounds: .*embed_kernel.*ld.global")):
        logits = memory[1:, :columns]
        described = describe_logits(memory[1:], 264)
        with device.watching():
            address = logits.data_ptr()
            assert described.layout[0] == address
            arguments = keys.marking, described._replace(device=logits.device)
            context, slot = torch.tensor([[5]]), torch.tensor([0])
            if words is None:
                cuda.embed_(device.module, *arguments, context, slot, temperature=1.0, rows=None)
                continue
            with pytest.raises(RuntimeError, match=words):
                cuda.embed_(device.module, *arguments, context, slot, temperature=1.0, rows=None)


def test_kernels_were_interpreted(interpreted: Device) -> None:
    """The module is not another one of that name, compiled for the CPU."""
    launched = sum(interpreted.launches.values())
    score_tokens(interpreted, key_table(100), torch.arange(20))
    assert sum(interpreted.launches.values()) > launched
    assert "interpreted" in interpreted.module.__name__
