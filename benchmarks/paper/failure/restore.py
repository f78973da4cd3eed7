"""Restoration of failure logs from their text, without a judge.

Logs are rewritten with marks (`regeneration`), lose metadata, and get it back from an audit of their text
(`restoration`). For comparison: the corrupted log without restoration, and a judge who knows the decisive
step. The latter bounds protocols that search for the step and read the name there.
"""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import recording, statistics
from benchmarks.paper import results
from benchmarks.paper.conversations.author import ModelAuthor
from benchmarks.paper.failure import restoration
from benchmarks.paper.failure.regeneration import regenerate, rewriting_of
from benchmarks.paper.failure.trajectories import SUBSETS, Restored, Trajectory, agent_of, all_agents, load
from benchmarks.paper.marks import Marker
from benchmarks.paper.reading.readers import LEVEL
from benchmarks.writing.models import Loaded
from iet.audit.auditor import Auditor
from iet.errors import InputError
from iet.marks.registry import Registry
from iet.marks.tokenizer import Tokenizer

MARKS: Mapping[str, str] = {"fourier": "fourier, κ = 0.8", "gumbel": "gumbel"}
REGISTRIES: Mapping[str, str] = {"own": "the log's agents", "all": "all agents"}
_TOKENS = ("token_accuracy", "coverage", "accuracy_where_attributed", "boundary_f1")
_SHOWN = (
    *("subset", "mark", "corruption", "registry", "hand-overs", "identity per turn"),
    *("best guess", "tool turns left open", "TokenAcc", "coverage", "accuracy where attributed"),
    *("boundary F1", "ideal judge AgentAcc", "ideal judge StepAcc"),
)


@dataclasses.dataclass(frozen=True)
class Options:
    subsets: tuple[str, ...] = SUBSETS[:1]  # of `SUBSETS`
    logs: int | None = None  # of each subset, drawn by the seed; None: all
    seed: int = 0  # of keys and draws, except the cut points, whose seed is the paper's
    temperature: float = 1.0
    top_p: float = 1.0
    prompt_tokens: int | None = None
    batch: int = 128  # parts that are sampled together
    continues: bool = False  # the model goes on by itself, without the original turn


def run(
    loaded: Loaded,
    data: pathlib.Path,
    out: pathlib.Path,
    options: Options,
    *,
    marks: Sequence[str] = tuple(MARKS),
    complete: bool = True,
    overwrite: bool = False,
) -> None:
    """Measure restoration, and write `out / "restore"`; rewritten logs lie in `out / "logs"`."""
    everything, drawn = read(data, options, complete)
    configuration = {
        "experiment": "restore",
        **made_by(loaded, drawn),
        "level": LEVEL,
        "marks": list(marks),
        **dataclasses.asdict(options),
    }
    if not overwrite:
        results.check_overwrite(out / "restore.json", configuration)
    cells: list[list[recording.Cell]] = []
    rows: list[dict[str, Any]] = []
    for subset, originals in drawn.items():
        names = all_agents(everything[subset])
        for mark in marks:
            logs, registry = rewritten(loaded, originals, names, subset, mark, options, out / "logs")
            for cell, figures in _cells(logs, loaded.reader, registry, names):
                cells.append([subset, MARKS[mark], *cell, *_intervals(figures, options.seed)])
                columns = dict(zip(_SHOWN, (subset, mark, *cell), strict=False))
                rows += [{**columns, **figures_of_log} for figures_of_log in figures]
    recording.write_table(
        out / "restore",
        _SHOWN,
        cells,
        results.content(configuration),
        rows=rows,
        title="# Restored failure logs",
        note=results.note(
            pathlib.Path(__file__).with_name("restore_note.md"),
            model=loaded.name,
            wrote="wrote" if options.continues else "rewrote",
            temperature=options.temperature,
            top_p=options.top_p,
            level=LEVEL,
        ),
    )


Logs = dict[str, list[Trajectory]]
"""Subset -> its logs."""


def read(data: pathlib.Path, options: Options, complete: bool) -> tuple[Logs, Logs]:
    """Return all logs of a folder, and those that are measured."""
    everything = {subset: load(data, subset, complete=complete) for subset in options.subsets}
    return everything, {s: chosen(logs, options.logs, options.seed) for s, logs in everything.items()}


def made_by(loaded: Loaded, drawn: Logs) -> dict[str, Any]:
    """Return the part of a configuration about the rewriting model and the measured logs."""
    return {
        "model": loaded.name,
        "model_digest": loaded.digest,
        "device": str(loaded.model.device),
        "logs_measured": {subset: [log.number for log in logs] for subset, logs in drawn.items()},
    }


def rewritten(
    loaded: Loaded,
    originals: Sequence[Trajectory],
    names: Sequence[str],
    subset: str,
    mark: str,
    options: Options,
    folder: pathlib.Path,
) -> tuple[list[Trajectory], Registry]:
    shared = ("temperature", "top_p", "seed", "prompt_tokens", "continues")
    fields: dict[str, Any] = {name: getattr(options, name) for name in shared}
    rewriting = rewriting_of(loaded, subset, mark=mark, **fields)
    author = ModelAuthor(loaded, rewriting.sampling, batch=options.batch)
    logs = regenerate(originals, rewriting, author, loaded, folder)
    registry = Marker(rewriting.sampling, loaded.reader).registry(names)
    assert isinstance(registry, Registry)
    return logs, registry


def chosen(logs: Sequence[Trajectory], count: int | None, seed: int) -> list[Trajectory]:
    """Return `count` of the logs, by number; a larger count only adds logs. None: all."""
    if count is None:
        return list(logs)
    if not 1 <= count <= len(logs):
        raise InputError(f"records: got {count}, expected 1 to {len(logs)} logs")
    drawn = random.Random(f"iet paper trajectories/{seed}").sample(range(len(logs)), len(logs))
    return [logs[i] for i in sorted(drawn[:count])]


def _cells(
    logs: Sequence[Trajectory], tokenizer: Tokenizer, registry: Registry, names: Sequence[str]
) -> Iterator[tuple[tuple[str, str, str], list[dict[str, Any]]]]:
    """Yield corruption, registry and knowledge of hand-overs, with the figures of every log."""
    for name, corruption in restoration.CORRUPTIONS.items():
        bare = [_not_restored(log, corruption, tokenizer) for log in logs]
        yield (corruption.title, "not restored", ""), bare
        hand_overs = "known" if name == "ids" else "anywhere"
        for keys, title in REGISTRIES.items():
            figures = []
            for log in logs:
                corrupted = corruption.corrupt(log)
                agents = log.agents if keys == "own" else names
                report = corruption.read(Auditor(registry, level=LEVEL, known_agents=agents), corrupted)
                attributed = restoration.named(report)
                restored = corruption.restore(corrupted, attributed)
                figures.append(
                    _figures(log, tokenizer, restored, attributed, restoration.named(report, guesses=True))
                )
            yield (corruption.title, title, hand_overs), figures


def _not_restored(
    log: Trajectory, corruption: restoration.Corruption, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return the figures of the corrupted log, with the names that it still has."""
    corrupted, agents = corruption.corrupt(log), set(log.agents)
    spans = (
        restoration.cut_spans(corrupted)
        if corruption is restoration.CORRUPTIONS["boundaries"]
        else corrupted.spans
    )
    attributed = [
        (*span, agent_of(turn.name) if agent_of(turn.name) in agents else "")
        for turn, span in zip(corrupted.turns, spans, strict=True)
    ]
    return _figures(log, tokenizer, Restored(corrupted, spans), attributed, attributed)


def _figures(
    log: Trajectory,
    tokenizer: Tokenizer,
    restored: Restored,
    attributed: Sequence[restoration.Named],
    guesses: Sequence[restoration.Named],
) -> dict[str, Any]:
    turns = restoration.identities(log, attributed, guesses)
    ours = [turn for turn in turns if turn.agent]
    tools = [turn for turn in turns if not turn.agent]
    return {
        "log": log.number,
        **restoration.token_figures(log, attributed, tokenizer.encode(log.text).char_ends),
        "turns": len(ours),
        "right": _right(ours),
        "guessed": sum(turn.guess == turn.agent for turn in ours),
        "tools": len(tools),
        "tools_open": _right(tools),
        "ideal_judge": float(restoration.ideal_judge(log, restored)),
        "ideal_step": float(restoration.ideal_step(log, restored)),
    }


def _right(turns: Sequence[restoration.Identity]) -> int:
    return sum(turn.attributed == turn.agent for turn in turns)


def _intervals(logs: Sequence[Mapping[str, Any]], seed: int) -> list[recording.Cell]:
    parts = (("right", "turns"), ("guessed", "turns"), ("tools_open", "tools"))
    means = (*_TOKENS, "ideal_judge", "ideal_step")
    return [
        *(statistics.ratio([log[a] for log in logs], [log[b] for log in logs], seed) for a, b in parts),
        *(statistics.interval([log[name] for log in logs], seed) for name in means),
    ]
