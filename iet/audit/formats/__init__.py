"""The text of documents: PDF, .docx, HTML, mail and notebooks, by the packages of the extra `documents`.

An audit reads the returned text, and characters of its report point into it. Text in images, footnotes,
headers of pages, comments and attachments is not read, nor is deleted and hidden text.
"""

from __future__ import annotations

import io
import json
import logging
import pathlib
from collections.abc import Callable

from iet.audit.formats import mail, page, word
from iet.errors import InputError, missing

MOST_BYTES = 1 << 28
"""What a document may hold when it is unpacked, in bytes; more is refused before it is."""

SUFFIXES = (".docx", ".pdf", ".html", ".htm", ".xhtml", ".eml", ".ipynb")
"""Ends of names of documents that are read."""


def format_of(data: bytes, name: str) -> str | None:
    """Return what a file is, an end of `SUFFIXES`; None: none of them.

    PDF and .docx are recognised by their content, the others by their names.
    """
    if data.startswith(b"%PDF-"):
        return ".pdf"
    if data.startswith(b"PK\x03\x04") and b"word/" in data:
        return ".docx"
    end = pathlib.PurePath(name).suffix.lower()
    return {".htm": ".html", ".xhtml": ".html"}.get(end, end) if end in SUFFIXES[2:] else None


def readable(end: str) -> bool:
    """Tell whether the packages that read this kind of document (a suffix of `SUFFIXES`) are installed."""
    try:
        _reader_of(end)
    except ImportError:
        return False
    return True


def read(data: bytes, end: str, *, encoding: str | None = None, most: int = MOST_BYTES) -> str:
    """Return the text of a document.

    Args:
        data: its content.
        end: its kind, as `format_of` returns it.
        encoding: of an HTML page, if its sender names one. None: the one that the page names.
        most: bytes that it may hold when it is unpacked, and characters of its text.

    Raises:
        InputError: it is damaged, encrypted, too large when it is unpacked, or holds no text.
        BackendUnavailable: the package that reads it is not installed.
        MemoryError: there is not enough to read it.

    Deterministic for a version of the package. Nothing that a document refers to is loaded, and nothing in
    it is run. Halves of surrogate pairs, which are no characters, become U+FFFD.
    """
    try:
        reader = _reader_of(end)
    except ImportError as error:
        raise missing(f"{end} files need {error.name}", "documents") from None
    try:
        text = reader(data, most) if encoding is None else page.text_of(data.decode(encoding), most)
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    except (InputError, MemoryError):
        raise
    except Exception as error:  # untrusted input may raise anything
        raise InputError(f"cannot be read as {end} ({type(error).__name__}); expected a whole one") from None
    if len(text) > most:
        raise InputError(f"got {len(text):,} characters; expected at most {most:,}")
    if not text.strip():
        raise InputError(f"got a {end} file without text; expected text: images of it need OCR (ocrmypdf)")
    return text


def _reader_of(end: str) -> Callable[[bytes, int], str]:
    """Return the function that reads a kind of document, or raise ImportError if its package is missing."""
    if end == ".pdf":
        import pypdf  # noqa: F401

        return _pdf
    if end == ".docx":
        import docx  # noqa: F401

        return word.text_of
    if end == ".ipynb":
        return _notebook
    import bs4  # noqa: F401

    return mail.text_of if end == ".eml" else page.text_of


def _pdf(data: bytes, most: int) -> str:
    import pypdf

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it reports every flaw that it recovers from
    document = pypdf.PdfReader(io.BytesIO(data))
    if document.is_encrypted and not document.decrypt(""):
        raise InputError("got an encrypted PDF; expected one without a password (qpdf --decrypt)")
    pages, size = list[str](), 0
    for sheet in document.pages:
        pages.append(sheet.extract_text())
        size += len(pages[-1])
        if size > most:
            raise InputError(f"got more than {most:,} characters; expected at most these")
    return "\n".join(pages)


def _notebook(data: bytes, most: int) -> str:
    cells = json.loads(data)["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)
