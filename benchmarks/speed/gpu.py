"""Time the CUDA kernels against what a GPU must do anyway, after checking them against the reference.

python -m benchmarks.speed.gpu -o benchmarks/results/gpu.json

Every line is device time: a CUDA graph of several calls, between two events, the lines interleaved, the
median over rounds. Each call of a graph works on a buffer of its own, so that together they exceed the last
cache, and reads contexts that are new in every round. GB/s counts the bytes that a line must move, and stands
beside its share of the GB/s that a copy of as many logits reaches in the same run. What a call costs the host
is timed apart. `--device cpu` tries the program out where there is no GPU.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import iet
from benchmarks.recording import environment, table, write
from iet import kernels
from iet.marks.keys import KeyTable
from iet.marks.registry import Registry
from iet.native import reference

SHAPES = ((256, 128256), (64, 32000))
DTYPES = ("float32", "float16", "bfloat16")
BEYOND_CACHE = 256 << 20  # bytes


def team(vocab_size: int, agents: int = 8) -> KeyTable:
    registry = Registry.create(None, vocab_size=vocab_size)
    for i in range(agents):
        registry.add(f"agent {i}", secret=i.to_bytes(32, "little"))
    return registry.marking_keys()


def validate(keys: KeyTable, dtype: str, device: str) -> None:
    """Compare a few rows with the reference, to the bit."""
    rng = np.random.default_rng(0)
    vocab_size = keys.profile.vocab_size
    values = torch.tensor(rng.standard_normal((3, vocab_size))).to(getattr(torch, dtype))
    contexts, slots = torch.tensor(rng.integers(0, vocab_size, (3, 1))), torch.tensor([0, 5, 7])
    logits, want = values.to(device), values.clone()
    iet.embed_(logits, contexts.to(device), slots.to(device), keys)
    reference.embed_(
        keys.marking,
        want.view(torch.uint16).numpy() if dtype == "bfloat16" else want.numpy(),
        contexts.numpy(),
        slots.numpy(),
        np.full(3, np.float32(keys.profile.scheme.kappa)),
    )
    assert torch.equal(logits.cpu(), want), f"embed_ differs from the reference: {dtype}, V = {vocab_size}"


class Timer:
    """Runs functions of a call's number in turn, `count` calls each, and takes their time on the device."""

    def __init__(self, device: str, rounds: int, count: int) -> None:
        self._cuda, self._rounds, self._count = device != "cpu", rounds, count

    def _captured(self, call: Callable[[int], object]) -> Callable[[], object]:
        def several() -> None:
            for i in range(self._count):
                call(i)

        several()
        if not self._cuda:
            return several
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            several()
        return graph.replay

    def medians(
        self, calls: dict[str, Callable[[int], object]], refresh: Callable[[], object]
    ) -> dict[str, float]:
        """Return name -> median seconds of one call; `refresh` runs before each, untimed."""
        graphs = {name: self._captured(call) for name, call in calls.items()}
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for i in range(self._rounds + 2):
            for name, replay in graphs.items():
                refresh()
                taken = self._one(replay)
                if i >= 2:
                    seconds[name].append(taken / self._count)
        return {name: statistics.median(values) for name, values in seconds.items()}

    def _one(self, replay: Callable[[], object]) -> float:
        if not self._cuda:
            started = time.perf_counter()
            replay()
            return time.perf_counter() - started
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def measure_embed(
    rows: int, vocab_size: int, dtype: str, device: str, rounds: int
) -> list[dict[str, object]]:
    keys = team(vocab_size)
    validate(keys, dtype, device)
    element = getattr(torch, dtype)
    size = torch.empty(0, dtype=element).element_size() * rows * vocab_size
    count = max(4, min(64, -(-BEYOND_CACHE // size)))
    buffers = [torch.zeros(rows, vocab_size, dtype=element, device=device) for _ in range(count)]
    others = [torch.zeros_like(buffers[0]) for _ in range(count)]
    row_bias = torch.zeros(vocab_size, dtype=element, device=device)
    contexts = torch.zeros(count, rows, 1, dtype=torch.int64, device=device)
    slots = torch.arange(rows, device=device) % len(keys)
    half = torch.where(torch.arange(rows, device=device) % 2 == 0, slots, -1)
    few = max(1, rows // 16)
    index = torch.arange(0, rows, rows // few, device=device)[:few]
    generator = torch.Generator(device).manual_seed(1)

    def logits(i: int) -> torch.Tensor:
        return buffers[i]

    calls: dict[str, Callable[[int], object]] = {
        "embed_": lambda i: iet.embed_(logits(i), contexts[i], slots, keys),
        "embed_, every second row": lambda i: iet.embed_(logits(i), contexts[i], half, keys),
        f"embed_, {few} rows by index": lambda i: iet.embed_(
            logits(i), contexts[i, :few], slots[:few], keys, rows=index
        ),
        "add of a [B, V] bias": lambda i: logits(i).add_(others[i]),
        "add of a [V] bias": lambda i: logits(i).add_(row_bias),
        "multiplication by a constant": lambda i: logits(i).mul_(1.0),
        "copy": lambda i: others[i].copy_(logits(i)),
        "softmax": lambda i: torch.softmax(logits(i), -1, out=others[i]),
    }
    moved = {name: 2.0 for name in calls}
    moved |= {"embed_, every second row": 1.0, f"embed_, {few} rows by index": 2 * few / rows}
    moved["add of a [B, V] bias"] = 3.0

    def refresh() -> None:
        contexts.random_(0, vocab_size, generator=generator)

    seconds = Timer(device, rounds, count).medians(calls, refresh)
    copied = moved["copy"] * size / seconds["copy"]
    return [
        {
            "shape": [rows, vocab_size],
            "dtype": dtype,
            "what": name,
            "microseconds": value * 1e6,
            "over_add": value / seconds["add of a [B, V] bias"],
            "gigabytes_per_second": moved[name] * size / value / 1e9,
            "of_copy": moved[name] * size / value / copied,
        }
        for name, value in seconds.items()
    ]


def measure_host(device: str, rounds: int) -> float:
    """Return the seconds that one call of embed_ takes the host, where the device never makes it wait."""
    keys = team(32000)
    logits = torch.zeros(1, 32000, device=device)
    contexts, slots = (torch.zeros(1, *shape, dtype=torch.int64, device=device) for shape in ((1,), ()))
    seconds = []
    for _ in range(rounds):
        if device != "cpu":
            torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(20):
            iet.embed_(logits, contexts, slots, keys)
        seconds.append((time.perf_counter() - started) / 20)
    return statistics.median(seconds)


def measure_score(tokens: int, agents: int, device: str, rounds: int) -> list[dict[str, object]]:
    vocab_size = 32000
    keys = team(vocab_size, agents)
    ids = torch.zeros(tokens, dtype=torch.int64, device=device)
    generator = torch.Generator(device).manual_seed(2)
    ids.random_(0, vocab_size, generator=generator)
    want = reference.score_tokens(keys.marking, ids[:64].cpu().numpy())
    assert np.array_equal(torch.as_tensor(iet.score_tokens(ids[:64], keys)).cpu().numpy(), want)
    whole = np.array([0, tokens])
    calls: dict[str, Callable[[], object]] = {
        "score_tokens": lambda: iet.score_tokens(ids, keys),
        "score_spans, one span": lambda: kernels.score_spans(ids, whole, keys),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(rounds + 2):  # outside a graph: results are allocated, and boundaries are checked
        for name, call in calls.items():
            ids.random_(0, vocab_size, generator=generator)
            if device != "cpu":
                torch.cuda.synchronize()
            started = time.perf_counter()
            call()
            if device != "cpu":
                torch.cuda.synchronize()
            if i >= 2:
                seconds[name].append(time.perf_counter() - started)
    return [
        {
            "tokens": tokens,
            "keys": agents,
            "what": name,
            "milliseconds": statistics.median(values) * 1e3,
            "million_token_keys_per_second": tokens * agents / statistics.median(values) / 1e6,
        }
        for name, values in seconds.items()
    ]


def measure(device: str, rounds: int, small: bool) -> dict[str, Any]:
    shapes = ((4, 32000),) if small else SHAPES
    texts = ((500, 20),) if small else ((4096, 10_000), (1_000_000, 6))
    return {
        "embed": [
            line
            for (rows, vocab_size), dtype in itertools.product(shapes, DTYPES)
            for line in measure_embed(rows, vocab_size, dtype, device, rounds)
        ],
        "score": [line for text in texts for line in measure_score(*text, device, rounds)],
        "host_microseconds_of_a_call": measure_host(device, rounds) * 1e6,
    }


def markdown(results: dict[str, Any], name: str) -> str:
    embed = [
        [
            str(line["shape"]),
            line["dtype"],
            line["what"],
            line["microseconds"],
            line["over_add"],
            line["gigabytes_per_second"],
            line["of_copy"],
        ]
        for line in results["embed"]
    ]
    score = [
        [
            line["tokens"],
            line["keys"],
            line["what"],
            line["milliseconds"],
            line["million_token_keys_per_second"],
        ]
        for line in results["score"]
    ]
    header = ["logits", "dtype", "what", "µs", "over the add of a [B, V] bias", "GB/s", "of a copy's GB/s"]
    return "\n\n".join(
        [
            f"On {name}. A call of `embed_` takes the host {results['host_microseconds_of_a_call']:.1f} µs.",
            table(header, embed),
            table(["tokens", "keys", "what", "ms", "M token·keys/s"], score),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--small", action="store_true", help="small shapes, to try the program out")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and iet.backends().cuda_devices == 0:
        parser.exit(3, f"no CUDA device: {iet.backends().cuda}\n")
    results = measure(arguments.device, arguments.rounds, arguments.small)
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else "the CPU, to try the program out"
    command = f"python -m benchmarks.speed.gpu -o {arguments.output} --device {arguments.device}"
    content = {
        "command": command,
        "device": name,
        "cuda": torch.version.cuda,
        "environment": environment("torch"),
    }
    write(arguments.output, content | results, markdown(results, name))


if __name__ == "__main__":
    main()
