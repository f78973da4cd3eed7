"""Table 2: failure attribution by a judge, on clean logs, on corrupted ones, and on restored ones.

*Baseline* is the original log: clean, without IDs, with corrupted boundaries. *Ours* is the log rewritten
with marks (`regeneration`): clean, and restored from what the same corruptions leave of it. Between the two,
the rewritten log corrupted and not restored tells what rewriting does and what restoring does. The judge is
any model (`protocols`). Beside every figure stands what guessing is worth on the same logs, what the public
evaluator makes of the same answers ("legacy"), and what the paper prints.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import recording, statistics
from benchmarks.paper import quoted, results
from benchmarks.paper.asking.endpoints import Sampling, known_as
from benchmarks.paper.failure import protocols, restore
from benchmarks.paper.failure.protocols import Judge, Outcome
from benchmarks.paper.failure.restoration import CORRUPTIONS, cut_spans, ideal_judge, ideal_step, named
from benchmarks.paper.failure.restore import MARKS
from benchmarks.paper.failure.trajectories import SUBSETS, Restored, Trajectory, all_agents
from benchmarks.paper.failure.verdicts import CHANCE, Seen, chance, legacy_score, score
from benchmarks.paper.reading.readers import LEVEL
from benchmarks.writing.models import Loaded
from iet.audit.auditor import Auditor
from iet.errors import InputError
from iet.marks.registry import Registry

CLEAN = "clean"
TITLES: Mapping[str, str] = {CLEAN: CLEAN, **{name: entry.title for name, entry in CORRUPTIONS.items()}}
"""Corruption -> how tables call it."""

SCORES = {
    "agent": "AgentAcc %",
    "step": "StepAcc %",
    "index": "StepAcc by index %",
    "legacy_agent": "legacy AgentAcc %",
    "legacy_step": "legacy StepAcc %",
}
"""Figures of an outcome, and how tables call them."""

IDEAL = {"agent": "AgentAcc of the ideal judge", "step": "StepAcc of the ideal judge"}
"""Figures of the judge who knows the step of the original (`restoration.ideal_judge`, `ideal_step`)."""

_GUESSED = {"all_at_once": "uniform_speaker", "step_by_step": "turn_speaker", "binary_search": "turn_speaker"}
"""What chance is for AgentAcc: the searches end at a turn, and the agent is who spoke there."""

_HEADER = (
    *("subset", "protocol", "corruption", "log"),
    *SCORES.values(),
    *("predictions %", "legacy predictions %", "cut %"),
    *("chance AgentAcc %", "chance StepAcc %", "paper AgentAcc %", "paper StepAcc %"),
)


@dataclasses.dataclass(frozen=True)
class Options:
    # Subsets, logs, and how they are rewritten
    restoring: restore.Options = dataclasses.field(default_factory=restore.Options)
    marks: tuple[str, ...] = tuple(MARKS)  # some of `restore.MARKS`
    protocols: tuple[str, ...] = tuple(protocols.PROTOCOLS)  # some of `protocols.PROTOCOLS`
    # Of the judge: so many, from `restoring.seed` on. A judge of temperature 0 has one.
    seeds: int = 3
    sampling: Sampling = dataclasses.field(default_factory=Sampling)  # of the judge


@dataclasses.dataclass(frozen=True)
class Condition:
    """The logs of a subset as a judge sees them in one row."""

    subset: str  # one of `SUBSETS`
    corruption: str  # a key of `TITLES`
    mark: str | None  # of the rewritten logs; None for the originals
    restored: bool  # whether they were, after the corruption
    seen: tuple[Seen, ...]  # a log each

    @property
    def log(self) -> str:
        if self.mark is None:
            return "original"
        return f"{'restored' if self.restored else 'rewritten'}, {MARKS[self.mark]}"

    @property
    def side(self) -> str | None:
        """The paper's "baseline" or "ours"; None for what it does not have."""
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
    whole: bool = True,
    overwrite: bool = False,
) -> None:
    """Ask a judge about all logs, and write `out / "table2"` as Markdown, CSV and JSON.

    Rewritten logs lie in `out / "logs"`, the judge's answers in `out / "judge.jsonl"`.
    """
    unknown = [mark for mark in options.marks if mark not in MARKS]
    if unknown:
        raise InputError(f"marks: got {unknown[0]!r}, expected some of {list(MARKS)}")
    if options.seeds < 1:
        raise InputError(f"seeds: got {options.seeds}, expected at least 1")
    first = options.restoring.seed
    seeds = range(first, first + (1 if options.sampling.temperature == 0 else options.seeds))
    found, drawn = restore.read(data, options.restoring, whole)
    configuration = {
        "experiment": "table2",
        **restore.made_by(loaded, drawn),
        "judge": judge.endpoint.model,
        "judge_address": judge.endpoint.address,
        "judge_room": judge.room,
        "level": LEVEL,
        **dataclasses.asdict(options),
        "judge_seeds": list(seeds),
    }
    if not overwrite:
        results.keep(out / "table2.json", configuration)
    conditions = [
        condition
        for subset, originals in drawn.items()
        for condition in conditions_of(loaded, out, options, subset, originals, all_agents(found[subset]))
    ]
    answered = protocols.judge(
        [seen.shown for condition in conditions for seen in condition.seen],
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
    _write(loaded, out, options, judge, configuration, list(seeds), conditions, outcomes)


# ---------------------------------------------------------------- what a judge sees


def conditions_of(
    loaded: Loaded,
    out: pathlib.Path,
    options: Options,
    subset: str,
    originals: Sequence[Trajectory],
    names: Sequence[str],
) -> Iterator[Condition]:
    """Yield the rows of a subset, whose agents have these names; rewritten logs lie in `out / "logs"`."""
    for corruption in TITLES:
        seen = tuple(_as_it_stands(log, corruption) for log in originals)
        yield Condition(subset, corruption, None, False, seen)
    for mark in options.marks:
        _, logs, registry = restore.rewritten(
            loaded, originals, names, subset, mark, options.restoring, out / "logs"
        )
        for corruption in TITLES:
            seen = tuple(_as_it_stands(log, corruption) for log in logs)
            yield Condition(subset, corruption, mark, False, seen)
            if corruption != CLEAN:
                seen = tuple(_restored(log, corruption, registry) for log in logs)
                yield Condition(subset, corruption, mark, True, seen)


def _as_it_stands(log: Trajectory, corruption: str) -> Seen:
    if corruption == CLEAN:
        return Seen(log, log)
    shown = CORRUPTIONS[corruption].corrupt(log)
    return Seen(log, shown, cut_spans(shown) if corruption == "boundaries" else None)


def _restored(log: Trajectory, corruption: str, registry: Registry) -> Seen:
    entry = CORRUPTIONS[corruption]
    corrupted = entry.corrupt(log)
    auditor = Auditor(registry, level=LEVEL, known_agents=log.agents)
    restored = entry.restore(corrupted, named(entry.read(auditor, corrupted)))
    return Seen(log, restored.trajectory, restored.spans)


# ---------------------------------------------------------------- the table


def figures(seen: Sequence[Seen], outcomes: Sequence[Sequence[Outcome]]) -> dict[str, Table]:
    """Return `SCORES` of every seed on every log, 1 where it is right: float64 [S, N] each."""
    scored = [
        [
            (
                *dataclasses.astuple(score(outcome.prediction, one)),
                *legacy_score(outcome.legacy, one.original),
            )
            for outcome, one in zip(some, seen, strict=True)
        ]
        for some in outcomes
    ]
    table = np.array(scored, np.float64)
    return {name: table[..., i] for i, name in enumerate(SCORES)}


def _write(
    loaded: Loaded,
    out: pathlib.Path,
    options: Options,
    judge: Judge,
    configuration: Mapping[str, Any],
    seeds: Sequence[int],
    conditions: Sequence[Condition],
    outcomes: Mapping[tuple[str, int], Sequence[Sequence[Outcome]]],
) -> None:
    seed = options.restoring.seed
    levels = [_levels(condition.seen) for condition in conditions]
    ideals = [_ideal(condition.seen) for condition in conditions]
    tables = {key: figures(conditions[key[1]].seen, some) for key, some in outcomes.items()}
    order = sorted(
        outcomes,
        key=lambda key: (
            SUBSETS.index(conditions[key[1]].subset),
            options.protocols.index(key[0]),
            list(TITLES).index(conditions[key[1]].corruption),
            key[1],
        ),
    )
    rows: list[list[recording.Cell]] = []
    cells: list[dict[str, Any]] = []
    for protocol, number in order:
        condition, level, some = conditions[number], levels[number], outcomes[protocol, number]
        table = tables[protocol, number]
        every = list(itertools.chain.from_iterable(some))
        predicted, legacy, cut = zip(
            *((o.prediction is not None, o.legacy is not None, o.cut > 0) for o in every), strict=True
        )
        printed: tuple[recording.Cell, ...] = ("", "")
        if condition.side and condition.subset == SUBSETS[0]:
            printed = quoted.TABLE2[protocol][condition.side][condition.corruption]
        rows.append(
            [
                *(condition.subset, protocol, TITLES[condition.corruption], condition.log),
                *(statistics.crossed(100 * table[name], seed) for name in SCORES),
                *(100 * float(np.mean(some)) for some in (predicted, legacy, cut)),
                100 * level[_GUESSED[protocol]],
                100 * level["uniform_step"],
                *printed,
            ]
        )
        cells.append(
            {
                "subset": condition.subset,
                "protocol": protocol,
                "corruption": condition.corruption,
                "log": condition.log,
                "side": condition.side,
                "figures": {name: float(table[name].mean()) for name in SCORES},
                "chance": level,
                "ideal": ideals[number],
                "in_form": float(np.mean(predicted)),
                "questions": sum(outcome.calls for outcome in every),
                "questions_cut": sum(outcome.cut for outcome in every),
                "unanswered": sum(outcome.unanswered for outcome in every),
                "without_prediction": collections.Counter(
                    outcome.reason for outcome in every if outcome.prediction is None
                ),
                "predictions": _told(condition, seeds, some),
            }
        )
    note = [
        _note(loaded, options, judge, len(seeds), cells),
        "What guessing is worth on each log as it is shown, and the ideal judge, who knows the decisive step"
        " of the original and reads who is named there (the ceiling of the searches), in %:\n\n"
        + recording.table(
            ["subset", "corruption", "log", *CHANCE.values(), *IDEAL.values()],
            [
                [
                    *(c.subset, TITLES[c.corruption], c.log),
                    *(100 * level[name] for name in CHANCE),
                    *(100 * ideal[name] for name in IDEAL),
                ]
                for c, level, ideal in zip(conditions, levels, ideals, strict=True)
            ],
        ),
        "Paired by logs and seeds, in percentage points:\n\n"
        + recording.table(
            ["subset", "protocol", "corruption", "log", "against", *SCORES.values()],
            _compared(conditions, options.protocols, tables, seed),
        ),
    ]
    recording.write_table(
        out / "table2",
        _HEADER,
        rows,
        results.content(configuration, cells=cells),
        title="# Failure attribution under metadata loss",
        note="\n\n".join(note),
    )


def _levels(seen: Sequence[Seen]) -> dict[str, float]:
    each = [chance(one) for one in seen]
    return {name: float(np.mean([one[name] for one in each])) for name in CHANCE}


def _ideal(seen: Sequence[Seen]) -> dict[str, float]:
    shown = [Restored(one.shown, one.spans or one.original.spans) for one in seen]
    both = list(zip((one.original for one in seen), shown, strict=True))
    return {
        "agent": float(np.mean([ideal_judge(*pair) for pair in both])),
        "step": float(np.mean([ideal_step(*pair) for pair in both])),
    }


def _told(
    condition: Condition, seeds: Sequence[int], outcomes: Sequence[Sequence[Outcome]]
) -> dict[str, dict[str, str]]:
    """Return seed -> log -> what was predicted, strictly | as the evaluator reads."""

    def shown(prediction: Any) -> str:
        return "" if prediction is None else f"{prediction.agent} @ {prediction.step}"

    return {
        str(seed): {
            str(seen.original.number): f"{shown(outcome.prediction)} | {shown(outcome.legacy)}"
            for seen, outcome in zip(condition.seen, some, strict=True)
        }
        for seed, some in zip(seeds, outcomes, strict=True)
    }


def _compared(
    conditions: Sequence[Condition],
    asked: Sequence[str],
    tables: Mapping[tuple[str, int], Mapping[str, Table]],
    seed: int,
) -> list[list[recording.Cell]]:
    """Return ours less the baseline, and less the same log before it was restored."""
    rows: list[list[recording.Cell]] = []
    for protocol, (a, ours), (b, theirs) in itertools.product(
        asked, enumerate(conditions), enumerate(conditions)
    ):
        alike = (ours.subset, ours.corruption) == (theirs.subset, theirs.corruption)
        unrestored = not theirs.restored and theirs.mark in (None, ours.mark)
        if alike and ours.side == "ours" and unrestored and a != b:
            less = [tables[protocol, a][name] - tables[protocol, b][name] for name in SCORES]
            rows.append(
                [
                    *(ours.subset, protocol, TITLES[ours.corruption], ours.log, theirs.log),
                    *(statistics.crossed(100 * table, seed) for table in less),
                ]
            )
    return rows


def _note(
    loaded: Loaded, options: Options, judge: Judge, seeds: int, cells: Sequence[Mapping[str, Any]]
) -> str:
    sampling = options.sampling
    sums = {name: sum(cell[name] for cell in cells) for name in ("questions", "questions_cut", "unanswered")}
    in_form = float(np.mean([cell["in_form"] for cell in cells]))
    warning = ""
    if judge.endpoint.model.startswith("iet:demo"):
        warning = (
            " **The judge is the shipped model, whose answers mean nothing**: it is far too small to judge,"
            " and these figures show that the path works and what guessing and parsing are worth."
        )
    elif in_form < 0.5:
        warning = (
            f" **Only {in_form:.0%} of its runs end in a prediction**: a judge that does not keep to the form"
            " of an answer measures nothing."
        )
    again = "; start again, with more room where that is why, to ask for them" if sums["unanswered"] else ""
    return results.note(
        pathlib.Path(__file__).with_name("table2_note.md"),
        judge=known_as(judge.endpoint),
        warmth="left out" if sampling.temperature is None else f"{sampling.temperature:g}",
        top_p=sampling.top_p,
        max_tokens=sampling.max_tokens,
        seeds=seeds,
        warning=warning,
        model=loaded.name,
        room="no limit that is known" if judge.room is None else f"a room of {judge.room}",
        again=again,
        **sums,
    )
