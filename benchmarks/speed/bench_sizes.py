"""Time and memory of an audit against the size of what is given: tokens, keys, and texts made to cost much.

    python -m benchmarks.speed.bench_sizes -o benchmarks/results/sizes.json

Every case runs in a process of its own, on one thread, which has audited a short text before. Memory is the
highest resident set beyond what it was then. Growth is the exponent between a size and the one before: 1 is
linear. A case that takes longer than `--seconds` is not tried in a larger size, and the table says so.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np

import iet
from benchmarks.recording import columns, exit_code, finish, parser

TOKENS = (10_000, 100_000, 1_000_000, 10_000_000)
KEYS = (100, 1_000, 10_000, 100_000)
CHARACTERS = (100_000, 1_000_000, 10_000_000)
SHORT = 1_000
CASE = "--case"
_VOCABULARY = 50_000


def _registry(agents: int, **given: Any) -> iet.Registry:
    registry = iet.Registry.create(None, **(given or {"vocab_size": _VOCABULARY}))
    registry.add_many([f"agent {number}" for number in range(agents)])
    return registry


def _ids(tokens: int) -> dict[str, Any]:
    return {"token_ids": np.random.default_rng(1).integers(0, _VOCABULARY, tokens)}


def _of_ids(decoder: str, make: Callable[[int], dict[str, Any]]) -> Callable[[int], Callable[[], object]]:
    def prepared(size: int) -> Callable[[], object]:
        auditor = iet.Auditor(_registry(6), decoder)
        auditor.audit(**_ids(SHORT))
        given = make(size)
        return lambda: auditor.audit(**given)

    return prepared


def _of_text(make: Callable[[int], str]) -> Callable[[int], Callable[[], object]]:
    def prepared(size: int) -> Callable[[], object]:
        auditor = iet.Auditor(_registry(6, tokenizer="iet:demo"))
        auditor.audit("The first words of a text. " * 50)
        text = make(size)
        return lambda: auditor.audit(text)

    return prepared


def _of_keys(decoder: str) -> Callable[[int], Callable[[], object]]:
    def prepared(size: int) -> Callable[[], object]:
        given = _ids(SHORT)
        iet.Auditor(_registry(6), decoder).audit(**given)
        auditor = iet.Auditor(_registry(size), decoder)
        return lambda: auditor.audit(**given)

    return prepared


def _checked(size: int) -> Callable[[], object]:
    pieces = [f"Message {number}: nobody marked what stands in here, word by word." for number in range(20)]
    iet.Auditor(_registry(6, tokenizer="iet:demo")).check(pieces, [None] * len(pieces))
    auditor = iet.Auditor(_registry(size, tokenizer="iet:demo"))
    return lambda: auditor.check(pieces, [f"agent {number}" for number in range(len(pieces))])


def _alternating(size: int) -> str:
    return "a" + "\u0323\u0301" * (size // 2)


CASES: dict[str, tuple[str, tuple[int, ...], Callable[[int], Callable[[], object]]]] = {
    "random ids, posterior": ("tokens", TOKENS, _of_ids("posterior", _ids)),
    "random ids, cusum": ("tokens", TOKENS, _of_ids("cusum", _ids)),
    "one id, posterior": ("tokens", TOKENS, _of_ids("posterior", lambda n: {"token_ids": np.full(n, 7)})),
    "every id once, in turn": (
        "tokens",
        TOKENS,
        _of_ids("posterior", lambda n: {"token_ids": np.arange(n) % _VOCABULARY}),
    ),
    "keys, posterior": ("keys", KEYS, _of_keys("posterior")),
    "keys, cusum": ("keys", KEYS, _of_keys("cusum")),
    "keys, check of 20 messages": ("keys", KEYS, _checked),
    "one word over and over": ("characters", CHARACTERS, _of_text(lambda n: "word " * (n // 5))),
    "one letter without a space": ("characters", CHARACTERS, _of_text(lambda n: "a" * n)),
    "one mark over and over": ("characters", CHARACTERS, _of_text(lambda n: "a" + "\u0301" * (n - 1))),
    "two marks in turn": ("characters", CHARACTERS, _of_text(_alternating)),
    "letters and marks, in NFD": (
        "characters",
        CHARACTERS,
        _of_text(lambda n: unicodedata.normalize("NFD", "é ü ñ ệ " * (n // 12))),
    ),
    "what nobody sees": ("characters", CHARACTERS, _of_text(lambda n: "\u200b" * n)),
    "line ends": ("characters", CHARACTERS, _of_text(lambda n: "\r\n" * (n // 2))),
}


def measured(name: str, size: int) -> dict[str, float]:
    """Run a case in this process."""
    work = CASES[name][2](size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "megabytes": max(0, after - before) / 1024}


def elsewhere(name: str, size: int, seconds: float) -> dict[str, Any]:
    """Run a case in a process of its own."""
    line = [sys.executable, "-m", "benchmarks.speed.bench_sizes", CASE, name, str(size)]
    limit = None if math.isinf(seconds) else seconds
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"said": f"more than {seconds:g} s"}
    if done.returncode:
        return {"said": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1][:100]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run(names: list[str], largest: float, seconds: float) -> list[dict[str, Any]]:
    rows = []
    elsewhere("random ids, posterior", SHORT, math.inf)  # what it compiles, the others find
    for name in names:
        unit, sizes, _ = CASES[name]
        before: dict[str, Any] | None = None
        for size in sizes:
            if size > largest:
                continue
            found = elsewhere(name, size, seconds)
            row = {"case": name, "unit": unit, "size": size, **found}
            if before is not None and "seconds" in found:
                row["growth"] = math.log(found["seconds"] / before["seconds"], size / before["size"])
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
            if "seconds" not in found:
                break
            before = row
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    shown = [
        {
            **row,
            "time": f"{row['seconds']:.2f}" if "seconds" in row else row["said"],
            "memory": f"{row['megabytes']:,.0f}" if "seconds" in row else "",
            "exponent": f"{row['growth']:.2f}" if "growth" in row else "",
        }
        for row in rows
    ]
    formats = {
        **{"case": "{case}", "size": "{size:,} {unit}", "s": "{time}", "MB more": "{memory}"},
        "growth of time": "{exponent}",
    }
    return columns(shown, formats)


def main() -> None:
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "IET_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    if sys.argv[1:2] == [CASE]:
        print(json.dumps(measured(sys.argv[2], int(sys.argv[3]))))
        return
    line = parser("benchmarks.speed.bench_sizes", __doc__)
    line.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="(default: all)")
    line.add_argument("--largest", type=float, default=math.inf, help="no larger size than this")
    line.add_argument("--seconds", type=float, default=600.0, help="for one case (default: 600)")
    given = line.parse_args()
    rows = run(given.cases, given.largest, given.seconds)
    finish(line, given, {"rows": rows}, markdown(rows))


if __name__ == "__main__":
    sys.exit(exit_code(main))
