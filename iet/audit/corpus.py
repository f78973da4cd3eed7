"""The unmarked texts of `iet calibrate --null`: a folder of them, lines of JSON, or one file."""

from __future__ import annotations

import collections
import json
import pathlib
import re
from collections.abc import Iterator

from iet.errors import InputError
from iet.marks.files import HIDDEN, take_hidden, walk

CORPUS_ENDS = (".txt", ".md", ".rst", ".jsonl")
"""Endings of the file names that `read_corpus` reads in a folder."""


def corpus_files(path: pathlib.Path) -> tuple[list[pathlib.Path], dict[str, int]]:
    """Return the files that `read_corpus` reads, and the number of other files by the endings of their names.

    Hidden files, and files in hidden folders, are not read and count as "hidden".

    Raises:
        InputError: there is nothing to read.
        OSError: a folder cannot be read.
    """
    if not path.exists():
        raise InputError(f"corpus: got {path}, which does not exist; expected a folder or a file")
    if path.is_file():
        return [path], {}
    files, other_counts = list[pathlib.Path](), collections.Counter[str]()
    for folder, folders, names in walk(path):
        other_counts.update(take_hidden(folder, folders, names))
        for file in map(pathlib.Path(folder).joinpath, names):
            if file.suffix.lower() in CORPUS_ENDS and file.is_file():
                files.append(file)
            else:
                other_counts[file.suffix] += 1
    if not files:
        hidden = f" ({HIDDEN} {other_counts[HIDDEN]})" if other_counts[HIDDEN] else ""
        ends = ", ".join(CORPUS_ENDS)
        raise InputError(f"corpus: got {path}{hidden}, expected files that end in one of {ends}")
    return sorted(files), dict(other_counts)


def read_corpus(path: pathlib.Path) -> Iterator[str]:
    """Yield the texts of a corpus: a folder's files, the "text" of each line of a `.jsonl`, or one file.

    Args:
        path: a file, or a folder: all files below it that end in .txt, .md, .rst or .jsonl are read in the
            order of their names.

    Raises:
        InputError: there is nothing to read, a file is not UTF-8, or a line has no text; names file and line.
    """
    for file in corpus_files(path)[0]:
        try:
            content = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"{file}: byte {error.start} is not UTF-8; expected UTF-8 text") from None
        if file.suffix.lower() != ".jsonl":
            if content.strip():
                yield content
            continue
        for number, line in enumerate(content.split("\n"), 1):  # U+2028 is legal inside a JSON string
            if line.strip():
                yield _text_of(line, file, number)


def _text_of(line: str, file: pathlib.Path, number: int) -> str:
    try:
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError, RecursionError):
        text = None
    if not isinstance(text, str) or not text.strip():
        raise InputError(f'{file}, line {number}: got {line[:60]!r}, expected a JSON object with a "text"')
    if (half := re.search("[\ud800-\udfff]", text)) is not None:
        raise InputError(
            f"{file}, line {number}: character {half.start()} is the lone surrogate U+{ord(half[0]):04X};"
            " expected text"
        )
    return text
