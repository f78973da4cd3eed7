"""Lay out lines and tables for a terminal, and replace characters that would control it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TextIO

# Audited text is untrusted input. Characters that control a terminal (C0, DEL, C1, bidirectional overrides)
# are shown as symbols, because they could overwrite the report. Line ends, tabs and right-to-left letters
# stay.
_CONTROLS = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: 0x2421,
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD),
}


def harmless(text: str) -> str:
    """Return the text with symbols for characters that control a terminal or change the order of text."""
    return text.replace("\r\n", "\n").translate(_CONTROLS)


def width_of(file: TextIO) -> int | None:
    """Return the number of cells of a line; None if the output is piped, whose lines are not broken."""
    try:
        columns = int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        columns = 0
    if columns <= 0:  # terminals of CI and of kubectl report a width of 0
        if not file.isatty():
            return None
        try:
            columns = os.get_terminal_size(file.fileno()).columns or 80
        except (OSError, ValueError):
            columns = 80
    return max(columns, 20)


_NARROWEST = 14
"""Minimum width of a column with wrapped cells: narrower ones are harder to read than a paragraph."""


def table(
    rows: Sequence[Sequence[str]], width: int | None = None, *, wraps: int | None = None
) -> list[list[str]]:
    """Lay out a table without rules, and return the lines of each row.

    Args:
        rows: the names of the columns, then the rows. Columns without content are omitted.
        width: maximum number of cells of a line. If the columns do not fit, each row becomes a short
            paragraph, and the row of names is empty. None: no limit.
        wraps: index of the column whose cells may take several lines so that the table fits.
    """
    filled = [k for k in range(len(rows[0])) if any(row[k] for row in rows[1:])]
    if not filled:
        return [[] for _ in rows]
    printable = [[harmless(row[k]) for k in filled] for row in rows]
    widths = [max(cells(row[k]) for row in printable) for k in range(len(filled))]
    excess = sum(widths) + 2 * (len(filled) - 1) - (width or math.inf)
    if excess > 0 and wraps in filled:
        flexible = filled.index(wraps)
        longest = max(cells(word) for row in printable for word in row[flexible].split())
        if widths[flexible] - excess >= max(longest, _NARROWEST):
            widths[flexible] -= int(excess)
            excess = 0
    if excess > 0:
        title = filled.index(wraps) if wraps in filled else 0
        return [[], *(_paragraph(printable[0], row, title, width) for row in printable[1:])]
    laid_out = []
    for row in printable:
        columns = [wrapped(cell, size) for cell, size in zip(row, widths, strict=True)]
        laid_out.append(
            [
                "  ".join(
                    padded(column[i] if i < len(column) else "", size)
                    for column, size in zip(columns, widths, strict=True)
                ).rstrip()
                for i in range(max(map(len, columns)))
            ]
        )
    return laid_out


def _paragraph(names: Sequence[str], row: Sequence[str], title: int, width: int | None) -> list[str]:
    facts = [f"{names[k]} {cell}" for k, cell in enumerate(row) if cell and k not in (0, title)]
    head = row[0] if title == 0 else f"{row[0]}  {row[title]}"
    return [*wrapped(head, width), *wrapped(" · ".join(facts), width, "  ")]


def wrapped(text: str, width: int | None, indent: str = "") -> list[str]:
    """Return the lines of a text, broken at spaces if they are longer than `width` cells. O(characters).

    `wcwidth.wrap` takes quadratic time on a long word, which untrusted text can contain.

    Args:
        text: its line ends stay. Tabs become spaces.
        width: maximum number of cells of a line; longer words are broken anywhere. None: no limit.
        indent: put before each line, and counted in its width.
    """
    lines = []
    for line in harmless(text).expandtabs().split("\n"):
        start = 0
        while width is not None:
            part = cut(line[start : start + 4 * width], max(1, width - len(indent)))
            part = part or line[start : start + 1]  # a character wider than a line has its own line
            end = start + len(part)
            if end >= len(line):
                break
            if line[end] != " ":  # else the line ends between words already
                space = part.rfind(" ")
                end = start + space if part[: max(space, 0)].strip() else end
            lines.append(indent + line[start:end].rstrip(" "))
            start = end
            while line.startswith(" ", start):
                start += 1
        lines.append(indent + line[start:])
    return lines


def cut(text: str, width: int) -> str:
    """Return the longest prefix of at most `width` cells, without splitting combined characters."""
    if text.isascii():
        return text[:width]
    import wcwidth

    used = end = 0
    for cluster in wcwidth.iter_graphemes(text):
        used += cells(cluster)
        if used > width:
            break
        end += len(cluster)
    return text[:end]


def cells(text: str) -> int:
    """Return the width of a text in cells: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    import wcwidth  # loaded here, because ASCII needs no tables

    return wcwidth.width(text, tabsize=1)


def padded(text: str, width: int) -> str:
    """Return the text, padded with spaces to `width` cells."""
    return text + " " * (width - cells(text))
