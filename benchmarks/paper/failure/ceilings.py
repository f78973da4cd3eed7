"""What Table 2 can come to: the agent's name for judges who need no model, by how often they are right.

A judge here knows the decisive step, and gives the right answer to each question with probability r:

* `all_at_once`: the decisive step with probability r, else any other, all as likely;
* `step_by_step`: at each step Yes or No as it is right, with probability r each, independently, up to the
  first Yes; without one there is no prediction;
* `binary_search`: the half that holds the step with probability r, any half where neither does.

The agent is who is named at the predicted step, as in the searches of `protocols`. What follows is exact: the
law of the predicted step, not draws of it. Protocols take different numbers of questions, so judges are told
apart by what they reach: r is such that on the clean originals the mean StepAcc of a protocol is q, and the
same r is asked about every other log. q = 1 is the ideal judge. Steps stand for original turns as in
`verdicts.score`; the decisive step of a log whose turns were cut or restored is the shown turn that shares
most characters with it (`restoration.ideal_judge`). Where there is none no answer is right, and the log
counts as wrong.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import recording, statistics
from benchmarks.paper import results
from benchmarks.paper.failure import restore
from benchmarks.paper.failure.questions import middle
from benchmarks.paper.failure.restoration import nearest
from benchmarks.paper.failure.table2 import CLEAN, TITLES, Options, conditions_of
from benchmarks.paper.failure.trajectories import agent_of, all_agents
from benchmarks.paper.failure.verdicts import Seen
from benchmarks.paper.reading.readers import LEVEL
from benchmarks.writing.models import Loaded

REACHED = (0.25, 0.5, 0.75, 1.0)
"""q: mean StepAcc on the clean originals."""

Law = NDArray[np.float64]
"""Probability of each of N steps to be predicted [N]; what is missing to 1 is that there is no prediction."""


def all_at_once(turns: int, right: int, r: float) -> Law:
    if turns == 1:
        return np.ones(1)
    law = np.full(turns, (1 - r) / (turns - 1))
    law[right] = r
    return law


def step_by_step(turns: int, right: int, r: float) -> Law:
    yes = np.full(turns, 1 - r)
    yes[right] = r
    before = np.concatenate([[1.0], np.cumprod(1 - yes)[:-1]])
    return np.asarray(before * yes)


def binary_search(turns: int, right: int, r: float) -> Law:
    law = np.zeros(turns)
    parts = [(0, turns - 1, 1.0)]
    while parts:
        start, end, p = parts.pop()
        if start == end:
            law[start] += p
            continue
        half = middle(start, end)
        upper = 0.5 if not start <= right <= end else r if right <= half else 1 - r
        parts += [(start, half, p * upper), (half + 1, end, p * (1 - upper))]
    return law


PROTOCOLS: Mapping[str, Callable[[int, int, float], Law]] = {
    "all_at_once": all_at_once,
    "step_by_step": step_by_step,
    "binary_search": binary_search,
}
"""Name -> (turns, decisive step, r) -> law."""


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """What of a log as it is shown decides who is right."""

    turns: int  # that are shown
    right: int | None  # the decisive one of them
    named: NDArray[np.bool_]  # whether who is named at a turn is to blame [turns]
    steps: NDArray[np.bool_]  # whether a turn stands for the decisive step [turns]

    @classmethod
    def of(cls, seen: Seen) -> Case:
        truth, turns = seen.original, seen.shown.turns
        right: int | None = truth.mistake_step
        if seen.spans is not None:
            right = nearest(truth.spans[truth.mistake_step], seen.spans)
        named = np.array([agent_of(turn.name) in truth.to_blame for turn in turns])
        return cls(len(turns), right, named, np.array([step == truth.mistake_step for step in seen.steps]))


def expected(case: Case, protocol: str, r: float) -> tuple[float, float]:
    """Return the probabilities that agent and step are right."""
    if case.right is None:
        return 0.0, 0.0
    law = PROTOCOLS[protocol](case.turns, case.right, r)
    return float(law @ case.named), float(law @ case.steps)


def reaching(cases: Sequence[Case], protocol: str, q: float) -> float:
    """Return the r at which the mean StepAcc of some logs is q, to 1e-6; it grows with r."""
    low, high = 0.0, 1.0
    if float(np.mean([expected(case, protocol, high)[1] for case in cases])) <= q:
        return high
    while high - low > 1e-6:
        half = (low + high) / 2
        below = float(np.mean([expected(case, protocol, half)[1] for case in cases])) < q
        low, high = (half, high) if below else (low, half)
    return high


def run(
    loaded: Loaded,
    data: pathlib.Path,
    out: pathlib.Path,
    options: Options,
    *,
    whole: bool = True,
    overwrite: bool = False,
) -> None:
    """Write `out / "ceilings"` as Markdown, CSV and JSON; rewritten logs lie in `out / "logs"`."""
    restoring = options.restoring
    found, drawn = restore.read(data, restoring, whole)
    configuration = {
        "experiment": "ceilings",
        **restore.made_by(loaded, drawn),
        "level": LEVEL,
        **{name: getattr(options, name) for name in ("marks", "protocols")},
        **dataclasses.asdict(restoring),
    }
    if not overwrite:
        results.keep(out / "ceilings.json", configuration)
    header = ["subset", "protocol", "corruption", "log"]
    header += [f"{figure} % at q = {q:g}" for q in REACHED for figure in ("AgentAcc", "StepAcc")]
    cells: list[list[recording.Cell]] = []
    rates: dict[str, dict[str, list[float]]] = {}
    for subset, originals in drawn.items():
        conditions = list(conditions_of(loaded, out, options, subset, originals, all_agents(found[subset])))
        cases = [[Case.of(one) for one in condition.seen] for condition in conditions]
        (clean,) = (
            some
            for c, some in zip(conditions, cases, strict=True)
            if c.mark is None and c.corruption == CLEAN
        )
        for protocol in options.protocols:
            rs = [reaching(clean, protocol, q) for q in REACHED]
            rates.setdefault(subset, {})[protocol] = rs
            for condition, some in zip(conditions, cases, strict=True):
                row: list[recording.Cell] = [subset, protocol, TITLES[condition.corruption], condition.log]
                for r in rs:
                    each = 100 * np.array([expected(case, protocol, r) for case in some])
                    row += [statistics.interval(each[:, i].tolist(), restoring.seed) for i in (0, 1)]
                cells.append(row)
    note = results.note(
        pathlib.Path(__file__).with_name("ceilings_note.md"),
        logs=", ".join(f"{len(logs)} of {subset}" for subset, logs in drawn.items()),
        rates="; ".join(
            f"{subset}, {protocol}: " + ", ".join(f"{r:.3f}" for r in rs)
            for subset, some in rates.items()
            for protocol, rs in some.items()
        ),
        model=loaded.name,
        level=LEVEL,
    )
    more: dict[str, Any] = {"r": rates, "q": REACHED}
    recording.write_table(
        out / "ceilings",
        header,
        cells,
        results.content(configuration, **more),
        title="# The agent's name, by how often a judge is right about the step",
        note=note,
    )
