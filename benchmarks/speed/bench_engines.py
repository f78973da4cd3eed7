"""Time reading what serving engines mark, beside the engines' own detectors, after comparing the scores.

    .ci/wheels && python -m benchmarks.speed.bench_engines -o benchmarks/results/engines.json

Ours reads random ids (nearly all contexts distinct: the worst case) on one thread. The detectors of vLLM,
SGLang and transformers read the same ids under one key, fewer of them where they are slow: none reads several
keys at less than a multiple of the cost. Each is called as its documentation says, down to the p-value; of
SynthID only the g-values. `.ci/wheels` unpacks those of vLLM and SGLang, $IET_WHEELS names another folder;
without them they are left out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import engine_wheels, timing
from benchmarks.speed import peers
from benchmarks.speed.suite import Contestant, Suite, main
from benchmarks.timing import select_isa, timed
from iet import EngineKeys, kernels
from iet.errors import IetError

UNIT = "ns per token·key"
DEPTH = 30

# A detector of one key: what is timed, (ids [T]) -> anything; and its score of every token from n - 1 on.
Detector = tuple[Callable[[NDArray[np.int64]], object], Callable[[NDArray[np.int64]], Any]]


def engine_keys(scheme: str, count: int, vocab_size: int) -> EngineKeys:
    numbers = np.random.default_rng(1).integers(1, 1 << 62, (count, DEPTH)).tolist()
    forms: dict[str, Callable[[list[int]], Any]] = {
        "sglang-gumbel": lambda row: f"{row[0]:x}",
        "synthid": lambda row: row,
    }
    form: Callable[[list[int]], Any] = forms.get(scheme, lambda row: row[0])
    agents = {f"agent {i}": form(row) for i, row in enumerate(numbers)}
    return EngineKeys(scheme, agents, vocab_size=vocab_size)


def vllm(vocab_size: int, keys: EngineKeys) -> Detector:
    module = engine_wheels.detector("vllm")
    detector = module.GumbelWatermarkDetector(int(keys.keys[0]))
    every = module.GumbelWatermarkDetector(int(keys.keys[0]), deduplicate_contexts=False)
    return (
        lambda ids: detector.detect(ids.tolist()),
        lambda ids: every._score_tokens(*every._prepare_inputs(ids.tolist())).numpy()[4:],
    )


def sglang(vocab_size: int, keys: EngineKeys) -> Detector:
    module = engine_wheels.detector("sglang")
    detector = module.WatermarkDetector(f"{int(keys.keys[0]):x}")

    def scores(ids: NDArray[np.int64]) -> list[float]:
        listed = ids.tolist()
        contexts = [module.hash_context(listed[j - 4 : j]) for j in range(4, len(listed))]
        return [detector._score(detector._key_a, *pair) for pair in zip(contexts, listed[4:], strict=True)]

    # It stops after 4,096 contexts, which are as many as a request marks.
    def detect(ids: NDArray[np.int64]) -> object:
        return [detector.detect_tokens(part.tolist()) for part in np.split(ids, range(4000, len(ids), 4000))]

    return detect, scores


def kgw(vocab_size: int, keys: EngineKeys) -> Detector:
    detector = functools.partial(peers.kgw_detector, vocab_size, hashing_key=int(keys.keys[0]))

    def scores(ids: NDArray[np.int64]) -> list[bool]:
        score, tensor = detector()._get_ngram_score, torch.from_numpy(ids)
        return [score(tensor[j - 1 : j], int(ids[j])) for j in range(1, len(ids))]

    return lambda ids: detector()(torch.from_numpy(ids)[None], return_dict=True), scores


def synthid(vocab_size: int, keys: EngineKeys) -> Detector:
    processor = peers.synthid(keys.keys[0].tolist())

    def g_values(ids: NDArray[np.int64]) -> Any:
        return processor.compute_g_values(torch.from_numpy(ids)[None])

    return g_values, lambda ids: 2 * math.sqrt(DEPTH) * (g_values(ids)[0].double().mean(dim=1).numpy() - 0.5)


PEERS: dict[str, tuple[str, Callable[[int, EngineKeys], Detector]]] = {
    "vllm-gumbel": ("vLLM detector", vllm),
    "sglang-gumbel": ("SGLang detector", sglang),
    "kgw": ("transformers KGW detector", kgw),
    "synthid": ("transformers SynthID g-values", synthid),
}


def missing(scheme: str) -> str | None:
    if scheme in ("vllm-gumbel", "sglang-gumbel"):
        return engine_wheels.missing(scheme.removesuffix("-gumbel"))
    return peers.missing("SynthID")


def suite(
    scheme: str, tokens: int, theirs: int, vocab_size: int, counts: tuple[int, ...], rounds: int
) -> Suite:
    """Score under one scheme: every instruction set with the most keys, the best with fewer, and the peer."""
    ids = np.random.default_rng(0).integers(1, vocab_size, tokens)
    few = ids[:theirs].copy()
    name, make = PEERS[scheme]
    why = missing(scheme)
    tables = {count: engine_keys(scheme, count, vocab_size) for count in counts}
    peer = None if why else make(vocab_size, tables[counts[0]])
    best, most = timing.isas()[-1], counts[-1]

    def ours(isa: str, count: int) -> Contestant:
        score = functools.partial(kernels.score_tokens, ids, tables[count], num_threads=1)
        return Contestant(timed(score, functools.partial(select_isa, isa)), "ours", tokens * count)

    first = f"{best}, 1 thread, K = {most}"
    contestants = {f"{isa}, 1 thread, K = {most}": ours(isa, most) for isa in timing.isas()}
    contestants |= {f"{best}, 1 thread, K = {count}": ours(best, count) for count in counts[:-1]}
    if peer is not None:
        note = "K = 1" + ("" if theirs == tokens else f", the first {theirs} ids, scaled")
        contestants[name] = Contestant(timed(functools.partial(peer[0], few)), "peer", theirs, note)

    def validate() -> None:
        answers = {
            isa: (select_isa(isa), kernels.score_tokens(few, tables[counts[0]]))[1] for isa in timing.isas()
        }
        if any(not np.array_equal(answer, answers[best]) for answer in answers.values()):
            raise IetError(f"{scheme}: instruction sets differ")
        if peer is not None:
            expected = np.asarray(peer[1](few), np.float64)
            if not np.allclose(answers[best][-len(expected) :, 0], expected, rtol=1e-6, atol=1e-5):
                raise IetError(f"{scheme}: scores differ from those of {name}")

    title, skipped = f"{scheme}, T = {tokens}, V = {vocab_size}, random ids", {name: why} if why else {}
    return Suite(title, UNIT, contestants, (first,), validate, rounds, skipped)


def suites(quick: bool) -> list[Suite]:
    torch.set_num_threads(1)
    if quick:
        return [suite(scheme, 60, 40, 515, (1, 3), 2) for scheme in PEERS]
    return [
        suite("vllm-gumbel", 1 << 14, 1 << 14, 128256, (1, 16, 64), 7),
        suite("sglang-gumbel", 1 << 14, 1 << 14, 128256, (1, 16, 64), 7),
        suite("kgw", 1024, 256, 128256, (1, 4), 5),
        suite("kgw", 1024, 256, 32000, (1, 4), 5),
        suite("synthid", 1 << 14, 1 << 14, 128256, (1, 16, 64), 7),
        *(suite(scheme, 1000, 1000, 128256, (1, 64), 7) for scheme in PEERS if scheme != "kgw"),
    ]


def bench_engines(replay: Callable[[], None]) -> None:
    replay()


if __name__ == "__main__":
    main("benchmarks.speed.bench_engines", __doc__, suites, ("torch", "transformers", "vllm", "sglang"))
