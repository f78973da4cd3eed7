"""Time `embed_` beside floors and peers, after checking it against the reference.

    python -m benchmarks.speed.bench_embed -o benchmarks/results/embed.json

The contexts are new in every row and call. Batches take turns among buffers that together exceed the last
cache (as far as memory allows: the note of each table says), those of the floors too. Floors are torch's, and
floors and peers run on one thread.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.recording import caches, memory
from benchmarks.speed import peers, texts
from benchmarks.speed.suite import Contestant, Suite, main
from iet import kernels
from iet.cli import bench
from iet.cli.bench import select_isa, timed
from iet.marks.keys import KeyTable

FLOORS = ("float32 add [B, V]", "float32 add [V]")
PAST = 6  # ids of a row that peers are shown: as many as any of them looks at


class Buffers:
    """Batches of one shape that take turns, made at first use."""

    def __init__(self, rows: int, vocab_size: int, dtype: torch.dtype, count: int, fill: bool) -> None:
        self.count = count
        self._shape, self._dtype, self._fill = (rows, vocab_size), dtype, fill
        self._turn: Iterator[torch.Tensor] | None = None

    def next(self) -> torch.Tensor:
        if self._turn is None:
            self._turn = self._cycle()
        return next(self._turn)

    def release(self) -> None:
        self._turn = None

    def _cycle(self) -> Iterator[torch.Tensor]:
        first = torch.zeros(self._shape, dtype=self._dtype)
        if self._fill:
            first = torch.randn(self._shape, generator=torch.Generator().manual_seed(0)).to(self._dtype)
        made = [first] + [first.clone() for _ in range(self.count - 1)]
        while True:
            yield from made


def buffers_needed(size: int) -> int:
    """Return how many buffers of `size` bytes exceed the last cache by a quarter, within 1/8 of memory."""
    last = max(caches().values(), default=64 << 20)
    limit = (memory() or 4 << 30) // 8
    return max(2, min(math.ceil(1.25 * last / size), limit // size))


class Ids:
    """Draws the ids before each row: [B, PAST], new at every call."""

    def __init__(self, rows: int, vocab_size: int, real: bool) -> None:
        self._rows, self._vocab_size, self._real = rows, vocab_size, real
        self._rng, self._step = np.random.default_rng(1), 0

    def __call__(self) -> NDArray[np.int64]:
        if not self._real:
            return self._rng.integers(0, self._vocab_size, (self._rows, PAST))
        # Every row writes on at a place of its own in the text.
        ids = texts.real_ids() % self._vocab_size
        starts = np.arange(self._rows) * (len(ids) // self._rows) + self._step
        self._step += 1
        return ids[(starts[:, None] + np.arange(PAST)) % len(ids)]


def batch_suite(
    dtype: str, rows: int, vocab_size: int, rounds: int, *, real: bool, with_peers: bool, quick: bool
) -> Suite:
    """Mark a batch: every instruction set and number of threads, floors, and peers in float32."""
    tensor_dtype: torch.dtype = getattr(torch, dtype)
    keys, slots = bench.team(vocab_size, 4).marking_keys(), np.arange(rows) % 4
    logits_bytes = rows * vocab_size * tensor_dtype.itemsize
    count, float_count = (
        (2, 2) if quick else (buffers_needed(logits_bytes), buffers_needed(rows * vocab_size * 4))
    )
    logits = Buffers(rows, vocab_size, tensor_dtype, count, fill=True)
    floats = (
        logits if dtype == "float32" else Buffers(rows, vocab_size, torch.float32, float_count, fill=True)
    )
    biases = Buffers(rows, vocab_size, torch.float32, float_count, fill=False)
    bias = torch.zeros(vocab_size)
    made = [logits, floats, biases]
    ids, work = Ids(rows, vocab_size, real), rows * vocab_size

    contestants = {}
    for name, isa, count_of_threads in bench.contenders():
        contestants[name] = Contestant(
            timed(
                functools.partial(kernels.embed_, registry=keys, slots=slots, num_threads=count_of_threads),
                functools.partial(_new_batch, isa, logits, ids),
            ),
            "ours",
            work,
        )

    def floor(call: Callable[..., object], *drawn: Buffers) -> Contestant:
        return Contestant(timed(call, lambda: tuple(b.next() for b in drawn)), "floor", work)

    contestants["float32 add [B, V]"] = floor(torch.Tensor.add_, floats, biases)
    contestants["float32 add [V]"] = floor(lambda x: x.add_(bias), floats)
    if dtype != "float32":
        half_biases = Buffers(rows, vocab_size, tensor_dtype, count, fill=False)
        made.append(half_biases)
        contestants[f"{dtype} add [B, V]"] = floor(torch.Tensor.add_, logits, half_biases)
    contestants["multiply"] = floor(lambda x: x.mul_(1.0), logits)
    contestants["copy"] = floor(torch.Tensor.copy_, logits, logits)
    contestants["softmax"] = floor(lambda x: torch.softmax(x, dim=1), logits)

    skipped: dict[str, str] = {}
    if with_peers:
        marks, skipped = peers.markers(vocab_size)
        for name, mark in marks.items():
            # A slow peer gets one row: its cost is per row.
            few = 1 if name == "SynthID, all of V" else rows
            contestants[name] = Contestant(
                timed(mark, functools.partial(_for_peer, logits, ids, few)),
                "peer",
                few * vocab_size,
                f"timed on {few} row{'s' if few > 1 else ''}, scaled" if few < rows else "",
            )
    return Suite(
        name=f"embed_ {dtype} [{rows}, {vocab_size}]" + (", real text" if real else ", random ids"),
        unit="ns per logit",
        factor=1e9,
        contestants=contestants,
        floors=(*FLOORS, f"{bench.isas()[-1]}, 1 thread"),
        validate=functools.partial(validate, keys, dtype),
        rounds=rounds,
        skipped=skipped,
        note=_cache_note(count, logits_bytes) + (f" {texts.NOTE}" if real else ""),
        release=lambda: [buffers.release() for buffers in made],
    )


def gumbel_suite(rows: int, vocab_size: int, rounds: int, quick: bool) -> Suite:
    """Add keyed Gumbel noise to a batch, beside family fourier with contexts as long."""
    tables = {
        family: bench.team(vocab_size, 4, n_gram=4, family=family).marking_keys()
        for family in ("gumbel", "fourier")
    }
    slots, ids, work = np.arange(rows) % 4, Ids(rows, vocab_size, real=False), rows * vocab_size
    count = 2 if quick else buffers_needed(work * 4)
    logits, biases = (Buffers(rows, vocab_size, torch.float32, count, fill=fill) for fill in (True, False))
    bias = torch.zeros(vocab_size)

    def new_batch(isa: str) -> tuple[Any, ...]:
        select_isa(isa)
        return logits.next(), ids()[:, -3:]

    contestants = {}
    for family, keys in tables.items():
        for name, isa, threads in bench.contenders():
            mark = functools.partial(kernels.embed_, registry=keys, slots=slots, num_threads=threads)
            contestants[f"{family}, {name}"] = Contestant(
                timed(mark, functools.partial(new_batch, isa)), "ours", work
            )
    for name, prepare, call in (
        (FLOORS[0], lambda: (logits.next(), biases.next()), torch.Tensor.add_),
        (FLOORS[1], lambda: (logits.next(), bias), torch.Tensor.add_),
        ("torch noise: -log(-log u) and add", lambda: (logits.next(), biases.next()), _add_noise),
    ):
        contestants[name] = Contestant(timed(call, prepare), "floor", work)

    def release() -> None:
        for buffers in (logits, biases):
            buffers.release()

    def check() -> None:
        for keys in tables.values():
            validate(keys, "float32")

    return Suite(
        name=f"embed_ float32 [{rows}, {vocab_size}], families gumbel and fourier, n = 4",
        unit="ns per logit",
        factor=1e9,
        contestants=contestants,
        floors=FLOORS,
        validate=check,
        rounds=rounds,
        note=_cache_note(count, work * 4),
        release=release,
    )


def _add_noise(logits: torch.Tensor, noise: torch.Tensor) -> None:
    logits.sub_(noise.uniform_().log_().neg_().log_())


def call_suite(vocab_size: int, rounds: int) -> Suite:
    """Mark one row through the Python API: what a call costs."""
    registry, rng = bench.team(vocab_size, 4), np.random.default_rng(2)
    keys = registry.marking_keys()
    tensor, bias = torch.zeros(1, vocab_size), torch.zeros(1, vocab_size)
    array, array_bias = np.zeros((1, vocab_size), np.float32), np.zeros((1, vocab_size), np.float32)
    slots = np.array([2])

    def context(isa: str) -> tuple[Any, ...]:
        select_isa(isa)
        return (rng.integers(0, vocab_size, (1, 1)),)

    contestants = {}
    best = bench.isas()[-1]
    for isa, what, logits, holder in [
        *((isa, "tensor, key table", tensor, keys) for isa in bench.isas()),
        (best, "array, key table", array, keys),
        (best, "tensor, registry", tensor, registry),
    ]:
        mark = functools.partial(kernels.embed_, logits, slots=slots, registry=holder, num_threads=1)
        contestants[f"{isa}, {what}"] = Contestant(timed(mark, functools.partial(context, isa)), "ours")
    unmarked = functools.partial(kernels.embed_, tensor, slots=np.array([-1]), registry=keys, num_threads=1)
    contestants["the same for an unmarked row"] = Contestant(
        timed(unmarked, functools.partial(context, best)), "ours"
    )
    contestants["torch add [1, V]"] = Contestant(timed(lambda: tensor.add_(bias)), "floor")
    contestants["numpy add [1, V]"] = Contestant(timed(lambda: np.add(array, array_bias, out=array)), "floor")
    return Suite(
        name=f"embed_ float32 [1, {vocab_size}], one call",
        unit="µs",
        factor=1e6,
        contestants=contestants,
        floors=("torch add [1, V]",),
        validate=functools.partial(validate, keys, "float32"),
        rounds=rounds,
        note="One thread; the row stays in the cache, as the logits that a model has just written do.",
    )


def strided_suite(rows: int, vocab_size: int, rounds: int) -> Suite:
    """Mark logits that lie 12 bytes apart, as llama.cpp keeps them beside ids and probabilities."""
    keys, slots = bench.team(vocab_size, 4).marking_keys(), np.arange(rows) % 4
    strided = np.zeros((rows, vocab_size, 3), np.float32)[:, :, 0]
    bias, ids = np.zeros((rows, vocab_size), np.float32), Ids(rows, vocab_size, real=False)
    dense = np.zeros((rows, vocab_size), np.float32)

    def new(isa: str) -> tuple[Any, ...]:
        select_isa(isa)
        return strided, ids()[:, -1:]

    contestants = {
        name: Contestant(
            timed(
                functools.partial(kernels.embed_, slots=slots, registry=keys, num_threads=count),
                functools.partial(new, isa),
            ),
            "ours",
            dense.size,
        )
        for name, isa, count in bench.contenders()
    }
    for name, target, other in (
        ("float32 add [B, V]", dense, bias),
        ("float32 add [V]", dense, bias[0]),
        ("add [B, V] to what lies 12 bytes apart", strided, bias),
    ):
        add = functools.partial(np.add, target, other, out=target)
        contestants[name] = Contestant(timed(add), "floor", dense.size)
    return Suite(
        name=f"embed_ float32 [{rows}, {vocab_size}], 12 bytes apart",
        unit="ns per logit",
        factor=1e9,
        contestants=contestants,
        floors=(*FLOORS, f"{bench.isas()[-1]}, 1 thread"),
        validate=functools.partial(validate, keys, "float32", strided=True),
        rounds=rounds,
        note="The layout of llama.cpp. Floors are NumPy's; one buffer each, which stays in the last cache.",
    )


def validate(keys: KeyTable, dtype: str, strided: bool = False) -> None:
    """Compare every instruction set and number of threads with the reference, to the bit."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, keys.profile.vocab_size, generator=generator).to(getattr(torch, dtype))
    for _, isa, count in bench.contenders():
        select_isa(isa)
        fresh = logits.clone()
        if strided:
            fresh = torch.zeros(*logits.shape, 3, dtype=logits.dtype)[:, :, 0].copy_(logits)
        view = (fresh.view(torch.uint16) if dtype == "bfloat16" else fresh).numpy()
        bench.validate_embed(keys, fresh, view, num_threads=count)


def _new_batch(isa: str, logits: Buffers, ids: Ids) -> tuple[Any, ...]:
    select_isa(isa)
    return logits.next(), ids()[:, -1:]


def _for_peer(logits: Buffers, ids: Ids, rows: int) -> tuple[Any, ...]:
    return torch.from_numpy(ids()[:rows]), logits.next()[:rows]


def _cache_note(count: int, size: int) -> str:
    last = max(caches().values(), default=0)
    total = count * size / 2**20
    return (
        f"{count} buffers of {size / 2**20:.1f} MiB in turn, {total:.0f} MiB;"
        f" the last cache is {last / 2**20:.0f} MiB."
    )


def suites(quick: bool) -> list[Suite]:
    """Return what is measured; `quick` is tiny."""
    torch.set_num_threads(1)
    rows, vocab_size, rounds = (3, 515, 2) if quick else (64, 128256, 11)
    batch = functools.partial(batch_suite, rows=rows, vocab_size=vocab_size, rounds=rounds, quick=quick)
    return [
        batch("float32", real=False, with_peers=True),
        batch("float32", real=True, with_peers=True),
        batch("float16", real=False, with_peers=False),
        batch("bfloat16", real=False, with_peers=False),
        gumbel_suite(rows, vocab_size, rounds, quick),
        call_suite(*((515, 2) if quick else (32000, 500))),
        strided_suite(*((2, 515, 2) if quick else (8, 128256, 31))),
    ]


def bench_embed(replay: Callable[[], None]) -> None:
    replay()


if __name__ == "__main__":
    main("benchmarks.speed.bench_embed", __doc__, suites, ("torch", "transformers", "waterfall", "markllm"))
