"""Time audits that are given lists of sessions: up to 100,000 of six agents, 4,096 tokens.

    python -m benchmarks.speed.bench_sessions -o benchmarks/results/sessions.json

On all cores that the process may use. Two texts of uniform ids: one that nobody marked, in which every key is
read twice (for evidence, and for whose the text comes nearest to), and one in which an agent wrote half in a
session of the list, which has to be found. The floor is one pass of `score_spans` over all keys. Beside the
seconds that passed stands processor time, which other processes on the machine change less.
"""

from __future__ import annotations

import functools
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import iet
from benchmarks.recording import columns, exit_code, finish, parser
from iet.audit.auditor import Auditor
from iet.errors import IetError
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme

SCHEMES = {"gumbel n=4": Scheme(family="gumbel"), "fourier n=2": Scheme(kappa=0.8)}
SESSIONS = (1_000, 10_000, 100_000)
AGENTS, VOCABULARY = 6, 128_256

LEVEL = 1e-4
"""How often chance would have a session found in the text that nobody marked, and the run refused."""


def team(scheme: str) -> Registry:
    registry = Registry.create(None, vocab_size=VOCABULARY, scheme=SCHEMES[scheme])
    for number in range(AGENTS):
        registry.add(f"agent {number}", secret=bytes([number + 1]) * 32)
    return registry


def ids_of(sessions: int) -> list[str]:
    return [f"run-{number}" for number in range(sessions)]


def marked(registry: Registry, session: str, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a text whose second half agent 3 wrote in a session, as a model that likes all ids alike."""
    found, draw = ids.copy(), np.random.default_rng(1)
    keys = registry.session(session).marking_keys()
    words = registry.profile.scheme.n_gram - 1
    noise = 0.0 if registry.profile.family.name == "gumbel" else 1.0  # there the mark is the noise
    for place in range(len(ids) // 2, len(ids)):
        logits = np.zeros((1, VOCABULARY), np.float32)
        iet.embed_(logits, [found[place - words : place]], [3], keys)
        found[place] = int((logits[0] + noise * draw.gumbel(size=VOCABULARY)).argmax())
    return found


def timed(call: Callable[[], Any], rounds: int) -> tuple[dict[str, float], Any]:
    """Return the median of the seconds and the fewest seconds of processors, and the last result."""
    seconds, processors, result = list[float](), list[float](), None
    for _ in range(rounds):
        wall, busy = time.perf_counter(), time.process_time()
        result = call()
        seconds.append(time.perf_counter() - wall)
        processors.append(time.process_time() - busy)
    return {"seconds": statistics.median(seconds), "processor_seconds": min(processors)}, result


def run(sizes: Sequence[int], tokens: int, rounds: int) -> list[dict[str, Any]]:
    ids = np.random.default_rng(7).integers(0, VOCABULARY, tokens)
    return [row for scheme in SCHEMES for size in sizes for row in measured(scheme, size, ids, rounds)]


def measured(scheme: str, size: int, ids: NDArray[np.int64], rounds: int) -> list[dict[str, Any]]:
    """Return what so many sessions take; the sessions that are found have to be the right ones."""
    registry, name = team(scheme), f"run-{size // 2}"
    made, auditor = timed(lambda: Auditor(registry, level=LEVEL, sessions=ids_of(size)), 1)
    Auditor(registry, sessions=ids_of(100)).audit(token_ids=ids[:600])  # compiles
    keys = auditor.plan.readers[0].keys
    floor, _ = timed(lambda: iet.score_spans(ids, [0, len(ids)], keys), rounds)
    spent = {"make the auditor, once": made, "score_spans over all keys": floor}
    texts = {"nobody's": (ids, set()), "half an agent's": (marked(registry, name, ids), {("agent 3", name)})}
    for what, (text, expected) in texts.items():
        spent[f"audit, text {what}"], report = timed(functools.partial(auditor.audit, token_ids=text), rounds)
        found = {(each.agent, each.session) for each in report.sessions.found}
        if found != expected:
            raise IetError(f"{scheme}, {size} sessions, {what}: {found} are found, expected {expected}")
    return [
        {
            **{"scheme": scheme, "sessions": size, "what": what, **each},
            "over": each["processor_seconds"] / floor["processor_seconds"],
        }
        for what, each in spent.items()
    ]


def peak_mb() -> float:
    status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def markdown(results: dict[str, Any]) -> str:
    formats = {
        **{"marked with": "{scheme}", "sessions": "{sessions:,}", "what": "{what}", "s": "{seconds:.2f}"},
        **{"s of processors": "{processor_seconds:.2f}", "over score_spans, processors": "{over:.2f}"},
    }
    return (
        f"{AGENTS} agents, {results['tokens']:,} tokens, {len(os.sched_getaffinity(0))} cores; load average"
        f" {results['load']:.1f} at the start. Medians of {results['rounds']} rounds, of processors the"
        " least.\n\n"
        f"{columns(results['rows'], formats)}\n\nPeak memory of the process: {results['peak_mb']:.0f} MB."
    )


def main() -> None:
    line = parser("benchmarks.speed.bench_sessions", __doc__)
    line.add_argument("--quick", action="store_true", help="tiny: whether it runs, not how fast")
    line.add_argument("--rounds", type=int, default=3)
    given = line.parse_args()
    tokens = 512 if given.quick else 4096
    load = os.getloadavg()[0]
    rows = run((100,) if given.quick else SESSIONS, tokens, given.rounds)
    results = {"tokens": tokens, "rounds": given.rounds, "load": load, "rows": rows, "peak_mb": peak_mb()}
    finish(line, given, results, markdown(results), packages=["numba"])


if __name__ == "__main__":
    sys.exit(exit_code(main))
