"""What a benchmark is: contestants that are validated, run in turn, and recorded with the environment."""

from __future__ import annotations

import argparse
import dataclasses
import math
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.recording import environment, table, write
from iet import kernels
from iet.cli import bench
from iet.cli.bench import Sampler, Spread


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One function that is timed.

    Attributes:
        sample: does the work once and returns its seconds (`iet.cli.bench.timed`).
        kind: "ours", "floor" or "peer".
        work: units of work in one sample, which the result is divided by.
        note: what a reader must know, such as a smaller size that was scaled.
    """

    sample: Sampler
    kind: str
    work: float = 1.0
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Suite:
    """Contestants that run in turn.

    Attributes:
        name: what is done, with its shape.
        unit: of the results, such as "ns per logit".
        factor: seconds per unit of work -> unit.
        contestants: name -> contestant. Nothing big is made before the first sample.
        floors: names of those that every result is divided by, round by round.
        validate: compares every one of ours with the reference; raises where they differ.
        rounds: after one that warms up.
        skipped: peers that do not run here, and why.
        note: what holds for all lines.
        details: more to record, made after the run.
        release: gives back memory, after the run.
    """

    name: str
    unit: str
    factor: float
    contestants: Mapping[str, Contestant]
    floors: Sequence[str]
    validate: Callable[[], None]
    rounds: int
    skipped: Mapping[str, str] = dataclasses.field(default_factory=dict)
    note: str = ""
    details: Callable[[], dict[str, Any]] = dict
    release: Callable[[], object] = lambda: None


def run(suite: Suite) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Validate, then measure. Return what is recorded of it, and the samples in seconds by contestant."""
    started = time.perf_counter()
    before = kernels.backends().isa
    try:
        suite.validate()
        samples = bench.interleaved({name: c.sample for name, c in suite.contestants.items()}, suite.rounds)
    finally:
        if before is not None:
            bench.select_isa(before)
        suite.release()
    per_unit = {
        name: [seconds / suite.contestants[name].work for seconds in values]
        for name, values in samples.items()
    }
    results = [
        {
            "what": name,
            "kind": contestant.kind,
            "value": _dict(bench.spread(per_unit[name]).times(suite.factor)),
            "over": {floor: _dict(bench.ratio(per_unit[name], per_unit[floor])) for floor in suite.floors},
            "note": contestant.note,
        }
        for name, contestant in suite.contestants.items()
    ]
    recorded = {
        "suite": suite.name,
        "unit": suite.unit,
        "rounds": suite.rounds,
        "floors": list(suite.floors),
        "noise": bench.noise(per_unit[suite.floors[0]]),
        "note": suite.note,
        "skipped": dict(suite.skipped),
        "results": results,
        "details": suite.details(),
        "seconds": time.perf_counter() - started,
    }
    return recorded, samples


def _dict(spread: Spread) -> dict[str, float]:
    return dict(spread._asdict())


def main(
    module: str, doc: str, suites: Callable[[bool], list[Suite]], packages: Sequence[str] = ("torch",)
) -> None:
    """Parse the command line of a benchmark, run its suites and write JSON and a table."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=doc.split("\n")[0])
    parser.add_argument(
        "-o", "--output", type=pathlib.Path, required=True, help="JSON; a table goes beside it"
    )
    parser.add_argument("--quick", action="store_true", help="tiny: whether it runs, not how fast")
    arguments = parser.parse_args()
    load = environment(*packages)
    recorded = []
    for suite in suites(arguments.quick):
        print(f"{suite.name} ...", file=sys.stderr, flush=True)
        recorded.append(run(suite)[0])
    content = {
        "command": f"python -m {module} -o {arguments.output}" + (" --quick" if arguments.quick else ""),
        "quick": arguments.quick,
        "environment": load,
        "suites": recorded,
    }
    write(arguments.output, content, markdown(content))


def markdown(content: Mapping[str, Any]) -> str:
    """Return the whole record as Markdown: a table for each suite."""
    parts = [f"`{content['command']}` on {content['environment']['machine']['name']}"]
    for suite in content["suites"]:
        header = ["what", suite["unit"], "quartiles", *(f"over {floor}" for floor in suite["floors"]), "note"]
        rows = [
            [
                result["what"] if result["kind"] != "peer" else f"*{result['what']}*",
                number(result["value"]["median"]),
                quartiles(result["value"]),
                *(number(result["over"][floor]["median"]) for floor in suite["floors"]),
                result["note"],
            ]
            for result in suite["results"]
        ]
        lines = [f"**{suite['suite']}**, medians of {suite['rounds']} rounds. {suite['note']}".rstrip(), ""]
        lines.append(table(header, rows))
        for what, value in suite["details"].items():
            if isinstance(value, dict) and set(value) == {"low", "median", "high"}:
                lines += [
                    "",
                    f"The {what}: {value['median']:.2%} ({value['low']:.2%} to {value['high']:.2%}).",
                ]
        if suite["skipped"]:
            reasons = "; ".join(f"{name} ({why})" for name, why in suite["skipped"].items())
            lines += ["", f"Not run: {reasons}."]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def number(value: float) -> str:
    """Return three significant digits, without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:.{digits}f}"


def quartiles(value: Mapping[str, float]) -> str:
    return f"{number(value['low'])} to {number(value['high'])}"
