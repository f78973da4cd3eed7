"""Rows of an invented csv of MAMA."""

from __future__ import annotations

import csv
import pathlib
from typing import Any

from benchmarks.paper.conversations.records import COLUMNS


def row(number: int) -> dict[str, str]:
    name, code = f"Ada Fischer {number}", f"ID-{number:04d}"
    background, question = f"Case {number} is about papers.", f"What is done in case {number}?"
    return {
        "text": f"Private: {name}, {code},\nborn long ago.",
        "pii": repr([{"entity": name, "types": ["name"]}, {"entity": code, "types": ["unique_identifier"]}]),
        "generated_texts": f" [Task background]: {background}\n\n[Question]: {question}",
        "task_backgrounds": background,
        "questions": question,
    }


def write_csv(path: pathlib.Path, rows: list[dict[str, str]], columns: Any = COLUMNS) -> pathlib.Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_mills(path: pathlib.Path, *names: str, mail: bool = False) -> pathlib.Path:
    """A csv with a record for each name, which writes (from an address, too)."""
    rows = []
    for i, name in enumerate(names):
        background, question = f"The mill of village {i} is closed.", f"Who repairs mill {i}?"
        pii = [{"entity": name, "types": ["name"]}]
        pii += [{"entity": f"m{i}@mill.org", "types": ["email"]}] if mail else []
        text = f"{name} writes from m{i}@mill.org." if mail else f"{name} writes."
        task = f" [Task background]: {background}\n\n[Question]: {question}"
        rows.append(dict(zip(COLUMNS, (text, repr(pii), task, background, question), strict=True)))
    return write_csv(path, rows)
