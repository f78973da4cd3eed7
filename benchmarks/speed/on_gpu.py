"""Run everything that needs a GPU, and print one table: tests, compute-sanitizer, benchmarks.

    python -m benchmarks.speed.on_gpu -o results/

Needs a device, torch for it, and `iet` installed with its CUDA module (`pip install -e ".[test,bench]"` where
nvcc is). compute-sanitizer is used where it is on the PATH or in CUDA_HOME; the package
nvidia-cuda-sanitizer-api brings it too. The benchmarks are `bench_embed` and `bench_score` with `--device
cuda`; their results lie in the folder as well. Exit code: 0 if all that could be run passed, 1 if something
failed, 3 if there is no device; a tool that is missing is a line of the table.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.recording import number, table

ROOT = pathlib.Path(__file__).parent.parent.parent
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
BUDGETS = {"float32": 0.9, "float16": 1.25, "bfloat16": 1.25}  # of the add [B, V], at [256, 128256]


def run(name: str, command: list[str], output: pathlib.Path, seconds: int) -> tuple[bool, str, float]:
    """Run a command, its output in a file; return whether it passed, its last line, and its seconds."""
    # Without torch's own cache every tensor is an allocation, whose ends compute-sanitizer knows.
    env = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if name in TOOLS else dict(os.environ)
    log = output / f"{name.replace(' ', '_')}.log"
    started = time.perf_counter()
    with log.open("w") as file:
        try:
            code = subprocess.run(
                command, cwd=ROOT, env=env, stdout=file, stderr=subprocess.STDOUT, timeout=seconds
            ).returncode
        except subprocess.TimeoutExpired:
            file.write(f"\nstopped after {seconds} s")
            code = -1
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return code == 0, lines[-1].strip("= ")[:100] if lines else "no output", time.perf_counter() - started


def exercise() -> None:
    """Call every kernel once or twice on small inputs: what compute-sanitizer watches."""
    import torch

    import iet
    from iet import kernels
    from iet.marks.registry import Registry
    from iet.marks.scheme import Scheme

    for family, vocab_size in (
        ("fourier", 32000),
        ("fourier", 1003),
        ("square", 1003),
        ("gumbel", 1003),
        ("fourier", 3),
    ):
        unmarked = () if vocab_size == 32000 else (1,)
        registry = Registry.create(
            None, vocab_size=vocab_size, unmarked_ids=unmarked, scheme=Scheme(family=family, n_gram=3)
        )
        for i in range(3):
            registry.add(f"agent {i}", secret=bytes([i]) * 32)
        contexts = torch.zeros(4, 2, dtype=torch.int64, device="cuda")
        slots = torch.tensor([0, -1, 2, 1], device="cuda")
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for width in (vocab_size, -(-vocab_size // 8) * 8 + 8):
                logits = torch.zeros(4, width, dtype=dtype, device="cuda")
                iet.embed_(logits, contexts, slots, registry)
                iet.embed_(
                    logits, contexts[:2], slots[2:], registry, rows=torch.tensor([3, 0], device="cuda")
                )
                strided = torch.zeros(4, 3 * vocab_size, dtype=dtype, device="cuda")[:, ::3]
                iet.embed_(strided, contexts, slots, registry)
        ids = torch.arange(300, device="cuda") % vocab_size
        iet.score_tokens(ids, registry)
        for boundaries in ([0, 300], list(range(0, 301, 7)), [5, 5, 200]):
            kernels.score_spans(ids, boundaries, registry)
    torch.cuda.synchronize()
    kernels.raise_if_refused("cuda")
    print("every kernel ran")


def sanitizer() -> str | None:
    """Return the path of compute-sanitizer, or None."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which("compute-sanitizer") or shutil.which(f"{home}/bin/compute-sanitizer")


def lines(record: dict[str, Any]) -> Iterator[list[object]]:
    """Yield what a record of a benchmark says of ours: lines of the table."""
    for suite in record["suites"]:
        floor = suite["floors"][0]
        for result in suite["results"]:
            if result["kind"] != "ours":
                continue
            over, verdict = result["over"][floor]["median"], ""
            said = f"{number(over)} x {floor}"
            budget = BUDGETS.get(suite["suite"].split()[1]) if "[256, 128256]" in suite["suite"] else None
            if budget is not None and result["what"] == "embed_":
                verdict = "within budget" if over <= budget else "OVER budget"
                said += f" (budget {budget})"
            said += f", {result['GB/s']:,.0f} GB/s" if "GB/s" in result else ""
            value = f"{number(result['value']['median'])} {suite['unit']}"
            yield [f"{suite['suite']}: {result['what']}", verdict, value, said]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=pathlib.Path, help="a folder for logs and results")
    parser.add_argument("--exercise", action="store_true", help=exercise.__doc__)
    arguments = parser.parse_args()
    import torch

    from benchmarks.speed import device
    from iet.errors import BackendUnavailable

    try:
        device.require("cuda")
    except BackendUnavailable as error:
        parser.exit(3, f"nothing was run: {error}\n")
    if arguments.exercise:
        return exercise()
    if arguments.output is None:
        parser.error("-o is needed: a folder for logs and results")
    output = arguments.output.resolve()
    output.mkdir(parents=True, exist_ok=True)

    python = [sys.executable, "-m"]
    rows: list[list[object]] = []

    def step(name: str, command: list[str], seconds: int) -> bool:
        passed, line, taken = run(name, command, output, seconds)
        rows.append([name, "passed" if passed else "FAILED", f"{taken:.0f} s", line])
        return passed

    good = step("tests", [*python, "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu"], 1200)
    good &= step("tests on the host", [*python, "pytest", "-q", "tests/native/test_cuda_on_host.py"], 600)
    tool = sanitizer()
    for check in TOOLS:
        if tool is None:
            rows.append([check, "not run", "", "compute-sanitizer is not on the PATH"])
            continue
        # The kernels of iet alone, but for initcheck, which must see who wrote what they read.
        names = [f"kernel_substring={kernel}" for kernel in ("embed_kernel", "score_", "scale_kernel")]
        filters = [argument for name in names for argument in ("--kernel-name", name)]
        filters = [] if check == "initcheck" else filters
        watched = [*python, "benchmarks.speed.on_gpu", "--exercise"]
        good &= step(check, [tool, "--tool", check, "--error-exitcode", "9", *filters, *watched], 900)
    for name in ("embed", "score"):
        results = output / f"{name}.json"
        command = [*python, f"benchmarks.speed.bench_{name}", "--device", "cuda", "-o", str(results)]
        benchmarked = step(f"bench_{name}", command, 1200)
        good &= benchmarked
        rows += lines(json.loads(results.read_text())) if benchmarked else []
    text = f"On {torch.cuda.get_device_name()}\n\n" + table(["what", "verdict", "time", "result"], rows)
    (output / "on_gpu.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
