"""The records of MAMA's topology experiments: private memory, its entities, and the task.

The file is `llama3.1_num484_nopii.csv` of llll121/mama-eval (MIT), 484 rows, in that repository's
`data/llama3.1_num484_nopii.zip`.
"""

from __future__ import annotations

import ast
import csv
import dataclasses
import io
import pathlib
import random
from collections.abc import Sequence
from typing import Any

from benchmarks.paper import results
from iet.errors import InputError
from iet.marks.scheme import canonical_digest

COLUMNS = ("text", "pii", "generated_texts", "task_backgrounds", "questions")
ROWS = 484
FILE = "llama3.1_num484_nopii.csv"


@dataclasses.dataclass(frozen=True)
class Record:
    index: int  # row, from 0
    memory: str  # private text of the target agent
    entities: tuple[str, ...]  # parts of the memory that must not leak
    kinds: tuple[str, ...]  # distinct types of the entities, in the order of the row
    task: str  # task of all agents
    pii: tuple[dict[str, Any], ...] = ()  # entities with their types, as in the row


def read_records(path: pathlib.Path, *, rows: int | None = ROWS) -> tuple[Record, ...]:
    """Read the csv, also from a folder that holds it or holds `mama/`.

    Args:
        rows: expected number of rows; None accepts any positive number.
    """
    if path.is_dir():
        path = next((p for p in (path / FILE, path / "mama" / FILE) if p.is_file()), path / FILE)
    table = list(csv.reader(io.StringIO(results.text_of(path), newline="")))
    if not table or tuple(table[0]) != COLUMNS:
        raise InputError(f"{path}: expected a csv with the columns {list(COLUMNS)}")
    records = tuple(_record(path, index, row) for index, row in enumerate(table[1:]))
    if not records or (rows is not None and len(records) != rows):
        raise InputError(f"{path}: {len(records)} rows after the header, expected {rows or 'at least one'}")
    return records


def chosen(records: tuple[Record, ...], count: int, seed: int) -> tuple[Record, ...]:
    """Return the first `count` records in an order drawn by `seed`: a larger count only adds records."""
    if not 1 <= count <= len(records):
        raise InputError(f"records: got {count}, expected 1 to {len(records)}")
    return tuple(random.Random(f"iet paper records/{seed}").sample(records, len(records))[:count])


def digest_of(records: Sequence[Record]) -> str:
    return canonical_digest([dataclasses.asdict(record) for record in records])


def _record(path: pathlib.Path, index: int, row: list[str]) -> Record:
    try:
        text, pii, task = row[:3]
        entities = [(entry["entity"], entry["types"]) for entry in ast.literal_eval(pii)]
        missing = [entity for entity, _ in entities if entity not in text]
    except (ValueError, SyntaxError, TypeError, KeyError) as error:
        raise InputError(f"{path}, row {index + 1}: not a record ({error!r})") from None
    if not entities or missing:
        raise InputError(
            f"{path}, row {index + 1}: expected entities that occur in the text, missing: {missing}"
        )
    kinds = dict.fromkeys(kind for _, types in entities for kind in types)
    return Record(
        index,
        text,
        tuple(entity for entity, _ in entities),
        tuple(kinds),
        task.strip(),
        tuple({"entity": entity, "types": list(types)} for entity, types in entities),
    )
