"""Time and size of an index of what was published, as it grows to 10^9 pairs.

    python -m benchmarks.speed.bench_index -o benchmarks/results/index.json --work DIR

One index takes texts of 100,000 uniform ids (`gumbel`, n = 4), some 16 million tokens a call, until it
holds so many pairs; hardly any comes twice. Given are processor seconds since the size before, for each
million pairs (it merges its runs while it grows), the size on disk, and the highest resident set so far, of
which pages of mapped files are a part, that the system takes back when others need memory. Then 100 texts of
1,000 ids that were added are looked up, every pair of which has to be there, and 10^6 tokens that were not.
DIR needs 30 GB: runs lie there twice while they are merged.
"""

from __future__ import annotations

import pathlib
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import iet
from benchmarks.recording import columns, exit_code, finish, parser
from iet.errors import IetError
from iet.marks.scheme import Scheme

PAIRS = (10**6, 10**7, 10**8, 10**9)
VOCABULARY, TEXT, TEXTS_A_CALL = 50_000, 100_000, 160
LOOKUPS, LOOKUP, OTHERS = 100, 1_000, 10**6


def texts(start: int, count: int) -> Iterator[NDArray[np.int64]]:
    """Yield the texts with these numbers."""
    for number in range(start, start + count):
        yield np.random.default_rng([1, number]).integers(0, VOCABULARY, TEXT)


def on_disk(folder: pathlib.Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def run(work: pathlib.Path, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield a row for each size."""
    registry = iet.Registry.create(None, vocab_size=VOCABULARY, scheme=Scheme(family="gumbel"))
    registry.add("writer", secret=bytes([7]) * 32)
    index = iet.PublishedIndex(work / "index", registry, create=True)
    keys, added = registry.scoring_keys(), 0
    for size in sizes:
        before, began = len(index), time.process_time()
        while len(index) < size:
            count = min(TEXTS_A_CALL, -(-(size - len(index)) // TEXT))
            index.add("writer", token_ids=texts(added, count))
            added += count
        seconds = time.process_time() - began
        some = np.random.default_rng(2).integers(0, added, LOOKUPS)
        own = [next(texts(number, 1))[:LOOKUP] for number in some.tolist()]
        others = np.random.default_rng(3).integers(0, VOCABULARY, OTHERS)
        wall = time.perf_counter()
        found = [index.seen(each, keys) for each in own]
        wall = (time.perf_counter() - wall) / LOOKUPS
        if not all(each[3:].all() for each in found):
            raise IetError("a pair that was added is not in the index")
        yield {
            "pairs": len(index),
            "processor_seconds": seconds,
            "seconds_a_million": seconds / (len(index) - before) * 1e6,
            "bytes": on_disk(index.path),
            "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "lookup_milliseconds": 1e3 * wall,
            "others": OTHERS,
            "others_seen": int(index.seen(others, keys).sum()),
        }


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    shown = [{**row, "gigabytes": row["bytes"] / 1e9} for row in rows]
    formats = {
        "pairs": "{pairs:,}",
        "processor s": "{processor_seconds:.0f}",
        "s for each million more": "{seconds_a_million:.2f}",
        "GB": "{gigabytes:.2f}",
        "peak MB": "{peak_megabytes:,.0f}",
        "ms to look up 1,000 tokens": "{lookup_milliseconds:.1f}",
        "of 10^6 other tokens seen": "{others_seen}",
    }
    return columns(shown, formats)


def main() -> None:
    line = parser("benchmarks.speed.bench_index", __doc__)
    line.add_argument("--work", type=pathlib.Path, help="folder for the index (default: a temporary one)")
    line.add_argument("--largest", type=int, default=PAIRS[-1], help="no more pairs than this")
    given = line.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(dir=given.work, prefix="index-"))
    try:
        rows = []
        for row in run(work, [size for size in PAIRS if size <= given.largest]):
            print(row, flush=True)
            rows.append(row)
    finally:
        shutil.rmtree(work)
    finish(line, given, {"rows": rows}, markdown(rows))


if __name__ == "__main__":
    sys.exit(exit_code(main))
