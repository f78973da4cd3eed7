"""Documents as text: output of each reader, and rejected documents."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest

from iet.audit import formats
from iet.audit.documents import text_of
from iet.bulk.sources import documents, expand
from iet.errors import InputError
from tests.support import document_cases
from tests.support.document_cases import (
    DELETED,
    A,
    B,
    C,
    X,
    cell,
    control,
    paragraph,
    part,
    row,
    run,
    sent,
    table,
    text_box,
    tracked,
    word,
)
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


@pytest.mark.parametrize("case", document_cases.CASES, ids=lambda case: f"{case.kind}, {case.name}")
def test_visible_text_is_read_exactly_once(case: document_cases.Case) -> None:
    assert text_of(case.data, name=case.file) == case.text


def test_marked_text_in_tracked_changes_and_boxes_is_found() -> None:
    texts = [spell(write(TEAM, [(agent, 150)], seed)) for seed, agent in enumerate(TEAM.names())]
    planner, critic, writer = (run(text) for text in texts)
    body = paragraph(tracked("ins", planner)) + paragraph(text_box(paragraph(critic)))
    deleted = paragraph(tracked("moveFrom", writer), mark=tracked("moveFrom", ""))
    deleted += paragraph(tracked("del", writer))
    report = reader().audit(text_of(word(body + deleted), name="a.docx"))
    assert set(report.found) == {"planner", "critic"}
    assert report.coverage > 0.9


OTHERWISE = (
    '<w:r><mc:AlternateContent><mc:Choice Requires="wps"><w:t>a</w:t></mc:Choice>'
    "<mc:Fallback><w:t>x</w:t></mc:Fallback></mc:AlternateContent></w:r>"
)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (table(tracked("ins", row(cell(A)))), "a"),
        (tracked("ins", A) + B, "a\nb"),
        (tracked("moveFrom", X) + tracked("moveTo", A + B) + C, "a\nb\nc"),
        (paragraph(tracked("ins", run("a") + tracked("del", run("x")))), "a"),
        (paragraph(run("a"), tracked("del", tracked("ins", run("x")))), "a"),
        (A + paragraph(tracked("del", text_box(X))) + B, "a\n\nb"),
        (A + paragraph(tracked("del", run("x")), mark=DELETED) + table(row(cell(B))), "a\nb"),
        (A + paragraph(tracked("del", run("x")), mark=DELETED), "a"),
        (paragraph(run("a"), mark=DELETED) + paragraph(run("b"), mark=DELETED) + control(C), "abc"),
        (paragraph(run("a"), text_box(B), mark=DELETED) + table(row(cell(C))) + A, "a\nb\nc\na"),
        (table(row(cell(paragraph(run("a"), mark=DELETED)), cell(B))), "a\nb"),
        (table(row(control(cell(A + table(row(cell(B))) + C)))), "a\nb\nc"),
        (
            table(row(cell(A, '<w:vMerge w:val="restart"/>')), row(cell(X, '<w:vMerge w:val="continue"/>'))),
            "a",
        ),
        (paragraph(f'<w:fldSimple w:instr="X">{control(tracked("ins", run("a")))}</w:fldSimple>'), "a"),
        (paragraph(f'<w:dir w:val="rtl"><w:bdo w:val="ltr">{run("a")}</w:bdo></w:dir>'), "a"),
        (paragraph(OTHERWISE), "a"),
        (paragraph(control(tracked("ins", text_box(A)))), "\na"),
        (paragraph(text_box(A), run("c"), text_box(B)), "c\na\nb"),
        (paragraph(run("a"), text_box(paragraph(text_box(paragraph(run("b"), text_box(C)))))), "a\n\nb\nc"),
        (
            paragraph(run("a"), run("x", '<w:vanish w:val="true"/>'), run("b", '<w:vanish w:val="off"/>')),
            "ab",
        ),
        (
            paragraph('<w:r><w:t>a</w:t><w:tab/><w:cr/><w:br w:type="page"/><w:noBreakHyphen/></w:r>'),
            "a\t\n-",
        ),
        (paragraph("<w:r><w:t>a<!-- x -->b</w:t></w:r>"), "ab"),
    ],
)
def test_nested_markup_of_word(body: str, text: str) -> None:
    assert text_of(word(body), name="a.docx") == text


HTML = part("<p>a</p>", "html")
BINARY = "\nContent-Transfer-Encoding: 8bit\n\n"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (sent(HTML.replace("\n", "\nContent-ID: <b>\n", 1), part("x"), kind="related"), "a"),
        (sent(part("x"), HTML.replace("\n", "\nContent-ID: <b>\n", 1), kind='related; start="<b>"'), "a"),
        (sent(part("a"), part("x"), kind='related; start="<b>"'), "a"),
        (sent(sent(part("\n"), HTML, kind="alternative", boundary="+"), part("x"), kind="signed"), "a"),
        (sent(part("\u200b \u00a0\n"), HTML, kind="alternative"), "a"),
        (sent(part("a", header="\nContent-Disposition: attachment"), HTML, kind="alternative"), "a"),
        (sent(part("a"), part("b", header="\nContent-Disposition: inline; filename=b.txt")), "a\nb"),
        (sent(part("a"), part("*b*", "markdown")), "a\n*b*"),
        (sent(part("a"), "Content-Type: text/calendar\n\nx"), "a"),
        (part("> 一 \n> 二\n三 \n四\n", header="; format=flowed; DelSp=YES"), "> 一二\n三四\n"),
        (part(" > a \nb\n> c \n> d", header="; Format=Flowed"), "> a b\n> c d"),
        (part("> a \n> -- \n> b \n> c", header="; format=flowed"), "> a \n> -- \n> b c"),
        (part("a \nb\n\nc \na\n", header="; format=flowed"), "a b\n\nc a\n"),
    ],
)
def test_parts_of_mail(content: str, text: str) -> None:
    assert text_of(content.encode(), name="a.eml") == text


@pytest.mark.parametrize(
    ("header", "encoding", "text"),
    [
        ("html", "utf-8", '<meta charset="utf-8"><p>Größe 一</p>'),
        ("html", "cp1252", '<meta charset="cp1252"><p>„Größe“</p>'),
        ("html; charset=cp1252", "cp1252", '<meta charset="utf-8"><p>„Größe“</p>'),
        ("plain", "utf-8", "Größe 一"),
        ("plain; charset=us-ascii", "utf-8", "Größe 一"),
        ("plain; charset=iso-8859-1", "cp1252", "„Größe“"),
        ("plain; charset=gb2312", "gbk", "朱镕基"),
    ],
)
def test_charsets_of_mail(header: str, encoding: str, text: str) -> None:
    data = f"Content-Type: text/{header}{BINARY}".encode() + text.encode(encoding)
    assert text_of(data, name="a.eml") == re.sub("<.*?>", "", text)


def test_invalid_bytes_in_a_mail() -> None:
    assert (
        text_of(f"Content-Type: text/plain; charset=utf-8{BINARY}".encode() + b"a\xf6b", name="a.eml")
        == "a\ufffdb"
    )
    with pytest.raises(InputError, match=r"cannot be read as \.eml \(LookupError\)"):
        text_of(f"Content-Type: text/plain; charset=nonesuch{BINARY}a".encode(), name="a.eml")


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ('<div hidden><div style="display:block"><p>x</p></div></div>a', "a"),
        ('<p style="color:red; DISPLAY : NONE !important">x</p>a', "a"),
        ('<p style="display:none!important; display:block">x</p>a', "a"),
        ('<p style="display:none; display:block">a</p>', "a"),
        ('<p style="display:/* ; */none">x</p>a', "a"),
        ('<p style="/*;display:none;*/">a</p>', "a"),
        ('<p hidden style="display:block">a</p>', "a"),
        ('<p hidden="until-found" style="display:block">x</p>a', "a"),
        ('<div style="visibility:hidden">x<p style="visibility:visible">a</p>x</div>', "a"),
        ('<table><tr><td hidden>x<td>a<tr style="visibility:collapse"><td>x</table>', "a"),
        # End tags that may be omitted.
        ("<p hidden>x<p>a", "a"),
        ("<div><p hidden>x<p>a</p>b</div>", "a\n\nb"),
        ("<p hidden>x<div>a</div>", "a"),
        ("<ul><li hidden><p>x<ul><li>x</ul><li>a</ul>b", "a\n\nb"),
        ("<dl><dt hidden>x<dd>a<dt>b</dl>", "a\n\nb"),
        ("<table><tr hidden><td>x<td>x<tr><td>a</table>", "a"),
        ("<select><option hidden>x<option>a</select>", "a"),
        ("<html><head><title>x</title><style>x</style><body><p>a", "a"),
        # Words of different lines are kept apart, and those of one line are not.
        ("<div>a <b>b</b></div>c", "a b\n\nc"),
        ("<div>a<!-- x --></div>b", "a\n\nb"),
        ("<details><summary>a</summary>b</details>", "a\n\nb"),
        ("<p>a<span hidden> x </span>b<br hidden>c<div hidden>x</div>", "abc"),
        ("<p>a <b> </b> b</p>", "a b"),
        ("<p>a</p><noframes>x</noframes><noembed>x</noembed><iframe>x</iframe><audio>x</audio>", "a"),
    ],
)
def test_pages(page: str, text: str) -> None:
    assert text_of(page.encode(), name="a.html") == text


@pytest.mark.parametrize("case", document_cases.MAIL, ids=lambda case: case.name)
def test_fixed_lines_stay_as_they_are(case: document_cases.Case) -> None:
    if "format=flowed" in case.content:
        fixed = case.content.replace("; format=flowed", "")
        assert text_of(fixed.encode(), name="a.eml") == fixed.partition("\n\n")[2]


def test_long_paragraphs_take_linear_time() -> None:
    lines = 2_000_000  # minutes, if time grew with the square of the length
    flowed = part("ab \n" * lines, header="; format=flowed")
    assert text_of(flowed.encode(), name="a.eml") == "ab " * lines


def test_flowed_lines_may_end_as_in_mail() -> None:
    assert text_of(part("a \r\nb", header="; format=flowed").encode(), name="a.eml") == "a b"


@pytest.mark.parametrize(
    "markup",
    [
        '<p aria-hidden="true">x</p>',
        '<p style="display:nonesuch">x</p>',
        "<dialog open>x</dialog>",
        "<details><summary>x</summary></details>",
    ],
)
def test_reads_visible_text_of_pages(markup: str) -> None:
    assert text_of(f"<p>a</p>{markup}<p>b</p>".encode(), name="a.html").split() == ["a", "x", "b"]


def test_given_encoding_reads_pages_as_plain_text() -> None:
    assert text_of(PAGE.encode(), "utf-8", name="a.html") == PAGE


@pytest.mark.parametrize(
    ("data", "name", "message"),
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
def test_rejects_unreadable_documents(data: bytes, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        text_of(data, name=name)


def test_hostile_pages() -> None:
    assert text_of(b"<div>" * 50_000 + b"deep", name="a.html") == "deep"
    # Code whose time grows with the square of the length would take minutes here.
    assert text_of(b"<p>x" * 20_000, name="a.html").count("x") == 20_000
    assert text_of(b"<p hidden>x<p>a" * 10_000, name="a.html").count("a") == 10_000
    spaces = b"<pre>a" + b" " * 200_000 + b"b \n</pre>"
    assert text_of(spaces, name="a.html") == "a" + " " * 200_000 + "b"
    entity = b'<!DOCTYPE p [<!ENTITY x SYSTEM "file:///etc/passwd">]><p>a &x; b</p>'
    assert "root:" not in text_of(entity, name="a.html")


def test_halves_of_surrogate_pairs_are_no_characters() -> None:
    cells = {"cells": [{"source": "a\ud800b"}, {"source": ["\ud83d", "\ude00"]}]}
    assert text_of(json.dumps(cells).encode(), name="a.ipynb") == "a\ufffdb\n\n\U0001f600"


def test_requested_encodings_and_limits_are_kept() -> None:
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
    sources, skipped = expand([tmp_path], tmp_path / "out", documents())
    assert [pathlib.Path(source.path).name for source in sources] == ["a.docx", "b.html"]
    assert skipped == {".odt": 1}
    monkeypatch.setattr(formats, "readable", lambda end: end == ".html")
    sources, skipped = expand([tmp_path], tmp_path / "out", documents())
    assert [pathlib.Path(source.path).name for source in sources] == ["b.html"]
    assert skipped == {".docx": 1, ".odt": 1}
