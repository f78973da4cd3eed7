"""Statistics that are judged against what an ideal generator gives, for `scheme_quality` and `noise_quality`.

A row is one statistic with what an ideal generator gives. There are three kinds:

* test: judged by its p-value. It passes if p >= LEVEL / (tests in the run), so an ideal generator fails one
  run in 1 / LEVEL. χ² is judged on both sides.
* bound: a property that is exact, or known to differ from the ideal; judged by a fixed limit.
* comparison: not judged.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import statistics
from benchmarks.recording import columns, finish

LEVEL = 1e-3
CHUNK = 1 << 18  # draws held at a time

Ids = NDArray[np.integer[Any]]
Seeds = NDArray[np.uint64]
Floats = NDArray[np.floating[Any]]


@dataclasses.dataclass(frozen=True)
class Row:
    """One statistic: its value, what an ideal generator gives, and a standard error, p-value or limit."""

    measure: str
    vocab_size: int
    case: str
    statistic: str
    value: float
    expected: float
    k_p: int | None = None
    error: float | None = None
    p: float | None = None
    limit: float | None = None

    @property
    def kind(self) -> str:
        return "test" if self.p is not None else "bound" if self.limit is not None else "comparison"

    def passes(self, threshold: float) -> bool:
        """Tell if the row is as it should be, given the smallest p-value that is accepted."""
        if self.p is not None:
            return self.p >= threshold
        return self.limit is None or abs(self.value - self.expected) <= self.limit


def threshold_of(rows: Sequence[Row]) -> float:
    """Return the smallest p-value that a test among `rows` may have (Bonferroni)."""
    return LEVEL / max(1, sum(row.kind == "test" for row in rows))


def failures(rows: Sequence[Row]) -> list[Row]:
    threshold = threshold_of(rows)
    return [row for row in rows if not row.passes(threshold)]


@dataclasses.dataclass(frozen=True)
class Setup:
    """What every measure needs."""

    vocab_size: int
    draws: int  # of a test, at least; see each measure
    rng: np.random.Generator  # of ids and seeds

    def ids(self, size: int | tuple[int, ...]) -> Ids:
        return self.rng.integers(0, self.vocab_size, size, dtype=np.uint32)

    def seeds(self, size: int) -> Seeds:
        return self.rng.integers(0, 1 << 64, size, dtype=np.uint64)

    def chunks(self, draws: int | None = None, width: int = 1) -> Iterator[int]:
        """Cut `draws` into pieces whose arrays of `width` columns fit a cache."""
        left, step = draws or self.draws, max(1, CHUNK // width)
        while left > 0:
            yield min(step, left)
            left -= step

    def row(self, measure: str, case: str, statistic: str, value: float, expected: float, **more: Any) -> Row:
        return Row(measure, self.vocab_size, case, statistic, float(value), float(expected), **more)

    def normal(
        self, measure: str, case: str, name: str, value: float, expected: float, error: float, **more: Any
    ) -> Row:
        """Return a test of a statistic that is normal around `expected`."""
        p = statistics.p_of_normal(value, expected, error)
        return self.row(measure, case, name, value, expected, error=float(error), p=p, **more)

    def chi_square(self, measure: str, case: str, counts: NDArray[np.int64], probabilities: Floats) -> Row:
        """Return a test of counts against probabilities: χ² over its degrees of freedom."""
        statistic, freedom, p = statistics.chi_square(counts, probabilities)
        return self.row(measure, case, "χ²/dof", statistic / freedom, 1, error=(2 / freedom) ** 0.5, p=p)


def as_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    threshold = threshold_of(rows)
    return [{"kind": r.kind, "passed": r.passes(threshold), **dataclasses.asdict(r)} for r in rows]


def tests_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    threshold = threshold_of(rows)
    for row in rows:
        if row.p is not None:
            groups.setdefault((row.measure, row.vocab_size, row.statistic), []).append(row)
    found = []
    for (measure, vocab_size, statistic), group in groups.items():
        worst = min(group, key=lambda row: row.p or 0)
        ideals = sorted({f"{row.expected:.5f}" for row in group}, key=float)
        found.append(
            {
                "measure": measure,
                "vocab_size": vocab_size,
                "statistic": statistic,
                "tests": len(group),
                "lowest": min(row.value for row in group),
                "highest": max(row.value for row in group),
                "ideal": ideals[0] if len(ideals) == 1 else f"{ideals[0]} to {ideals[-1]}",
                "smallest_p": worst.p,
                "case": worst.case,
                "passed": "yes" if all(row.passes(threshold) for row in group) else "NO",
            }
        )
    return found


SUMMARY = {
    "measure": "{measure}",
    "V": "{vocab_size}",
    "statistic": "{statistic}",
    "tests": "{tests}",
    "values": "{lowest:.5f} to {highest:.5f}",
    "ideal": "{ideal}",
    "smallest p": "{smallest_p:.1e}",
    "of": "{case}",
    "pass": "{passed}",
}
"""Columns of the table of `tests_of`."""


def heading(title: str, rows: Sequence[Row], draws: int, seed: int) -> str:
    tests, failed = [row for row in rows if row.p is not None], failures(rows)
    return (
        f"# {title}\n\n{draws:,} draws a test or more, seed {seed}. {len(tests)} tests, each passing at p >="
        f" {threshold_of(rows):.1e}; {sum((row.p or 0) < 0.01 for row in tests)} have p < 0.01,"
        f" {len(tests) / 100:.0f} are expected."
        f" {'All pass.' if not failed else f'{len(failed)} rows FAIL.'}"
    )


def main(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], list[Row]],
    markdown: Callable[[Sequence[Row], int, int], str],
) -> None:
    """Run the measures of a command line, write what they found, and exit 1 if a row failed."""
    parser.add_argument("--draws", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    started, rows = time.perf_counter(), run(given)
    content = {
        **{"draws": given.draws, "seed": given.seed, "seconds": round(time.perf_counter() - started, 1)},
        **{"threshold": threshold_of(rows), "passed": not failures(rows), "tests": tests_of(rows)},
    }
    shown = markdown(rows, given.draws, given.seed)
    finish(parser, given, content, shown, rows=as_rows(rows), packages=("scipy",))
    if failures(rows):
        raise SystemExit(1)


def summary(rows: Sequence[Row], left_out: Sequence[str] = ()) -> str:
    return columns(tests_of(rows), {head: form for head, form in SUMMARY.items() if head not in left_out})
