"""Time `import iet` beside `import numpy`, each in a process of its own.

    python -m benchmarks.speed.bench_import -o benchmarks/results/import.json

The time is that of the import statement alone, without the interpreter's start; files are in the page cache,
and bytecode is compiled.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.speed.suite import Contestant, Suite, main
from iet.errors import IetError

KEPT_OUT = ("torch", "transformers", "numba", "tokenizers", "rich", "scipy")


def import_seconds(name: str) -> float:
    """Import `name` in a fresh process, and return the seconds of it."""
    code = f"import time; t = time.perf_counter(); import {name}; print(time.perf_counter() - t)"
    return float(_python(code))


@functools.cache
def loaded(name: str) -> frozenset[str]:
    """Return the modules that `import name` loads, beyond those of a bare interpreter."""
    code = "import json, sys; before = set(sys.modules); import {}; new = set(sys.modules) - before"
    return frozenset(json.loads(_python(code.format(name) + "; print(json.dumps(sorted(new)))")))


def _python(code: str) -> str:
    # Bytecode is kept, as it is where nobody forbids it: numpy's came with its installation.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    ).stdout


def check() -> None:
    """Make sure that `import iet` loads none of what its users may not have, or not need."""
    found = sorted(loaded("iet").intersection(KEPT_OUT))
    if found:
        raise IetError(f"import iet loads {', '.join(found)}")


def details() -> dict[str, Any]:
    ours, numpys = loaded("iet"), loaded("numpy")
    beyond = sorted(ours - numpys)
    return {
        "modules of iet": len(ours),
        "modules of numpy": len(numpys),
        "beyond numpy, ours": [name for name in beyond if name.split(".")[0] == "iet"],
        "beyond numpy, others": [name for name in beyond if name.split(".")[0] != "iet"],
        "kept out": list(KEPT_OUT),
    }


def suites(quick: bool) -> list[Suite]:
    contestants = {
        f"import {name}": Contestant(functools.partial(import_seconds, name), kind)
        for name, kind in (("iet", "ours"), ("iet.cli", "ours"), ("numpy", "floor"))
    }
    name, rounds, note = "import in a fresh process", 2 if quick else 41, "`import iet` loads numpy too."
    return [Suite(name, "ms", contestants, ("import numpy",), check, rounds, {}, note, details)]


def bench_import(replay: Callable[[], None]) -> None:
    replay()


if __name__ == "__main__":
    main("benchmarks.speed.bench_import", __doc__, suites, ())
