"""Who wrote what, read by the library of an older checkout and by this one, on the same texts.

    python -m benchmarks.accuracy.before --before PATH --work DIR -o benchmarks/results/before.json

PATH is a checkout of the state before, its compiled modules in place; DIR holds evaluation texts that
`benchmarks.accuracy.texts` made, as many as there are, in schemes that both can read. A cell is
a model, a temperature, a family, a number of agents and a length of turns, as in `decoders`, and turns of 30
tokens; both read a text with the decoder "posterior", in forced choice and leaving text open at level 0.01,
each library in a process of its own. Labels are judged here, by one code.

TokenAcc and IoU are of forced choice. "Named" is the share of the tokens that is attributed at level 0.01,
"right" how much of that is right. Differences are now - before, with 95 % intervals of a bootstrap over pairs
of the same text. Lengths of a cell share their words: the means over cells take each text once, with the mean
of its lengths.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.accuracy import texts
from benchmarks.accuracy.decoders import LEVEL, Text, form
from benchmarks.recording import columns, exit_code, finish, parser
from benchmarks.statistics import difference, mean_difference
from iet.audit.metrics import mean_iou, token_accuracy

ROOT = pathlib.Path(__file__).parents[2]
LENGTHS = (30, *texts.TURN_TOKENS)
FIGURES = {"token_accuracy": "TokenAcc", "mean_iou": "IoU", "named": "named", "right": "right"}

# An editable installation finds its own checkout before any path.
_READER = f"""
import functools, importlib.util, json, os, sys
here = os.path.join(os.getcwd(), "iet", "__init__.py")
if importlib.util.find_spec("iet").origin != here:
    sys.meta_path[:] = [f for f in sys.meta_path if f.__module__.startswith("_frozen_importlib")]
import iet
assert iet.__file__ == here, iet.__file__
from iet import Auditor, Registry, Scheme
from iet.marks.tokenizer import Tokenizer
tokenizer = functools.cache(lambda path: Tokenizer(Tokenizer(path).backend))
for line in sys.stdin:
    asked = json.loads(line)
    held = {{"tokenizer": tokenizer(asked["tokenizer"]), "scheme": Scheme(**asked["scheme"])}}
    registry = Registry.create(None, **held)
    for number, secret in enumerate(asked["secrets"]):
        registry.add(f"agent-{{number + 1}}", secret=bytes.fromhex(secret))
    ways = ({{"allow_unattributed": False}}, {{"level": {LEVEL}}})
    found = [Auditor(registry, **way).audit(asked["text"]).token_agents.tolist() for way in ways]
    print(json.dumps(found), flush=True)
"""


class Reader:
    """The library of a checkout, in a process."""

    def __init__(self, checkout: pathlib.Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _READER],
            cwd=checkout,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self, text: Text, turns: texts.Turns) -> list[NDArray[np.int64]]:
        """Return the agent of every token, -1 unattributed: in forced choice, and at level 0.01."""
        request = {
            "tokenizer": str(texts.MODELS[turns.cell.model]),
            "scheme": texts.SCHEMES[turns.cell.family],
            "secrets": [
                key.secret.hex() for name in text.registry.names() for key in text.registry.keys(name)
            ],
            "text": text.talk.text,
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a library ended without an answer: what it said stands above")
        return [np.array(labels, np.int64) for labels in json.loads(line)]


@contextlib.contextmanager
def reader(checkout: pathlib.Path) -> Iterator[Reader]:
    process = Reader(checkout)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()


def judged(truth: NDArray[np.int64], labels: Sequence[NDArray[np.int64]]) -> dict[str, float | None]:
    """Return the figures of one text."""
    forced, free = labels
    named = free >= 0
    return {
        "token_accuracy": token_accuracy(truth, forced),
        "mean_iou": mean_iou(truth, forced),
        "named": float(named.mean()),
        "right": float((free == truth)[named].mean()) if named.any() else None,
    }


def found_texts(work: pathlib.Path, cell: texts.Cell) -> list[texts.Turns]:
    """Return all evaluation texts of a cell that there are, each once."""
    paths = sorted((work / cell.name).glob("evaluation-*.npz"))
    every = {turns.seed: turns for path in paths for turns in texts.read(path, cell)}
    return list(every.values())


def compared(
    readers: Sequence[Reader], work: pathlib.Path, lengths: Sequence[int], limit: int | None
) -> Iterator[dict[str, Any]]:
    """Yield the figures of each text, by both libraries."""
    for cell in texts.CELLS:
        chosen = found_texts(work, cell)[:limit]
        for number, turns in enumerate(tqdm(chosen, desc=cell.name)):
            for length in lengths:
                text = form(turns, length)
                states = [judged(text.truth, reader.read(text, turns)) for reader in readers]
                yield {
                    **dataclasses.asdict(cell),
                    "turn_tokens": length,
                    "text": number,
                    "entropy_nats": float(turns.entropy.mean()),
                    **{f"before/{name}": value for name, value in states[0].items()},
                    **{f"now/{name}": value for name, value in states[1].items()},
                }


def groups(
    rows: Sequence[dict[str, Any]], names: Sequence[str]
) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    by_cell: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        by_cell.setdefault(tuple(row[name] for name in names), []).append(row)
    return by_cell


def cells(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the figures of every cell: before, now, and the difference with its interval."""
    names = ("model", "family", "temperature", "agents", "turn_tokens")
    summaries = []
    for key, members in groups(rows, names).items():
        cell: dict[str, Any] = dict(zip(names, key, strict=True))
        cell |= {"texts": len(members), "entropy_nats": float(np.mean([r["entropy_nats"] for r in members]))}
        for name in FIGURES:
            earlier, current = ([row[f"{state}/{name}"] for row in members] for state in ("before", "now"))
            gain = difference(current, earlier, seed=0)
            cell[name] = {
                "before": _mean(earlier),
                "now": _mean(current),
                "gain": gain and [gain.mean, gain.low, gain.high],
            }
        summaries.append(cell)
    return summaries


def means(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return differences over the cells of each family, over turns of 30, and over turns of more."""
    summaries = []
    for family in dict.fromkeys(row["family"] for row in rows):
        for label, of in (("turns of 30", (30,)), ("longer turns", texts.TURN_TOKENS)):
            of_family = [row for row in rows if row["family"] == family and row["turn_tokens"] in of]
            line: dict[str, Any] = {"family": family, "turns": label}
            for name in FIGURES:
                pairs = []
                for members in groups(of_family, ("model", "temperature", "agents")).values():
                    by_text = groups(members, ("text",)).values()
                    pairs.append(
                        tuple([_mean([row[f"{state}/{name}"] for row in text]) for text in by_text]
                              for state in ("now", "before"))
                    )  # fmt: skip
                gain = mean_difference([(current, earlier) for current, earlier in pairs], seed=0)
                line[name] = gain and [gain.mean, gain.low, gain.high]
                line["texts"] = sum(len(current) for current, _ in pairs)
            summaries.append(line)
    return [line for line in summaries if line["texts"]]


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return float(np.mean(present)) if present else None


def markdown(results: Sequence[dict[str, Any]], over: Sequence[dict[str, Any]]) -> str:
    gain = "{{{0}[0]:+.3f}} ({{{0}[1]:+.3f}}, {{{0}[2]:+.3f}})"
    heads = [("family", "{family}"), ("turns", "{turns}"), ("texts", "{texts}")]
    summary = columns(over, [*heads, *((heading, gain.format(name)) for name, heading in FIGURES.items())])
    wide = [
        ("model, family", "{model}, {family}"),
        ("T (nats)", "{temperature} ({entropy_nats:.2f})"),
        ("A", "{agents}"),
        ("turn", "{turn_tokens}"),
        ("texts", "{texts}"),
    ]
    for name, heading in FIGURES.items():
        wide += [(f"{heading} before", f"{{{name}[before]:.3f}}"), ("now", f"{{{name}[now]:.3f}}")]
        wide.append(("now - before", gain.format(f"{name}[gain]")))
    return (
        f"Now - before, means over cells:\n\n{summary}\n\nEvery cell (what the columns are: the docstring of"
        f" `benchmarks.accuracy.before`):\n\n{columns(results, wide)}"
    )


def main() -> None:
    line = parser("benchmarks.accuracy.before", __doc__)
    old = "a checkout of the state before"
    line.add_argument("--before", type=pathlib.Path, required=True, metavar="PATH", help=old)
    line.add_argument("--work", type=pathlib.Path, required=True, help="folder of the texts")
    line.add_argument("--lengths", nargs="+", type=int, default=LENGTHS, help="tokens of a turn")
    line.add_argument("--texts", type=int, help="of each cell (default: all that are there)")
    options = line.parse_args()
    if not (options.before / "iet").is_dir():
        line.error(f"--before: {options.before} is no checkout, it holds no folder iet")
    with reader(options.before.resolve()) as earlier, reader(ROOT) as current:
        rows = list(compared((earlier, current), options.work, options.lengths, options.texts))
    if not rows:
        line.error(f"--work: no evaluation texts in {options.work}")
    results, over = cells(rows), means(rows)
    finish(line, options, {"means": over, "cells": results}, markdown(results, over), rows=rows)


if __name__ == "__main__":
    sys.exit(exit_code(main))
