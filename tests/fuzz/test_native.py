"""Every native op on random arguments, under sanitizers, against the C++ scheme and the NumPy reference.

`IET_FUZZ` names the output folder of `tests/fuzz/build`; .ci/rest has a step for it, and
`python -m benchmarks.security.reliability` runs the same for hours.
"""

from __future__ import annotations

import os
import pathlib

import pytest

from benchmarks.security import native

PROGRAMS = pathlib.Path(os.environ.get("IET_FUZZ", "build/none"))
built = pytest.mark.skipif(
    "IET_FUZZ" not in os.environ, reason="needs IET_FUZZ, what tests/fuzz/build has made"
)


@built
@pytest.mark.parametrize(
    ("kind", "calls", "threads"),
    [
        ("none", 2_000_000, 1),
        ("address,undefined", 1_000_000, 1),
        ("address,undefined", 100_000, 3),
        ("thread", 100_000, 3),
    ],
)
def test_random_calls(kind: str, calls: int, threads: int) -> None:
    counts = native.fuzz(PROGRAMS, kind, seed=1, calls=calls, threads=threads, sample=500)
    assert counts["faults"] == 0
    assert counts["calls"] >= calls
    assert counts["judged"] > calls / threads / 5000
    assert all(counts[op] > calls / 200 for op in native.JUDGES)


@built
def test_differences_are_reported() -> None:
    seen = set[str]()
    for line in native.sample(PROGRAMS, "none", seed=2, calls=20_000, every=20):
        assert native.agrees(line)
        written = native.WRITTEN[line["op"]]
        if line[written]:
            first = int(line[written][:2], 16) ^ 1
            seen.add(line["op"])
            assert not native.agrees({**line, written: f"{first:02x}{line[written][2:]}"}), line["op"]
    assert seen == set(native.JUDGES)
