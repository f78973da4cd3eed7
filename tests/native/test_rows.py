"""Rows with contexts in a table of tokens, read by the CUDA kernel that runs on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import iet
from iet.errors import BackendUnavailable, InputError, ShapeError
from iet.marks.keys import KeyTable
from iet.native import cuda, reference, rows
from iet.native.filters import FILTER, filter_of
from iet.native.rows import LEFT_ALONE, ContextTables, FreeRows, SequenceRows
from tests.support.conditions import needs_native
from tests.support.cuda_cases import QueuedOps, bits, expected, random_logits
from tests.support.cuda_on_host import empty_caches, launches
from tests.support.keys import key_table

torch = pytest.importorskip("torch")
CPU = torch.device("cpu")
V = 300


class Reader:
    """The CPU or CUDA kernels, which read the rows."""

    def __init__(self, on: str, launched: Any) -> None:
        self.on, self.launched = on, launched

    def rows(self, keys: KeyTable) -> SequenceRows:
        made = SequenceRows(keys.marking, CPU)
        if self.on != "the CPU":
            made.use_kernels(2)
        return made


@pytest.fixture(
    params=[
        pytest.param("the CPU", marks=needs_native),
        "compiled for the CPU",
        "interpreted PTX",
    ]
)
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    if request.param == "the CPU":
        yield Reader(request.param, lambda: 0)
    elif request.param == "interpreted PTX":
        device = request.getfixturevalue("interpreted")
        monkeypatch.setattr(rows, "load_cuda", lambda: device.module)
        with empty_caches(), device.watching():
            yield Reader(request.param, lambda: sum(device.launches.values()))
    else:
        module = request.getfixturevalue("module")
        monkeypatch.setattr(rows, "load_cuda", lambda: module)
        with empty_caches():
            yield Reader(request.param, lambda: launches(module))


def is_left_alone(read: SequenceRows, count: int) -> Any:
    if read._by_kernels:
        return read.records[:count, 2] == LEFT_ALONE
    return torch.from_numpy(read._on_host["slots"] < 0)


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
        arguments = {
            "requests": self.rows,
            "lengths": self.lengths,
            "temperatures": self.temperatures,
            "places": self.places,
            "drafts": self.drafts,
        }
        into.read(self.tokens, self.slots, **{**arguments, **options})

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
def test_rows_equal_embed(reader: Reader, family: str, n_gram: int, drafts: bool) -> None:
    rng = np.random.default_rng(n_gram)
    keys = key_table(V, agents=4, n_gram=n_gram, family=family, unmarked_ids=(0, 1))
    read = reader.rows(keys)
    marked = 0
    for step in range(25):
        table = Table(rng, keys, drafts, wide=step % 2 == 0)
        values = random_logits(rng, len(table.rows), V + 4, "float32")
        logits, want = values.clone(), values.clone()
        launched_before = reader.launched()
        table.read(read)
        read.embed_(logits)
        assert reader.launched() == launched_before + 2 * (reader.on != "the CPU")
        chosen, contexts = table.contexts(n_gram - 1)
        requests = table.rows[chosen]
        kappas = np.float32(keys.marking.kappa) * table.temperatures[requests].numpy()
        if chosen:
            want[chosen] = expected(values[chosen], contexts, table.slots[requests], keys, kappas)
        assert torch.equal(bits(logits), bits(want))
        alone = ~torch.isin(torch.arange(len(table.rows)), torch.tensor(chosen, dtype=torch.int64))
        assert torch.equal(is_left_alone(read, len(table.rows)), alone)
        marked += len(chosen)
    assert marked > (60 if n_gram < 16 else 20)
    cuda.raise_if_refused(CPU)


def occurrences(history: list[int], words: int) -> int:
    context = history[len(history) - words :]
    return sum(history[at : at + words] == context for at in range(len(history) - words))


@pytest.mark.parametrize("n_gram", [2, 4, 5])
def test_tokens_are_chosen_with_counts_and_filters(reader: Reader, n_gram: int) -> None:
    rng = np.random.default_rng(n_gram)
    keys = key_table(V, agents=4, n_gram=n_gram, family="gumbel")
    read, words, counted = reader.rows(keys), n_gram - 1, []
    for step in range(20):
        table = Table(rng, keys, drafts=True, wide=step % 2 == 0)
        if words > 1:  # few ids, so that contexts return
            table.tokens[:] = torch.tensor(rng.integers(2, 4, table.tokens.shape))
            for row, history in enumerate(table.history):
                length = int(table.lengths[table.rows[row]])
                history[:length] = table.tokens[table.rows[row], :length].tolist()
        tables = ContextTables(len(table.slots), CPU)
        tables.fit(np.arange(len(table.slots)), table.lengths.numpy() + 9)
        filters = np.array([filter_of(top_k=int(k)) for k in rng.choice([0, 1, 5], len(table.slots))], FILTER)
        logits = torch.tensor(rng.normal(0, 2, (len(table.rows), V)), dtype=torch.float32)
        values = logits.clone()
        table.read(read, tables=tables)
        read.choose_(logits, torch.from_numpy(filters.view(np.int32).reshape(-1, 4)))
        chosen, contexts = table.contexts(words)
        assert (logits != values).any(dim=1).nonzero()[:, 0].tolist() == chosen
        for row, context in zip(chosen, contexts, strict=True):
            request, count = int(table.rows[row]), occurrences(table.history[row], words)
            kappa = table.temperatures[[request]].numpy()
            arguments = np.array([context]), table.slots[[request]].numpy(), kappa, np.array([count])
            token = reference.choose(
                keys.marking, values[row : row + 1].numpy(), *arguments, filters[[request]]
            )
            assert int(logits[row].argmax()) == token[0]
            counted.append(count)
    assert max(counted) > 3
    assert 20 < counted.count(0) < len(counted) - 20


def test_tables_follow_a_sequence(reader: Reader) -> None:
    # Tokens are committed one or several at once, some are taken back, and the table is outgrown.
    rng = np.random.default_rng(1)
    keys = key_table(V, n_gram=3, family="gumbel")
    read, tables = reader.rows(keys), ContextTables(2, CPU)
    tokens = torch.tensor(rng.integers(2, 6, (2, 3000)), dtype=torch.int32)
    length, places = 40, []
    while length < 2900:
        tables.fit(np.arange(2), np.full(2, length))
        places.append(tables.address)
        values = torch.tensor(rng.normal(0, 2, (2, V)), dtype=torch.float32)
        logits = values.clone()
        read.read(tokens, torch.tensor([0, 2]), lengths=torch.tensor([length, 7]), tables=tables)
        read.choose_(logits)
        for row, end in enumerate((length, 7)):
            history = tokens[row, :end].tolist()
            arguments = np.array([history[-2:]]), np.array([2 * row]), np.ones(1, "f4")
            count = np.array([occurrences(history, 2)])
            token = reference.choose(keys.marking, values[row : row + 1].numpy(), *arguments, count)
            assert int(logits[row].argmax()) == token[0], length
        back = length > 300 and rng.random() < 0.2
        length += -int(rng.integers(1, 9)) if back else int(rng.choice([1, 1, 4, 300]))
        if back:
            tokens[0, length:] = torch.tensor(rng.integers(2, 6, 3000 - length))
    sizes = [len(table) for table in tables._tables.values()]
    assert sizes == [3 + 4096, 3 + 4096]
    tables.forget(0)
    assert list(tables._tables) == [1]


def test_free_tokens_are_left_alone(reader: Reader) -> None:
    rng = np.random.default_rng(4)
    keys = key_table(V, n_gram=2, family="gumbel")
    read, rule = reader.rows(keys), iet.FreeTokens(first=3, rate=0.3)
    tokens, slots = torch.tensor(rng.integers(0, V, (200, 40))), torch.zeros(200, dtype=torch.int32)
    requests = torch.tensor(rng.integers(0, 2**63 - 1, 200))
    starts = torch.tensor(rng.integers(1, 12, 200), dtype=torch.int32)
    lengths = torch.tensor(rng.integers(1, 40, 200))
    for begins in (starts, starts[:1].expand(200)):
        read.read(tokens, slots, lengths=lengths, free=FreeRows(requests, begins, *rule.threshold))
        free = rule.are_free(requests, lengths - begins)
        assert torch.equal(is_left_alone(read, 200), free)
        assert 30 < int(free.sum()) < 170


def test_rejects_invalid_rows(reader: Reader) -> None:
    keys = key_table(V, n_gram=3)
    read = reader.rows(keys)
    tokens = torch.tensor([[4, 5, 6, 7], [4, -1, 6, 7]], dtype=torch.int32)
    good: dict[str, Any] = {
        "tokens": tokens,
        "slots": torch.tensor([0, 1]),
        "requests": torch.tensor([0, 1]),
        "lengths": torch.tensor([4, 4]),
        "temperatures": torch.ones(2),
    }
    for change, words, remaining in (
        ({"lengths": torch.tensor([4, 3])}, "contexts: row 1 holds", 1),
        ({"slots": torch.tensor([0, 9])}, "slots: row 1", 1),
        ({"slots": torch.tensor([-3, 1])}, "slots: row 0", 0),
        ({"temperatures": torch.tensor([1.0, float("inf")])}, "temperature: row 1", 1),
        ({"lengths": torch.tensor([99, 4])}, None, None),  # of the tokens that there are
        ({"lengths": torch.tensor([1, 4])}, None, 0),
        ({"slots": torch.tensor([-1, 1])}, None, 0),
    ):
        read.read(**{**good, **change})
        if reader.on == "the CPU":
            logits = torch.zeros(2, V)
            if words is None:
                read.embed_(logits)
                assert [row for row in (0, 1) if not logits[row].any()] == (
                    [] if remaining is None else [remaining]
                )
            else:
                with pytest.raises(InputError, match=words.split(":")[0]):
                    read.embed_(logits)
                assert not logits.any()
            continue
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
    outside = {**good, "requests": torch.tensor([2, 1])}
    if reader.on == "the CPU":
        with pytest.raises(InputError, match="requests: got one outside the table, expected numbers below 2"):
            read.read(**outside)
    else:
        read.read(**outside)
        with pytest.raises(InputError, match="slots: row 0"):
            cuda.raise_if_refused(CPU)


def test_rejects_other_devices() -> None:
    with pytest.raises(BackendUnavailable, match="device: got meta, expected the CPU or CUDA"):
        SequenceRows(key_table(V).marking, torch.device("meta"))


def test_memory_in_use_is_kept(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "load_cuda", lambda: module)
    keys = key_table(V)
    read = SequenceRows(keys.marking, CPU)
    read.use_kernels(4)
    first = read.records
    few = torch.tensor([0] * 4)
    tokens, slots = torch.full((1, 9), 5), torch.tensor([0])
    read.read(tokens, slots, requests=few)
    assert read.records is first
    read.read(tokens, slots, requests=few.repeat(3))
    assert read.records.shape == (16, 4)
    assert read._outgrown == [first]
    monkeypatch.setattr(cuda, "capturing", lambda device: True)
    read.read(tokens, slots, requests=few)
    assert read.records in cuda._in_graphs
    cuda._in_graphs.clear()


@pytest.mark.parametrize("family", ["fourier", "gumbel"])
def test_step_launches_kernels_and_no_torch_op(reader: Reader, family: str) -> None:
    rng = np.random.default_rng(3)
    keys = key_table(V, agents=4, n_gram=4, family=family)
    read, table = reader.rows(keys), Table(rng, keys, drafts=True, wide=False)
    logits, tables = torch.zeros(len(table.rows), V), ContextTables(len(table.slots), CPU)
    filters = torch.zeros(len(table.slots), 4, dtype=torch.int32)
    table.read(read)  # allocates its memory
    if family == "gumbel":
        tables.fit(np.arange(len(table.slots)), np.full(len(table.slots), 99))
        read.choose_(logits, filters)
    if reader.on == "the CPU":
        return
    launched_before = reader.launched()
    with QueuedOps() as queued:
        if family == "gumbel":
            table.read(read, tables=tables)
            read.choose_(logits, filters)
        else:
            table.read(read)
            read.embed_(logits)
    assert queued.count == 0
    assert reader.launched() == launched_before + (3 if family == "gumbel" else 2)
