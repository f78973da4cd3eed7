"""Table 2: failure attribution by a judge, on clean, corrupted and restored logs.

*Baseline* is the original log: clean, without IDs, with corrupted boundaries. *Ours* is the log rewritten
with marks (`regeneration`): clean, and restored after the same corruptions. The rewritten log, corrupted and
not restored, separates the effects of rewriting and of restoring. The table also has chance levels and the
paper's figures.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import recording, statistics
from benchmarks.paper import quoted, results
from benchmarks.paper.asking import Sampling, name_of
from benchmarks.paper.failure import judging, restore
from benchmarks.paper.failure.judging import Judge, Outcome, Seen, chance, score
from benchmarks.paper.failure.restoration import CORRUPTIONS, cut_spans, named
from benchmarks.paper.failure.restore import MARKS
from benchmarks.paper.failure.trajectories import SUBSETS, Trajectory, all_agents
from benchmarks.paper.reading.readers import LEVEL
from benchmarks.writing.models import Loaded
from iet.audit.auditor import Auditor
from iet.marks.registry import Registry

CLEAN = "clean"
TITLES: Mapping[str, str] = {CLEAN: CLEAN, **{name: entry.title for name, entry in CORRUPTIONS.items()}}
"""Corruption -> title in tables."""

SCORES = {"agent": "AgentAcc %", "step": "StepAcc %", "index": "StepAcc by index %"}
"""Figures of `judging.score` and their names in tables."""

_GUESS = {"all_at_once": "uniform_speaker", "step_by_step": "turn_speaker", "binary_search": "turn_speaker"}
"""Chance level of AgentAcc: the searches end at a turn and name its speaker."""

_HEADER = (
    *("subset", "protocol", "corruption", "log"),
    *SCORES.values(),
    *("predictions %", "chance AgentAcc %", "chance StepAcc %"),
    *("paper AgentAcc %", "paper StepAcc %"),
)


@dataclasses.dataclass(frozen=True)
class Options:
    restoring: restore.Options = dataclasses.field(default_factory=restore.Options)
    marks: tuple[str, ...] = tuple(MARKS)
    protocols: tuple[str, ...] = tuple(judging.PROTOCOLS)
    seeds: int = 3  # of the judge, from `restoring.seed` on; a judge with temperature 0 has one
    sampling: Sampling = judging.SAMPLING


@dataclasses.dataclass(frozen=True)
class Condition:
    """The logs of a subset as a judge sees them in one row."""

    subset: str  # one of `SUBSETS`
    corruption: str  # a key of `TITLES`
    mark: str | None  # of the rewritten logs; None for the originals
    restored: bool  # after the corruption
    seen: tuple[Seen, ...]

    @property
    def log(self) -> str:
        if self.mark is None:
            return "original"
        return f"{'restored' if self.restored else 'rewritten'}, {MARKS[self.mark]}"

    @property
    def side(self) -> str | None:
        """The paper's "baseline" or "ours"; None for rows that the paper does not have."""
        if self.mark is None:
            return "baseline"
        return "ours" if self.restored or self.corruption == CLEAN else None


Table = npt.NDArray[np.float64]
"""A figure of every seed on every log [S, N]."""


def run(
    loaded: Loaded,
    data: pathlib.Path,
    out: pathlib.Path,
    options: Options,
    judge: Judge,
    *,
    complete: bool = True,
    overwrite: bool = False,
) -> None:
    """Ask a judge about all logs, and write `out / "table2"`.

    Rewritten logs are in `out / "logs"`, the judge's answers in `out / "judge.jsonl"`.
    """
    first = options.restoring.seed
    seeds = range(first, first + (1 if options.sampling.temperature == 0 else options.seeds))
    everything, drawn = restore.read(data, options.restoring, complete)
    configuration = {
        "experiment": "table2",
        **restore.made_by(loaded, drawn),
        "judge": judge.endpoint.model,
        "judge_address": judge.endpoint.address,
        "level": LEVEL,
        **dataclasses.asdict(options),
        "judge_seeds": list(seeds),
    }
    if not overwrite:
        results.check_overwrite(out / "table2.json", configuration)
    conditions = [
        condition
        for subset, originals in drawn.items()
        for condition in conditions_of(
            loaded, out, options, subset, originals, all_agents(everything[subset])
        )
    ]
    answered = judging.judge_logs(
        [seen.presented for condition in conditions for seen in condition.seen],
        judge,
        cache=out / "judge.jsonl",
        protocols=options.protocols,
        seeds=seeds,
        sampling=options.sampling,
    )
    ends = list(itertools.accumulate((len(condition.seen) for condition in conditions), initial=0))
    outcomes = {
        (protocol, number): [answered[protocol, seed][low:high] for seed in seeds]
        for protocol in options.protocols
        for number, (low, high) in enumerate(itertools.pairwise(ends))
    }
    _write(loaded, out, options, judge, configuration, conditions, outcomes)


def conditions_of(
    loaded: Loaded,
    out: pathlib.Path,
    options: Options,
    subset: str,
    originals: Sequence[Trajectory],
    names: Sequence[str],
) -> Iterator[Condition]:
    """Yield the rows of a subset whose agents are `names`; rewritten logs are in `out / "logs"`."""
    for corruption in TITLES:
        yield Condition(
            subset, corruption, None, False, tuple(not_restored(log, corruption) for log in originals)
        )
    for mark in options.marks:
        logs, registry = restore.rewritten(
            loaded, originals, names, subset, mark, options.restoring, out / "logs"
        )
        for corruption in TITLES:
            seen = tuple(not_restored(log, corruption) for log in logs)
            yield Condition(subset, corruption, mark, False, seen)
            if corruption != CLEAN:
                seen = tuple(_restored(log, corruption, registry) for log in logs)
                yield Condition(subset, corruption, mark, True, seen)


def not_restored(log: Trajectory, corruption: str) -> Seen:
    """Return a log as it is shown after a corruption."""
    if corruption == CLEAN:
        return Seen(log, log)
    presented = CORRUPTIONS[corruption].corrupt(log)
    return Seen(log, presented, cut_spans(presented) if corruption == "boundaries" else None)


def _restored(log: Trajectory, corruption: str, registry: Registry) -> Seen:
    entry = CORRUPTIONS[corruption]
    corrupted = entry.corrupt(log)
    auditor = Auditor(registry, level=LEVEL, known_agents=log.agents)
    restored = entry.restore(corrupted, named(entry.read(auditor, corrupted)))
    return Seen(log, restored.trajectory, restored.spans)


def figures(seen: Sequence[Seen], outcomes: Sequence[Sequence[Outcome]]) -> dict[str, Table]:
    """Return `SCORES` of every seed on every log, 1 if right: float64 [S, N] each."""
    scored = [
        [
            score(outcome.prediction, seen_log)
            for outcome, seen_log in zip(outcomes_of_seed, seen, strict=True)
        ]
        for outcomes_of_seed in outcomes
    ]
    table = np.array(scored, np.float64)
    return {name: table[..., i] for i, name in enumerate(SCORES)}


def _write(
    loaded: Loaded,
    out: pathlib.Path,
    options: Options,
    judge: Judge,
    configuration: Mapping[str, Any],
    conditions: Sequence[Condition],
    outcomes: Mapping[tuple[str, int], Sequence[Sequence[Outcome]]],
) -> None:
    seed = options.restoring.seed
    levels = [_mean(chance(seen_log) for seen_log in condition.seen) for condition in conditions]
    tables = {
        key: figures(conditions[key[1]].seen, outcomes_of_seed) for key, outcomes_of_seed in outcomes.items()
    }
    corruptions = list(TITLES)
    order = sorted(
        outcomes,
        key=lambda key: (
            SUBSETS.index(conditions[key[1]].subset),
            options.protocols.index(key[0]),
            corruptions.index(conditions[key[1]].corruption),
            key[1],
        ),
    )
    rows: list[list[recording.Cell]] = []
    cells: list[dict[str, Any]] = []
    for protocol, number in order:
        condition, level = conditions[number], levels[number]
        table = tables[protocol, number]
        every = list(itertools.chain.from_iterable(outcomes[protocol, number]))
        predicted = float(np.mean([outcome.prediction is not None for outcome in every]))
        printed: tuple[recording.Cell, ...] = ("", "")
        if condition.side and condition.subset == SUBSETS[0]:
            printed = quoted.TABLE2[protocol][condition.side][condition.corruption]
        names = (condition.subset, protocol, TITLES[condition.corruption], condition.log)
        means = [statistics.crossed(100 * table[name], seed) for name in SCORES]
        guesses = (100 * level[_GUESS[protocol]], 100 * level["uniform_step"])
        rows.append([*names, *means, 100 * predicted, *guesses, *printed])
        cells.append(
            {
                **dict(zip(_HEADER, names, strict=False)),
                "predicted": predicted,
                "questions": sum(outcome.calls for outcome in every),
                "unanswered": sum(outcome.unanswered for outcome in every),
            }
        )
    differences = _compared(conditions, options.protocols, tables, seed)
    note = [
        _note(loaded, options, judge, cells),
        "Differences paired by logs and seeds, in percentage points:\n\n"
        + recording.table(
            ["subset", "protocol", "corruption", "log", "against", *SCORES.values()], differences
        ),
    ]
    recording.write_table(
        *(out / "table2", _HEADER, rows, results.content(configuration, cells=cells)),
        title="# Failure attribution under metadata loss",
        note="\n\n".join(note),
    )


def _mean(figures_of_logs: Iterator[dict[str, float]]) -> dict[str, float]:
    rows = list(figures_of_logs)
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def _compared(
    conditions: Sequence[Condition],
    protocols: Sequence[str],
    tables: Mapping[tuple[str, int], Mapping[str, Table]],
    seed: int,
) -> list[list[recording.Cell]]:
    """Return ours less the baseline, and less the same log before it was restored."""
    rows: list[list[recording.Cell]] = []
    for protocol, (a, ours), (b, theirs) in itertools.product(
        protocols, enumerate(conditions), enumerate(conditions)
    ):
        comparable = (ours.subset, ours.corruption) == (theirs.subset, theirs.corruption)
        unrestored = not theirs.restored and theirs.mark in (None, ours.mark)
        if comparable and ours.side == "ours" and unrestored and a != b:
            less = [tables[protocol, a][name] - tables[protocol, b][name] for name in SCORES]
            names = (ours.subset, protocol, TITLES[ours.corruption], ours.log, theirs.log)
            rows.append([*names, *(statistics.crossed(100 * table, seed) for table in less)])
    return rows


def _note(loaded: Loaded, options: Options, judge: Judge, cells: Sequence[Mapping[str, Any]]) -> str:
    sampling = options.sampling
    sums = {name: sum(cell[name] for cell in cells) for name in ("questions", "unanswered")}
    predicted = float(np.mean([cell["predicted"] for cell in cells]))
    warning = ""
    if predicted < 0.5:
        warning = f" **Only {predicted:.0%} of the runs end in a prediction**, so these figures say little."
    return results.note(
        pathlib.Path(__file__).with_name("table2_note.md"),
        judge=name_of(judge.endpoint),
        temperature="left out" if sampling.temperature is None else f"{sampling.temperature:g}",
        top_p=sampling.top_p,
        max_tokens=sampling.max_tokens,
        seeds=options.seeds,
        warning=warning,
        model=loaded.name,
        **sums,
    )
