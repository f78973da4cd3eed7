"""Check the claims in every record of tests/audit/traces, with marked text in place of its three texts.

    python -m benchmarks.accuracy.trace_formats -o benchmarks/results/trace_formats.json

The small model of `iet demo` writes each conversation: planner, critic, planner. In a true record each text
is by the agent that the record names. In a false record the critic's text and the planner's first text have
changed places. A record that names no agent has no claim to confirm.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import sys
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import iet
from benchmarks.recording import exit_code, finish, parser, table
from iet.audit import traces
from iet.cli.demo import demo_registry
from iet.demo.conversation import converse, load_model
from iet.errors import InputError
from iet.report.claims import ClaimReport

RECORDS = pathlib.Path(__file__).parents[2] / "tests" / "audit" / "traces" / "records"
TEXTS = (
    "First we measure the beds and write a list of the tools.",
    "That list leaves out the water, so add the pump.",
    "Then the pump goes on the list, and we dig on Saturday.",
)
SPEAKERS = ("planner", "critic", "planner")


def with_texts(record: Any, texts: Mapping[str, str]) -> Any:
    """Return a record with other texts, also in JSON inside strings and in two parts of a stream."""
    strings = set(_strings(record))
    parts = dict[str, str]()
    for old, new in texts.items():
        for i in range(1, len(old)):
            if old[:i] in strings and old[i:] in strings:
                cut = i * len(new) // len(old)
                parts |= {old[:i]: new[:cut], old[i:]: new[cut:]}
    return _replaced(record, texts, parts)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def _replaced(value: Any, texts: Mapping[str, str], parts: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(inner, texts, parts) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replaced(inner, texts, parts) for inner in value]
    if not isinstance(value, str) or value in parts:
        return parts.get(value, value) if isinstance(value, str) else value
    if value[:1] in ("{", "[", '"') and any(text in value for text in texts):
        try:
            return json.dumps(_replaced(json.loads(value), texts, parts))
        except ValueError:
            pass
    for old, new in texts.items():
        value = value.replace(old, new)
    return value


def verdicts(auditor: iet.Auditor, record: Any, texts: tuple[str, ...]) -> ClaimReport:
    document = with_texts(record, dict(zip(TEXTS, texts, strict=True)))
    return auditor.check_trace(traces.read(document, agents=auditor.agents))


def run(line: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    conversations, tokens = options.conversations, options.tokens
    if not RECORDS.is_dir():
        raise InputError(f"{RECORDS}: no such folder, expected a clone of the repository")
    index = tomllib.loads((RECORDS / "index.toml").read_text())
    files = {path.stem: path for path in RECORDS.iterdir()}
    model, tokenizer = load_model()
    written = list[tuple[iet.Auditor, tuple[str, ...]]]()
    for seed in range(conversations):
        registry = demo_registry(("planner", "critic", "writer"), seed)
        talk = converse(
            *(model, tokenizer, registry, [[name] for name in SPEAKERS]),
            turn_tokens=(tokens, tokens),
            seed=seed,
        )
        texts = tuple(talk.text[span.start : span.end].strip() for span in talk.spans)
        written.append((iet.Auditor(registry), texts))
    rows = []
    for name, entry in index.items():
        record = traces.parse(files[name].read_bytes())
        counts = collections.Counter[str]()
        for auditor, (first, second, third) in written:
            true = verdicts(auditor, record, (first, second, third))
            false = verdicts(auditor, record, (second, first, third))
            counts.update(f"true {piece.verdict}" for piece in true.pieces)
            counts.update(f"false {piece.verdict}" for piece in false.pieces)
            if true.hand_overs is not None:
                counts["stated"] += len(true.hand_overs.found) + len(true.hand_overs.missing)
                counts["found"] += len(true.hand_overs.found)
        absent = entry.get("absent", ())
        claims = sum(claim != "" for i, claim in enumerate(entry["claims"]) if i not in absent)
        rows.append({"record": name, **entry, "claimed": claims * conversations, "counts": counts})
    header = ["record", "made by, or source", "true claims", "confirmed", "contradicted", "no claim: named"]
    header += ["false record: contradicted", "hand-overs stated", "found"]
    cells = [
        [
            f"{row['format']} (`{files[row['record']].name}`)",
            row.get("made_by") or row["source"],
            *(row["claimed"], row["counts"]["true confirmed"], row["counts"]["true contradicted"]),
            *(row["counts"]["true named"], row["counts"]["false contradicted"]),
            *(row["counts"]["stated"], row["counts"]["found"]),
        ]
        for row in rows
    ]
    totals = collections.Counter[str]()
    for row in rows:
        totals.update(row["counts"])
        totals["claimed"] += row["claimed"]
    summary = (
        f"{len(rows)} records, {conversations} conversations each, {tokens} tokens a text, level 0.01: "
        f"{totals['true contradicted']} of {totals['claimed']} true claims contradicted, "
        f"{totals['true confirmed']} confirmed; {totals['found']} of {totals['stated']} stated hand-overs "
        "found."
    )
    markdown = f"{summary}\n\n{table(header, cells)}"
    finish(line, options, {"records": rows, "totals": totals}, markdown, packages=("torch", "transformers"))


def main() -> None:
    made = parser("benchmarks.accuracy.trace_formats", __doc__)
    made.add_argument("--conversations", type=int, default=5)
    made.add_argument("--tokens", type=int, default=150, help="length of each text")
    run(made, made.parse_args())


if __name__ == "__main__":
    sys.exit(exit_code(main))
