"""The records of MAMA's topology experiments: who knows what, and what is asked.

The file is `llama3.1_num484_nopii.csv` of llll121/mama-eval (MIT), 484 rows, which has it in a zip.
"""

from __future__ import annotations

import ast
import csv
import dataclasses
import hashlib
import io
import os
import pathlib
import random
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

from benchmarks.paper import results
from iet.errors import InputError
from iet.marks.scheme import canonical_digest

COLUMNS = ("text", "pii", "generated_texts", "task_backgrounds", "questions")
ROWS = 484
FILE = "llama3.1_num484_nopii.csv"
ZIP = "llama3.1_num484_nopii.zip"
ADDRESS = "https://github.com/llll121/mama-eval"
"""Where they are, as data/llama3.1_num484_nopii.zip."""

_MOST = 1 << 26
"""Bytes of what is unpacked: the file has 644,270."""

SHA256 = "aa9cdc27fc878d083aaf7925f71f51cf086fb2a7679af33e8fc61a20c048b0ff"
"""Of the file that the experiments are stated for."""


@dataclasses.dataclass(frozen=True)
class Record:
    index: int  # row, from 0
    memory: str  # the target's private text
    entities: tuple[str, ...]  # what of it must not come out, as it stands there
    kinds: tuple[str, ...]  # of the entities, each once, in the order of the row
    task: str  # what all agents are asked
    pii: tuple[dict[str, Any], ...] = ()  # the entities with their types, as the row has them


def read_records(path: str | os.PathLike[str], *, rows: int | None = ROWS) -> tuple[Record, ...]:
    """Read the csv of so many rows (None: of any number, at least one).

    `path` is the csv, a zip that holds it or another one with it, such as an archive of the repository, or a
    folder with either, also in `mama/` or `data/`.

    With 484 rows that are not those of the original file a warning says so.
    """
    path = _find(pathlib.Path(path))
    text = _unpacked(path) if path.suffix == ".zip" else results.text_of(path)
    try:
        table = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise InputError(f"{path}: no csv ({error})") from None
    header = tuple(table[0]) if table else ()
    if header != COLUMNS:
        missing = [column for column in COLUMNS if column not in header]
        raise InputError(f"{path}: columns {list(header)}, expected {list(COLUMNS)}; missing: {missing}")
    records = tuple(_record(path, index, row) for index, row in enumerate(table[1:]))
    if rows is not None and len(records) != rows:
        raise InputError(f"{path}: {len(records)} rows after the header, expected {rows}")
    if not records:
        raise InputError(f"{path}: no row after the header, expected at least one")
    if rows == ROWS and hashlib.sha256(text.encode()).hexdigest() != SHA256:
        warnings.warn(
            f"{path} has {ROWS} readable rows, but is not the file that the experiments are stated for",
            stacklevel=2,
        )
    return records


def chosen(records: tuple[Record, ...], count: int, seed: int) -> tuple[Record, ...]:
    """Return the first `count` records in an order drawn by `seed`: more records only add to fewer."""
    if not 1 <= count <= len(records):
        raise InputError(f"records: got {count}, expected 1 to {len(records)}")
    return tuple(random.Random(f"iet paper records/{seed}").sample(records, len(records))[:count])


def digest_of(records: Sequence[Record]) -> str:
    return canonical_digest([dataclasses.asdict(record) for record in records])


def claim(folder: pathlib.Path, records: Sequence[Record]) -> None:
    """Note in a folder of logs of which csv's records they are."""
    digest = digest_of(records)
    own = {"rows": len(records), "digest": digest}
    advice = "it names the records that the logs beside it are of"
    there = results.kept(folder / "records.json", lambda: own, advice)["digest"]
    if there != digest:
        raise InputError(
            f"{folder}: logs of the records {there[:16]}, expected those of {digest[:16]}: choose another"
            " folder, numbers mean other records there"
        )


def _find(path: pathlib.Path) -> pathlib.Path:
    if path.is_dir():
        for candidate in (path / folder / name for name in (FILE, ZIP) for folder in (".", "mama", "data")):
            if candidate.is_file():
                return candidate
        raise InputError(f"{path}: holds no {FILE}, and no {ZIP}; expected one, from {ADDRESS} (data/)")
    if not path.exists():
        raise InputError(f"{path}: is not there; expected {FILE} or {ZIP}, from {ADDRESS} (data/)")
    return path


def _unpacked(path: pathlib.Path) -> str:
    """Return the text of the csv in a zip, or in a zip that is in it."""
    inside: Any = path
    try:
        for name in (ZIP, FILE):
            with zipfile.ZipFile(inside) as archive:
                found = [each for each in archive.infolist() if each.filename.rpartition("/")[2] == name]
                if not found:
                    continue
                if found[0].file_size > _MOST:
                    raise InputError(
                        f"{path}: {name} has {found[0].file_size} bytes, expected {_MOST} at most"
                    )
                content = archive.read(found[0])
            if name == FILE:
                return content.decode()
            inside = io.BytesIO(content)
    except (OSError, zipfile.BadZipFile, RuntimeError, zlib.error) as error:  # encrypted, or packed otherwise
        raise InputError(f"{path}: cannot be unpacked ({error})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} of {FILE} is no UTF-8") from None
    raise InputError(f"{path}: holds no {FILE}; expected {ZIP} of {ADDRESS} (data/)")


def _record(path: pathlib.Path, index: int, row: list[str]) -> Record:
    def refuse(column: str, got: str, expected: str) -> InputError:
        return InputError(f"{path}, row {index + 1}, column {column!r}: got {got}, expected {expected}")

    if len(row) != len(COLUMNS):
        column = COLUMNS[min(len(row), len(COLUMNS) - 1)]
        raise refuse(column, f"{len(row)} cells in the row", f"{len(COLUMNS)}")
    cells = dict(zip(COLUMNS, row, strict=True))
    for column, cell in cells.items():
        if not cell.strip():
            raise refuse(column, "an empty cell", "text")
    try:
        found = [(entry["entity"], entry["types"]) for entry in ast.literal_eval(cells["pii"])]
        if not found or not all(
            isinstance(entity, str)
            and entity.strip()
            and isinstance(types, list)
            and types
            and all(isinstance(t, str) for t in types)
            for entity, types in found
        ):
            raise ValueError
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        raise refuse("pii", repr(cells["pii"][:60]), "[{'entity': str, 'types': [str]}, ...]") from None
    for entity, _ in found:
        if entity not in cells["text"]:
            raise refuse("pii", repr(entity), "an entity that occurs in column 'text'")
        if entity in cells["generated_texts"]:
            raise refuse("generated_texts", f"the entity {entity!r}", "a task without any")
    for column in ("task_backgrounds", "questions"):
        if cells[column].strip() not in cells["generated_texts"]:
            raise refuse(column, repr(cells[column][:60]), "a part of column 'generated_texts'")
    kinds = dict.fromkeys(kind for _, types in found for kind in types)
    return Record(
        index,
        cells["text"],
        tuple(entity for entity, _ in found),
        tuple(kinds),
        cells["generated_texts"].strip(),
        tuple({"entity": entity, "types": list(types)} for entity, types in found),
    )
