"""The CUDA kernels on the CPU, to the bit against the reference: their arithmetic, indices and barriers.

The sources of csrc/cuda, launchers and bindings included, are compiled by the system's C++ compiler against
the folder cuda_on_host, which runs a block's threads one after another. What this cannot show (races,
streams, graphs, the device's own rounding and conversion instructions, speed) is for the tests marked `gpu`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from iet import kernels
from iet.errors import BackendUnavailable, InputError, ShapeError
from iet.marks.keys import KeyTable
from iet.native import cuda, host, reference
from tests.support.cuda_cases import (
    DTYPES,
    LAYOUTS,
    VOCAB_SIZES,
    bits,
    check_embed,
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


@pytest.mark.parametrize("family", ["fourier", "square", "gumbel"])
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_embed_is_the_reference(module: Any, vocab_size: int, family: str) -> None:
    # The largest vocabulary in one layout each, so that all of it takes seconds.
    layouts = LAYOUTS if vocab_size < 1000 else ("aligned", "misaligned")
    check_embed(functools.partial(embed_, module), vocab_size, family, layouts)
    assert cuda._refused[torch.device("cpu")].tolist() == [0] * len(cuda._REFUSED)


def test_embed_with_thousands_of_unmarked_ids(module: Any) -> None:
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
            embed_(module, logits, contexts, slots, keys)
            assert torch.equal(bits(logits), bits(want))


def test_every_vocabulary_size_up_to_hundreds(module: Any) -> None:
    # Small grids, all of them: how far E leaves [0, V), how many grid rows a block touches, where tails end.
    rng = np.random.default_rng(9)
    sizes = [*range(1, 300), *range(4088, 4106), *range(8190, 8196), *rng.integers(300, 9000, 40).tolist()]
    for vocab_size in sizes:
        keys = key_table(vocab_size, agents=1)
        values = torch.zeros(1, vocab_size + 8 - vocab_size % 8)
        contexts = torch.tensor(rng.integers(0, vocab_size, (1, 1)))
        want = expected(values, contexts, [0], keys, np.full(1, np.float32(0.8)))
        logits, _ = laid_out(values, "aligned")
        embed_(module, logits, contexts, torch.tensor([0]), keys)
        assert torch.equal(logits, want), vocab_size


def test_grids_of_all_sizes_fit_a_block(module: Any) -> None:
    # One row of the largest vocabulary, and of ones whose grid has many short rows.
    for vocab_size in (2500, 3600, 4900, 1 << 20, (1 << 20) + 7):
        keys = key_table(vocab_size, agents=1)
        values = torch.zeros(1, vocab_size + 8 - vocab_size % 8, dtype=torch.bfloat16)
        want = expected(values, [[5]], [0], keys, np.full(1, np.float32(0.8)))
        logits, _ = laid_out(values, "aligned")
        embed_(module, logits, torch.tensor([[5]]), torch.tensor([0]), keys)
        assert torch.equal(logits, want), vocab_size


def test_rows_are_gathered_by_an_index(module: Any) -> None:
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
    embed_(module, logits, contexts, slots, keys, rows=index, temperature=temperature)
    assert torch.equal(bits(logits), bits(want))
    on_cpu = values.clone()
    kernels.embed_(on_cpu, contexts, slots, keys, rows=index, temperature=temperature)
    assert torch.equal(bits(on_cpu), bits(want))


def test_arguments_are_read_where_they_lie(module: Any) -> None:
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
        embed_(module, logits, contexts, slots, keys, temperature=temperature)
        assert torch.equal(bits(logits), bits(expected(values, contexts, slots, keys, kappas)))
        logits = values.clone()
        embed_(module, logits, contexts, slots, keys, temperature=0.7)
        assert torch.equal(bits(logits), bits(expected(values, contexts, slots, keys, kappas)))


def test_more_rows_than_one_launch_takes(module: Any) -> None:
    keys = key_table(2, agents=2)
    rows = 65535 + 3
    rng = np.random.default_rng(4)
    slots = torch.full((rows,), -1)
    slots[[0, 65534, 65535, rows - 1]] = torch.tensor([0, 1, 0, 1])
    contexts, values = torch.tensor(rng.integers(0, 2, (rows, 1))), torch.zeros(rows, 2)
    want = expected(values, contexts, slots, keys, np.full(rows, np.float32(0.8)))
    embed_(module, values, contexts, slots, keys)
    assert torch.equal(values, want)
    assert int(values.any(dim=1).sum()) == 4


def test_what_cannot_be_marked_is_left_and_told_later(module: Any) -> None:
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
            module,
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
        cuda.raise_if_refused(logits.device)  # it is told once
    logits = torch.zeros(2, 300)
    embed_(module, logits, torch.tensor([[-1], [400]]), torch.tensor([-1, 0]), keys)
    cuda.raise_if_refused(logits.device)  # an unmarked row may hold a placeholder, any row an id above V
    assert not logits.any()


def test_arguments_elsewhere_are_refused_before_any_work(module: Any) -> None:
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
            embed_(module, logits, arguments.pop("contexts"), arguments.pop("slots"), keys, **arguments)
    assert not logits.any()


@pytest.mark.parametrize("family", ["fourier", "square", "gumbel"])
@pytest.mark.parametrize("n_gram", [2, 3, 4, 5, 16])
def test_score_is_the_reference(module: Any, n_gram: int, family: str) -> None:
    rng = np.random.default_rng(n_gram)
    for vocab_size, agents in ((1, 1), (33, 5), (257, 3), (32003, 300), (128256, 6)):
        unmarked = (0,) if vocab_size > 2 else ()
        keys = key_table(vocab_size, agents=agents, n_gram=n_gram, family=family, unmarked_ids=unmarked)
        for length in (0, 1, n_gram - 1, n_gram, 64, 65, 200):
            ids = (
                rng.integers(-1, vocab_size + 2, length)
                if length < 200
                else rng.integers(1, vocab_size + 1, length)
            )
            want = reference.score_tokens(keys.marking, ids)
            for dtype in (torch.int64, torch.int32):
                scores = cuda.score_tokens(module, keys.marking, torch.tensor(ids, dtype=dtype))
                assert torch.equal(scores, torch.tensor(want))


@pytest.mark.parametrize("agents", [1, 6, 300])
def test_spans_are_the_reference(module: Any, agents: int) -> None:
    rng = np.random.default_rng(agents)
    for family in ("fourier", "square", "gumbel"):
        keys = key_table(32003, agents=agents, n_gram=3, family=family, unmarked_ids=(5, 7))
        ids = rng.integers(0, 32010, 700)
        counted = rng.random(700) < 0.7
        for boundaries in (
            np.array([0, 700]),
            np.array([3, 3, 10, 11, 300, 300, 650]),
            np.arange(0, 701, 16)[:44],
            np.array([64, 128, 192]),
            np.array([200, 200]),
            np.array([3, 10]),  # all of them within one tile
            np.array([5]),
            *(np.sort(rng.integers(0, 701, rng.integers(1, 6))) for _ in range(6)),
        ):
            want = reference.score_spans(keys.marking, ids, boundaries, counted)
            tensor = torch.tensor(ids, dtype=torch.int32)
            for cuts in (boundaries, torch.tensor(boundaries)):
                sums = cuda.score_spans(module, keys.marking, tensor, cuts, torch.tensor(counted))
                assert torch.equal(sums, torch.tensor(want))
            everything = reference.score_spans(keys.marking, ids, boundaries, np.ones(700, bool))
            assert torch.equal(
                cuda.score_spans(module, keys.marking, tensor, boundaries, None), torch.tensor(everything)
            )


def test_bad_spans_are_refused(module: Any) -> None:
    keys, ids = key_table(100), torch.arange(9)
    for cuts in ([0, 10], [5, 4], [-1, 3], torch.tensor([0, 10])):
        with pytest.raises(InputError, match="boundaries: got"):
            cuda.score_spans(module, keys.marking, ids, cuts, None)
    for cuts, words in (
        ([], "boundaries"),
        ([[0, 1]], "boundaries"),
        ([0.0], "float64"),
        (torch.zeros(2), "float32"),
    ):
        with pytest.raises(ShapeError, match=words):
            cuda.score_spans(module, keys.marking, ids, cuts, None)
    for counted in (np.ones(9, bool), torch.ones(9), torch.ones(8, dtype=torch.bool)):
        with pytest.raises(ShapeError, match="counted"):
            cuda.score_spans(module, keys.marking, ids, [0, 9], counted)
    for ids in (torch.zeros(2, 2, dtype=torch.int64), torch.zeros(3)):
        with pytest.raises(ShapeError, match="token_ids"):
            cuda.score_tokens(module, keys.marking, ids)


def test_a_table_is_made_once_and_goes_with_its_keys(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, device = key_table(100), torch.device("cpu")
    made = cuda.table(module, keys.marking, device)
    assert cuda.table(module, keys.marking, device) is made
    monkeypatch.setattr(cuda, "capturing", lambda device: True)
    assert cuda.table(module, keys.marking, device) is made
    assert made in cuda._in_graphs  # a graph that holds its addresses keeps it
    with pytest.raises(BackendUnavailable, match=r"prepare\(registry, device\) before the capture"):
        cuda.table(module, key_table(100).marking, device)
    cuda._in_graphs.clear()
    count = len(cuda._tables)
    del keys
    assert len(cuda._tables) == count - 1


def test_known_answers_run_in_a_kernel(module: Any) -> None:
    rng = np.random.default_rng(5)
    for vocab_size in (1, 33, 32003, 128256):
        ids, seeds = rng.integers(0, vocab_size, 300), rng.integers(0, 1 << 63, 300).astype(np.uint64)
        ranks, phis = cuda.permute(module, ids, seeds, vocab_size, 1)
        want = reference.permute(ids.astype(np.uint32), seeds, vocab_size)
        assert np.array_equal(ranks, want)
        assert np.array_equal(phis, reference.phi(want, 1, vocab_size))


def test_what_the_runtime_says_is_an_error_of_ours(module: Any) -> None:
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
            lambda: cuda.score_tokens(module, keys.marking, slots),
            lambda: cuda.score_spans(module, keys.marking, slots, [0, 1], None),
            lambda: cuda.permute(module, [1], [1], 300, 1),
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


def test_a_second_stream_is_recorded_once(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_current_device_is_changed_by_torchs_guard_alone(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    cuda.score_tokens(module, keys.marking, ids)
    cuda.score_spans(module, keys.marking, ids, [0, 2], None)
    assert entered == [ids.device] * 4


def test_two_kernels_mark(module: Any) -> None:
    keys = key_table(300)
    logits, arguments = torch.zeros(2, 300), (torch.tensor([[5], [6]]), torch.tensor([0, 1]))
    embed_(module, logits, *arguments, keys)
    before = launches(module)
    embed_(module, logits, *arguments, keys)
    assert launches(module) == before + 2


def test_each_call_in_a_graph_has_records_of_its_own(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device, current = torch.device("cpu"), [7]
    monkeypatch.setattr(cuda, "stream", lambda device: current[0])
    plain = cuda.records(device, 10)
    assert cuda.records(device, 1000) is plain
    larger = cuda.records(device, 3000)
    assert larger.shape == (4096, 4)
    assert cuda.records(device, 10) is larger
    current[0] = 8
    assert cuda.records(device, 10) is not larger
    monkeypatch.setattr(cuda, "capturing", lambda device: True)
    captured = [cuda.records(device, 10) for _ in range(2)]
    assert captured[0] is not captured[1]
    assert set(captured) <= cuda._in_graphs
    cuda._in_graphs.clear()


@pytest.mark.parametrize("family", ["fourier", "square", "gumbel"])
def test_a_marked_copy_is_the_reference(module: Any, family: str) -> None:
    # Out of place: what is not marked (rows, ids, columns above V) is copied, and nothing beside is written.
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
                    host.describe_logits(each, vocab_size)._replace(device=each.device)
                    for each in (target, source)
                ]
                before = memory.clone()
                cuda.embed_(module, keys.marking, described[0], contexts, slots, 1.0, None, described[1])
                assert torch.equal(bits(target), bits(want)), (vocab_size, dtype, layout)
                assert torch.equal(bits(source), bits(values))
                target.zero_()
                assert torch.equal(bits(memory), bits(before)), "something beside the logits was written"
    with contextlib.suppress(InputError):
        cuda.raise_if_refused(torch.device("cpu"))


def test_many_rows_take_several_chunks_to_a_block(module: Any) -> None:
    # Enough rows that a block takes up to eight chunks, the last of them not whole.
    rng = np.random.default_rng(13)
    for vocab_size, rows in ((4096 * 3 + 100, 600), (4096 * 9, 700), (70000, 300)):
        keys = key_table(vocab_size, unmarked_ids=(3, 9000))
        contexts, slots = torch.full((rows, 1), 5), torch.full((rows,), -1)
        chosen = rng.choice(rows, 2, replace=False)
        slots[chosen] = 1
        contexts[:, 0] = torch.tensor(rng.integers(10, 9000, rows))
        values = torch.zeros(rows, vocab_size + 8 - vocab_size % 8, dtype=torch.bfloat16)
        want = expected(values[chosen], contexts[chosen], slots[chosen], keys, np.full(2, np.float32(0.8)))
        embed_(module, values, contexts, slots, keys)
        assert torch.equal(values[chosen], want), vocab_size
        values[chosen] = 0
        assert not values.any()
