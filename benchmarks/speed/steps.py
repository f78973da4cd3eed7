"""A step of an engine with a mark: what it costs the device and the host, and how many kernels it launches.

    python -m benchmarks.speed.steps -o benchmarks/results/steps.json

times steps on the CPU: with filters, at contexts of up to 131,072 tokens, and the host's part of a step on
CUDA, with kernels that do nothing. `benchmarks.speed.on_gpu` times the same steps on a GPU.

The rows and logits are made up, and no engine runs: vLLM's V2 step is `V2Marker.apply` on such a state,
with drafts and without, and the step of transformers a call of the processor that `generate` asks for.
vLLM need not be installed: of its interfaces only two empty classes are needed, which are made here.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks import timing
from benchmarks.speed import device
from benchmarks.speed.suite import Contestant, Suite, main
from benchmarks.timing import timed
from iet.errors import IetError
from iet.marks.keys import KeyTable

HISTORY = 1024  # ids of each sequence
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "top-k 50": {"top_k": 50},
    "top-p 0.9": {"top_p": 0.9},
    "top-k 20, top-p 0.95": {"top_k": 20, "top_p": 0.95},
    "min-p 0.05": {"min_p": 0.05},
}
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
    keys: KeyTable,
    requests: int,
    drafts: int,
    device_name: str,
    *,
    length: int = HISTORY,
    filters: str = "none",
    on_host: bool = False,
) -> tuple[Callable[[torch.Tensor], torch.Tensor], int]:
    """Return a step of vLLM's V2 runner, from logits [rows, V] on a device, and its number of rows.

    Each step commits one more token to every sequence; at 1.5 times the length they start again.

    Args:
        keys: of the agents.
        requests, drafts: of the step.
        device_name: "cuda" or "cpu".
        length: of the sequences.
        filters: of all requests, a name in `FILTERS`.
        on_host: only the host's part: the path of CUDA, with kernels that do nothing.
    """
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
        all_token_ids=on(rng.integers(0, V, (requests, length * 3 // 2 + 8))),
        total_len=on(np.full(requests, length)),
        prompt_len=on(np.full(requests, length // 2)),
        prefill_len=types.SimpleNamespace(np=np.full(requests, length // 2)),
    )
    marker = V2Marker(Settings(keys, names, False, -1), RequestKeys("step"), state, torch.device(device_name))
    for index in range(requests):
        request_options = {"iet_agent": keys.names[index % len(names)]}
        sampling = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **FILTERS[filters]}
        params = types.SimpleNamespace(**sampling, seed=index, extra_args=request_options)
        marker.add(index, params)
    marker.flush()
    context = types.SimpleNamespace(
        expanded_idx_mapping=on(np.repeat(np.arange(requests), tokens_per_request)).gpu,
        idx_mapping=on(np.arange(requests)).gpu,
        idx_mapping_np=np.arange(requests),
        expanded_local_pos=on(np.tile(np.arange(tokens_per_request), requests)).gpu,
        input_ids=on(rng.integers(0, V, rows)).gpu,
        pos=on(np.tile(np.arange(tokens_per_request), requests) + length - 1, torch.int64).gpu,
        seq_lens_upper_bound_np=np.full(requests, length * 3 // 2 + drafts),
    )
    if on_host:
        _without_kernels(marker)

    def step(logits: torch.Tensor) -> torch.Tensor:
        if device_name == "cpu" and not on_host:
            state.total_len.gpu.add_(1)
            if int(state.total_len.gpu[0]) >= length * 3 // 2:
                state.total_len.gpu.fill_(length)
        marker.flush()
        return marker.apply(logits, context)

    return step, rows


def _without_kernels(marker: Any) -> None:
    """Let a marker on the CPU take the path of CUDA, with kernels that do nothing."""
    from iet.native import rows

    def nothing(*_: object) -> None:
        pass

    memory = np.zeros(16, np.int32)
    native = types.SimpleNamespace(rows=nothing, choose=nothing, embed=nothing)
    module = types.SimpleNamespace(
        chunk=4096,
        refusals=5,
        KernelParams=lambda *_: native,
        load_kernels=nothing,
        host_memory=lambda _: memory.ctypes.data,
        choose_scratch=lambda rows, columns: 12 * rows * (columns // 512 + 8),
    )
    marker.kept = memory
    setattr(rows, "load_cuda", lambda: module)  # noqa: B010 - it is another kind of function
    marker._rows.use_kernels()


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


def suite(
    family: str,
    rows: int,
    vocab_size: int,
    drafts: int,
    rounds: int,
    device_name: str,
    filters: str = "none",
    length: int = HISTORY,
) -> Suite:
    """Return the cost of steps over an add of [B, V], with the host's time and launches among the details."""
    registry = timing.team(vocab_size, 8, 4 if family == "gumbel" else 2, family=family)
    made: dict[str, Any] = {}

    def parts() -> dict[str, Any]:
        if not made:
            options: dict[str, Any] = {"length": length, "filters": filters}
            step, count = v2_step(registry.marking_keys(), rows, drafts, device_name, **options)
            original = logits_of_a_model(count, vocab_size).to(device_name)
            logits = original.clone()
            made.update(
                refresh=functools.partial(logits.copy_, original),
                v2=functools.partial(step, logits),
                transformers=functools.partial(transformers_step(registry, count, device_name), logits),
                add=functools.partial(logits.add_, torch.zeros_like(logits)),
            )
        return made

    def calling(name: str) -> Callable[[], object]:
        return lambda: parts()[name]()

    named = {"vLLM V2 step": "v2", "transformers step": "transformers", "add [B, V]": "add"}
    contestants = {
        label: Contestant(
            device.waited(calling(name), device_name, calling("refresh")),
            "floor" if name == "add" else "ours",
        )
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

    shape = f"float32 [{rows * (1 + drafts)}, {vocab_size}], {drafts} drafts"
    more = "" if (filters, length) == ("none", HISTORY) else f", {filters}, {length} tokens"
    label = f"steps, {family}, {shape}{more}, {device_name}"
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


# ---------------------------------------------------------------- on the CPU


def cpu_suite(rows: int, vocab_size: int, rounds: int) -> Suite:
    """Return the cost of steps on one thread, over a softmax of the logits."""
    logits = logits_of_a_model(rows, vocab_size)
    contestants = {"softmax [B, V]": Contestant(timed(lambda: torch.softmax(logits, -1)), "floor")}
    for family in ("fourier", "gumbel"):
        keys = timing.team(vocab_size, 8, 4 if family == "gumbel" else 2, family=family).marking_keys()
        for name in FILTERS if family == "gumbel" else ["none"]:
            step, _ = v2_step(keys, rows, 0, "cpu", filters=name)
            label = f"{family}, {name}" if family == "gumbel" else family
            contestants[label] = Contestant(timed(step, lambda: (logits.clone(),)), "ours")
    name = f"vLLM V2 steps on the CPU, float32 [{rows}, {vocab_size}], T = 0.8, one thread"
    floors, note = ("softmax [B, V]", "fourier"), f"Contexts of {HISTORY} to {HISTORY * 3 // 2} tokens."
    return Suite(name, "µs", contestants, floors, lambda: None, rounds, note=note)


def length_suite(rows: int, vocab_size: int, lengths: Sequence[int], rounds: int) -> Suite:
    """Return the cost of steps at several lengths of the context."""
    logits = logits_of_a_model(rows, vocab_size)
    keys = timing.team(vocab_size, 8, 4, family="gumbel").marking_keys()
    contestants = {}
    for length in lengths:
        step, _ = v2_step(keys, rows, 0, "cpu", length=length)
        step(logits.clone())  # counts the prompts
        kind = "floor" if length == lengths[0] else "ours"
        contestants[f"{length:,} tokens"] = Contestant(timed(step, lambda: (logits.clone(),)), kind)
    name = f"vLLM V2 steps of gumbel on the CPU by the length of the context, float32 [{rows}, {vocab_size}]"
    return Suite(name, "µs", contestants, (f"{lengths[0]:,} tokens",), lambda: None, rounds)


def host_suite(vocab_size: int, rounds: int) -> Suite:
    """Return the host's time of a step on CUDA, with kernels that do nothing."""
    contestants = {}
    for rows in (8, 256):
        logits = torch.zeros(rows, vocab_size)
        for family in ("fourier", "gumbel"):
            keys = timing.team(vocab_size, 8, 4 if family == "gumbel" else 2, family=family).marking_keys()
            step, _ = v2_step(keys, rows, 0, "cpu", filters="top-k 50", on_host=True)
            contestants[f"{family}, {rows} rows"] = Contestant(timed(functools.partial(step, logits)), "ours")
    one = torch.zeros(1)
    contestants["torch add [1]"] = Contestant(timed(lambda: one.add_(1)), "floor")
    name = "The host's part of a vLLM V2 step on CUDA, with kernels that do nothing"
    return Suite(name, "µs", contestants, ("torch add [1]",), lambda: None, rounds)


def logits_of_a_model(rows: int, vocab_size: int) -> torch.Tensor:
    """Return logits as uneven as a model's: most of them normal numbers, some ids far above."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(rows, vocab_size, generator=generator)
    likely = torch.randint(vocab_size, (rows, vocab_size // 200), generator=generator)
    return logits.scatter_add_(1, likely, torch.empty(likely.shape).exponential_(0.3, generator=generator))


def suites(quick: bool) -> list[Suite]:
    """Return what is measured on the CPU."""
    torch.set_num_threads(1)
    if quick:
        return [cpu_suite(2, 500, 2), length_suite(2, 500, (64, 256), 2), host_suite(500, 2)]
    lengths = (1024, 8192, 32768, 131072)
    return [cpu_suite(8, 49152, 41), length_suite(8, 49152, lengths, 41), host_suite(128256, 101)]


if __name__ == "__main__":
    main("benchmarks.speed.steps", __doc__, suites, ("torch",))
