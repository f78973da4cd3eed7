"""How long everything holds: random calls, changed bytes, kills and hostile documents, counted.

Each part goes in rounds, and what a round counted is on disk when it ends: a run that is killed goes on, and
several may work at once on different parts (`--only`).
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.recording import columns, exit_code, finish, parser
from benchmarks.security import documents, drills, flips, native
from iet.marks.files import write_file

Round = Callable[[pathlib.Path, int], Counter[str]]
"""What one round counts: by a folder for its files, and its number, which seeds what it draws."""


def native_round(work: pathlib.Path, number: int) -> Counter[str]:
    """Random calls of the native code, under each sanitizer and under none."""
    counts = Counter[str]()
    native.build(work / "fuzz", native.ROUND)
    for kind, options in native.ROUND.items():
        new_counts = native.fuzz(work / "fuzz", kind, seed=1000 + number, **options)
        statement = native.WHAT[kind]
        counts += Counter(
            {
                f"calls, {statement}": new_counts["calls"],
                "judged by the reference": new_counts["judged"],
                "faults": new_counts["faults"],
            }
        )
        counts["calls"] += new_counts["calls"]
    return counts


def flips_round(work: pathlib.Path, number: int) -> Counter[str]:
    """One byte in `FLIP_ROUNDS` of each kind of files changed to another value: all in as many rounds."""
    counts = Counter[str]()
    for kind in flips.KINDS:
        new_counts = flips.flip(kind, work / "flips", number, FLIP_ROUNDS, number % FLIP_ROUNDS)
        counts.update({f"{kind}: {name}": count for name, count in new_counts.items() if name != "faults"})
        counts.update({"bytes changed": new_counts["changed"], "faults": new_counts["faults"]})
    return counts


def documents_round(work: pathlib.Path, number: int) -> Counter[str]:
    """A folder of hostile documents, the longest of 100 MB."""
    counts = documents.audited(work / "documents", number, 100 << 20)
    counts["documents"] = counts["documents read"] + counts["records in quarantine"]
    return counts


def texts_round(work: pathlib.Path, number: int) -> Counter[str]:
    """Hostile texts, many a call."""
    return documents.by_the_thousand(work / "texts", number, 10_000)


def kills_round(work: pathlib.Path, number: int) -> Counter[str]:
    """Kills of bulk runs in one process and in three, and of writers of a registry and an index."""
    counts = Counter[str]()
    for kind, times in (("bulk", 25), ("with two workers", 5), ("registry", 10), ("index", 10)):
        new_counts = drills.drill(kind, work / "kills", number, times)
        counts.update(
            {"kills" if name == "kills" else f"{kind}: {name}": n for name, n in new_counts.items()}
        )
        counts.update({"faults": counts.pop(f"{kind}: faults"), f"{kind}: kills": new_counts["kills"]})
    return counts


def drills_round(work: pathlib.Path, number: int) -> Counter[str]:
    """Disks that are full or only read, files that may not grow, clocks that jump."""
    counts = Counter[str]()
    for kind, times in (("file sizes", 10), ("mounts", 5), ("clocks", 2)):
        counts += drills.drill(kind, work / "drills", number, times)
    counts["drills"] = counts.total() - counts["faults"]
    return counts


PARTS: dict[str, tuple[Round, str, int]] = {
    "native": (native_round, "calls", 10**9),
    "flips": (flips_round, "bytes changed", 10**6),
    "documents": (documents_round, "documents", 10**5),
    "texts": (texts_round, "texts", 10**6),
    "kills": (kills_round, "kills", 1000),
    "drills": (drills_round, "drills", 200),
}
"""Part -> a round of it, which count is its size, and the size to reach."""


FLIP_ROUNDS = 16
"""Rounds in which every byte of a registry, a report, an index and a bulk run's output is changed once."""

PEAK = "peak MB"
"""The count of which rounds keep the highest."""


def go_on(work: pathlib.Path, part: str, size: int) -> None:
    """Do rounds of a part until it has reached a size."""
    do, statement, _ = PARTS[part]
    while (state := stored(work, part))["counts"].get(statement, 0) < size:
        began = time.monotonic()
        counts = do(work, state["rounds"])
        total = Counter(state["counts"])
        highest = max(counts.pop(PEAK, 0), total.pop(PEAK, 0))
        total.update(counts)
        total.update({PEAK: highest} if highest else {})
        state = {
            "rounds": state["rounds"] + 1,
            "hours": state["hours"] + (time.monotonic() - began) / 3600,
            "counts": dict(total),
        }
        write_file(work / f"{part}.json", json.dumps(state).encode())
        print(
            f"{part}: {state['rounds']} rounds, {total[statement]:,} {statement}, {total['faults']} faults",
            flush=True,
        )


def stored(work: pathlib.Path, part: str) -> dict[str, Any]:
    """Return what the rounds of a part have counted."""
    path = work / f"{part}.json"
    if not path.is_file():
        return {"rounds": 0, "hours": 0.0, "counts": {}}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def rows(work: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each count, with the part's first."""
    for part, (_, statement, size) in PARTS.items():
        state = stored(work, part)
        counts = {name: state["counts"].get(name, 0) for name in (statement, "faults")} | state["counts"]
        for name, count in counts.items():
            row = {"part": part, "what": name, "count": count}
            totals = {"aim": size, "hours": state["hours"], "rounds": state["rounds"]}
            yield row | totals if name == statement else row


def markdown(table_rows: Sequence[dict[str, Any]]) -> str:
    formats = {
        "part": "{part}",
        "what": "{what}",
        "reached": "{count:,}",
        "aim": "{aim:,}",
        "hours": "{hours:.2f}",
    }
    done = sum(row["rounds"] for row in table_rows if row["part"] == "flips" and "rounds" in row)
    return (
        f"{columns(table_rows, formats)}\n\n"
        f"A round of flips changes one byte in {FLIP_ROUNDS} of a registry file,"
        " a signed report, a published index and all that a bulk run wrote, the next ones in the next round:"
        f" {done} rounds were done so, of the {FLIP_ROUNDS} in which every byte is changed once."
    )


def main() -> None:
    line = parser("benchmarks.security.reliability", __doc__)
    line.add_argument(
        "--work", type=pathlib.Path, required=True, help="folder of what was counted, and of files"
    )
    line.add_argument("--only", nargs="+", choices=[*PARTS, "none"], default=list(PARTS), help="these parts")
    for part, (_, statement, size) in PARTS.items():
        line.add_argument(
            f"--{part}", type=int, default=size, help=f"{statement} to reach (default: {size:,})"
        )
    options = line.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    for part in options.only:
        if part != "none":
            go_on(options.work, part, getattr(options, part))
    table_rows = list(rows(options.work))
    options.only = line.get_default("only")  # the results are those of all parts
    finish(line, options, {"rows": table_rows}, markdown(table_rows))


if __name__ == "__main__":
    sys.exit(exit_code(main))
