"""A step of an engine with a mark: what it costs the device and the host, and how many kernels it launches.

The rows and logits are made up, and no engine runs: vLLM's V2 step is `V2Marker.apply` on such a state,
with drafts and without, and the step of transformers a call of the processor that `generate` asks for.
vLLM need not be installed: of its interfaces only two empty classes are needed, which are made here.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks import timing
from benchmarks.speed import device
from benchmarks.speed.suite import Contestant, Suite
from iet.errors import IetError
from iet.marks.keys import KeyTable

HISTORY = 1024  # ids of each sequence
INTERFACES = ("vllm.v1.worker.gpu.sample.logits_processor", "vllm.v1.sample.logits_processor")


def _interfaces() -> None:
    """Make vLLM's interfaces importable if it is not installed."""
    for name in INTERFACES:
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            module = types.ModuleType(".".join(parts[:depth]))
            module.__path__ = []
            sys.modules.setdefault(module.__name__, module)
        sys.modules[name].LogitsProcessor = type("LogitsProcessor", (), {})  # type: ignore[attr-defined]


def v2_step(
    keys: KeyTable, requests: int, drafts: int, device_name: str
) -> tuple[Callable[[torch.Tensor], torch.Tensor], int]:
    """Return a step of vLLM's V2 runner, from logits [rows, V] on a device, and its number of rows."""
    if "vllm" not in sys.modules and importlib.util.find_spec("vllm") is None:
        _interfaces()
    from iet.generation.vllm.settings import RequestKeys, Settings
    from iet.generation.vllm.v2 import V2Marker

    names = {name: slot for slot, name in enumerate(keys.names)}
    rng, V = np.random.default_rng(0), keys.profile.vocab_size
    tokens_per_request, rows = 1 + drafts, requests * (1 + drafts)

    def on(values: Any, dtype: torch.dtype = torch.int32) -> types.SimpleNamespace:
        return types.SimpleNamespace(gpu=torch.as_tensor(values, dtype=dtype, device=device_name))

    state = types.SimpleNamespace(
        device=torch.device(device_name),
        max_num_reqs=requests,
        vocab_size=V,
        all_token_ids=on(rng.integers(0, V, (requests, 2 * HISTORY))),
        total_len=on(np.full(requests, HISTORY)),
        prompt_len=on(np.full(requests, HISTORY // 2)),
        prefill_len=on(np.full(requests, HISTORY // 2)),
    )
    marker = V2Marker(Settings(keys, names, False, -1), RequestKeys("step"), state, torch.device(device_name))
    for index in range(requests):
        request_options = {"iet_agent": keys.names[index % len(names)]}
        params = types.SimpleNamespace(
            temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, seed=index, extra_args=request_options
        )
        marker.add(index, params)
    marker.flush()
    context = types.SimpleNamespace(
        expanded_idx_mapping=on(np.repeat(np.arange(requests), tokens_per_request)).gpu,
        idx_mapping=on(np.arange(requests)).gpu,
        idx_mapping_np=np.arange(requests),
        expanded_local_pos=on(np.tile(np.arange(tokens_per_request), requests)).gpu,
        input_ids=on(rng.integers(0, V, rows)).gpu,
        pos=on(np.tile(np.arange(tokens_per_request), requests) + HISTORY - 1, torch.int64).gpu,
        seq_lens_upper_bound_np=np.full(requests, HISTORY + drafts),
    )

    def step(logits: torch.Tensor) -> torch.Tensor:
        marker.flush()
        return marker.apply(logits, context)

    return step, rows


def transformers_step(keys_of: Any, rows: int, device_name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a step of `generate` in transformers, from logits [rows, V] on a device.

    Args:
        keys_of: a registry.
        rows: of the batch.
        where: the device.
    """
    import iet

    V = keys_of.profile.vocab_size
    agents = [list(keys_of)[row % len(keys_of)] for row in range(rows)]
    processor = iet.WatermarkingConfig(keys_of, agents).construct_processor(V, device_name)
    ids = torch.randint(V, (rows, HISTORY), generator=torch.Generator().manual_seed(0)).to(device_name)
    return lambda logits: processor(ids, logits)


def launches(call: Callable[[], object], device_name: str) -> int | None:
    """Return how many kernels and copies one call queues on the device, None on the CPU."""
    if device_name == "cpu":
        return None
    call()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    return sum(str(event.device_type) == "DeviceType.CUDA" for event in profile.events())


def suite(family: str, rows: int, vocab_size: int, drafts: int, rounds: int, device_name: str) -> Suite:
    """Return the cost of steps over an add of [B, V], with the host's time and launches among the details."""
    registry = timing.team(vocab_size, 8, 4 if family == "gumbel" else 2, family=family)
    made: dict[str, Any] = {}

    def parts() -> dict[str, Any]:
        if not made:
            step, count = v2_step(registry.marking_keys(), rows, drafts, device_name)
            logits = torch.randn(count, vocab_size, device=device_name)
            made.update(
                v2=functools.partial(step, logits),
                transformers=functools.partial(transformers_step(registry, count, device_name), logits),
                add=functools.partial(logits.add_, torch.zeros_like(logits)),
            )
        return made

    def calling(name: str) -> Callable[[], object]:
        return lambda: parts()[name]()

    named = {"vLLM V2 step": "v2", "transformers step": "transformers", "add [B, V]": "add"}
    contestants = {
        label: Contestant(device.waited(calling(name), device_name), "floor" if name == "add" else "ours")
        for label, name in named.items()
    }

    def details() -> dict[str, Any]:
        host = {label: device.returned(calling(name), 20, device_name) for label, name in named.items()}
        samples = timing.interleaved(host, rounds)
        return {
            **device.described(device_name),
            "host µs": {label: 1e6 / 20 * timing.spread(values).median for label, values in samples.items()},
            "launches": {label: launches(calling(name), device_name) for label, name in named.items()},
        }

    def validate() -> None:
        chosen = parts()["v2"]()
        if not torch.isfinite(chosen).any():
            raise IetError("a step left no token")

    label = f"steps, {family}, float32 [{rows * (1 + drafts)}, {vocab_size}], {drafts} drafts, {device_name}"
    return Suite(
        label,
        "µs",
        contestants,
        ("add [B, V]",),
        validate,
        rounds,
        note="Waited for: a call, and what it queues.",
        details=details,
        release=made.clear,
    )
