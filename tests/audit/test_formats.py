"""Documents as text: what each reader makes of them, and what it refuses."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from benchmarks.accuracy import losses
from benchmarks.accuracy.losses import paragraph, run, text_box, tracked, word
from iet.audit import formats
from iet.audit.documents import text_of
from iet.bulk.sources import expand
from iet.errors import InputError
from tests.support.documents import (
    NOTEBOOK,
    PAGE,
    SHOWN,
    made_docx,
    made_pdf,
    mail,
    packed,
)
from tests.support.texts import TEAM, TEXT, reader, spell, write


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


@pytest.mark.parametrize("case", losses.CASES, ids=lambda case: f"{case.kind}, {case.name}")
def test_all_that_is_shown_is_read_once_and_nothing_else(case: losses.Case) -> None:
    assert text_of(case.data, name=case.file) == case.text


def test_marked_text_in_tracked_changes_and_boxes_is_found() -> None:
    texts = [spell(write(TEAM, [(agent, 150)], seed)) for seed, agent in enumerate(TEAM.names())]
    planner, critic, writer = (run(text) for text in texts)
    body = paragraph(tracked("ins", planner)) + paragraph(text_box(paragraph(critic)))
    deleted = paragraph(tracked("moveFrom", writer), mark=tracked("moveFrom", ""))
    report = reader().audit(text_of(word(body + deleted), name="a.docx"))
    assert set(report.found) == {"planner", "critic"}
    assert report.coverage > 0.9


@pytest.mark.parametrize("case", losses.MAIL, ids=lambda case: case.name)
def test_fixed_lines_stay_as_they_are(case: losses.Case) -> None:
    if "format=flowed" in case.content:
        fixed = case.content.replace("; format=flowed", "")
        assert text_of(fixed.encode(), name="a.eml") == fixed.partition("\n\n")[2]


def test_flowed_lines_may_end_as_in_mail() -> None:
    assert text_of(losses.part("a \r\nb", header="; format=flowed").encode(), name="a.eml") == "a b"


@pytest.mark.parametrize(
    "shown",
    [
        '<p aria-hidden="true">x</p>',
        '<p style="display:nonesuch">x</p>',
        "<dialog open>x</dialog>",
        "<details><summary>x</summary></details>",
    ],
)
def test_what_a_page_shows_is_text(shown: str) -> None:
    assert text_of(f"<p>a</p>{shown}<p>b</p>".encode(), name="a.html").split() == ["a", "x", "b"]


def test_an_encoding_asks_for_the_bytes_as_they_stand() -> None:
    assert text_of(PAGE.encode(), "utf-8", name="a.html") == PAGE


@pytest.mark.parametrize(
    ("data", "name", "said"),
    [
        (b"%PDF-1.4 text only", "a", r"cannot be read as \.pdf"),
        (made_pdf("secret", "a password"), "a", "got an encrypted PDF"),
        (made_pdf(""), "a", "without text.*OCR"),
        (b"PK\x03\x04word/", "a.docx", r"cannot be read as \.docx"),
        (made_docx(["a"])[:-100], "a.docx", r"cannot be read as \.docx"),
        (
            packed({"word/document.xml": 1000, "word/media/a.png": formats.MOST_BYTES}),
            "a.docx",
            "bytes when unpacked",
        ),
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


def test_halves_of_surrogate_pairs_are_no_characters() -> None:
    cells = {"cells": [{"source": "a\ud800b"}, {"source": ["\ud83d", "\ude00"]}]}
    assert text_of(json.dumps(cells).encode(), name="a.ipynb") == "a\ufffdb\n\n\U0001f600"


def test_what_is_asked_for_is_kept_to() -> None:
    assert formats.read(PAGE.encode("utf-16-le"), ".html", encoding="utf-16-le") == SHOWN
    with pytest.raises(InputError, match=r"got 1,001 characters; expected at most 1,000"):
        formats.read(b"<p>" + b"a" * 1001, ".html", most=1000)
    with pytest.raises(InputError, match=r"got more than 5 characters"):
        formats.read(made_pdf("Hello there."), ".pdf", most=5)
    with pytest.raises(InputError, match=r"bytes when unpacked; expected at most 1,000"):
        formats.read(made_docx(["a"]), ".docx", most=1000)
    with pytest.raises(InputError, match=r"got 100,000 bytes when unpacked"):
        formats.read(packed({"word/media/a.png": 100_000}), ".docx", most=1000)


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
