"""What restoration achieves on failure logs, before any judge is asked about them.

Logs are rewritten with marks (`regeneration`), lose metadata, and get it back from an audit of their text
alone (`restoration`). Beside it stands what a log is worth that nobody restores, and the judge who knows the
step: the ceiling of protocols that look for the step and read there who is named. (One that names an agent
freely may know better.)
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import recording, statistics
from benchmarks.paper import results
from benchmarks.paper.conversations.author import ModelAuthor
from benchmarks.paper.failure.regeneration import Rewriting, mean_entropy, regenerate, rewriting_of
from benchmarks.paper.failure.restoration import (
    CORRUPTIONS,
    LENGTHS,
    Corruption,
    Identity,
    Named,
    cut_spans,
    ideal_judge,
    ideal_step,
    identities,
    length_class,
    named,
    token_figures,
)
from benchmarks.paper.failure.trajectories import (
    SUBSETS,
    Restored,
    Trajectory,
    agent_of,
    all_agents,
    by_agent,
    load,
)
from benchmarks.paper.marks import Marker
from benchmarks.paper.reading.readers import LEVEL
from benchmarks.writing.models import Loaded
from iet.audit.auditor import Auditor
from iet.errors import InputError
from iet.marks.registry import Registry
from iet.marks.tokenizer import Tokenizer

MARKS: Mapping[str, str] = {"fourier": "fourier, κ = 0.8", "gumbel": "gumbel"}
REGISTRIES: Mapping[str, str] = {"own": "the log's agents", "all": "all agents"}
CLASSES = (f"< {LENGTHS[0]}", *(f"{a}-{b - 1}" for a, b in itertools.pairwise(LENGTHS)), f">= {LENGTHS[-1]}")
"""Names of the classes of turn lengths, in tokens."""

_TOKENS = ("token_accuracy", "coverage", "accuracy_where_attributed", "boundary_f1")
_SHOWN = (
    *("subset", "mark", "corruption", "registry", "hand-overs", "identity per turn"),
    *(f"{name} tokens" for name in CLASSES),
    *("best guess", "tool turns left open", "TokenAcc", "coverage", "accuracy where attributed"),
    *("boundary F1", "ideal judge AgentAcc", "ideal judge StepAcc"),
)


@dataclasses.dataclass(frozen=True)
class Options:
    subsets: tuple[str, ...] = SUBSETS[:1]  # of `SUBSETS`
    logs: int | None = None  # of each subset, drawn by the seed; None: all
    # Of keys and of everything that is drawn, but for the cut points, whose seed is the paper's
    seed: int = 0
    temperature: float = 1.0  # this and the next three: see `rewriting_of`
    top_p: float = 1.0
    part_tokens: int | None = None
    prompt_tokens: int | None = None
    batch: int = 128  # parts that are sampled together


def run(
    loaded: Loaded,
    data: pathlib.Path,
    out: pathlib.Path,
    options: Options,
    *,
    whole: bool = True,
    overwrite: bool = False,
) -> None:
    """Measure restoration, and write `out / "restore"`; rewritten logs lie in `out / "logs"`."""
    found, drawn = read(data, options, whole)
    configuration = {
        "experiment": "restore",
        **made_by(loaded, drawn),
        "level": LEVEL,
        **dataclasses.asdict(options),
    }
    if not overwrite:
        results.keep(out / "restore.json", configuration)
    cells: list[list[recording.Cell]] = []
    rows: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    for subset, originals in drawn.items():
        names = all_agents(found[subset])
        for mark in MARKS:
            rewriting, logs, registry = rewritten(
                loaded, originals, names, subset, mark, options, out / "logs"
            )
            entropy = mean_entropy(out / "logs" / rewriting.name, logs)
            lengths = _lengths(originals, logs, loaded.reader)
            texts.append({"file": rewriting.name, "entropy": entropy, **lengths})
            measured = [_Text.of(log, loaded.reader) for log in logs]
            for cell, figures in _cells(measured, registry, names):
                cells.append([subset, MARKS[mark], *cell, *_intervals(figures, options.seed)])
                named_cell = dict(zip(_SHOWN, (subset, mark, *cell), strict=False))
                rows += [{**named_cell, **one} for one in figures]
    recording.write_table(
        out / "restore",
        _SHOWN,
        cells,
        results.content(configuration, texts=texts),
        rows=rows,
        title="# Restored failure logs",
        note=_note(loaded, options, texts),
    )


Logs = dict[str, list[Trajectory]]
"""Subset -> its logs."""


def read(data: pathlib.Path, options: Options, whole: bool) -> tuple[Logs, Logs]:
    """Return all logs of a folder, and those that are measured."""
    found = {subset: load(data, subset, whole=whole) for subset in options.subsets}
    return found, {subset: chosen(logs, options.logs, options.seed) for subset, logs in found.items()}


def made_by(loaded: Loaded, drawn: Logs) -> dict[str, Any]:
    """Return the part of a configuration that says by what logs are rewritten, and which."""
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
) -> tuple[Rewriting, list[Trajectory], Registry]:
    names_of = ("temperature", "top_p", "seed", "part_tokens", "prompt_tokens")
    asked: dict[str, Any] = {name: getattr(options, name) for name in names_of}
    rewriting = rewriting_of(loaded, subset, mark=mark, **asked)
    author = ModelAuthor(loaded, rewriting.sampling, batch=options.batch)
    logs = regenerate(originals, rewriting, author, loaded, folder)
    registry = Marker(rewriting.sampling, loaded.reader).registry(names)
    assert registry is not None
    return rewriting, logs, registry


def chosen(logs: Sequence[Trajectory], count: int | None, seed: int) -> list[Trajectory]:
    """Return so many of the logs, by number, drawn so that more logs only add to fewer; None: all."""
    if count is None:
        return list(logs)
    if not 1 <= count <= len(logs):
        raise InputError(f"records: got {count}, expected 1 to {len(logs)} logs")
    drawn = random.Random(f"iet paper trajectories/{seed}").sample(range(len(logs)), len(logs))
    return [logs[i] for i in sorted(drawn[:count])]


# ---------------------------------------------------------------- one cell of the table


@dataclasses.dataclass(frozen=True, eq=False)
class _Text:
    """A rewritten log, the tokens of each of its turns, and where each token of its text ends."""

    log: Trajectory
    tokens: list[int]
    char_ends: NDArray[np.int64]

    @classmethod
    def of(cls, log: Trajectory, tokenizer: Tokenizer) -> _Text:
        tokens = [len(tokenizer.encode(turn.content).token_ids) for turn in log.turns]
        return cls(log, tokens, tokenizer.encode(log.text).char_ends)


def _cells(
    texts: Sequence[_Text], registry: Registry, names: Sequence[str]
) -> Iterator[tuple[tuple[str, str, str], list[dict[str, Any]]]]:
    """Yield corruption, registry and what is known of hand-overs, with the figures of every log."""
    for name, corruption in CORRUPTIONS.items():
        bare = [_as_it_stands(text, corruption) for text in texts]
        yield (corruption.title, "not restored", ""), bare
        hand_overs = "known" if name == "ids" else "anywhere"
        for keys, title in REGISTRIES.items():
            found = [
                _restored(text, corruption, registry, text.log.agents if keys == "own" else names)
                for text in texts
            ]
            yield (corruption.title, title, hand_overs), found


def _restored(
    text: _Text, corruption: Corruption, registry: Registry, agents: Sequence[str]
) -> dict[str, Any]:
    corrupted = corruption.corrupt(text.log)
    auditor = Auditor(registry, level=LEVEL, known_agents=agents)
    report = corruption.read(auditor, corrupted)
    attributed = named(report)
    restored = corruption.restore(corrupted, attributed)
    return _figures(text, restored, attributed, named(report, guesses=True))


def _as_it_stands(text: _Text, corruption: Corruption) -> dict[str, Any]:
    """Return the figures of the corrupted log itself, read by the names that it still has."""
    corrupted, known = corruption.corrupt(text.log), set(text.log.agents)
    spans = cut_spans(corrupted) if corruption is CORRUPTIONS["boundaries"] else corrupted.spans
    attributed = [
        (*span, agent_of(turn.name) if agent_of(turn.name) in known else "")
        for turn, span in zip(corrupted.turns, spans, strict=True)
    ]
    return _figures(text, Restored(corrupted, spans), attributed, attributed)


def _figures(
    text: _Text, restored: Restored, attributed: Sequence[Named], guesses: Sequence[Named]
) -> dict[str, Any]:
    turns = identities(text.log, attributed, guesses, text.tokens)
    ours = [turn for turn in turns if turn.agent]
    tools = [turn for turn in turns if not turn.agent]
    classes = [[turn for turn in ours if length_class(turn.tokens) == i] for i in range(len(CLASSES))]
    return {
        "log": text.log.number,
        **token_figures(text.log, attributed, text.char_ends),
        "turns": [len(some) for some in classes],
        "right": [_right(some) for some in classes],
        "guessed": sum(turn.guess == turn.agent for turn in ours),
        "tools": len(tools),
        "tools_open": _right(tools),
        "ideal_judge": float(ideal_judge(text.log, restored)),
        "ideal_step": float(ideal_step(text.log, restored)),
    }


def _right(turns: Sequence[Identity]) -> int:
    return sum(turn.found == turn.agent for turn in turns)


def _intervals(logs: Sequence[Mapping[str, Any]], seed: int) -> list[recording.Cell]:
    def ratio(part: str, whole: str, i: int | None = None) -> recording.Cell:
        parts, wholes = (
            [sum(log[key]) if i is None else log[key][i] for log in logs] for key in (part, whole)
        )
        return statistics.ratio(parts, wholes, seed)

    guessed = [log["guessed"] for log in logs], [sum(log["turns"]) for log in logs]
    tools = [log["tools_open"] for log in logs], [log["tools"] for log in logs]
    means = (*_TOKENS, "ideal_judge", "ideal_step")
    return [
        ratio("right", "turns"),
        *(ratio("right", "turns", i) for i in range(len(CLASSES))),
        statistics.ratio(*guessed, seed),
        statistics.ratio(*tools, seed),
        *(statistics.interval([log[name] for log in logs], seed) for name in means),
    ]


# ---------------------------------------------------------------- what the texts are


def _lengths(
    originals: Sequence[Trajectory], logs: Sequence[Trajectory], tokenizer: Tokenizer
) -> dict[str, Any]:
    pairs = [
        (len(tokenizer.encode(before.content).token_ids), len(tokenizer.encode(after.content).token_ids))
        for one, other in zip(originals, logs, strict=True)
        for before, after in zip(one.turns, other.turns, strict=True)
        if by_agent(before) and before.content
    ]
    lengths = np.array(pairs)
    classes = np.bincount([length_class(after) for _, after in pairs], minlength=len(CLASSES))
    clean = [ideal_judge(log, Restored(log, log.spans)) for log in logs]
    return {
        "logs": len(logs),
        "turns": sum(len(log.turns) for log in logs),
        "rewritten": len(pairs),
        "tokens": int(lengths[:, 1].sum()),
        "by_length": dict(zip(CLASSES, classes.tolist(), strict=True)),
        "within_a_tenth": float((abs(lengths[:, 1] - lengths[:, 0]) <= 0.1 * lengths[:, 0]).mean()),
        "ideal_judge_clean": float(np.mean(clean)),
    }


def _note(loaded: Loaded, options: Options, texts: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        f"{text['file']}: {text['logs']} logs, {text['rewritten']} of {text['turns']} turns rewritten,"
        f" {text['tokens']} tokens, mean entropy {text['entropy']:.2f} nats; turns by length"
        f" {', '.join(f'{name}: {count}' for name, count in text['by_length'].items())};"
        f" {text['within_a_tenth']:.1%} within 10 % of the original's length as the text is read again; the"
        f" ideal judge on the clean log {text['ideal_judge_clean']:.3f}."
        for text in texts
    ]
    return results.note(
        pathlib.Path(__file__).with_name("restore_note.md"),
        model=loaded.name,
        temperature=options.temperature,
        top_p=options.top_p,
        texts="\n\n".join(lines),
        level=LEVEL,
    )
