"""Claims about who wrote which message: how many true ones are confirmed, and how many wrongly contradicted.

    python -m benchmarks.accuracy.claims --work DIR -o benchmarks/results/claims.json

The twelve turns of each text of `benchmarks.accuracy.texts`, cut to their first 30 to 400 tokens, are a
conversation with known boundaries, checked three times: under the names of who wrote them ("true"), each
under the name of another agent ("false"), and under the keys of strangers ("nobody's"). Every second turn
begins with the 30 tokens that end the turn before, as messages that quote do.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tqdm import tqdm

from benchmarks.accuracy import texts
from benchmarks.recording import INTERVAL, columns, exit_code, finish, parser
from benchmarks.statistics import Interval, interval, ratio
from iet.audit.auditor import Auditor
from iet.errors import InputError

LENGTHS = (30, 60, 120, 200, 400)
QUOTED_TOKENS = 30
LEVEL = 0.01


def pieces(turns: texts.Turns, tokens: int) -> list[str]:
    """Return the messages of a conversation."""
    said = turns.strings(tokens)
    reader = texts.tokenizer(turns.cell.model)
    for i in range(1, len(said), 2):
        end = reader.decode(turns.ids[i - 1][:tokens][-QUOTED_TOKENS:].tolist()).strip().strip("\ufffd")
        said[i] = f"> {end}\n\n{said[i]}"
    return said


def claims(turns: texts.Turns) -> dict[str, list[str]]:
    """Return the names that messages come under: those of their writers, and always another agent's."""
    draw = random.Random(f"claims {turns.seed}")
    agents = range(turns.cell.agents)
    false = [draw.choice([a for a in agents if a != speaker]) for speaker in turns.speakers]
    return {
        "true": [texts.agent_name(speaker) for speaker in turns.speakers],
        "false": [texts.agent_name(agent) for agent in false],
    }


def measure(turns: texts.Turns, tokens: int) -> dict[str, Counter[str]]:
    """Return how often each verdict came out for the claims of a conversation."""
    said, named = pieces(turns, tokens), claims(turns)
    found = {kind: Auditor(turns.registry(), level=LEVEL).check(said, names) for kind, names in named.items()}
    found["nobody's"] = Auditor(turns.strangers(), level=LEVEL).check(said, named["true"])
    counts = {kind: Counter(piece.verdict for piece in report.pieces) for kind, report in found.items()}
    counts["false"]["right"] = sum(
        piece.agent == name
        for piece, name in zip(
            found["false"].of("contradicted"), _of(found["false"], named["true"]), strict=True
        )
    )
    return counts


def _of(report: Any, names: Sequence[str]) -> list[str]:
    return [names[piece.index] for piece in report.of("contradicted")]


def row(counts: Sequence[dict[str, Counter[str]]], turns: int) -> dict[str, Any]:
    """Return the figures of many conversations."""

    def share(kind: str, verdict: str) -> list[float] | None:
        return _three(ratio([each[kind][verdict] for each in counts], [turns] * len(counts), seed=0))

    def anywhere(kind: str, verdict: str) -> list[float] | None:
        return _three(interval([float(each[kind][verdict] > 0) for each in counts]))

    contradicted = [each["false"]["contradicted"] for each in counts]
    return {
        "claims": turns * len(counts),
        "confirmed": share("true", "confirmed"),
        "contradicted": share("true", "contradicted"),
        "conversations": anywhere("true", "contradicted"),
        "false contradicted": share("false", "contradicted"),
        "false confirmed": share("false", "confirmed"),
        "right": _three(ratio([each["false"]["right"] for each in counts], contradicted, seed=0)),
        "strangers": anywhere("nobody's", "confirmed"),
        "strangers contradicted": anywhere("nobody's", "contradicted"),
    }


def run(
    work: pathlib.Path, cells: Iterable[texts.Cell], split: str, limit: int | None
) -> list[dict[str, Any]]:
    """Return a row for each model, family, temperature and length of message, over cells of all agents."""
    groups = dict[tuple[str, str, float], list[texts.Turns]]()
    for cell in cells:
        groups.setdefault((cell.model, cell.family, cell.temperature), []).extend(
            texts.load(work, cell, split)[:limit]
        )
    rows = []
    for (model, family, temperature), said in groups.items():
        for tokens in LENGTHS if said else ():
            each = [
                measure(turns, tokens)
                for turns in tqdm(said, desc=f"{model} {family} {temperature} {tokens}")
            ]
            head = {"model": model, "family": family, "temperature": temperature, "tokens": tokens}
            entropy = texts.entropies(said)["entropy_nats"]
            rows.append({**head, "entropy_nats": entropy, **row(each, len(said[0].ids))})
    if not rows:
        raise InputError(f"{work}: got no texts, expected those of benchmarks.accuracy.texts")
    return rows


def _three(found: Interval | None) -> list[float] | None:
    return None if found is None else [found.mean, found.low, found.high]


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table."""
    shares = {
        "true: confirmed": "confirmed",
        "wrongly contradicted": "contradicted",
        "conversations with one": "conversations",
        "false: contradicted": "false contradicted",
        "naming the writer": "right",
        "wrongly confirmed": "false confirmed",
        "strangers: conversations with a confirmed claim": "strangers",
        "with a contradicted one": "strangers contradicted",
    }
    formats = {
        **{"model": "{model}", "family": "{family}", "T (nats)": "{temperature} ({entropy_nats:.2f})"},
        **{"tokens": "{tokens}", "claims": "{claims:,}"},
        **{name: INTERVAL.replace("3f", "4f").format(value) for name, value in shares.items()},
    }
    return (
        f"Conversations of twelve messages, level {LEVEL} for each; means with 95 % intervals. Every second"
        f" message begins with {QUOTED_TOKENS} tokens of the one before it.\n\n{columns(rows, formats)}"
    )


def checked(results: pathlib.Path) -> str:
    """Return the table for the docs: means over temperatures, by family and length of message."""
    content = json.loads((results / "claims.json").read_text(encoding="utf-8"))
    groups = dict[tuple[str, int], list[dict[str, Any]]]()
    for row in content["rows"]:
        groups.setdefault((row["family"], row["tokens"]), []).append(row)
    rows = []
    for (family, tokens), of in groups.items():
        claimed = sum(row["claims"] for row in of)

        def mean(name: str, of: list[dict[str, Any]] = of, claimed: int = claimed) -> float:
            return float(sum(row[name][0] * row["claims"] for row in of) / claimed)

        names = ("confirmed", "contradicted", "false contradicted", "false confirmed")
        means = {name.replace(" ", "_"): mean(name) for name in names}
        rows.append({"family": family, "tokens": tokens, "claims": claimed, **means})
    formats = {
        "family, tokens of a message": "{family}, {tokens}",
        "claims": "2 x {claims:,}",
        "true: confirmed": "{confirmed:.3f}",
        "true: contradicted": "{contradicted:.4f}",
        "false: contradicted": "{false_contradicted:.3f}",
        "false: confirmed": "{false_confirmed:.4f}",
    }
    said = f"[benchmarks/results/claims.md](benchmarks/results/claims.md), `{content['command']}`"
    return f"{columns(rows, formats)}\n\nBy temperature, with intervals: {said}."


def main() -> None:
    line: argparse.ArgumentParser = parser("benchmarks.accuracy.claims", __doc__)
    line.add_argument("--work", type=pathlib.Path, required=True, help="folder of the texts")
    line.add_argument("--split", choices=tuple(texts.SPLITS), default="evaluation")
    line.add_argument("--texts", type=int, help="of each cell (default: all)")
    given = line.parse_args()
    rows = run(given.work, texts.CELLS, given.split, given.texts)
    finish(line, given, {"rows": rows}, markdown(rows))


if __name__ == "__main__":
    sys.exit(exit_code(main))
