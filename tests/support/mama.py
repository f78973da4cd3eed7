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
