"""`iet bench`: marking and scoring beside floors, and the timer that `benchmarks/speed` shares with it.

A machine that other work shares drifts while it is measured. So everything that is compared runs in turn,
round after round, in a new order each round, and a ratio is formed within each round: drift hits both sides.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

import iet
from iet import kernels
from iet.cli.options import Commands
from iet.cli.progress import progress
from iet.errors import IetError, InputError, check_number
from iet.marks.keys import KeyTable
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.native import load as native
from iet.native import reference
from iet.native.arrays import Int64s
from iet.report.lines import table, width_of, wrapped

Sampler = Callable[[], float]
"""A function that does the work once and returns the seconds that it took."""


class Spread(NamedTuple):
    """A median, and the quartiles around it."""

    low: float
    median: float
    high: float

    def times(self, factor: float) -> Spread:
        """Return the same in another unit."""
        return Spread(*(value * factor for value in self))


def spread(samples: Sequence[float]) -> Spread:
    """Return the quartiles of `samples`, which may not be empty."""
    return Spread(*(float(value) for value in np.percentile(samples, (25, 50, 75))))


def ratio(samples: Sequence[float], floor: Sequence[float]) -> Spread:
    """Return the quartiles of samples[i] / floor[i]: both of round i, so that drift cancels."""
    return spread([sample / other for sample, other in zip(samples, floor, strict=True)])


def timed(call: Callable[..., object], prepare: Callable[[], tuple[Any, ...]] = tuple) -> Sampler:
    """Return a sampler of `call`; `prepare` makes its arguments anew each time, outside the measurement."""

    def sample() -> float:
        arguments = prepare()
        started = time.perf_counter()
        call(*arguments)
        return time.perf_counter() - started

    return sample


def interleaved(
    samplers: Mapping[str, Sampler], rounds: int, *, seconds: float = float("inf"), seed: int = 0
) -> dict[str, list[float]]:
    """Run every sampler once a round, in an order drawn anew each round, after one round that warms up.

    Args:
        samplers: name -> sampler.
        rounds: how often; fewer where `seconds` pass, but at least 3 (or `rounds`, if that is less).
        seconds: after which no round is begun.
        seed: of the orders.

    Returns:
        Name -> samples, one of each round.
    """
    import random

    samples: dict[str, list[float]] = {name: [] for name in samplers}
    order, draw = list(samplers), random.Random(seed)
    for name in order:
        samplers[name]()
    started = time.perf_counter()
    for done in range(rounds):
        if done >= 3 and time.perf_counter() - started > seconds:
            break
        draw.shuffle(order)
        for name in order:
            samples[name].append(samplers[name]())
    return samples


def isas() -> tuple[str, ...]:
    """Return the instruction sets to time, the slowest first; ("reference",) without the compiled module."""
    return kernels.backends().isas or ("reference",)


def select_isa(isa: str) -> tuple[()]:
    """Switch the compiled module to an instruction set of this machine; "reference" changes nothing.

    Returns:
        No arguments, so that it can be the `prepare` of `timed`.
    """
    if native.cpu is not None and not native.cpu.select_isa(isa):
        raise InputError(f"instruction set: got {isa!r}, expected one of {isas()}")
    return ()


def thread_counts() -> tuple[int, ...]:
    """Return (1, 2, ...) up to the cores of this machine by doubling; (1,) without the compiled module."""
    if native.cpu is None:
        return (1,)
    counts = [1]
    while counts[-1] * 2 <= cores():
        counts.append(counts[-1] * 2)
    return tuple(counts)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def team(
    vocab_size: int | None,
    keys: int | Sequence[str],
    n_gram: int = 2,
    *,
    tokenizer: Any = None,
    **scheme: Any,
) -> Registry:
    """Return a registry in memory, the same at every call; `keys` is a number of agents, or their names."""
    registry = Registry.create(
        None, vocab_size=vocab_size, tokenizer=tokenizer, scheme=Scheme(n_gram=n_gram, **scheme)
    )
    names = [f"agent {i}" for i in range(keys)] if isinstance(keys, int) else keys
    for i, name in enumerate(names):
        registry.add(name, secret=i.to_bytes(32, "little"))
    return registry


def validate_embed(keys: KeyTable, logits: Any, view: NDArray[Any] | None = None, **options: Any) -> None:
    """Compare `embed_` on `logits` [B, >= V] (changed in place) with the reference, to the bit.

    Args:
        keys: marks them.
        logits: numpy array or torch tensor.
        view: the memory of `logits` as numpy shows it, for a tensor; bfloat16 as uint16.
        options: of `embed_`.

    Raises:
        IetError: they differ.
    """
    scheme, vocab_size = keys.profile.scheme, keys.profile.vocab_size
    view = logits if view is None else view
    rng = np.random.default_rng(0)
    contexts = rng.integers(0, vocab_size, (len(view), scheme.n_gram - 1))
    slots = (np.arange(len(view)) % len(keys)).astype(np.int32)
    expected = np.array(view)
    kappas = np.full(len(view), scheme.kappa, dtype=np.float32)
    reference.embed_(keys.marking, expected, contexts, slots, kappas)
    kernels.embed_(logits, contexts, slots, keys, **options)
    if np.array(view).tobytes() != expected.tobytes():
        raise IetError(f"embed_ differs from the reference: {logits.dtype} {list(view.shape)}, {options}")


def validate_score(keys: KeyTable, token_ids: Int64s, **options: Any) -> None:
    """Compare `score_tokens` with the reference, to the bit.

    Raises:
        IetError: they differ.
    """
    expected = reference.score_tokens(keys.marking, token_ids)
    if kernels.score_tokens(token_ids, keys, **options).tobytes() != expected.tobytes():
        raise IetError(f"score_tokens differs from the reference at n = {keys.marking.n_gram}, {options}")


# ---------------------------------------------------------------- iet bench


def add(commands: Commands) -> None:
    """Add `iet bench`."""
    bench = commands.add_parser("bench", help="time marking and scoring on this machine, beside floors")
    bench.add_argument("--rows", type=int, default=64, help="rows of the batch (default: 64)")
    bench.add_argument("--vocab-size", type=int, default=128256, help="V (default: 128256)")
    bench.add_argument("--tokens", type=int, default=1 << 15, help="of the scored text (default: 32768)")
    bench.add_argument("--seconds", type=float, default=20.0, help="about how long to measure (default: 20)")
    bench.add_argument("--json", action="store_true", help="print as JSON")
    bench.set_defaults(run=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    options = {name: getattr(arguments, name) for name in ("rows", "vocab_size", "tokens", "seconds")}
    with progress("checking against the reference, then measuring"):
        figures = run(**options)
    if arguments.json:
        print(json.dumps(figures.to_dict(), indent=1))
    else:
        show(figures)
    return 0


@dataclasses.dataclass(frozen=True)
class Line:
    """One measurement.

    Attributes:
        work: what was done, with its shape.
        what: who did it: an instruction set of ours, or a floor.
        ours: false for a floor.
        unit: of `value`.
        value: quartiles over the rounds.
        over: quartiles of the ratio to each floor, floor -> ratio, within rounds.
    """

    work: str
    what: str
    ours: bool
    unit: str
    value: Spread
    over: dict[str, Spread]


@dataclasses.dataclass(frozen=True)
class Figures:
    """What `iet bench` prints.

    Attributes:
        machine: versions, processor, cores and instruction set.
        noise: (upper - lower quartile) / median of the line for which that is largest.
        rounds: how many the blocks had, the fewest and the most.
        lines: the measurements.
    """

    machine: dict[str, Any]
    noise: float
    rounds: tuple[int, int]
    lines: tuple[Line, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        lines = [
            {
                **dataclasses.asdict(line),
                "value": line.value._asdict(),
                "over": {floor: value._asdict() for floor, value in line.over.items()},
            }
            for line in self.lines
        ]
        return {"machine": self.machine, "noise": self.noise, "rounds": list(self.rounds), "lines": lines}


def run(*, rows: int = 64, vocab_size: int = 128256, tokens: int = 1 << 15, seconds: float = 20.0) -> Figures:
    """Check every instruction set against the reference, then time marking and scoring beside NumPy floors.

    Args:
        rows: B of the batch that is marked, at least 1.
        vocab_size: V of that batch, at least 2.
        tokens: T of the text that is scored, at least 2.
        seconds: about how long to measure, at least 0; each block takes at least 3 rounds.

    Raises:
        InputError: an argument is out of range.
        IetError: a backend differs from the reference: nothing is timed then.

    The floors are NumPy's, on one thread. The contexts are new in every row and call.
    """
    for name, value, least in (("rows", rows, 1), ("vocab_size", vocab_size, 2), ("tokens", tokens, 2)):
        check_number(name, value, least)
    check_number("seconds", seconds, 0, integer=False)
    before = kernels.backends().isa
    blocks = (
        functools.partial(_embed_block, "float32", rows, vocab_size, seconds * 0.4),
        functools.partial(_embed_block, "float16", rows, vocab_size, seconds * 0.3),
        functools.partial(_call_block, min(vocab_size, 32000), seconds * 0.1),
        functools.partial(_score_block, tokens, vocab_size, seconds * 0.2),
    )
    try:
        measured = [block() for block in blocks]
    finally:
        if before is not None:
            select_isa(before)
    rounds = [block.rounds for block in measured]
    return Figures(
        _machine(),
        max(block.noise for block in measured),
        (min(rounds), max(rounds)),
        tuple(line for block in measured for line in block.lines),
    )


class _Block(NamedTuple):
    """The lines of one kind of work, their noise, and the number of rounds."""

    lines: list[Line]
    noise: float
    rounds: int


_FLOORS = ("float32 add [B, V]", "float32 add [V]")


def contenders() -> list[tuple[str, str, int]]:
    """Return (name, instruction set, threads) of every way in which this machine runs our ops."""
    counts = thread_counts()
    return [
        (f"{isa}, {count} thread{'s' if count > 1 else ''}", isa, count) for isa in isas() for count in counts
    ]


def _embed_block(dtype: str, rows: int, vocab_size: int, seconds: float) -> _Block:
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((rows, vocab_size), dtype=np.float32).astype(dtype)
    floats, target = np.zeros((rows, vocab_size), np.float32), np.empty_like(logits)
    bias, row_bias = np.zeros_like(floats), np.zeros(vocab_size, np.float32)
    samplers = _marking(logits, contenders())
    ours = set(samplers)
    samplers["float32 add [B, V]"] = timed(lambda: np.add(floats, bias, out=floats))
    samplers["float32 add [V]"] = timed(lambda: np.add(floats, row_bias, out=floats))
    samplers["multiply"] = timed(lambda: np.multiply(logits, logits.dtype.type(1), out=logits))
    samplers["copy"] = timed(lambda: np.copyto(target, logits))
    work = f"embed_ {dtype} [{rows}, {vocab_size}]"
    return _block(work, samplers, ours, _FLOORS, "ns per logit", 1e9 / logits.size, 15, seconds)


def _call_block(vocab_size: int, seconds: float) -> _Block:
    """Time one row: what a call costs."""
    logits, bias = np.zeros((1, vocab_size), np.float32), np.zeros((1, vocab_size), np.float32)
    samplers = _marking(logits, [(isa, isa, 1) for isa in isas()])
    ours = set(samplers)
    samplers["float32 add [B, V]"] = timed(lambda: np.add(logits, bias, out=logits))
    work = f"embed_ float32 [1, {vocab_size}], one call"
    return _block(work, samplers, ours, _FLOORS[:1], "µs", 1e6, 500, seconds)


def _marking(logits: NDArray[Any], ways: Sequence[tuple[str, str, int]]) -> dict[str, Sampler]:
    """Return a sampler of `embed_` for each of the `contenders`, checked; each call has new contexts."""
    rows, vocab_size = logits.shape
    rng, keys, slots = np.random.default_rng(2), team(vocab_size, 4).marking_keys(), np.arange(rows) % 4

    def new_contexts(isa: str) -> tuple[Any, ...]:
        select_isa(isa)
        return (rng.integers(0, vocab_size, (rows, 1)),)

    samplers: dict[str, Sampler] = {}
    for name, isa, count in ways:
        select_isa(isa)
        validate_embed(keys, logits[:3].copy(), num_threads=count)
        mark = functools.partial(kernels.embed_, logits, slots=slots, registry=keys, num_threads=count)
        samplers[name] = timed(mark, functools.partial(new_contexts, isa))
    return samplers


def _score_block(tokens: int, vocab_size: int, seconds: float) -> _Block:
    ids = np.random.default_rng(3).integers(0, vocab_size, tokens)
    keys = team(vocab_size, 16).scoring_keys()
    output = np.empty((tokens, len(keys)), np.float32)

    samplers: dict[str, Sampler] = {}
    for name, isa, count in contenders():
        select_isa(isa)
        validate_score(keys, ids[:200], num_threads=count)
        score = functools.partial(kernels.score_tokens, ids, keys, num_threads=count)
        samplers[name] = timed(score, functools.partial(select_isa, isa))
    ours = set(samplers)
    samplers["fill [T, K]"] = timed(lambda: output.fill(0))
    work = f"score_tokens n = 2, T = {tokens}, K = {len(keys)}"
    return _block(work, samplers, ours, ("fill [T, K]",), "ns per token·key", 1e9 / output.size, 15, seconds)


def _block(
    work: str,
    samplers: dict[str, Sampler],
    ours: set[str],
    floors: Sequence[str],
    unit: str,
    factor: float,
    rounds: int,
    seconds: float,
) -> _Block:
    samples = interleaved(samplers, rounds, seconds=seconds)
    lines = [
        Line(
            work,
            name,
            name in ours,
            unit,
            spread(samples[name]).times(factor),
            {floor: ratio(samples[name], samples[floor]) for floor in floors},
        )
        for name in samplers
    ]
    return _Block(lines, max(map(noise, samples.values())), len(samples[floors[0]]))


def noise(samples: Sequence[float]) -> float:
    """Return (upper - lower quartile) / median."""
    quartiles = spread(samples)
    return (quartiles.high - quartiles.low) / quartiles.median


def show(figures: Figures, file: TextIO | None = None) -> None:
    """Print the figures in columns, or, where the terminal is too narrow for them, in lines."""
    file = sys.stdout if file is None else file
    machine, width = figures.machine, width_of(file)
    least, most = figures.rounds
    found = wrapped(
        f"iet {machine['iet']} · numpy {machine['numpy']} · Python {machine['python']} · {machine['system']}"
        f" · {machine['cores']} cores · {machine['isa'] or machine['host']} is what iet uses here",
        width,
    )
    for work in dict.fromkeys(line.work for line in figures.lines):
        lines = [line for line in figures.lines if line.work == work]
        rows = [
            ("", lines[0].unit, "quartiles", *(f"over {floor}" for floor in lines[0].over)),
            *(
                (
                    line.what,
                    f"{line.value.median:.3g}",
                    f"{line.value.low:.3g} - {line.value.high:.3g}",
                    *(f"{value.median:.2f}" for value in line.over.values()),
                )
                for line in lines
            ),
        ]
        found += ["", *wrapped(work, width), *itertools.chain(*table(rows, width, right=True))]
    busy = (
        ": this machine is busy, so take the figures for no more than that." if figures.noise > 0.3 else "."
    )
    found += wrapped(
        f"\nMedians of {least} to {most} rounds, everything in turn in each; every instruction set agreed"
        " with the reference to the bit first. The floors are NumPy's, on one thread. Between the quartiles"
        f" a line moves by up to {figures.noise:.0%}{busy}",
        width,
    )
    print("\n".join(found), file=file)


def _machine() -> dict[str, Any]:
    import importlib.metadata
    import platform

    backends = kernels.backends()
    return {
        "iet": iet.__version__,
        "python": platform.python_version(),
        "numpy": importlib.metadata.version("numpy"),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cores(),
        "host": backends.host,
        "isa": backends.isa,
    }
