"""Write what a benchmark measured: a summary as JSON with the environment, a table, and the single rows."""

from __future__ import annotations

import argparse
import csv
import gzip
import importlib.metadata
import io
import json
import math
import os
import pathlib
import platform
import re
import string
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import iet
from benchmarks import timing
from benchmarks.statistics import Interval
from iet.errors import IetError, ShapeError


def environment(*packages: str) -> dict[str, Any]:
    """Return machine, instruction set, threads, load before the run, Python and the versions of packages."""
    described = machine()
    return {
        "processor": described["name"],
        "machine": described,
        "cores": timing.cores(),
        "isa": iet.backends().isa,
        "threads": {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "IET_NUM_THREADS")},
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "iet": iet.__version__,
        **{package: version(package) for package in ("numpy", "numba", *packages)},
    }


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """Return processor, clock governor, caches and memory, as far as Linux reports them.

    The model's name alone says little: virtual machines hide it. Family, model and stepping identify it.
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
        "name": ", ".join([model, *numbers, f"{timing.cores()} cores"]),
        "virtual": "hypervisor" in first.get("flags", "").split() if first else None,
        "flags": [flag for flag in first.get("flags", "").split() if flag.startswith(("avx", "f16c", "fma"))],
        "governor": governor.read_text().strip() if governor.is_file() else None,
        "caches": caches(system / "cache"),
        "memory_bytes": memory(),
    }


def caches(folder: pathlib.Path = pathlib.Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, int]:
    """Return level ("L1d", "L2", ...) -> bytes, empty where Linux does not say."""
    sizes = {}
    for index in sorted(folder.glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        suffix = {"Data": "d", "Instruction": "i"}.get(kind, "")
        sizes[f"L{level}{suffix}"] = int(size.removesuffix("K")) * 1024
    return sizes


def memory() -> int | None:
    """Return the bytes of memory that could be used now."""
    meminfo = pathlib.Path("/proc/meminfo")
    if not meminfo.is_file():
        return None
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return None


INTERVAL = "{{{0}[0]:.3f}} ({{{0}[1]:.3f}}, {{{0}[2]:.3f}})"
"""Cell of `columns` for [mean, low, high], by `INTERVAL.format(name)`."""

_LINE = 1000  # characters of JSON that are not broken into lines

Cell = str | int | float | Interval | None
"""What a table holds; None is "N/A"."""


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table: three decimals, an interval in one cell."""
    _check(header, rows)
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(map(_shown, row)) + " |" for row in rows])


def _shown(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:.3f}"
    return "N/A" if cell is None else re.sub(r"(?<!\\)\|", r"\\|", str(cell)).replace("\n", " ")


def as_csv(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return the same table as CSV, with all digits.

    A column with an interval becomes three: its name for the mean, and with " low" and " high".
    """
    _check(header, rows)
    wide = [any(isinstance(row[column], Interval) for row in rows) for column in range(len(header))]
    lines: list[list[str]] = [[]]
    for name, intervals in zip(header, wide, strict=True):
        lines[0] += [name, f"{name} low", f"{name} high"] if intervals else [name]
    for row in rows:
        lines.append([])
        for cell, intervals in zip(row, wide, strict=True):
            if isinstance(cell, Interval):
                lines[-1] += [repr(cell.mean), repr(cell.low), repr(cell.high)]
            else:
                lines[-1] += ["N/A" if cell is None else str(cell)] + ["", ""] * intervals
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(lines)
    return written.getvalue()


def _check(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise ShapeError(f"row {number}", got=f"{len(row)} cells", expected=len(header))


def write(
    path: pathlib.Path,
    content: Mapping[str, Any],
    markdown: str,
    *,
    rows: Iterable[Mapping[str, Any]] = (),
) -> None:
    """Write a result, and print its table.

    The summary `content` goes to `path`, `NAME.json`, `markdown` to `NAME.md`; both are committed. `rows`,
    what each single text or test gave, go to `NAME.rows.jsonl.gz`, which git ignores.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_json(content), encoding="utf-8")
    path.with_suffix(".md").write_text(markdown + "\n", encoding="utf-8")
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if lines:
        path.with_suffix(".rows.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    print(markdown)


def read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """Return the rows that `write` stored with a summary `NAME.json`; empty without them."""
    rows = path.with_suffix(".rows.jsonl.gz")
    if not rows.is_file():
        return []
    return [json.loads(line) for line in gzip.decompress(rows.read_bytes()).decode().splitlines()]


def write_table(
    path: pathlib.Path,
    header: Sequence[str],
    cells: Sequence[Sequence[Cell]],
    content: Mapping[str, Any],
    *,
    rows: Iterable[Mapping[str, Any]] = (),
    title: str = "",
    note: str = "",
) -> None:
    """Write a result that is one table as `path`.json, .md and .csv, which git ignores, and print it.

    The JSON holds the table as "table": a list of {heading: cell}, intervals as [mean, low, high]. `title`
    and `note` come before and after it in Markdown; `content` and `rows` are those of `write`.
    """
    parts = (title, table(header, cells), note)
    write(
        path.with_name(path.name + ".json"),
        {**content, "table": as_dicts(header, cells)},
        "\n\n".join(part for part in parts if part),
        rows=rows,
    )
    path.with_name(path.name + ".csv").write_text(as_csv(header, cells), encoding="utf-8", newline="")


def as_dicts(header: Sequence[str], cells: Iterable[Sequence[Cell]]) -> list[dict[str, Any]]:
    """Return the rows of a table as {heading: cell}, intervals as [mean, low, high]."""
    return [dict(zip(header, map(_plain, row), strict=True)) for row in cells]


def _plain(cell: Cell) -> Any:
    return [cell.mean, cell.low, cell.high] if isinstance(cell, Interval) else cell


def as_json(content: Any) -> str:
    """Return JSON with floats of six digits, and one line for values without lists or objects.

    So does what takes no more than 1000 characters.
    """
    return _lines(_rounded(content), "\n") + "\n"


def _lines(value: Any, start: str) -> str:
    one_line = json.dumps(value, ensure_ascii=False)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if len(one_line) <= _LINE or not any(isinstance(part, (dict, list)) for part in parts):
        return one_line
    inner = start + " "
    if isinstance(value, dict):
        members = (json.dumps(key, ensure_ascii=False) + ": " for key in value)
        inside = [member + _lines(part, inner) for member, part in zip(members, parts, strict=True)]
        return "{" + inner + ("," + inner).join(inside) + start + "}"
    return "[" + inner + ("," + inner).join(_lines(part, inner) for part in parts) + start + "]"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, (list, tuple)) else value


class _Cells(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            raise KeyError
        return str(format(value, format_spec))


def _cell(form: str, row: Mapping[str, Any]) -> str:
    try:
        return _Cells().vformat(form, (), row)
    except (KeyError, TypeError):  # not there, or None
        return ""


def columns(rows: Iterable[Mapping[str, Any]], formats: Mapping[str, str] | Sequence[tuple[str, str]]) -> str:
    """Return a Markdown table of rows.

    `formats` is heading -> cell, as in `str.format`: "{tokens:,}", "{over[median]:.2f}", "{interval[0]:.3f}".
    A cell with a missing value is empty. Pairs allow a heading twice.
    """
    pairs = list(formats.items() if isinstance(formats, Mapping) else formats)
    return table([heading for heading, _ in pairs], [[_cell(form, row) for _, form in pairs] for row in rows])


def number(value: float) -> str:
    """Return three significant digits, without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:.{digits}f}"


def quartiles(value: Mapping[str, float]) -> str:
    return f"{number(value['low'])} to {number(value['high'])}"


def parser(module: str, doc: str | None) -> argparse.ArgumentParser:
    """Return the parser of a benchmark's command line, with `-o`."""
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=(doc or "").split("\n")[0])
    made.add_argument("-o", "--output", type=pathlib.Path, required=True, help="JSON; a table goes beside it")
    return made


def exit_code(run: Callable[[], object]) -> int:
    """Run a command, and say on stderr what was refused or cannot be read; return its exit code."""
    try:
        run()
    except (IetError, FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def command(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """Return the command line of a result: what was not left at its default, folders without their paths."""
    parts = [parser.prog]
    for name, value in vars(options).items():
        if value == parser.get_default(name):
            continue
        parts.append("-o" if name == "output" else f"--{name.replace('_', '-')}")
        if isinstance(value, pathlib.Path):
            relative = value.name if value.is_absolute() else value.as_posix()
            parts.append({"work": "DIR", "data": "PATH", "before": "PATH"}.get(name, relative))
        elif value is not True:
            parts += [_quoted(item) for item in (value if isinstance(value, (list, tuple)) else [value])]
    return " ".join(parts)


def finish(
    line: argparse.ArgumentParser,
    options: argparse.Namespace,
    results: Mapping[str, Any],
    markdown: str,
    *,
    rows: Iterable[Mapping[str, Any]] = (),
    packages: Sequence[str] = (),
) -> None:
    """Write results with their command line and environment; see `write`, `environment`."""
    content = {"command": command(line, options), "environment": environment(*packages), **results}
    write(options.output, content, markdown, rows=rows)


def _quoted(value: object) -> str:
    return str(value) if re.fullmatch(r"[\w.:/-]+", str(value)) else repr(value)
