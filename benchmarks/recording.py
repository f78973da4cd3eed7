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
from iet.cli import bench


def environment(*packages: str) -> dict[str, Any]:
    """Return machine, instruction set, threads, load before the run, Python and the versions of packages."""
    described = machine()
    return {
        "processor": described["name"],
        "machine": described,
        "cores": bench.cores(),
        "isa": iet.backends().isa,
        "threads": {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "IET_NUM_THREADS")},
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "iet": iet.__version__,
        **{package: version(package) for package in ("numpy", "numba", *packages)},
    }


def version(package: str) -> str | None:
    """Return the installed version, None if there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """Return what Linux tells of processor, clock governor, caches and memory; None where it does not.

    The model's name alone says little: virtual machines hide it. Family, model and stepping tell it.
    """
    first: dict[str, str] = {}
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = cpuinfo.read_text().split("\n\n")[0].splitlines()
        first = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    model = first.get("model name") or platform.processor() or platform.machine()
    numbers = [
        f"{key.split()[-1]} {first[key]}" for key in ("cpu family", "model", "stepping") if key in first
    ]
    system = pathlib.Path("/sys/devices/system/cpu/cpu0")
    governor = system / "cpufreq/scaling_governor"
    return {
        "name": ", ".join([model, *numbers, f"{bench.cores()} cores"]),
        "virtual": "hypervisor" in first.get("flags", "").split() if first else None,
        "flags": [flag for flag in first.get("flags", "").split() if flag.startswith(("avx", "f16c", "fma"))],
        "governor": governor.read_text().strip() if governor.is_file() else None,
        "caches": caches(system / "cache"),
        "memory_bytes": memory(),
    }


def caches(folder: pathlib.Path = pathlib.Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, int]:
    """Return level ("L1d", "L2", ...) -> bytes, empty where Linux does not say."""
    found = {}
    for index in sorted(folder.glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        suffix = {"Data": "d", "Instruction": "i"}.get(kind, "")
        found[f"L{level}{suffix}"] = int(size.removesuffix("K")) * 1024
    return found


def memory() -> int | None:
    """Return the bytes of memory that could be used now."""
    meminfo = pathlib.Path("/proc/meminfo")
    if not meminfo.is_file():
        return None
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return None


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
