"""Time `iet audit` of a page of text from the start of its process, and the start-up of the decoder `cusum`.

    python -m benchmarks.speed.bench_start -o benchmarks/results/start.json

The first table gives processor time of a whole process in one thread, which other work on the machine
disturbs less; the second gives wall-clock time. The package is copied to a folder and compiled to bytecode,
as an installation does. Only `cusum` uses Numba: its first audit finds an empty NUMBA_CACHE_DIR, a later one
the cache of an audit before. "cusum alone" is the first call of `decode(scores, "cusum")` in a process that
has decoded another text with `posterior`: it imports Numba, then compiles the loops or loads
them from the cache.
"""

from __future__ import annotations

import functools
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import iet
from benchmarks.speed.suite import Contestant, Suite, main
from iet.errors import IetError

Seconds = tuple[float, float]
"""Of the processor, and of the clock."""

ROLES = ("planner", "researcher", "critic", "engineer", "writer", "treasurer")
READERS = "import numpy, tokenizers"  # what every audit imports
LIBRARIES = "import numpy, numba, tokenizers"
EMPTY = f"{LIBRARIES}; numba.njit(lambda: 1)()"

# Writes how long the first call of "cusum" takes into a file: processor time and wall-clock time.
CUSUM = """
import pathlib, time
import numpy as np
from iet.decoding import decode
scores = np.random.default_rng(0).uniform(-1, 1, (600, 6)).astype(np.float32)
decode(scores)
used, clock = time.process_time(), time.perf_counter()
decode(scores, "cusum")
seconds = time.process_time() - used, time.perf_counter() - clock
pathlib.Path("seconds").write_text("{} {}".format(*seconds), encoding="utf-8")
"""


class Machine:
    """An installation in a temporary folder, with a registry of six agents and a text of three of them."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def path(self) -> pathlib.Path:
        """Its folder, made at first use."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="iet-start-")
            path = pathlib.Path(self._folder.name)
            source, ignored = pathlib.Path(iet.__file__).parent, shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, path / "site" / "iet", ignore=ignored)
            _python(path, "-m", "compileall", "-q", str(path / "site"), cache=path / "warm")
            (path / "page.txt").write_text(_page(path / "team.json"), encoding="utf-8")
            for decoder in iet.decoding.DECODERS:
                _python(path, *_audit(decoder), cache=path / "warm")
        return pathlib.Path(self._folder.name)

    def later(self, *arguments: str) -> Seconds:
        """Run Python where loops are in the cache, and return the seconds of it."""
        return _python(self.path, *arguments, cache=self.path / "warm")

    def first(self, *arguments: str) -> Seconds:
        """Run Python where nothing has been compiled, and return the seconds of it."""
        with tempfile.TemporaryDirectory(prefix="iet-start-") as empty:
            return _python(self.path, *arguments, cache=pathlib.Path(empty))

    def alone(self, run: Callable[..., Seconds]) -> Seconds:
        """Return the seconds of the first call of `cusum` in a process that `run` starts."""
        run("-c", CUSUM)
        used, waited = (self.path / "seconds").read_text(encoding="utf-8").split()
        return float(used), float(waited)

    def check(self) -> None:
        """Make sure that a later audit compiles nothing."""
        cached = sorted((self.path / "warm").rglob("*.nb?"))
        self.later(*_audit("cusum"))
        if not cached or sorted((self.path / "warm").rglob("*.nb?")) != cached:
            raise IetError("a second audit compiles loops that the first one has compiled")

    def details(self) -> dict[str, Any]:
        """Return how much there is to read and to compile."""
        text = (self.path / "page.txt").read_text(encoding="utf-8")
        compiled = len(list((self.path / "warm").rglob("*.nbc")))
        return {"characters": len(text), "agents": len(ROLES), "compiled functions": compiled}

    def release(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _audit(decoder: str) -> tuple[str, ...]:
    return "-m", "iet", "audit", "page.txt", "-r", "team.json", "--decoder", decoder


def _python(folder: pathlib.Path, *arguments: str, cache: pathlib.Path) -> Seconds:
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE" and k[:6] != "NUMBA_"}
    added = {"PYTHONPATH": str(folder / "site"), "NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command, started = [sys.executable, *arguments], time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=folder, env=inherited | added)
    waited = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - usage_before.ru_utime - usage_before.ru_stime, waited


def _page(registry_path: pathlib.Path) -> str:
    """Write a registry of six agents, and return about 600 tokens of three of them."""
    from iet.cli.demo import demo_registry
    from iet.demo.conversation import converse, load_model

    registry = demo_registry(ROLES, 0)
    registry.save(registry_path)
    model, tokenizer = load_model()
    return converse(model, tokenizer, registry, [[ROLES[0], ROLES[2], ROLES[5]]]).text


def suites(quick: bool) -> list[Suite]:
    machine = Machine()
    runs: dict[str, Callable[[], Seconds]] = {}
    runs["audit, posterior"] = functools.partial(machine.later, *_audit("posterior"))
    for when, run in (("first", machine.first), ("later", machine.later)) if not quick else ():
        runs[f"{when} audit, cusum"] = functools.partial(run, *_audit("cusum"))
        runs[f"{when} call, cusum alone"] = functools.partial(machine.alone, run)
    floors = {READERS: READERS, LIBRARIES: LIBRARIES, "and compiling an empty function": EMPTY}
    for name, code in floors.items():
        runs[name] = functools.partial(machine.later, "-c", code)
    return [
        Suite(
            name=f"iet audit of a page of text, six agents, in a fresh process: {clock}",
            unit=f"ms of the {clock}",
            contestants={
                name: Contestant(
                    functools.partial(_one_of, run, which), "floor" if name in floors else "ours"
                )
                for name, run in runs.items()
            },
            floors=tuple(floors),
            validate=machine.check,
            rounds=2 if quick else 9,
            note="A first audit or call of cusum finds an empty cache of Numba, a later one a full one.",
            details=machine.details,
            release=machine.release,
        )
        for which, clock in enumerate(("processor", "clock"))
    ]


def _one_of(run: Callable[[], Seconds], which: int) -> float:
    return run()[which]


def bench_start(replay: Callable[[], None]) -> None:
    replay()


if __name__ == "__main__":
    main("benchmarks.speed.bench_start", __doc__, suites)
