"""Suites of contestants, which are validated, run in turn, and recorded with the environment."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import timing
from benchmarks.recording import columns, command, environment, number, parser, quartiles, write
from benchmarks.timing import Sampler, Spread
from iet import kernels
from iet.errors import BackendUnavailable

UNITS = {"ns": 1e9, "µs": 1e6, "ms": 1e3}


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One function that is timed."""

    sample: Sampler  # does the work once and returns its seconds (`benchmarks.timing.timed`)
    kind: str  # "ours", "floor" or "peer"
    work: float = 1.0  # units of work in one sample, which the result is divided by
    note: str = ""  # what a reader must know, such as a smaller size that was scaled
    moved: float = 0.0  # bytes that a unit of work must move, if GB/s are recorded


@dataclasses.dataclass(frozen=True)
class Suite:
    """Contestants that run in turn."""

    name: str  # what is done, with its shape
    unit: str  # of the results, "ns", "µs" or "ms" and per what, such as "ns per logit"
    contestants: Mapping[str, Contestant]  # nothing big is made before the first sample
    floors: Sequence[str]  # those that every result is divided by, round by round
    validate: Callable[[], None]  # compares every one of ours with the reference; raises if they differ
    rounds: int  # after one that warms up
    skipped: Mapping[str, str] = dataclasses.field(default_factory=dict)  # peers that do not run, and why
    note: str = ""  # what holds for all lines
    details: Callable[[], dict[str, Any]] = dict  # more to record, made after the run
    release: Callable[[], object] = lambda: None  # gives back memory, after the run


def run(suite: Suite) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Validate, then measure. Return what is recorded of it, and the samples in seconds by contestant."""
    started = time.perf_counter()
    isa_before = kernels.backends().isa
    try:
        suite.validate()
        samples = timing.interleaved({name: c.sample for name, c in suite.contestants.items()}, suite.rounds)
    finally:
        if isa_before is not None:
            timing.select_isa(isa_before)
        suite.release()
    per_unit = {
        name: [seconds / suite.contestants[name].work for seconds in values]
        for name, values in samples.items()
    }
    results = [
        {
            "what": name,
            "kind": contestant.kind,
            "value": _dict(timing.spread(per_unit[name]).times(UNITS[suite.unit.split()[0]])),
            "over": {floor: _dict(timing.ratio(per_unit[name], per_unit[floor])) for floor in suite.floors},
            "note": contestant.note,
            **_gigabytes(contestant, per_unit[name]),
        }
        for name, contestant in suite.contestants.items()
    ]
    recorded = {
        "suite": suite.name,
        "unit": suite.unit,
        "rounds": suite.rounds,
        "floors": list(suite.floors),
        "noise": timing.noise(per_unit[suite.floors[0]]),
        "note": suite.note,
        "skipped": dict(suite.skipped),
        "results": results,
        "details": suite.details(),
        "seconds": time.perf_counter() - started,
    }
    return recorded, samples


def _dict(spread: Spread) -> dict[str, float]:
    return dict(spread._asdict())


def _gigabytes(contestant: Contestant, seconds: Sequence[float]) -> dict[str, float]:
    return {"GB/s": contestant.moved / timing.spread(seconds).median / 1e9} if contestant.moved else {}


def main(
    module: str,
    doc: str,
    suites: Callable[[bool], list[Suite]],
    packages: Sequence[str] = ("torch",),
    on_device: Callable[[bool, str], list[Suite]] | None = None,
) -> None:
    """Parse the command line of a benchmark, run its suites and write JSON and a table.

    `suites` and `on_device` make the suites, those of `--device cuda` the latter; both receive whether the
    suites are to be tiny.
    """
    line = parser(module, doc)
    line.add_argument("--quick", action="store_true", help="tiny: whether it runs, not how fast")
    if on_device is not None:
        line.add_argument(
            "--device", choices=("cpu", "cuda"), default="cpu", help="cuda: time the kernels of a GPU"
        )
    options = line.parse_args()
    load = environment(*packages)
    if on_device is not None and options.device != "cpu":
        try:
            made = on_device(options.quick, options.device)
        except BackendUnavailable as error:
            line.exit(3, f"{error}\n")
    else:
        made = suites(options.quick)
    recorded = []
    for suite in made:
        print(f"{suite.name} ...", file=sys.stderr, flush=True)
        recorded.append(run(suite)[0])
    content = {
        "command": command(line, options),
        "quick": options.quick,
        "environment": load,
        "suites": recorded,
    }
    write(options.output, content, markdown(content))


def markdown(content: Mapping[str, Any]) -> str:
    parts = [f"`{content['command']}` on {content['environment']['machine']['name']}"]
    for suite in content["suites"]:
        rows = [
            {**row, "what": f"*{row['what']}*" if row["kind"] == "peer" else row["what"]}
            for row in suite["results"]
        ]
        for row in rows:
            row |= {"median": number(row["value"]["median"]), "quartiles": quartiles(row["value"])}
            row |= {
                f"over{i}": number(row["over"][floor]["median"]) for i, floor in enumerate(suite["floors"])
            }
        formats = {"what": "{what}", suite["unit"]: "{median}", "quartiles": "{quartiles}"}
        formats |= {f"over {floor}": f"{{over{i}}}" for i, floor in enumerate(suite["floors"])}
        formats |= {"GB/s": "{GB/s:.0f}"} if any("GB/s" in row for row in rows) else {}
        lines = [f"**{suite['suite']}**, medians of {suite['rounds']} rounds. {suite['note']}".rstrip(), ""]
        lines.append(columns(rows, {**formats, "note": "{note}"}))
        for detail, value in suite["details"].items():
            if isinstance(value, dict) and set(value) == {"low", "median", "high"}:
                lines += [
                    "",
                    f"The {detail}: {value['median']:.2%} ({value['low']:.2%} to {value['high']:.2%}).",
                ]
        if suite["skipped"]:
            reasons = "; ".join(f"{name} ({why})" for name, why in suite["skipped"].items())
            lines += ["", f"Not run: {reasons}."]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
