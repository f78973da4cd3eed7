"""The text of documents: PDF, .docx, HTML, mail and notebooks, by the packages of the extra `documents`.

What is returned is what an audit reads, and characters of its report point into it. Text in images,
footnotes, headers and attachments is not read.
"""

from __future__ import annotations

import io
import json
import logging
import pathlib
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

from iet.errors import InputError, missing

MOST_BYTES = 1 << 28
"""What a document may hold when it is unpacked, in bytes; more is refused before it is."""

SUFFIXES = (".docx", ".pdf", ".html", ".htm", ".xhtml", ".eml", ".ipynb")
"""Ends of names of documents that are read."""

_BLOCKS = re.compile(
    "address|article|aside|blockquote|body|d[dlt]|div|fieldset|figcaption|figure|footer|form|h[1-6r]|header"
    "|li|main|nav|[ou]l|p|pre|section|table|t[dhr]"
)
_UNSEEN = ("head", "script", "style", "template", "noscript", "svg", "math", "object")


def format_of(data: bytes, name: str) -> str | None:
    """Return what a file is, an end of `SUFFIXES`; None: none of them.

    PDF and .docx are told by their content, the others, which are text of a kind, by their names.
    """
    if data.startswith(b"%PDF-"):
        return ".pdf"
    if data.startswith(b"PK\x03\x04") and b"word/" in data:
        return ".docx"
    end = pathlib.PurePath(name).suffix.lower()
    return {".htm": ".html", ".xhtml": ".html"}.get(end, end) if end in SUFFIXES[2:] else None


def readable(end: str) -> bool:
    """Tell whether the packages are there that read this kind of document, an end of `SUFFIXES`."""
    try:
        _reader_of(end)
    except ImportError:
        return False
    return True


def read(data: bytes, end: str, *, encoding: str | None = None, most: int = MOST_BYTES) -> str:
    """Return the text of a document.

    Args:
        data: its content.
        end: what it is, as `format_of` tells.
        encoding: of an HTML page, where whoever sent it says so. None: what the page says.
        most: bytes that it may hold when it is unpacked, and characters of its text.

    Raises:
        InputError: it is damaged, encrypted, too large when it is unpacked, or holds no text.
        BackendUnavailable: the package that reads it is not there.
        MemoryError: there is not enough to read it.

    Deterministic for a version of the package. Nothing that a document refers to is loaded, and nothing in
    it is run. Halves of surrogate pairs, which are no characters, become U+FFFD.
    """
    try:
        reader = _reader_of(end)
    except ImportError as error:
        raise missing(f"{end} files need {error.name}", "documents") from None
    try:
        text = reader(data, most) if encoding is None else _html(data.decode(encoding), most)
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    except (InputError, MemoryError):
        raise
    except Exception as error:  # whatever a stranger's bytes bring a parser to
        raise InputError(f"cannot be read as {end} ({type(error).__name__}); expected a whole one") from None
    if len(text) > most:
        raise InputError(f"got {len(text):,} characters; expected at most {most:,}")
    if not text.strip():
        raise InputError(f"got a {end} file without text; expected text: images of it need OCR (ocrmypdf)")
    return text


def _reader_of(end: str) -> Callable[[bytes, int], str]:
    """Return the function that reads a kind of document. Raises ImportError where a package is missing."""
    if end == ".pdf":
        import pypdf  # noqa: F401

        return _pdf
    if end == ".docx":
        import docx  # noqa: F401

        return _docx
    if end == ".ipynb":
        return _notebook
    import bs4  # noqa: F401

    return _mail if end == ".eml" else _html


def _pdf(data: bytes, most: int) -> str:
    import pypdf

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it tells every flaw that it gets over
    document = pypdf.PdfReader(io.BytesIO(data))
    if document.is_encrypted and not document.decrypt(""):
        raise InputError("got an encrypted PDF; expected one without a password (qpdf --decrypt)")
    pages, size = list[str](), 0
    for page in document.pages:
        pages.append(page.extract_text())
        size += len(pages[-1])
        if size > most:
            raise InputError(f"got more than {most:,} characters; expected at most these")
    return "\n".join(pages)


def _docx(data: bytes, most: int) -> str:
    import docx

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        size = sum(item.file_size for item in archive.infolist())  # pictures are unpacked, too
    if size > most:
        raise InputError(f"got {size:,} bytes when unpacked; expected at most {most:,}")
    return "\n".join(_paragraphs(docx.Document(io.BytesIO(data))))


def _paragraphs(of: Any) -> Iterator[str]:
    """Yield the paragraphs of a document or of a cell, also those in tables, in order."""
    for block in of.iter_inner_content():
        if hasattr(block, "rows"):
            for row in block.rows:
                cells = dict.fromkeys(row.cells)  # a merged cell stands there several times
                yield from (paragraph for cell in cells for paragraph in _paragraphs(cell))
        else:
            yield block.text


def _html(data: bytes | str, most: int) -> str:
    """Return what a browser shows, as far as text goes: a line for each block, spaces as one."""
    import bs4

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it looks like a name of a file, or like XML
        page = bs4.BeautifulSoup(data, "html.parser")
    pieces = list[str]()
    inside = {id(page): (False, False)}  # of each element: what is not shown, and what keeps its spaces
    for node in page.descendants:
        unseen, pre = inside[id(node.parent)]
        if isinstance(node, bs4.Tag):
            inside[id(node)] = unseen or node.name in _UNSEEN, pre or node.name in ("pre", "textarea")
            if node.name == "br" or _BLOCKS.fullmatch(node.name):
                pieces.append("\n" if node.name == "br" else "\n\n")
        elif type(node) is bs4.NavigableString and not unseen:
            piece = str(node) if pre else re.sub(r"[ \t\r\n\f]+", " ", node)
            if not pre and pieces and pieces[-1][-1:] in ("\n", " "):
                piece = piece.removeprefix(" ")
            pieces.append(piece)
            if node.parent is not None and _BLOCKS.fullmatch(node.parent.name) and node.next_sibling is None:
                pieces.append("\n\n")
    lines = "".join(pieces).split("\n")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip(" \t") for line in lines)).strip()


def _mail(data: bytes, most: int) -> str:
    import email
    import email.policy

    body = email.message_from_bytes(data, policy=email.policy.default).get_body(("plain", "html"))
    if body is None:
        raise InputError("got a mail without a text; expected one with text or HTML")
    content = body.get_content()
    return _html(content, most) if body.get_content_type() == "text/html" else str(content)


def _notebook(data: bytes, most: int) -> str:
    cells = json.loads(data)["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)
