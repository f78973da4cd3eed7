"""Time a step of `model.generate` with and without our mark: the shipped model, 32 rows, float32 on the CPU.

    python -m benchmarks.speed.bench_generate -o benchmarks/results/generate.json

A step is the time between two calls of a last processor that records the clock; the unmarked
run has the same one. Each sample is the median step of one `generate`. The mark's own share is the median
over the steps of marked runs of (time inside our processor) / (time of that very step), so both see the same
machine. Marked and unmarked runs alternate, in a new order each round.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks import timing
from benchmarks.speed.suite import Contestant, Suite, main
from iet import kernels
from iet.cli.demo import demo_registry
from iet.demo.conversation import ROLES, TASK, load_model
from iet.errors import IetError
from iet.generation.transformers import WatermarkingConfig
from iet.marks.registry import Registry

ROWS, PROMPT = 32, 64


class Watch(transformers.LogitsProcessor):
    """Calls a processor, or none, and writes down when."""

    def __init__(self, inner: Any = None) -> None:
        self.inner, self.entered, self.left = inner, list[float](), list[float]()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.entered.append(time.perf_counter())
        marked = scores if self.inner is None else self.inner(input_ids, scores)
        self.left.append(time.perf_counter())
        return marked

    def steps(self) -> list[float]:
        """Return the seconds from call to call; the first is left out, for it follows the prompt."""
        return [after - previous for previous, after in pairwise(self.entered[1:])]

    def shares(self) -> list[float]:
        """Return for each of those steps the share that was spent inside."""
        inside = [exited - entered for entered, exited in zip(self.entered, self.left, strict=True)]
        return [seconds_inside / step for seconds_inside, step in zip(inside[1:], self.steps(), strict=False)]


class WatchedConfig(WatermarkingConfig):
    """Our config, with a watch around its processor."""

    watch: Watch

    def construct_processor(self, vocab_size: int, device: object = None) -> transformers.LogitsProcessor:
        self.watch = Watch(super().construct_processor(vocab_size, device))
        return self.watch


class Stage:
    """The shipped model and a batch of prompts, loaded at first use."""

    def __init__(self, threads: int, new_tokens: int) -> None:
        self.threads, self.new_tokens = threads, new_tokens
        self.shares: list[float] = []
        self.seed = 0

    @functools.cached_property
    def model(self) -> Any:
        return load_model()[0]

    @functools.cached_property
    def registry(self) -> Registry:
        return demo_registry(ROLES, 0)

    @functools.cached_property
    def prompts(self) -> torch.Tensor:
        _, tokenizer = load_model()
        ids = tokenizer(TASK, add_special_tokens=False).input_ids
        return torch.tensor([ids[row : row + PROMPT] for row in range(ROWS)])

    def generate(self, marked: bool) -> Watch:
        torch.set_num_threads(self.threads)
        watch, options = Watch(), dict[str, Any]()
        if marked:
            agents = [ROLES[row % len(ROLES)] for row in range(ROWS)]
            config = WatchedConfig(self.registry, agents)
            options["watermarking_config"] = config
        else:
            options["logits_processor"] = transformers.LogitsProcessorList([watch])
        self.seed += 1
        torch.manual_seed(self.seed)
        self.model.generate(
            input_ids=self.prompts,
            attention_mask=torch.ones_like(self.prompts),
            do_sample=True,
            max_new_tokens=self.new_tokens,
            min_new_tokens=self.new_tokens,
            pad_token_id=2,
            **options,
        )
        torch.set_num_threads(1)
        return config.watch if marked else watch

    def step(self, marked: bool) -> float:
        watch = self.generate(marked)
        if marked:
            self.shares += watch.shares()
        return statistics.median(watch.steps())

    def alone(self, part: str) -> float:
        """Time what is in our processor's call, alone, on logits of its shape: the median of 50 calls."""
        vocab_size = self.model.config.vocab_size
        scores, ids = torch.zeros(ROWS, vocab_size), self.prompts
        keys = self.registry.marking_keys()
        slots = np.arange(ROWS, dtype=np.int32) % len(keys)
        calls: dict[str, Callable[[], object]] = {
            "clone": scores.clone,
            "embed_": lambda: kernels.embed_(scores, ids[:, -1:], slots, keys),
        }
        return statistics.median(timing.timed(calls[part])() for _ in range(50))

    def validate(self) -> None:
        """Check that the mark of a step is the reference's, and that the batch is marked at all."""
        keys = self.registry.marking_keys()
        timing.validate_embed(keys, np.zeros((2, keys.profile.vocab_size), np.float32))
        watch = self.generate(True)
        scores = torch.zeros(ROWS, self.model.config.vocab_size)
        if torch.equal(watch.inner(self.prompts, scores), scores):
            raise IetError("the processor marked nothing")

    def details(self) -> dict[str, Any]:
        return {
            "share of a step inside our processor": dict(timing.spread(self.shares)._asdict()),
            "steps": len(self.shares),
            "torch threads": self.threads,
            "rows": ROWS,
            "vocab_size": self.model.config.vocab_size,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
        }


def generate_suite(threads: int, new_tokens: int, rounds: int) -> Suite:
    stage = Stage(threads, new_tokens)
    name = f"model.generate, shipped model, B = {ROWS}, torch threads: {threads}"
    contestants = {
        "step with our mark": Contestant(functools.partial(stage.step, True), "ours"),
        "step without": Contestant(functools.partial(stage.step, False), "floor"),
        "our embed_, alone": Contestant(functools.partial(stage.alone, "embed_"), "ours"),
        "clone of the logits, alone": Contestant(functools.partial(stage.alone, "clone"), "floor"),
    }
    note = f"{new_tokens} steps a sample; a processor returns a copy: `generate` may keep its argument."
    floors = ("step without",)
    return Suite(name, "ms per step", contestants, floors, stage.validate, rounds, {}, note, stage.details)


def suites(quick: bool) -> list[Suite]:
    counts = [1] if quick or timing.cores() == 1 else [1, 2]
    return [generate_suite(threads, *((4, 2) if quick else (48, 15))) for threads in counts]


def bench_generate(replay: Callable[[], None]) -> None:
    replay()


if __name__ == "__main__":
    main("benchmarks.speed.bench_generate", __doc__, suites, ("torch", "transformers"))
