"""The timer of `benchmarks/speed`, and checks of what it times against the reference.

A machine that other work shares drifts while it is measured. So everything that is compared runs in turn,
round after round, in a new order each round, and a ratio is formed within each round: drift hits both sides.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iet import kernels
from iet.errors import IetError, InputError
from iet.marks.keys import KeyTable
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.native import load as native
from iet.native import reference
from iet.native.arrays import Int64s

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
    return spread([sample / floor_sample for sample, floor_sample in zip(samples, floor, strict=True)])


def noise(samples: Sequence[float]) -> float:
    """Return (upper - lower quartile) / median."""
    quartiles = spread(samples)
    return (quartiles.high - quartiles.low) / quartiles.median


def timed(call: Callable[..., object], prepare: Callable[[], tuple[Any, ...]] = tuple) -> Sampler:
    """Return a sampler of `call`; `prepare` makes new arguments each time, outside the measurement."""

    def sample() -> float:
        arguments = prepare()
        started = time.perf_counter()
        call(*arguments)
        return time.perf_counter() - started

    return sample


def interleaved(
    samplers: Mapping[str, Sampler], rounds: int, *, seconds: float = float("inf"), seed: int = 0
) -> dict[str, list[float]]:
    """Run every sampler once a round, in a new random order each round, after one round that warms up.

    Args:
        samplers: name -> sampler.
        rounds: how often; fewer where `seconds` pass, but at least 3 (or `rounds`, if that is less).
        seconds: time limit for starting a round.
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


def contenders() -> list[tuple[str, str, int]]:
    """Return (name, instruction set, threads) of every way to run our ops on this machine."""
    counts = thread_counts()
    return [
        (f"{isa}, {count} thread{'s' if count > 1 else ''}", isa, count) for isa in isas() for count in counts
    ]


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
