"""Time `iet audit` of a page of text from the start of its process: the first on a machine, and later ones.

    python -m benchmarks.speed.bench_start -o benchmarks/results/start.json

Seconds of the processor, of a process and all it does, in one thread, in which other work on the machine
counts less than in seconds of a clock; then those of the clock, which a person waits. The package is
copied to a folder of its own and its bytecode compiled, as an installation does. A first audit finds an empty
NUMBA_CACHE_DIR; a later one what an audit before it left.
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

    def check(self) -> None:
        """Make sure that later audits compile nothing."""
        before = sorted((self.path / "warm").rglob("*.nb?"))
        self.later(*_audit("posterior"))
        if not before or sorted((self.path / "warm").rglob("*.nb?")) != before:
            raise IetError("a second audit compiles loops that the first one has compiled")

    def details(self) -> dict[str, Any]:
        """Return how much there is to read and to compile."""
        text = (self.path / "page.txt").read_text(encoding="utf-8")
        compiled = {}
        for decoder in iet.decoding.DECODERS:
            with tempfile.TemporaryDirectory(prefix="iet-start-") as empty:
                _python(self.path, *_audit(decoder), cache=pathlib.Path(empty))
                compiled[decoder] = len(list(pathlib.Path(empty).rglob("*.nbc")))
        return {"characters": len(text), "agents": len(ROLES), "compiled functions": compiled}

    def release(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _audit(decoder: str) -> tuple[str, ...]:
    return "-m", "iet", "audit", "page.txt", "-r", "team.json", "--decoder", decoder


def _python(folder: pathlib.Path, *arguments: str, cache: pathlib.Path) -> Seconds:
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE" and k[:6] != "NUMBA_"}
    given = {"PYTHONPATH": str(folder / "site"), "NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command, started = [sys.executable, *arguments], time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=folder, env=kept | given)
    waited = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, waited


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
    for decoder in ("posterior",) if quick else ("posterior", "cusum"):
        for when, run in (("first", machine.first), ("later", machine.later)):
            runs[f"{when} audit, {decoder}"] = functools.partial(run, *_audit(decoder))
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
            note="A first audit finds no loop compiled; later ones find what it compiled in the cache.",
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
