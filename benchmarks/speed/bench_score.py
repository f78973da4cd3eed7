"""Time `score_tokens` and `score_spans` on random ids and real text, after checking them with the reference.

    python -m benchmarks.speed.bench_score -o benchmarks/results/score.json [--device cuda]

The floor is writing the scores: a fill of [T, K] float32. Peers read the same ids on one thread, fewer of
them if they are slow, under one key: none of them reads several at less than a multiple of the cost.
`--device cuda` times the kernels of a GPU instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import timing
from benchmarks.speed import device, peers, texts
from benchmarks.speed.suite import Contestant, Suite, main
from benchmarks.timing import select_isa, timed
from iet import kernels
from iet.errors import IetError
from iet.marks.keys import KeyTable
from iet.native import reference

UNIT = "ns per token·key"
FILL = "fill [T, K]"


def random_ids(tokens: int, vocab_size: int) -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(0, vocab_size, tokens)


def scoring(ids: NDArray[np.int64], keys: KeyTable, isa: str, count: int) -> Contestant:
    """Return ours: all of `ids` under all of `keys`."""
    score = functools.partial(kernels.score_tokens, ids, keys, num_threads=count)
    return Contestant(timed(score, functools.partial(select_isa, isa)), "ours", len(ids) * len(keys))


def fill(tokens: int, keys: int) -> Contestant:
    output = np.empty((tokens, keys), np.float32)
    return Contestant(timed(lambda: output.fill(0)), "floor", output.size)


def ngram_suite(
    n_gram: int, tokens: int, vocab_size: int, keys: int, rounds: int, family: str = "fourier"
) -> Suite:
    """Score with every instruction set and number of threads."""
    table = timing.team(vocab_size, keys, n_gram, family=family).scoring_keys()
    ids = random_ids(tokens, vocab_size)
    ours = {name: scoring(ids, table, isa, count) for name, isa, count in timing.contenders()}
    of = "" if family == "fourier" else f", {family}"
    name = f"score_tokens n = {n_gram}{of}, T = {tokens}, K = {keys}, random ids"
    check = functools.partial(validate, table, ids)
    return Suite(name, UNIT, {**ours, FILL: fill(tokens, keys)}, (FILL,), check, rounds)


def peers_suite(real: bool, tokens: int, vocab_size: int, rounds: int, lengths: dict[str, int]) -> Suite:
    """Score and compare with peers, n = 2, under 16 keys and under one."""
    ids = texts.real_ids()[:tokens] % vocab_size if real else random_ids(tokens, vocab_size)
    many, single_key = timing.team(vocab_size, 16).scoring_keys(), timing.team(vocab_size, 1).scoring_keys()
    best = timing.isas()[-1]
    contestants = {
        f"{best}, 1 thread, K = 16": scoring(ids, many, best, 1),
        f"{best}, 1 thread, K = 1": scoring(ids, single_key, best, 1),
        FILL: fill(len(ids), 16),
    }
    reads, skipped = peers.readers(vocab_size)
    for name, read in reads.items():
        few = np.ascontiguousarray(ids[: lengths.get(name, len(ids))])
        note = "K = 1" + ("" if len(few) == len(ids) else f", the first {len(few)} ids, scaled")
        contestants[name] = Contestant(timed(functools.partial(read, few)), "peer", len(few), note)
    name = f"score_tokens beside peers, T = {len(ids)}, {'real text' if real else 'random ids'}"
    check = functools.partial(validate, many, ids)
    floors, note = (f"{best}, 1 thread, K = 16",), texts.NOTE if real else ""
    return Suite(name, UNIT, contestants, floors, check, rounds, skipped, note)


def scaling_suite(tokens: int, vocab_size: int, keys: int, rounds: int) -> Suite:
    """Double T, K and threads: the cost of a token under a key should stay, and halve with the threads."""
    best = timing.isas()[-1]
    first = f"T = {tokens}, K = {keys}"
    shapes = [(m * tokens, keys) for m in (1, 2, 4)] + [(tokens, m * keys) for m in (2, 4)]
    contestants = {}
    for t, k in shapes:
        ids, table = random_ids(t, vocab_size), timing.team(vocab_size, k).scoring_keys()
        contestants[f"T = {t}, K = {k}"] = scoring(ids, table, best, 1)
    ids, table = random_ids(tokens, vocab_size), timing.team(vocab_size, keys).scoring_keys()
    for count in timing.thread_counts()[1:]:
        contestants[f"{first}, {count} threads"] = scoring(ids, table, best, count)
    name = f"score_tokens n = 2, T, K and threads doubled ({best})"
    check = functools.partial(validate, table, ids)
    note = "Linear in T and K where the ratio is 1; linear in threads where it is 1 / threads."
    return Suite(name, UNIT, contestants, (first,), check, rounds, note=note)


def spans_suite(tokens: int, vocab_size: int, keys: int, span: int, rounds: int) -> Suite:
    """Sum over windows without making [T, K], and with it."""
    table, ids = timing.team(vocab_size, keys).scoring_keys(), random_ids(tokens, vocab_size)
    cuts, best = np.arange(0, tokens + 1, span), timing.isas()[-1]

    def by_hand() -> NDArray[np.float64]:
        return np.add.reduceat(kernels.score_tokens(ids, table, num_threads=1), cuts[:-1], dtype=np.float64)

    def check() -> None:
        few = timing.team(vocab_size, 3).scoring_keys()
        expected = reference.score_spans(few.marking, ids, cuts, np.ones(tokens, np.bool_)).tobytes()
        for name, isa, count in timing.contenders():
            select_isa(isa)
            if np.asarray(kernels.score_spans(ids, cuts, few, num_threads=count)).tobytes() != expected:
                raise IetError(f"score_spans differs from the reference on {name}")

    work = tokens * keys
    contestants = {}
    for name, isa, count in timing.contenders():
        add = functools.partial(kernels.score_spans, ids, cuts, table, num_threads=count)
        contestants[name] = Contestant(timed(add, functools.partial(select_isa, isa)), "ours", work)
    contestants["score_tokens, then add.reduceat"] = Contestant(
        timed(by_hand, functools.partial(select_isa, best)), "floor", work
    )
    name = f"score_spans n = 2, T = {tokens}, K = {keys}, windows of {span}"
    floors = ("score_tokens, then add.reduceat",)
    sums, scores = (size / 2**20 for size in (8 * keys * (len(cuts) - 1), 4 * work))
    note = f"score_spans keeps {sums:.1f} MiB of sums, score_tokens {scores:.1f} MiB of scores."
    return Suite(name, UNIT, contestants, floors, check, rounds, note=note)


def validate(keys: KeyTable, ids: NDArray[np.int64]) -> None:
    """Compare every instruction set and number of threads with the reference, to the bit."""
    for _, isa, count in timing.contenders():
        select_isa(isa)
        timing.validate_score(keys, ids[:500], num_threads=count)


def device_suite(tokens: int, keys: int, rounds: int, device_name: str) -> Suite:
    """Score on a device, and sum over one span: with what is allocated and checked for each call."""
    vocab_size, text_bounds = 32000, np.array([0, tokens])
    table = timing.team(vocab_size, keys).scoring_keys()
    ids = torch.zeros(tokens, dtype=torch.int64, device=device_name)
    generator = torch.Generator(device_name).manual_seed(2)
    calls: dict[str, Callable[[], object]] = {
        "score_tokens": lambda: kernels.score_tokens(ids, table),
        "score_spans, one span": lambda: kernels.score_spans(ids, text_bounds, table),
        FILL: lambda: torch.zeros(tokens, keys, device=device_name),
    }

    def refresh() -> None:
        ids.random_(0, vocab_size, generator=generator)

    def check() -> None:
        refresh()
        scores_of_device = torch.as_tensor(kernels.score_tokens(ids[:64], table)).cpu().numpy()
        few = ids[:64].cpu().numpy()
        validate(table, few)
        if scores_of_device.tobytes() != kernels.score_tokens(few, table).tobytes():
            raise IetError(f"score_tokens on {device_name} differs from the CPU's")

    name = f"score_tokens n = 2, T = {tokens}, K = {keys}, {device_name}"
    contestants = {
        name: Contestant(
            device.waited(call, device_name, refresh), "floor" if name == FILL else "ours", tokens * keys
        )
        for name, call in calls.items()
    }
    return Suite(
        name, UNIT, contestants, (FILL,), check, rounds, details=lambda: device.described(device_name)
    )


def device_suites(quick: bool, device_name: str) -> list[Suite]:
    device.require(device_name)
    texts, rounds = (((500, 20),), 2) if quick else (((4096, 10_000), (1_000_000, 6)), 21)
    return [device_suite(*text, rounds, device_name) for text in texts]


def suites(quick: bool) -> list[Suite]:
    torch.set_num_threads(1)
    tokens, vocab_size, keys, rounds = (300, 515, 3, 2) if quick else (1 << 16, 128256, 16, 15)
    slow = dict.fromkeys(("Waterfall verify", "transformers KGW detector"), 40 if quick else 256)
    real = slow if quick else {"Waterfall verify": 4096, "transformers KGW detector": 1024}
    return [
        *(ngram_suite(n_gram, tokens, vocab_size, keys, rounds) for n_gram in (2, 3, 5)),
        ngram_suite(4, tokens, vocab_size, keys, rounds, "gumbel"),
        peers_suite(False, tokens, vocab_size, min(rounds, 7), slow),
        peers_suite(True, tokens, vocab_size, min(rounds, 7), real),
        scaling_suite(tokens, vocab_size, keys, rounds),
        spans_suite(*((300, 515, 5, 64, 2) if quick else (4096, 128256, 1000, 64, 5))),
    ]


def bench_score(replay: Callable[[], None]) -> None:
    replay()


if __name__ == "__main__":
    packages = ("torch", "transformers", "waterfall")
    main("benchmarks.speed.bench_score", __doc__, suites, packages, device_suites)
