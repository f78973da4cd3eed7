"""Generated documents of each kind; importing this skips the test module if no reader is installed."""

from __future__ import annotations

import io
import zipfile

import pytest

try:
    import bs4  # noqa: F401
    import docx
    import pypdf
except ImportError as error:
    pytest.skip(f"{error}: the extra documents is not installed", allow_module_level=True)

PAGE = (
    "<html><head><title>T</title><style>p {}</style></head><body><h1>Head</h1><p>Hello <b>bold</b>\n  text"
    "<br>line two</p><ul><li>one<li>two &amp; <i>three</i></ul><pre>a\n  b</pre><script>alert(1)</script>"
    "<p>End <a href='https://x'>link</a>.</p><!-- nobody reads this --></body></html>"
)
SHOWN = "Head\n\nHello bold text\nline two\n\none\n\ntwo & three\n\na\n  b\n\nEnd link."


def made_docx(paragraphs: list[str]) -> bytes:
    made = docx.Document()
    for paragraph in paragraphs:
        made.add_paragraph(paragraph)
    made.add_table(1, 2).cell(0, 1).text = "in a table"
    made.add_paragraph("behind it")
    file = io.BytesIO()
    made.save(file)
    return file.getvalue()


def made_pdf(text: str, password: str | None = None) -> bytes:
    """A PDF of one page, its text in one of the fonts that every reader has."""
    writer = pypdf.PdfWriter()
    page = writer.add_blank_page(600, 800)
    stream = pypdf.generic.DecodedStreamObject()
    lines = " ".join(f"({line}) Tj 0 -14 Td" for line in text.split("\n"))
    stream.set_data(f"BT /F1 12 Tf 20 760 Td {lines} ET".encode())
    name = pypdf.generic.NameObject
    font = pypdf.generic.DictionaryObject(
        {
            name("/Type"): name("/Font"),
            name("/Subtype"): name("/Type1"),
            name("/BaseFont"): name("/Helvetica"),
        }
    )
    fonts = pypdf.generic.DictionaryObject({name("/F1"): font})
    page[name("/Resources")] = pypdf.generic.DictionaryObject({name("/Font"): fonts})
    page[name("/Contents")] = writer._add_object(stream)
    if password is not None:
        writer.encrypt(password, algorithm="RC4-128")
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()


def mail(content: str, kind: str) -> bytes:
    return f"From: a@b\nSubject: s\nContent-Type: text/{kind}; charset=utf-8\n\n{content}".encode()


NOTEBOOK = {
    "cells": [{"cell_type": "markdown", "source": ["# a\n", "b"]}, {"cell_type": "code", "source": "x = 1"}]
}


def packed(sizes: dict[str, int]) -> bytes:
    """A zip archive of spaces: name -> how many."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, size in sizes.items():
            archive.writestr(name, b" " * size)
    return file.getvalue()
