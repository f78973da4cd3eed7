"""Write what a benchmark measured: JSON with the environment, and a Markdown table beside it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import platform
from collections.abc import Sequence
from typing import Any

import iet


def environment(*packages: str) -> dict[str, Any]:
    """Return processor, instruction set, Python and the versions of packages."""
    model = platform.processor() or platform.machine()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        model = names[0] if names else model
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "isa": iet.backends().isa,
        "python": platform.python_version(),
        "iet": iet.__version__,
        **{package: importlib.metadata.version(package) for package in ("numpy", "numba", *packages)},
    }


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table; floats get three decimals."""
    cells = [[f"{c:.3f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in cells])


def write(path: pathlib.Path, content: dict[str, Any], markdown: str) -> None:
    """Write `path` (JSON) and the same name with `.md`, and print the table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(markdown + "\n", encoding="utf-8")
    print(markdown)
