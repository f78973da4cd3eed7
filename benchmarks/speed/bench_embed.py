"""Time `embed_` with floors and peers, after checking it against the reference.

    python -m benchmarks.speed.bench_embed -o benchmarks/results/embed.json [--device cuda]

The contexts are new in every row and call. Batches take turns among buffers that together exceed the last
cache (as far as memory allows: the note of each table says), those of the floors too. Floors are torch's, and
floors and peers run on one thread.

`--device cuda` times the kernels of a GPU instead: device time, by `benchmarks.speed.device`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import timing
from benchmarks.recording import caches, memory
from benchmarks.speed import device, peers, texts
from benchmarks.speed.suite import Contestant, Suite, main
from benchmarks.timing import Sampler, select_isa, timed
from iet import kernels
from iet.errors import IetError
from iet.marks.keys import KeyTable

FLOORS = ("float32 add [B, V]", "float32 add [V]")
DTYPES = ("float32", "float16", "bfloat16")
UNIT = "ns per logit"
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


def release(made: Iterable[Buffers]) -> None:
    for buffers in made:
        buffers.release()


def buffers_needed(size: int) -> int:
    """Return how many buffers of `size` bytes exceed the last cache by a quarter, within 1/8 of memory."""
    last = max(caches().values(), default=64 << 20)
    limit = (memory() or 4 << 30) // 8
    return max(2, min(math.ceil(1.25 * last / size), limit // size))


class Ids:
    """Draws the ids before each row: [B, PAST], new at every call."""

    def __init__(self, rows: int, vocab_size: int, real: bool = False) -> None:
        self._rows, self._vocab_size, self._real = rows, vocab_size, real
        self._rng, self._step = np.random.default_rng(1), 0

    def __call__(self) -> NDArray[np.int64]:
        if not self._real:
            return self._rng.integers(0, self._vocab_size, (self._rows, PAST))
        # Every row writes on at a place of its own in the text.
        ids = texts.real_ids() % self._vocab_size
        starts = np.arange(self._rows) * (len(ids) // self._rows) + self._step
        self._step += 1
        return np.asarray(ids[(starts[:, None] + np.arange(PAST)) % len(ids)])


def ours(
    keys: KeyTable, rows: int, logits: Callable[[], Any], context: Callable[[], Any], prefix: str = ""
) -> dict[str, Contestant]:
    """Return `embed_` with every instruction set and number of threads; each call has other logits."""
    work, slots = rows * keys.profile.vocab_size, np.arange(rows) % 4

    def new(isa: str) -> tuple[Any, ...]:
        select_isa(isa)
        return logits(), context()

    def contestant(isa: str, threads: int) -> Contestant:
        mark = functools.partial(kernels.embed_, registry=keys, slots=slots, num_threads=threads)
        return Contestant(timed(mark, functools.partial(new, isa)), "ours", work)

    return {f"{prefix}{name}": contestant(isa, threads) for name, isa, threads in timing.contenders()}


def batch_suite(
    dtype: str, rows: int, vocab_size: int, rounds: int, *, real: bool, with_peers: bool, quick: bool
) -> Suite:
    """Mark a batch: every instruction set and number of threads, floors, and peers in float32."""
    tensor_dtype: torch.dtype = getattr(torch, dtype)
    keys, work = timing.team(vocab_size, 4).marking_keys(), rows * vocab_size
    size = work * tensor_dtype.itemsize
    count, float_count = (2, 2) if quick else (buffers_needed(size), buffers_needed(work * 4))
    made = []

    def buffers(dtype: torch.dtype, count: int, fill: bool) -> Buffers:
        made.append(Buffers(rows, vocab_size, dtype, count, fill))
        return made[-1]

    logits = buffers(tensor_dtype, count, True)
    floats = logits if dtype == "float32" else buffers(torch.float32, float_count, True)
    biases = buffers(torch.float32, float_count, False)
    bias, ids = torch.zeros(vocab_size), Ids(rows, vocab_size, real)

    def floor(call: Callable[..., object], *drawn: Buffers) -> Contestant:
        return Contestant(timed(call, lambda: tuple(b.next() for b in drawn)), "floor", work)

    contestants = ours(keys, rows, logits.next, lambda: ids()[:, -1:])
    contestants[FLOORS[0]] = floor(torch.Tensor.add_, floats, biases)
    contestants[FLOORS[1]] = floor(lambda x: x.add_(bias), floats)
    if dtype != "float32":
        contestants[f"{dtype} add [B, V]"] = floor(
            torch.Tensor.add_, logits, buffers(tensor_dtype, count, False)
        )
    contestants["multiply"] = floor(lambda x: x.mul_(1.0), logits)
    contestants["copy"] = floor(torch.Tensor.copy_, logits, logits)
    contestants["softmax"] = floor(lambda x: torch.softmax(x, dim=1), logits)

    def for_peer(few: int) -> tuple[Any, ...]:
        return torch.from_numpy(ids()[:few]), logits.next()[:few]

    marks, skipped = peers.markers(vocab_size) if with_peers else ({}, {})
    for name, mark in marks.items():
        few = 1 if name == "SynthID, all of V" else rows  # a slow peer gets one row: its cost is per row
        note = f"timed on {few} row{'s' if few > 1 else ''}, scaled" if few < rows else ""
        sample = timed(mark, functools.partial(for_peer, few))
        contestants[name] = Contestant(sample, "peer", few * vocab_size, note)
    name = f"embed_ {dtype} [{rows}, {vocab_size}]" + (", real text" if real else ", random ids")
    floors = (*FLOORS, f"{timing.isas()[-1]}, 1 thread")
    check = functools.partial(validate, keys, dtype)
    note = _cache_note(count, size) + (f" {texts.NOTE}" if real else "")
    free = functools.partial(release, made)
    return Suite(name, UNIT, contestants, floors, check, rounds, skipped, note, release=free)


def gumbel_suite(rows: int, vocab_size: int, rounds: int, quick: bool) -> Suite:
    """Add keyed Gumbel noise, or choose tokens, and compare with family fourier and equal contexts.

    The logits are normal numbers of variance 1, so those at T = 0.3 are as uneven as a model's.
    """
    tables = {
        family: timing.team(vocab_size, 4, n_gram=4, family=family).marking_keys()
        for family in ("gumbel", "fourier")
    }
    ids, work = Ids(rows, vocab_size), rows * vocab_size
    count = 2 if quick else buffers_needed(work * 4)
    logits, biases = (Buffers(rows, vocab_size, torch.float32, count, fill) for fill in (True, False))
    bias = torch.zeros(vocab_size)
    contestants: dict[str, Contestant] = {}
    for family, keys in tables.items():
        contestants |= ours(keys, rows, logits.next, lambda: ids()[:, -3:], f"{family}, ")
    for temperature in (1.0, 0.3):
        choose = functools.partial(
            kernels.choose,
            registry=tables["gumbel"],
            slots=np.arange(rows) % 4,
            temperature=temperature,
            num_threads=1,
        )
        contestants[f"choose, T = {temperature:g}, 1 thread"] = Contestant(
            timed(choose, lambda: (logits.next(), ids()[:, -3:])), "ours", work
        )
    contestants["softmax"] = Contestant(
        timed(lambda x: torch.softmax(x, dim=1), lambda: (logits.next(),)), "floor", work
    )
    for name, prepare, call in (
        (FLOORS[0], lambda: (logits.next(), biases.next()), torch.Tensor.add_),
        (FLOORS[1], lambda: (logits.next(), bias), torch.Tensor.add_),
        ("torch noise: -log(-log u) and add", lambda: (logits.next(), biases.next()), _add_noise),
    ):
        contestants[name] = Contestant(timed(call, prepare), "floor", work)

    def check() -> None:
        for keys in tables.values():
            validate(keys, "float32")

    name = f"embed_ and choose float32 [{rows}, {vocab_size}], families gumbel and fourier, n = 4"
    note = _cache_note(count, work * 4)
    free = functools.partial(release, (logits, biases))
    return Suite(name, UNIT, contestants, FLOORS, check, rounds, note=note, release=free)


def _add_noise(logits: torch.Tensor, noise: torch.Tensor) -> None:
    logits.sub_(noise.uniform_().log_().neg_().log_())


def call_suite(vocab_size: int, rounds: int) -> Suite:
    """Mark one row through the Python API: what a call costs."""
    registry, rng = timing.team(vocab_size, 4), np.random.default_rng(2)
    keys, best = registry.marking_keys(), timing.isas()[-1]
    tensor, bias = torch.zeros(1, vocab_size), torch.zeros(1, vocab_size)
    array, array_bias = np.zeros((1, vocab_size), np.float32), np.zeros((1, vocab_size), np.float32)

    def context(isa: str) -> tuple[Any, ...]:
        select_isa(isa)
        return (rng.integers(0, vocab_size, (1, 1)),)

    contestants = {}
    cases: list[tuple[str, str, Any, Any, int]] = [
        *((f"{isa}, tensor, key table", isa, tensor, keys, 2) for isa in timing.isas()),
        (f"{best}, array, key table", best, array, keys, 2),
        (f"{best}, tensor, registry", best, tensor, registry, 2),
        ("the same for an unmarked row", best, tensor, keys, -1),
    ]
    for name, isa, logits, holder, slot in cases:
        slots = np.array([slot])
        mark = functools.partial(kernels.embed_, logits, slots=slots, registry=holder, num_threads=1)
        contestants[name] = Contestant(timed(mark, functools.partial(context, isa)), "ours")
    contestants["torch add [1, V]"] = Contestant(timed(lambda: tensor.add_(bias)), "floor")
    contestants["numpy add [1, V]"] = Contestant(timed(lambda: np.add(array, array_bias, out=array)), "floor")
    name = f"embed_ float32 [1, {vocab_size}], one call"
    check = functools.partial(validate, keys, "float32")
    note = "One thread; the row stays in the cache, as the logits that a model has just written do."
    return Suite(name, "µs", contestants, ("torch add [1, V]",), check, rounds, note=note)


def strided_suite(rows: int, vocab_size: int, rounds: int) -> Suite:
    """Mark logits that lie 12 bytes apart, as llama.cpp stores them with ids and probabilities."""
    keys, ids = timing.team(vocab_size, 4).marking_keys(), Ids(rows, vocab_size)
    strided = np.zeros((rows, vocab_size, 3), np.float32)[:, :, 0]
    dense, bias = (np.zeros((rows, vocab_size), np.float32) for _ in range(2))
    contestants = ours(keys, rows, lambda: strided, lambda: ids()[:, -1:])
    for name, target, untouched in (
        (FLOORS[0], dense, bias),
        (FLOORS[1], dense, bias[0]),
        ("add [B, V] to what lies 12 bytes apart", strided, bias),
    ):
        add = functools.partial(np.add, target, untouched, out=target)
        contestants[name] = Contestant(timed(add), "floor", dense.size)
    name = f"embed_ float32 [{rows}, {vocab_size}], 12 bytes apart"
    floors = (*FLOORS, f"{timing.isas()[-1]}, 1 thread")
    check = functools.partial(validate, keys, "float32", strided=True)
    note = "The layout of llama.cpp. Floors are NumPy's; one buffer each, which stays in the last cache."
    return Suite(name, UNIT, contestants, floors, check, rounds, note=note)


def validate(keys: KeyTable, dtype: str, strided: bool = False) -> None:
    """Compare every instruction set and number of threads with the reference, to the bit."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, keys.profile.vocab_size, generator=generator).to(getattr(torch, dtype))
    for _, isa, count in timing.contenders():
        select_isa(isa)
        fresh = logits.clone()
        if strided:
            fresh = torch.zeros(*logits.shape, 3, dtype=logits.dtype)[:, :, 0].copy_(logits)
        view = (fresh.view(torch.uint16) if dtype == "bfloat16" else fresh).numpy()
        timing.validate_embed(keys, fresh, view, num_threads=count)


def _cache_note(count: int, size: int) -> str:
    last = max(caches().values(), default=0)
    total = count * size / 2**20
    return (
        f"{count} buffers of {size / 2**20:.1f} MiB in turn, {total:.0f} MiB;"
        f" the last cache is {last / 2**20:.0f} MiB."
    )


# ---------------------------------------------------------------- a GPU


def device_suite(
    dtype: str,
    rows: int,
    vocab_size: int,
    rounds: int,
    device_name: str,
    n_gram: int = 2,
    family: str = "fourier",
) -> Suite:
    """Mark batches on a device: each call of a graph its own, together more than the last cache."""
    keys, element = timing.team(vocab_size, 8, n_gram, family=family).marking_keys(), getattr(torch, dtype)
    work, few = rows * vocab_size, max(1, rows // 16)
    count = max(4, min(64, -(-device.BEYOND_CACHE // (work * element.itemsize))))
    made: dict[str, Any] = {}

    def buffers() -> dict[str, Any]:
        if not made:
            slots = torch.arange(rows, device=device_name) % len(keys)
            first = torch.zeros(rows, vocab_size, dtype=element, device=device_name)
            made.update(
                logits=[first] + [first.clone() for _ in range(count - 1)],
                others=[first.clone() for _ in range(count)],
                bias=first[0].clone(),
                contexts=torch.zeros(count, rows, n_gram - 1, dtype=torch.int64, device=device_name),
                temperatures=torch.full((rows,), 0.7, device=device_name),
                slots=slots,
                half=torch.where(torch.arange(rows, device=device_name) % 2 == 0, slots, -1),
                index=torch.arange(0, rows, rows // few, device=device_name)[:few],
                generator=torch.Generator(device_name).manual_seed(1),
            )
        return made

    by_index = f"embed_, {few} rows by index"

    def mark(i: int, slots: str, number: int = rows, **options: Any) -> None:
        b = buffers()
        arguments = {name: b[value] for name, value in options.items()}
        kernels.embed_(b["logits"][i], b["contexts"][i, :number], b[slots][:number], keys, **arguments)

    def on(call: Callable[[dict[str, Any], torch.Tensor, torch.Tensor], object]) -> Callable[[int], object]:
        return lambda i: call(buffers(), buffers()["logits"][i], buffers()["others"][i])

    # name -> what is called, kind, and how often the logits of a batch are read or written
    calls: dict[str, tuple[Callable[[int], object], str, float]] = {
        "embed_": (lambda i: mark(i, "slots"), "ours", 2),
        "embed_, a temperature a row": (lambda i: mark(i, "slots", temperature="temperatures"), "ours", 2),
        "embed_, every second row": (lambda i: mark(i, "half"), "ours", 1),
        by_index: (lambda i: mark(i, "slots", few, rows="index"), "ours", 2 * few / rows),
        "add [B, V]": (on(lambda b, x, y: x.add_(y)), "floor", 3),
        "add [V]": (on(lambda b, x, y: x.add_(b["bias"])), "floor", 2),
        "multiply": (on(lambda b, x, y: x.mul_(1.0)), "floor", 2),
        "copy": (on(lambda b, x, y: y.copy_(x)), "floor", 2),
        "softmax": (on(lambda b, x, y: torch.softmax(x, -1, out=y)), "floor", 2),
    }

    def refresh() -> None:
        buffers()["contexts"].random_(0, vocab_size, generator=buffers()["generator"])

    def sample(call: Callable[[int], object]) -> Sampler:
        return device.captured(call, count, device_name, refresh)

    name = f"embed_ {dtype} [{rows}, {vocab_size}], {family}, n = {n_gram}, {device_name}"
    contestants = {
        name: Contestant(sample(call), kind, count * work, "", times * element.itemsize)
        for name, (call, kind, times) in calls.items()
    }
    check = functools.partial(
        validate_device, keys, dtype, device_name, rows
    )  # a block's chunks depend on rows
    note = f"Device time of {count} calls in a graph. GB/s counts what a line must move."
    floors, more = ("add [B, V]", "copy"), functools.partial(device.described, device_name)
    return Suite(name, UNIT, contestants, floors, check, rounds, {}, note, more, made.clear)


def host_suite(rounds: int, device_name: str) -> Suite:
    """Mark one row on a device that never makes the host wait: what a call costs the host."""
    vocab_size = 32000
    keys = timing.team(vocab_size, 4).marking_keys()
    logits, bias = (torch.zeros(1, vocab_size, device=device_name) for _ in range(2))
    context = torch.zeros(1, 1, dtype=torch.int64, device=device_name)
    calls: dict[str, Callable[[], object]] = {
        "embed_": lambda: kernels.embed_(logits, context, context[0], keys),
        "add [1, V]": lambda: logits.add_(bias),
    }
    name = f"embed_ float32 [1, {vocab_size}], one call, the host's time, {device_name}"
    contestants = {
        name: Contestant(device.returned(call, 20, device_name), kind, 20)
        for (name, call), kind in zip(calls.items(), ("ours", "floor"), strict=True)
    }
    check = functools.partial(validate_device, keys, "float32", device_name)
    return Suite(name, "µs", contestants, ("add [1, V]",), check, rounds)


def validate_device(keys: KeyTable, dtype: str, device_name: str, rows: int = 3) -> None:
    """Compare a number of rows on a device with the CPU's, and these with the reference, to the bit."""
    validate(keys, dtype)
    vocab_size = keys.profile.vocab_size
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, vocab_size, generator=generator).to(getattr(torch, dtype))
    words = keys.profile.scheme.n_gram - 1
    contexts = torch.randint(vocab_size, (rows, words), generator=generator)
    slots = torch.arange(1, rows + 1) % (len(keys) + 1) - 1
    on_device = logits.to(device_name, copy=True)
    kernels.embed_(on_device, contexts.to(device_name), slots.to(device_name), keys)
    kernels.embed_(logits, contexts, slots, keys)
    if not torch.equal(on_device.cpu(), logits):
        raise IetError(f"embed_ on {device_name} differs from the CPU's: {dtype}, V = {vocab_size}")


def device_suites(quick: bool, device_name: str) -> list[Suite]:
    device.require(device_name)
    shapes, rounds = (((4, 515),), 2) if quick else (((256, 128256), (64, 32000)), 21)
    made = [device_suite(dtype, *shape, rounds, device_name) for shape in shapes for dtype in DTYPES]
    return [*made, host_suite(rounds, device_name)]


def suites(quick: bool) -> list[Suite]:
    torch.set_num_threads(1)
    rows, vocab_size, rounds = (3, 515, 2) if quick else (64, 128256, 11)
    batch = functools.partial(batch_suite, rows=rows, vocab_size=vocab_size, rounds=rounds, quick=quick)
    return [
        batch("float32", real=False, with_peers=True),
        batch("float32", real=True, with_peers=True),
        batch("float16", real=False, with_peers=False),
        batch("bfloat16", real=False, with_peers=False),
        gumbel_suite(rows, vocab_size, rounds, quick),
        gumbel_suite(*((2, 515) if quick else (8, 49152)), rounds, quick),
        call_suite(*((515, 2) if quick else (32000, 500))),
        strided_suite(*((2, 515, 2) if quick else (8, 128256, 31))),
    ]


def bench_embed(replay: Callable[[], None]) -> None:
    replay()


if __name__ == "__main__":
    packages = ("torch", "transformers", "waterfall", "markllm")
    main("benchmarks.speed.bench_embed", __doc__, suites, packages, device_suites)
