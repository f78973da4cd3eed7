"""Documents as text: what each reader makes of them, and what it refuses."""

from __future__ import annotations

import io
import json
import pathlib
import zipfile
from typing import Any

import pytest

from iet.audit import formats
from iet.audit.documents import text_of
from iet.bulk.sources import expand
from iet.errors import InputError
from tests.support.texts import TEXT, reader

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


@pytest.mark.parametrize(
    ("data", "name", "text"),
    [
        (made_docx(["Head", "Hello there."]), "a.docx", "Head\nHello there.\n\nin a table\nbehind it"),
        (made_docx(["a"]), "named otherwise", "a\n\nin a table\nbehind it"),
        (made_pdf("Hello there.\nLine two"), "a.pdf", "Hello there.\nLine two\n"),
        (PAGE.encode(), "a.html", SHOWN),
        (PAGE.encode(), "A.HTM", SHOWN),
        (mail("plain text\n", "plain"), "a.eml", "plain text\n"),
        (mail(PAGE, "html"), "a.eml", SHOWN),
        (json.dumps(NOTEBOOK).encode(), "a.ipynb", "# a\nb\n\nx = 1"),
        (b"# not a page, <b>but</b> Markdown", "a.md", "# not a page, <b>but</b> Markdown"),
    ],
)
def test_texts_of_documents(data: bytes, name: str, text: str) -> None:
    assert text_of(data, name=name) == text


def test_an_encoding_asks_for_the_bytes_as_they_stand() -> None:
    assert text_of(PAGE.encode(), "utf-8", name="a.html") == PAGE


def unpacked_bomb() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", b" " * 1000)
        archive.writestr(
            "word/media/picture.png", b" " * formats.MOST_BYTES
        )  # python-docx unpacks it as well
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "name", "said"),
    [
        (b"%PDF-1.4 text only", "a", r"cannot be read as \.pdf"),
        (made_pdf("secret", "a password"), "a", "got an encrypted PDF"),
        (made_pdf(""), "a", "without text.*OCR"),
        (b"PK\x03\x04word/", "a.docx", r"cannot be read as \.docx"),
        (made_docx(["a"])[:-100], "a.docx", r"cannot be read as \.docx"),
        (unpacked_bomb(), "a.docx", "bytes when unpacked"),
        (b"<p></p>", "a.html", "without text"),
        (b"", "a.html", "without text"),
        (b"[]", "a.ipynb", r"cannot be read as \.ipynb"),
        (b"[" * 100_000, "a.ipynb", r"cannot be read as \.ipynb"),
        (b"Content-Type: image/png\n\nx", "a.eml", "a mail without a text"),
    ],
)
def test_what_cannot_be_read_is_refused(data: bytes, name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        text_of(data, name=name)


def test_hostile_pages() -> None:
    assert text_of(b"<div>" * 50_000 + b"deep", name="a.html") == "deep"
    # What takes time by the square of the length would take minutes here.
    assert text_of(b"<p>x" * 20_000, name="a.html").count("x") == 20_000
    spaces = b"<pre>a" + b" " * 200_000 + b"b \n</pre>"
    assert text_of(spaces, name="a.html") == "a" + " " * 200_000 + "b"
    entity = b'<!DOCTYPE p [<!ENTITY x SYSTEM "file:///etc/passwd">]><p>a &x; b</p>'
    assert "root:" not in text_of(entity, name="a.html")


def test_a_document_is_audited_as_its_text(tmp_path: pathlib.Path) -> None:
    words = TEXT.split()
    paragraphs = [" ".join(words[i : i + 80]) for i in range(0, len(words), 80)]
    text = text_of(made_docx(paragraphs), name="a.docx")
    report = reader().audit(text)
    assert set(report.found) == {"planner", "critic", "writer"}
    assert report.text == text


def test_a_folder_holds_documents(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, Any] = {"a.docx": made_docx(["a"]), "b.html": PAGE.encode(), "c.odt": b"PK"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    found, others = expand([tmp_path], tmp_path / "out")
    assert [pathlib.Path(source.path).name for source in found] == ["a.docx", "b.html"]
    assert others == {".odt": 1}
    monkeypatch.setattr(formats, "readable", lambda end: end == ".html")
    found, others = expand([tmp_path], tmp_path / "out")
    assert [pathlib.Path(source.path).name for source in found] == ["b.html"]
    assert others == {".docx": 1, ".odt": 1}
