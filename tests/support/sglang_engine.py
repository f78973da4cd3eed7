"""The parts of SGLang's wheel that load by themselves, in a loop with SGLang's order of events."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import logging
import pathlib
import random
import sys
import types
import weakref
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from benchmarks.engine_wheels import definitions
from iet.generation import sglang as adapter
from iet.marks.registry import Registry
from tests.support.teams import team

torch = pytest.importorskip("torch")
SPEC = importlib.util.find_spec("sglang")
needs_sglang = pytest.mark.skipif(
    SPEC is None or any(importlib.util.find_spec(name) is None for name in ("dill", "orjson", "msgspec")),
    reason="pip install --no-deps sglang dill orjson msgspec",
)
VOCAB = 499
COLUMNS = 512  # a padded vocabulary


def load_sglang(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Load the modules that need no other part of SGLang, and the needed definitions of two large files."""
    assert SPEC is not None
    assert SPEC.submodule_search_locations is not None
    root = pathlib.Path(SPEC.submodule_search_locations[0])
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    # Packages without their __init__, which would load all of it.
    for name in ("", "srt", "srt/sampling", "srt/sampling/watermarking", "srt/managers"):
        package = types.ModuleType(".".join(["sglang", *name.split("/")]) if name else "sglang")
        package.__path__ = [str(root / name)]
        monkeypatch.setitem(sys.modules, package.__name__, package)
    schedule_batch = types.ModuleType("sglang.srt.managers.schedule_batch")
    schedule_batch.dataclasses = dataclasses  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, schedule_batch.__name__, schedule_batch)
    definitions(
        root / "srt/managers/schedule_batch.py",
        ["BaseFinishReason", "FINISH_ABORT", "ReqKvInfo"],
        vars(schedule_batch),
    )
    sampler: dict[str, Any] = {"torch": torch, "logger": logging.getLogger("sglang")}
    of_sampler = ["apply_custom_logit_processor", "top_k_top_p_min_p_sampling_from_probs_torch"]
    definitions(root / "srt/layers/sampler.py", of_sampler, sampler)
    runtime = types.ModuleType("sglang.srt.runtime_context")
    kernel = types.SimpleNamespace(sampling_backend="pytorch")
    runtime.get_exec = lambda: types.SimpleNamespace(kernel=kernel)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, runtime.__name__, runtime)
    processor = importlib.import_module("sglang.srt.sampling.custom_logit_processor")
    for name in [name for name in sys.modules if name.startswith("sglang.")]:
        monkeypatch.setitem(sys.modules, name, sys.modules[name])  # removed again after the test
    return types.SimpleNamespace(
        apply=sampler["apply_custom_logit_processor"],
        sample=sampler["top_k_top_p_min_p_sampling_from_probs_torch"],
        kernel=kernel,
        processor=processor.CustomLogitProcessor,
        abort=schedule_batch.FINISH_ABORT,
        kv=schedule_batch.ReqKvInfo,
        detector=lambda: importlib.import_module("sglang.srt.sampling.watermarking.detector"),
        watermark=lambda: importlib.import_module("sglang.srt.sampling.watermarking.core"),
    )


@contextlib.contextmanager
def served_registry(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, names: Sequence[str], **scheme: Any
) -> Iterator[Registry]:
    """Make the registry that the processor reads, as if the server had just started; no token is free."""
    path = folder / "team.json"
    caches = (adapter._registry, adapter._sessions, adapter._samples_with_flashinfer, adapter._of_environment)
    monkeypatch.setenv("IET_FREE_FIRST", "0")
    monkeypatch.setenv("IET_FREE_RATE", "0")
    monkeypatch.setenv("IET_REGISTRY", str(path))
    for cache in caches:
        cache.cache_clear()
    yield team(names, path, numbered=1, vocab_size=VOCAB, unmarked_ids=[0, 1], **scheme)
    for cache in caches:
        cache.cache_clear()


class Request:
    """The attributes of SGLang's Req that count here, made as its constructor makes them."""

    def __init__(
        self,
        prompt: list[int],
        body: dict[str, Any],
        temperature: float,
        kv: type,
        length: int = 40,
        **sampling: Any,
    ) -> None:
        self.origin_input_ids = array("q", prompt)
        self.output_ids = array("q")
        self.custom_logit_processor = body.get("custom_logit_processor")
        params = body.get("custom_params")
        if self.custom_logit_processor is not None and isinstance(params, dict):
            params = params | {"__req__": weakref.proxy(self)}
        self.return_logprob = sampling.pop("return_logprob", False)
        self.rid = sampling.pop("rid", "r0")
        filters = {"top_k": 1 << 30, "top_p": 1.0, "min_p": 0.0, "sampling_seed": None, **sampling}
        self.sampling_params = types.SimpleNamespace(temperature=temperature, custom_params=params, **filters)
        self.kv = kv()
        self.to_finish: Any = None
        self.finished_reason: Any = None
        self.truth = list(prompt)  # what the model has on its device
        self.length = length
        self.prefilled = False


class Engine:
    """Schedules, samples and records in SGLang's order; under overlap the recording comes a step late."""

    def __init__(self, parts: types.SimpleNamespace, *, overlap: bool = False, seed: int = 0) -> None:
        self.parts, self.overlap = parts, overlap
        self.requests: list[Request] = []
        self.random = random.Random(seed)
        self.draws = torch.Generator().manual_seed(seed)
        self.model = torch.from_numpy(
            np.random.default_rng(5).normal(0, 1.5, (VOCAB, COLUMNS)).astype(np.float32)
        )
        self.model[:, VOCAB:] = -torch.inf
        self.pending: list[tuple[Request, int]] = []
        self.steps: list[tuple[list[Request], torch.Tensor, torch.Tensor]] = []

    def add(self, prompt: list[int], body: dict[str, Any], temperature: float = 1.0, **kw: Any) -> Request:
        request = Request(prompt, body, temperature, self.parts.kv, **kw)
        self.requests.append(request)
        return request

    def step(self) -> None:
        running = [request for request in self.requests if request.finished_reason is None]
        self.random.shuffle(running)
        for request in running:
            if request.prefilled:
                request.kv.kv_committed_len += 1  # alloc_for_decode
            else:
                request.kv.kv_committed_len = len(request.origin_input_ids) + len(request.output_ids)
                request.prefilled = True
        logits = self.model[[request.truth[-1] for request in running]]
        original = logits.clone()
        self.process(logits, running)
        self.steps.append((running, original, logits.clone()))
        sampled = []
        for row, request in enumerate(running):
            token = int(torch.multinomial(self.shares(logits[row], request), 1, generator=self.draws))
            request.truth.append(token)
            sampled.append((request, token))
        if not self.overlap:
            self.pending = sampled
        self.record()
        self.pending = sampled if self.overlap else []

    def shares(self, logits: torch.Tensor, request: Request) -> torch.Tensor:
        """Return the weights that SGLang's PyTorch backend samples with, in the order of ids."""
        params, tensor = request.sampling_params, torch.tensor
        probabilities = torch.softmax(logits / params.temperature, -1)[None]
        filters = tensor([params.top_k]), tensor([params.top_p]), tensor([params.min_p])
        sampled = self.parts.sample(
            probabilities, *filters, params.min_p > 0, None, tensor([0]), return_filtered_probs=True
        )
        return torch.zeros_like(probabilities).scatter_(1, sampled[2].long(), sampled[1])[0]

    def record(self) -> None:
        for request, token in self.pending:
            if request.finished_reason is None:
                request.output_ids.append(token)
                if request.to_finish:  # as update_finish_state begins
                    request.finished_reason, request.to_finish = request.to_finish, None
                elif len(request.output_ids) >= request.length:
                    request.finished_reason = "length"

    def process(self, logits: torch.Tensor, running: list[Request], rows_of_one: int = 1) -> None:
        groups: dict[str, list[int]] = {}
        for row, request in enumerate(running):
            if request.custom_logit_processor is not None:
                groups.setdefault(request.custom_logit_processor, []).append(row)

        class Info:
            device = "cpu"
            custom_params = [request.sampling_params.custom_params for request in running]  # noqa: RUF012
            custom_logit_processor = {  # noqa: RUF012
                hash(name): types.SimpleNamespace(
                    processor=self.parts.processor.from_str(name), rows=rows, indices=torch.tensor(rows)
                )
                for name, rows in groups.items()
            }

            def __len__(self) -> int:
                return len(running)

        self.parts.apply(logits, Info(), rows_of_one)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
