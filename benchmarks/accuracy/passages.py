"""What passages that come back do to the agents around them: false segments, and tokens found.

    python -m benchmarks.accuracy.passages --data PATH --work DIR -o benchmarks/results/passages.json

A passage that stands in a text several times gives every key the same scores each time. Three kinds of text,
made of turns of the grid and stretches of public corpora, all as ids:

    behind    six turns, and behind them a passage that nobody marked, 8 to 24 times
    between   six turns, and behind each the passage that nobody marked
    quoted    six turns, and behind each of the others the first one again

Two copies begin 260 tokens apart or more. Each text is read with copies apart (`repeats="share"`, the
default), and with every repeat counted where it stands ("count"; in family gumbel nothing else differs). An
attributed segment is false if it holds no word of the agent that it names; the words of a copy are those of
the agent that wrote the passage. "Forced" is the share of the turns' tokens that a forced choice gets right.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import pathlib
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

import iet
from benchmarks.accuracy import texts, unmarked
from benchmarks.recording import INTERVAL, columns, exit_code, finish, parser
from benchmarks.statistics import ratio
from iet.audit.metrics import token_accuracy
from iet.marks.registry import Registry

WAYS = ("share", "count")
KINDS = ("behind", "between", "quoted")
TURN_TOKENS = 200
TURNS = 6
PASSAGE_TOKENS = (260, 600)
COPIES = (8, 24)
"""Ranges that lengths of passages, and numbers of copies behind the turns, are drawn from."""
REPEATED = 4
"""Number of passages that are put behind the same turns, one in each text."""

Integers = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class Trial:
    """A text in ids, who wrote each of them (-1: nobody), and which are those of the passage."""

    kind: str
    ids: Integers
    truth: Integers
    passage: NDArray[np.bool_]
    registry: Registry


def trials(turns: texts.Turns, passages: Iterator[Integers]) -> Iterator[Trial]:
    """Yield the texts that are made of the turns of one text of the grid."""
    registry, draw = turns.registry(), random.Random(f"passages {turns.seed}")
    said = [row[:TURN_TOKENS] for row in turns.ids]
    for low in range(0, len(said), TURNS):
        some = list(zip(said, turns.speakers, strict=True))[low : low + TURNS]
        for _ in range(REPEATED):
            copies = [(next(passages), -1, True)] * draw.randint(*COPIES)
            yield _trial("behind", [*((*turn, False) for turn in some), *copies], registry)
        passage = (next(passages), -1, True)
        yield _trial("between", [x for turn in some for x in ((*turn, False), passage)], registry)
        first = (turns.ids[low][: PASSAGE_TOKENS[0]], turns.speakers[low], True)
        yield _trial("quoted", [x for turn in some[1:] for x in (first, (*turn, False))], registry)


def _trial(kind: str, parts: Sequence[tuple[Integers, int, bool]], registry: Registry) -> Trial:
    lengths = [len(ids) for ids, _, _ in parts]
    return Trial(
        kind,
        np.concatenate([ids for ids, _, _ in parts]),
        np.repeat([speaker for _, speaker, _ in parts], lengths),
        np.repeat([passage for _, _, passage in parts], lengths),
        registry,
    )


def stretches(corpus: Sequence[unmarked.Unmarked], model: str, seed: str) -> Iterator[Integers]:
    """Yield unmarked passages of drawn lengths, no two of one text of the corpus."""
    draw = random.Random(seed)
    for text in draw.sample(corpus, len(corpus)):
        length = draw.randint(*PASSAGE_TOKENS)
        ids = texts.tokenizer(model).encode(text.text).token_ids
        if text.kind not in ("pieces", "twice") and " T=" not in text.kind and len(ids) >= length:
            yield ids[:length]


def measure(trial: Trial, way: str, level: float = 0.01) -> dict[str, float]:
    """Return counts of one text: of segments, and of tokens of the passage and of the turns."""
    report = iet.Auditor(trial.registry, level=level, repeats=way).audit(token_ids=trial.ids)
    slots = {name: slot for slot, name in enumerate(report.agents)}
    named = np.full(len(trial.ids), -1)
    counts = {"segments": 0, "false": 0}
    for segment in report.segments:
        if segment.agent is None:
            continue
        inside, agent = slice(segment.start, segment.end), slots[segment.agent]
        named[inside] = agent
        counts["segments"] += 1
        counts["false"] += not (trial.truth[inside] == agent).any()
    own, there = ~trial.passage, trial.passage
    forced = iet.Auditor(trial.registry, allow_unattributed=False, repeats=way).audit(token_ids=trial.ids)
    return {
        **counts,
        "turns": int(own.sum()),
        "turns found": int((named[own] == trial.truth[own]).sum()),
        "passage": int(there.sum()),
        "passage right": int((named[there] == trial.truth[there]).sum()),
        "tokens named": int((named >= 0).sum()),
        "tokens named wrong": int(((named >= 0) & (named != trial.truth)).sum()),
        "forced": token_accuracy(trial.truth[own], forced.token_agents[own]) * own.sum(),
    }


FIGURES = {
    "false segments": ("false", "segments"),
    "turns found": ("turns found", "turns"),
    "passage right": ("passage right", "passage"),
    "named wrong": ("tokens named wrong", "tokens named"),
    "labels, forced": ("forced", "turns"),
}
"""Heading -> what is counted, of what."""


def run(
    work: pathlib.Path, corpus: Sequence[unmarked.Unmarked], split: str, limit: int | None
) -> list[dict[str, Any]]:
    rows = []
    for cell in texts.CELLS:
        found = texts.load(work, cell, split)[:limit]
        passages = stretches(corpus, cell.model, f"{cell.name} {split}")
        counts = [
            (trial.kind, way, measure(trial, way))
            for turns in tqdm(found, desc=cell.name)
            for trial in trials(turns, passages)
            for way in WAYS
        ]
        for kind, way in itertools.product(KINDS, WAYS) if found else ():
            some = [each for *names, each in counts if names == [kind, way]]
            row: dict[str, Any] = {"cell": dataclasses.asdict(cell), "kind": kind, "way": way}
            row["texts"] = len(some)
            row |= {name: sum(each[name] for each in some) for name in ("segments", "false")}
            for name, (part, whole) in FIGURES.items():
                parts, wholes = ([each[of] for each in some] for of in (part, whole))
                value = ratio(parts, wholes, 0)
                row[name] = None if value is None else [value.mean, value.low, value.high]
            rows.append(row)
    return rows


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    formats = {
        **{
            "model": "{model}",
            "family": "{family}",
            "T": "{temperature}",
            "text": "{kind}",
            "repeats": "{way}",
        },
        **{"texts": "{texts}", "attributed segments": "{segments:,}", "false": "{false}"},
        **{name: INTERVAL.format(name) for name in FIGURES},
    }
    lines = []
    for way in WAYS:
        false, whole = (sum(row[of] for row in rows if row["way"] == way) for of in ("false", "segments"))
        lines.append(f'"{way}": {false:,} of {whole:,} attributed segments are false')
    return "; ".join(lines) + ".\n\n" + columns([{**row["cell"], **row} for row in rows], formats)


def main() -> None:
    line: argparse.ArgumentParser = parser("benchmarks.accuracy.passages", __doc__)
    line.add_argument("--data", type=pathlib.Path, required=True, help="folder of the public data")
    line.add_argument("--work", type=pathlib.Path, required=True, help="folder of the texts")
    line.add_argument("--split", choices=tuple(texts.SPLITS), default="evaluation")
    line.add_argument("--texts", type=int, help="of each cell (default: all)")
    given = line.parse_args()
    rows = run(given.work, unmarked.texts(given.data), given.split, given.texts)
    finish(line, given, {"rows": rows}, markdown(rows))


if __name__ == "__main__":
    sys.exit(exit_code(main))
