"""The text of a .docx document: what Word shows if all tracked changes are accepted.

Styles are not evaluated, so text that only a style hides is read. Equations and embedded files are not read.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Any

from iet.errors import InputError

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_MC = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"

_TRANSPARENT = frozenset(
    # Tracked insertions and the new place of what was moved; content controls; smart tags and other custom
    # markup; fields; links; changes of direction; the base of ruby text. They enclose runs, paragraphs,
    # rows and cells alike (ISO/IEC 29500-1, 17).
    _W + name
    for name in (
        *("ins", "moveTo", "sdt", "sdtContent", "smartTag", "customXml", "fldSimple", "hyperlink"),
        *("dir", "bdo", "ruby", "rubyBase"),
    )
)

_DELETED_MARK = tuple(f"{_W}pPr/{_W}rPr/{_W}{name}" for name in ("del", "moveFrom"))
"""Paths to what says that the end of a paragraph was deleted."""


def text_of(data: bytes, most: int) -> str:
    """Return the paragraphs of a document, a line each; those of a text box follow their anchor's."""
    import docx

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        size = sum(item.file_size for item in archive.infolist())  # pictures are unpacked, too
    if size > most:
        raise InputError(f"got {size:,} bytes when unpacked; expected at most {most:,}")
    return "\n".join(_paragraphs(docx.Document(io.BytesIO(data)).element.body))


def _children(element: Any) -> Iterator[Any]:
    """Yield the children of an element, with those of transparent ones in their place."""
    waiting = [iter(element)]
    while waiting:
        child = next(waiting[-1], None)
        if child is None:
            waiting.pop()
        elif child.tag in _TRANSPARENT:
            waiting.append(iter(child))
        elif child.tag == f"{_MC}AlternateContent":  # the same thing twice, for new and old readers
            branch = child.find(f"{_MC}Choice")
            branch = child.find(f"{_MC}Fallback") if branch is None else branch
            waiting.append(iter(() if branch is None else branch))
        else:
            yield child


def _paragraphs(parent: Any) -> Iterator[str]:
    """Yield the paragraphs of a body, a cell or a text box, also those in tables, in order."""
    text, boxes = "", list[Any]()
    for block in _children(parent):
        if block.tag == f"{_W}p":
            text += _text(block, boxes)
            if any(block.find(path) is not None for path in _DELETED_MARK):
                continue  # the next paragraph goes on in this one
            yield text
        elif block.tag == f"{_W}tbl":
            if text:
                yield text
        else:
            continue
        for box in boxes:
            yield from _paragraphs(box)
        text, boxes = "", []
        if block.tag == f"{_W}tbl":
            for row in _children(block):
                if row.tag == f"{_W}tr" and row.find(f"{_W}trPr/{_W}del") is None:
                    yield from _cells(row)
    if text:
        yield text
    for box in boxes:
        yield from _paragraphs(box)


def _cells(row: Any) -> Iterator[str]:
    for cell in _children(row):
        if cell.tag != f"{_W}tc" or cell.find(f"{_W}tcPr/{_W}cellDel") is not None:
            continue
        merged = cell.find(f"{_W}tcPr/{_W}vMerge")
        if merged is None or merged.get(f"{_W}val") == "restart":  # else it is part of the cell above
            yield from _paragraphs(cell)


def _text(paragraph: Any, boxes: list[Any]) -> str:
    """Return the text of a paragraph, and append the text boxes that it anchors."""
    runs = (run for run in _children(paragraph) if run.tag == f"{_W}r" and not _is_hidden(run))
    return "".join(_piece(child, boxes) for run in runs for child in _children(run))


def _piece(child: Any, boxes: list[Any]) -> str:
    """Return the text of an element of a run, as python-docx does."""
    name = child.tag.removeprefix(_W) if isinstance(child.tag, str) else ""
    if name == "t":
        pieces = (child.text, *(comment.tail for comment in child))  # an XML comment splits the text
        return "".join(piece or "" for piece in pieces)
    if name in ("tab", "ptab"):
        return "\t"
    if name == "cr" or (name == "br" and child.get(f"{_W}type", "textWrapping") == "textWrapping"):
        return "\n"
    if name == "noBreakHyphen":
        return "-"
    if name == "r":  # in the base of ruby text
        return "" if _is_hidden(child) else "".join(_piece(inner, boxes) for inner in _children(child))
    if name in ("drawing", "pict", "object"):
        boxes += _boxes(child)
    return ""


def _boxes(drawing: Any) -> Iterator[Any]:
    """Yield the outermost text boxes of a drawing."""
    waiting = [drawing]
    while waiting:
        element = waiting.pop()
        if element.tag == f"{_W}txbxContent":
            yield element
        else:
            waiting += reversed(list(_children(element)))


def _is_hidden(run: Any) -> bool:
    vanish = run.find(f"{_W}rPr/{_W}vanish")
    return vanish is not None and vanish.get(f"{_W}val", "1") not in ("0", "false", "off")
