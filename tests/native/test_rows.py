"""Rows with contexts in a table of tokens, read by the CUDA kernel that runs on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from iet.errors import InputError, ShapeError
from iet.marks.keys import KeyTable
from iet.native import cuda, reference, rows
from iet.native.rows import LEFT_ALONE, SequenceRows
from tests.support.cuda_cases import QueuedOps, bits, expected, random_logits
from tests.support.cuda_on_host import empty_caches, launches
from tests.support.keys import key_table

torch = pytest.importorskip("torch")
CPU = torch.device("cpu")
V = 300


@pytest.fixture(autouse=True, params=["compiled for the CPU", "interpreted PTX"])
def launched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Return the counter of launches."""
    if request.param == "interpreted PTX":
        device = request.getfixturevalue("interpreted")
        monkeypatch.setattr(rows, "load_cuda", lambda: device.module)
        with empty_caches(), device.watching():
            yield lambda: sum(device.launches.values())
    else:
        module = request.getfixturevalue("module")
        monkeypatch.setattr(rows, "load_cuda", lambda: module)
        with empty_caches():
            yield lambda: launches(module)


class Table:
    """Random requests, some with draft tokens, and the rows of a step in vLLM's layout."""

    def __init__(self, rng: np.random.Generator, keys: KeyTable, drafts: bool, wide: bool) -> None:
        self.columns, requests = 40, 7
        self.tokens = torch.tensor(rng.integers(2, V, (requests, self.columns)), dtype=torch.int32)
        self.tokens[:, ::2] = self.tokens[:, 0:1]  # contexts that occur more than once
        self.lengths = torch.tensor(rng.integers(0, self.columns + 1, requests), dtype=torch.int32)
        self.slots = torch.tensor(rng.integers(-1, len(keys.marking), requests), dtype=torch.int32)
        self.temperatures = torch.tensor(rng.random(requests) + 0.5, dtype=torch.float32)
        integer = torch.int64 if wide else torch.int32
        mapping, positions, inputs, self.history = [], [], [], []
        for request in rng.permutation(requests).tolist():
            tokens = self.tokens[request, : self.lengths[request]].tolist()
            drafted_ids = rng.integers(2, V, int(rng.integers(0, 5)) if drafts else 0).tolist()
            drafted_ids = [tokens[0] if tokens and rng.random() < 0.5 else draft for draft in drafted_ids]
            if drafted_ids and rng.random() < 0.4:
                drafted_ids[int(rng.integers(len(drafted_ids))) :] = [-1]
            mapping += [request] * (1 + len(drafted_ids))
            positions += range(1 + len(drafted_ids))
            inputs += [tokens[-1] if tokens else 0, *drafted_ids]
            self.history += [tokens + drafted_ids[:drafted] for drafted in range(1 + len(drafted_ids))]
        self.rows = torch.tensor([*mapping, -1, -1], dtype=integer)
        self.places = torch.tensor([*positions, 0, 0], dtype=torch.int32) if drafts else None
        self.drafts = torch.tensor([*inputs, -7, -7], dtype=torch.int32) if drafts else None

    def read(self, into: SequenceRows, **options: Any) -> None:
        into.read(
            self.rows,
            self.tokens,
            self.lengths,
            self.slots,
            self.temperatures,
            self.places,
            self.drafts,
            **options,
        )

    def contexts(self, words: int) -> tuple[list[int], list[list[int]]]:
        """Return the rows that are to be marked, and their contexts."""
        contexts = []
        for row, history in enumerate(self.history):
            context = history[len(history) - words :] if len(history) >= words else [-1]
            if self.slots[self.rows[row]] >= 0 and min(context) >= 2:
                contexts.append((row, context))
        return [row for row, _ in contexts], [context for _, context in contexts]


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize(
    ("family", "n_gram"), [("fourier", 2), ("fourier", 4), ("gumbel", 3), ("fourier", 16)]
)
def test_rows_equal_embed(launched: Any, family: str, n_gram: int, drafts: bool) -> None:
    rng = np.random.default_rng(n_gram)
    keys = key_table(V, agents=4, n_gram=n_gram, family=family, unmarked_ids=(0, 1))
    read = SequenceRows(keys.marking, CPU, rows=2)
    marked = 0
    for step in range(25):
        table = Table(rng, keys, drafts, wide=step % 2 == 0)
        values = random_logits(rng, len(table.rows), V + 4, "float32")
        logits, want = values.clone(), values.clone()
        launched_before = launched()
        table.read(read)
        read.embed_(logits)
        assert launched() == launched_before + 2
        chosen, contexts = table.contexts(n_gram - 1)
        requests = table.rows[chosen]
        kappas = np.float32(keys.marking.kappa) * table.temperatures[requests].numpy()
        if chosen:
            want[chosen] = expected(values[chosen], contexts, table.slots[requests], keys, kappas)
        assert torch.equal(bits(logits), bits(want))
        is_unmarked = read.records[: len(table.rows), 2] == LEFT_ALONE
        assert torch.equal(
            is_unmarked, ~torch.isin(torch.arange(len(table.rows)), torch.tensor(chosen, dtype=torch.int64))
        )
        marked += len(chosen)
    assert marked > (60 if n_gram < 16 else 20)
    cuda.raise_if_refused(CPU)


@pytest.mark.parametrize("n_gram", [2, 4, 5])
def test_repeated_contexts_are_counted(n_gram: int) -> None:
    rng = np.random.default_rng(n_gram)
    keys = key_table(V, agents=4, n_gram=n_gram, family="gumbel")
    read, words, counted = SequenceRows(keys.marking, CPU), n_gram - 1, []
    for step in range(30):
        table = Table(rng, keys, drafts=True, wide=step % 2 == 0)
        if words > 1:
            table.tokens[:] = torch.tensor(rng.integers(2, 4, table.tokens.shape))
            for row, history in enumerate(table.history):
                history[: int(table.lengths[table.rows[row]])] = table.tokens[
                    table.rows[row], : table.lengths[table.rows[row]]
                ].tolist()
        table.read(read, counted=True)
        chosen, contexts = table.contexts(words)
        for row, context in zip(chosen, contexts, strict=True):
            history = table.history[row]
            occurrences = sum(history[at : at + words] == context for at in range(len(history) - words))
            assert read.counts[row] == occurrences
            seed, phase_step = read.records[row, :2].numpy().view(np.uint64)[0], int(read.records[row, 2])
            assert phase_step == 0
            subkey = keys.marking.subkeys[table.slots[table.rows[row]]]
            assert seed == reference.context_seed(subkey, np.array(context), occurrences)
            counted.append(occurrences)
    assert max(counted) > 3
    assert 20 < counted.count(0) < len(counted) - 20


def test_counts_in_a_long_sequence() -> None:
    keys = key_table(V, n_gram=2, family="gumbel")
    read, tokens = SequenceRows(keys.marking, CPU), torch.full((2, 1000), 7, dtype=torch.int32)
    tokens[1] = torch.arange(1000) % 250 + 3
    lengths, slots = torch.tensor([1000, 1000]), torch.tensor([0, 1])
    read.read(torch.tensor([0, 1]), tokens, lengths, slots, torch.ones(2), counted=True)
    assert read.counts[:2].tolist() == [999, 3]


def test_rejects_invalid_rows() -> None:
    keys = key_table(V, n_gram=3)
    read = SequenceRows(keys.marking, CPU)
    tokens = torch.tensor([[4, 5, 6, 7], [4, -1, 6, 7]], dtype=torch.int32)
    good = {
        "requests": torch.tensor([0, 1]),
        "tokens": tokens,
        "lengths": torch.tensor([4, 4]),
        "slots": torch.tensor([0, 1]),
        "temperatures": torch.ones(2),
    }
    for change, words, remaining in (
        ({"lengths": torch.tensor([4, 3])}, "contexts: row 1 holds a negative id", 1),
        ({"requests": torch.tensor([2, 1])}, "slots: row 0", 0),
        ({"slots": torch.tensor([0, 9])}, "slots: row 1", 1),
        ({"slots": torch.tensor([-3, 1])}, "slots: row 0", 0),
        ({"temperatures": torch.tensor([1.0, float("inf")])}, "temperature: row 1", 1),
        ({"lengths": torch.tensor([99, 4])}, None, None),  # of the tokens that there are
        ({"lengths": torch.tensor([1, 4])}, None, 0),
        ({"slots": torch.tensor([-1, 1])}, None, 0),
    ):
        read.read(**{**good, **change})
        assert [row for row in (0, 1) if read.records[row, 2] == LEFT_ALONE] == (
            [] if remaining is None else [remaining]
        )
        refusals = cuda.Refusals()
        refusals.check()  # it has heard of no device yet
        refusals.note(CPU)
        if words is None:
            refusals.check()
        else:
            with pytest.raises(InputError, match=words):
                refusals.check()
            refusals.check()
    with pytest.raises(ShapeError, match=r"logits: got 3 rows, expected 2"):
        read.embed_(torch.zeros(3, V))


def test_memory_in_use_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = key_table(V)
    read = SequenceRows(keys.marking, CPU, rows=4)
    first = read.records
    few = torch.tensor([0] * 4)
    tokens, lengths, slots = torch.full((1, 9), 5), torch.tensor([9]), torch.tensor([0])
    read.read(few, tokens, lengths, slots, torch.ones(1))
    assert read.records is first
    read.read(few.repeat(3), tokens, lengths, slots, torch.ones(1))
    assert read.records.shape == (16, 4)
    assert read._outgrown == [first]
    monkeypatch.setattr(cuda, "capturing", lambda device: True)
    read.read(few, tokens, lengths, slots, torch.ones(1))
    assert read.records in cuda._in_graphs


def test_step_launches_two_kernels_and_no_torch_op(launched: Any) -> None:
    rng = np.random.default_rng(3)
    keys = key_table(V, agents=4, n_gram=4)
    read, table = SequenceRows(keys.marking, CPU), Table(rng, keys, drafts=True, wide=False)
    logits = torch.zeros(len(table.rows), V)
    launched_before = launched()
    with QueuedOps() as queued:
        table.read(read)
        read.embed_(logits)
    assert queued.count == 0
    assert launched() == launched_before + 2
