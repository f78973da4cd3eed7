"""Everything that needs a GPU in one command, on a machine that is lent for some minutes.

    python -m benchmarks.speed.on_gpu -o results/ [--minutes 9]

Where `iet` has no CUDA module yet it is built here, for this device's architecture alone, with what is
installed (pybind11, scikit-build-core, cmake, ninja, nvcc). Then, in this order: tests of the CUDA paths,
measurements, compute-sanitizer. Each line is written to `on_gpu.jsonl` as soon as it is measured, so that
little is lost where time runs out; a step that the minutes do not reach is a line that says so. Clocks, power
and temperature are written to `clocks.csv` all the while. At the end `on_gpu.md` is a table of the lines,
`on_gpu.json` holds their verdicts and ratios, and everything is packed into `on_gpu.tar.gz`.

`--device cpu` tries the measurements out on tiny shapes without a GPU. Exit code: 0 if all that ran
passed, 1 if something failed, 3 if there is no device.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.recording import as_json, exit_code, number, table

ROOT = pathlib.Path(__file__).parents[2]
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
BUDGETS = {  # of the add [B, V]
    f"embed_ {dtype} [256, 128256], fourier, n = 2, cuda": budget
    for dtype, budget in (("float32", 0.9), ("float16", 1.1), ("bfloat16", 1.1))
}
SHOWN, KEPT = ("what", "verdict", "time", "said"), ("what", "verdict", "over")  # of a line, as table and JSON
TESTS = ("tests/native/test_cuda.py", "tests/test_kernels.py", "tests/generation/test_torch_op.py")
BATCHES, VOCABULARIES = (256, 1, 8, 32), (128256, 151936, 100003)


class Lines:
    """Results, a line at a time, each on disk before the next is measured."""

    def __init__(self, folder: pathlib.Path, minutes: float, *, more: bool = False) -> None:
        self.folder, self._file = folder, folder / "on_gpu.jsonl"
        earlier_lines = self._file.read_text(encoding="utf-8").splitlines() if more else []
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in earlier_lines]
        if not more:
            self._file.unlink(missing_ok=True)
        self.failed = False
        self._end = time.monotonic() + 60 * minutes

    @property
    def left(self) -> float:
        """Seconds until the time is over."""
        return self._end - time.monotonic()

    def add(
        self,
        name: str,
        verdict: str,
        took: str,
        details: str,
        over: float | None = None,
        record: object = None,
    ) -> None:
        """Write one line; a verdict in capitals is a failure. `over` is the ratio that is said."""
        self.failed |= verdict.split(" ")[0].isupper()
        line = {"what": name, "verdict": verdict, "time": took, "said": details, "over": over}
        self.lines.append(line)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "record": record}) + "\n")
        print(f"{name}: {verdict} {took} {details}", flush=True)

    def run(self, name: str, command: list[str], seconds: float, **environment: str) -> bool:
        """Run a command for a limited number of seconds, its output in a file; add its last line."""
        seconds = min(seconds, self.left)
        if seconds < 5:
            self.add(name, "not run", "", "the time is over")
            return False
        log, started = self.folder / f"{name.replace(' ', '_')}.log", time.perf_counter()
        with log.open("w") as file:
            try:
                code = subprocess.run(
                    command,
                    cwd=ROOT,
                    env={**os.environ, **environment},
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    timeout=seconds,
                ).returncode
            except subprocess.TimeoutExpired:
                file.write(f"\nstopped after {seconds:.0f} s")
                code = -1
        output_lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        last = output_lines[-1].strip("= ")[:100] if output_lines else "no output"
        took = f"{time.perf_counter() - started:.0f} s"
        self.add(name, "passed" if code == 0 else "FAILED", took, last)
        return code == 0


def build(lines: Lines, built: bool) -> None:
    """Build the CUDA module for this device's architecture if it is missing, and restart with it.

    An interpreter that runs already does not find what was installed since, and has loaded `iet` without.
    """
    import torch

    if importlib.util.find_spec("iet.native._cuda") is not None:
        return
    if built:
        lines.add("the CUDA module", "MISSING", "", "it was built, and is not found")
        sys.exit(1)
    architecture = "".join(map(str, torch.cuda.get_device_capability()))
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "-e", "."]
    defined = {"IET_CUDA": "ON", "IET_CUDA_ARCHITECTURES": f"{architecture}-real"}
    options = [word for name, value in defined.items() for word in ("-C", f"cmake.define.{name}={value}")]
    if not lines.run("build", [*pip, *options], 240):
        sys.exit(1)
    minutes = f"{max(0.1, lines.left / 60):.2f}"
    restart = ["-m", "benchmarks.speed.on_gpu", "-o", str(lines.folder), "--minutes", minutes, "--built"]
    os.execv(sys.executable, [sys.executable, *restart])


def test(lines: Lines) -> None:
    """Run the tests of the CUDA paths, by path: others need packages that may be missing here."""
    if importlib.util.find_spec("pytest") is None:
        lines.add("tests", "not run", "", "pytest is not installed")
        return
    lines.run(
        "tests", [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", *TESTS], 150
    )


def suites(device_name: str) -> Iterator[Any]:
    """Yield what is measured: the budgets' shapes first."""
    from benchmarks.speed import bench_embed, bench_score, steps

    if device_name == "cpu":
        yield bench_embed.device_suite("float32", 2, 515, 2, device_name)
        yield steps.suite("gumbel", 2, 515, 2, 2, device_name)
        return
    for dtype in ("bfloat16", "float32"):
        yield bench_embed.device_suite(dtype, 256, 128256, 9, device_name)
    for family in ("fourier", "gumbel"):
        for requests, drafts in ((256, 0), (8, 0), (64, 3)):
            yield steps.suite(family, requests, 128256, drafts, 9, device_name)
    for filters in list(steps.FILTERS)[1:]:
        yield steps.suite("gumbel", 256, 128256, 0, 9, device_name, filters)
    for length in (8192, 32768, 131072):
        yield steps.suite("gumbel", 64, 128256, 0, 9, device_name, length=length)
    yield from bench_score.device_suites(False, device_name)[:2]
    yield bench_embed.host_suite(9, device_name)
    for vocab_size in VOCABULARIES:
        for rows in BATCHES:
            for dtype in ("float32", "bfloat16", "float16"):
                if (vocab_size, rows) != (128256, 256) or dtype == "float16":
                    yield bench_embed.device_suite(dtype, rows, vocab_size, 5, device_name)
    for rows in (256, 8):
        for n_gram, family in ((5, "fourier"), (4, "gumbel"), (5, "gumbel")):
            for dtype in ("float32", "bfloat16"):
                yield bench_embed.device_suite(dtype, rows, 128256, 5, device_name, n_gram, family)


def measure(lines: Lines, device_name: str, reserve: float) -> None:
    """Measure one suite after another, as far as the time goes but for a reserve of seconds."""
    from benchmarks.speed import suite as runner
    from iet.errors import IetError

    for suite in suites(device_name):
        if lines.left < reserve + 10:
            lines.add(suite.name, "not run", "", "the time is over")
            continue
        try:
            record, _ = runner.run(suite)
        except IetError as error:
            lines.add(suite.name, "FAILED", "", str(error))
            continue
        for row in told(record):
            lines.add(*row, record)


def told(record: dict[str, Any]) -> Iterator[tuple[str, str, str, str, float]]:
    """Yield the table lines of our results in a suite's record."""
    floor, details = record["floors"][0], record["details"]
    for result in record["results"]:
        if result["kind"] != "ours":
            continue
        over, verdict = result["over"][floor]["median"], "measured"
        sentence = f"{number(over)} x {floor}"
        budget = BUDGETS.get(record["suite"]) if result["what"] == "embed_" else None
        if budget is not None:
            verdict = "within budget" if over <= budget else "OVER budget"
            sentence += f" (budget {budget})"
        sentence += f", {result['GB/s']:,.0f} GB/s" if "GB/s" in result else ""
        if "launches" in details:
            sentence += f", {details['launches'][result['what']]} launches"
            sentence += f", {number(details['host µs'][result['what']])} µs of the host"
        value = f"{number(result['value']['median'])} {record['unit']}"
        yield f"{record['suite']}: {result['what']}", verdict, value, sentence, over


def exercise() -> None:
    """Call every kernel once or twice on small inputs: what compute-sanitizer watches."""
    import torch

    import iet
    from benchmarks import timing
    from benchmarks.speed import steps
    from iet import kernels

    for family, vocab_size in (
        ("fourier", 32000),
        ("fourier", 1003),
        ("gumbel", 1003),
        ("fourier", 3),
        ("fourier", 410000),  # whose grid has no table
    ):
        registry = timing.team(vocab_size, 3, 3, family=family)
        contexts = torch.zeros(4, 2, dtype=torch.int64, device="cuda")
        slots = torch.tensor([0, -1, 2, 1], device="cuda")
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for width in (vocab_size, -(-vocab_size // 8) * 8 + 8):
                logits = torch.zeros(4, width, dtype=dtype, device="cuda")
                iet.embed_(logits, contexts, slots, registry)
                index = torch.tensor([3, 0], device="cuda")
                iet.embed_(logits, contexts[:2], slots[2:], registry, rows=index)
                strided = torch.zeros(4, 3 * vocab_size, dtype=dtype, device="cuda")[:, ::3]
                iet.embed_(strided, contexts, slots, registry)
                if family == "gumbel":
                    filters = torch.zeros(4, 4, dtype=torch.int32, device="cuda")
                    filters[:, 2] = torch.tensor([0, 1, 20, 3])
                    filters[:, 0] = torch.tensor(-math.inf).view(torch.int32)
                    filters[:, 1] = torch.tensor(0.9).view(torch.int32)
                    for some in (None, filters):
                        kernels.choose(logits, contexts, slots, registry, filters=some, force=True)
                        kernels.choose(strided, contexts, slots, registry, filters=some, force=True)
        ids = torch.arange(300, device="cuda") % vocab_size
        iet.score_tokens(ids, registry)
        for boundaries in ([0, 300], list(range(0, 301, 7)), [5, 5, 200]):
            kernels.score_spans(ids, boundaries, registry)
        for drafts in (0, 2):
            step, rows = steps.v2_step(registry.marking_keys(), 4, drafts, "cuda")
            step(torch.zeros(rows, vocab_size, device="cuda"))
    registry = timing.team(32000, 3)
    many = torch.zeros(1024, 32000, dtype=torch.bfloat16, device="cuda")  # eight chunks a block
    contexts, slots = torch.zeros(1024, 1, dtype=torch.int64, device="cuda"), torch.arange(1024) % 4 - 1
    iet.embed_(many, contexts, slots.to("cuda"), registry)
    torch.cuda.synchronize()
    kernels.raise_if_refused("cuda")
    print("every kernel ran")


def sanitize(lines: Lines) -> None:
    """Watch every kernel with each of compute-sanitizer's tools."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    tool = shutil.which("compute-sanitizer") or shutil.which(f"{home}/bin/compute-sanitizer")
    for check in TOOLS:
        if tool is None:
            lines.add(check, "not run", "", "compute-sanitizer is neither on the PATH nor in CUDA_HOME")
            continue
        watched = [sys.executable, "-m", "benchmarks.speed.on_gpu", "--exercise"]
        # Without torch's own cache every tensor is an allocation, whose ends compute-sanitizer knows.
        command = [tool, "--tool", check, "--error-exitcode", "9", *watched]
        lines.run(check, command, 120, PYTORCH_NO_CUDA_MEMORY_CACHING="1")


@contextlib.contextmanager
def clocks(folder: pathlib.Path) -> Iterator[None]:
    """Write the device's clocks, power and temperature twice a second, where nvidia-smi is there."""
    if shutil.which("nvidia-smi") is None:
        yield
        return
    fields = "timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv", "-lms", "500"]
    with (folder / "clocks.csv").open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def pack(lines: Lines, machine: dict[str, object]) -> None:
    """Write the table, and everything into one file."""
    packed = [{name: line[name] for name in KEPT} for line in lines.lines]
    content = {"command": "python -m benchmarks.speed.on_gpu -o DIR", "where": machine, "lines": packed}
    (lines.folder / "on_gpu.json").write_text(as_json(content), encoding="utf-8")
    machine_line = ", ".join(f"{name} {value}" for name, value in machine.items())
    results_table = table(SHOWN, [[line[name] for name in SHOWN] for line in lines.lines])
    (lines.folder / "on_gpu.md").write_text(f"{machine_line}\n\n{results_table}\n", encoding="utf-8")
    with tarfile.open(lines.folder / "on_gpu.tar.gz", "w:gz") as archive:
        for path in sorted(lines.folder.iterdir()):
            if path.suffix in (".json", ".jsonl", ".md", ".log", ".csv"):
                archive.add(path, path.name)


def main() -> None:
    program, summary = "python -m benchmarks.speed.on_gpu", __doc__.split("\n")[0]
    parser = argparse.ArgumentParser(prog=program, description=summary)
    parser.add_argument("-o", "--output", type=pathlib.Path, help="a folder for logs and results")
    parser.add_argument("--minutes", type=float, default=9.0, help="when to stop, default 9")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: try it out")
    parser.add_argument("--exercise", action="store_true", help=exercise.__doc__)
    parser.add_argument("--built", action="store_true", help="go on after the build, in the same folder")
    options = parser.parse_args()
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        built = f"torch is built for CUDA {torch.version.cuda}"
        parser.exit(3, f"nothing was run: no GPU can be used here; {built}\n")
    if options.exercise:
        return exercise()
    if options.output is None:
        parser.error("-o is needed: a folder for logs and results")
    if options.minutes <= 0:
        parser.error(f"--minutes is {options.minutes}, more than 0 are needed")
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    from benchmarks.speed import device

    machine = {**device.described(options.device), "torch": torch.__version__}
    lines = Lines(output, options.minutes, more=options.built)
    try:
        if options.device == "cuda":
            build(lines, options.built)
        with clocks(output):
            if options.device == "cuda":
                test(lines)
            measure(lines, options.device, reserve=90 if options.device == "cuda" else 0)
            if options.device == "cuda":
                sanitize(lines)
    finally:
        pack(lines, machine)
    sys.exit(1 if lines.failed else 0)


if __name__ == "__main__":
    sys.exit(exit_code(main))
