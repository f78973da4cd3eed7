"""Documents as bodies of requests: read as by `iet audit`, and hostile ones harm only their request."""

from __future__ import annotations

import io
import json
import pathlib
import urllib.parse
import zipfile
from collections.abc import Iterator

import pytest

import iet
from iet.audit.documents import text_of
from iet.report.html import page
from iet.service.requests import DOCUMENT_SUFFIXES, MEDIA_TYPES, PLAIN
from tests.support.conditions import posix
from tests.support.documents import made_docx, made_pdf, mail
from tests.support.service import JSON, Reply, Running, serving
from tests.support.texts import TEXT

pytestmark = posix
WORDS = TEXT.split()
LINES = [" ".join(WORDS[i : i + 12]) for i in range(0, len(WORDS), 12)]
PAGE = f"<html><head><title>none of it</title></head><body><p>{'</p><p>'.join(LINES)}</p></body></html>"
CELLS = {"cells": [{"cell_type": "markdown", "source": [line + "\n" for line in LINES]}]}
FILES = {
    "a.pdf": made_pdf("\n".join(LINES)),
    "a.docx": made_docx(LINES),
    "a.html": PAGE.encode(),
    "a.xhtml": PAGE.encode(),
    "a.eml": mail("\n".join(LINES), "plain"),
    "a.ipynb": json.dumps(CELLS).encode(),
}


@pytest.fixture(scope="module")
def service(folder: pathlib.Path, registry: pathlib.Path) -> Iterator[Running]:
    with serving(folder, registry, "--limit", "body_bytes=400000", workers=2) as running:
        yield running


@pytest.fixture(scope="module")
def auditor(registry: pathlib.Path) -> iet.Auditor:
    return iet.Auditor(iet.Registry.load(registry))


def send(service: Running, name: str, data: bytes, query: str = "", **headers: str) -> Reply:
    headers.setdefault("Content_Type", MEDIA_TYPES[pathlib.PurePath(name).suffix])
    return service.ask(f"/v1/audit{query}", data, **headers)


@pytest.mark.parametrize("name", FILES)
def test_a_document_is_read_as_on_the_command_line(service: Running, auditor: iet.Auditor, name: str) -> None:
    reply = send(service, name, FILES[name])
    assert (reply.status, reply.headers["content-type"]) == (200, JSON)
    expected = auditor.audit(text_of(FILES[name], name=name))
    assert reply.json == json.loads(expected.to_json())
    assert set(expected.found) == {"planner", "critic", "writer"}
    html = send(service, name, FILES[name], Accept="text/html")
    assert html.body.decode() == page(expected)


def test_options_in_the_query(service: Running, registry: pathlib.Path) -> None:
    options = {
        "decoder": "cusum",
        "level": 0.05,
        "known_agents": ["planner", "critic"],
        "decoys": 100,
        "decoder_options": {"step": 8},
    }
    query = urllib.parse.urlencode(
        {name: value if name == "decoder" else json.dumps(value) for name, value in options.items()}
    )
    reply = send(service, "a.eml", FILES["a.eml"], f"?{query}&include_text=false&skip=[[0,100]]")
    assert reply.status == 200, reply.body
    auditor = iet.Auditor(
        iet.Registry.load(registry),
        decoder="cusum",
        level=0.05,
        known_agents=["planner", "critic"],
        decoys=100,
        step=8,
    )
    expected = auditor.audit(text_of(FILES["a.eml"], name="a.eml"), skip=[(0, 100)])
    assert reply.json == json.loads(expected.to_json(text=False))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("levl=0.1", "levl: unknown field"),
        ("text=%22a%22", "text: unknown field"),
        ("token_ids=[1]", "token_ids: unknown field"),
        ("level=2", "level: got 2.0, expected a number between 0 and 1"),
        ("level=much", "query: got 'level' whose value is no JSON"),
        ("level=%220.1%22", "level: Input should be a valid number"),
        ("level=0.1&level=0.2", "query: got 'level' twice"),
        ("decoder=oracle", "decoder: Input should be"),
        ("decoder=%ff", "query: expected name=value"),
        ("decoder", "query: expected name=value"),
        ("decoys=" + "9" * 5000, "query: got 'decoys' whose value is no JSON"),
        ("decoder_options=" + "[" * 5000, "query: got 'decoder_options' whose value is no JSON"),
        ("decoder_options={%22tokenizer%22:%22/etc/passwd%22}", "options: got 'tokenizer'"),
        ("spans=[[0,99999999]]", "spans: got (0, 99999999)"),
    ],
    ids=range(14),
)
def test_invalid_options_are_refused(service: Running, query: str, message: str) -> None:
    reply = send(service, "a.html", FILES["a.html"], f"?{query}")
    assert reply.status == 422, reply.body
    assert message in reply.json["error"]


def test_content_type_sets_the_encoding_of_html(service: Running, auditor: iet.Auditor) -> None:
    data = PAGE.replace("</p>", " \u20ac\u00e9</p>").encode("cp1252")
    assert send(service, "a.html", data, Content_Type="text/html; Charset=cp1252").json == json.loads(
        auditor.audit(text_of(data.decode("cp1252").encode(), name="a.html")).to_json()
    )
    reply = send(service, "a.html", data, Content_Type="text/html; charset=klingon")
    assert (reply.status, "got 'klingon'" in reply.json["error"]) == (422, True)
    assert send(service, "a.html", data, Content_Type="text/html; charset=ascii").status == 422
    for parts in (f"charset*0=a; charset*{'9' * 5000}=b", "charset*0=a; charset*=b"):
        reply = send(service, "a.html", data, Content_Type=f"text/html; {parts}")
        assert (reply.status, reply.json["error"].partition(":")[0]) == (422, "content-type")


def test_other_content_as_html_logs_no_warning(service: Running) -> None:
    log_length = len(service.log_text)
    for data in (b"page.html", b"http://127.0.0.1/", b'<?xml version="1.0"?><a>w1</a>'):
        assert send(service, "a.html", data).status == 200
    logged = service.log_text[log_length:].splitlines()
    # A line of an earlier request may still arrive.
    assert all(" INFO POST /v1/audit " in line for line in logged), logged


def test_the_refusal_of_a_type_lists_the_accepted_ones(service: Running) -> None:
    accepted = " or ".join([JSON, PLAIN, *DOCUMENT_SUFFIXES])
    for media in (
        "text/markdown",
        "application/octet-stream",
        "application/msword",
        "multipart/form-data",
        "",
    ):
        reply = service.ask("/v1/audit", b"w1", Content_Type=media)
        assert (reply.status, reply.json["error"]) == (415, f"content-type: expected {accepted}")
    for path in ("/v1/check", "/v1/audit/batch"):
        assert service.ask(path, FILES["a.pdf"], Content_Type="application/pdf").status == 415
    described = service.ask("/openapi.json").json["paths"]["/v1/audit"]["post"]
    assert [*described["requestBody"]["content"]] == [JSON, PLAIN, *DOCUMENT_SUFFIXES]
    assert "known_agents" in {parameter["name"] for parameter in described["parameters"]}


def test_the_log_holds_nothing_of_a_document(service: Running) -> None:
    send(service, "a.html", FILES["a.html"], "?level=w599")
    send(service, "a.docx", b"w599 is no document")
    assert "POST /v1/audit 422" in service.log_text
    assert "w599" not in service.log_text


def docx_of(document: bytes, **more: bytes) -> bytes:
    """A .docx whose main part is this."""
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(made_docx(["a"]))) as original,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made,
    ):
        for item in original.infolist():
            made.writestr(item, document if item.filename == "word/document.xml" else original.read(item))
    return file.getvalue()


SPACE = b"http://schemas.openxmlformats.org/wordprocessingml/2006/main"
PARAGRAPH = b"<w:p><w:r><w:t>&x;</w:t></w:r></w:p>"


def word(body: bytes, doctype: bytes = b"") -> bytes:
    head = b'<?xml version="1.0"?>%b<w:document xmlns:w="%b"><w:body>' % (doctype, SPACE)
    return docx_of(head + body + b"</w:body></w:document>")


LAUGHS = b"<!DOCTYPE d [<!ENTITY x0 'ha'>%b<!ENTITY x '&x9;'>]>" % b"".join(
    b"<!ENTITY x%d '%b'>" % (i, b"&x%d;" % (i - 1) * 10) for i in range(1, 10)
)
TABLE = b"<w:tbl><w:tblPr/><w:tblGrid/><w:tr><w:tc>"


def pdf(*objects: bytes) -> bytes:
    """A PDF of these objects, the first of them its catalog."""
    data, offsets = b"%PDF-1.4\n", list[int]()
    for number, content in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    end = (len(objects) + 1, table, len(objects) + 1, len(data))
    return data + (
        b"xref\n0 %d\n0000000000 65535 f \n%btrailer <</Root 1 0 R /Size %d>>\nstartxref\n%d\n%%%%EOF" % end
    )


CATALOG, PAGES = b"<</Type /Catalog /Pages 2 0 R>>", b"<</Type /Pages /Kids [3 0 R] /Count 1>>"
DRAWN = b"<</Type /Page /Parent 2 0 R /Contents 4 0 R /Resources <</XObject <</X 5 0 R>>>>>>"
STREAM = b"<</Length 4>>\nstream\n/X Do\nendstream"
ITSELF = (
    b"<</Type /XObject /Subtype /Form /Resources <</XObject <</X 5 0 R>>>> /Length 10>>\n"
    b"stream\n/X Do /X Do\nendstream"
)

HOSTILE = {
    "entities.docx": word(PARAGRAPH, LAUGHS),
    "file.docx": word(PARAGRAPH, b'<!DOCTYPE d [<!ENTITY x SYSTEM "file:///etc/passwd">]>'),
    "deep.docx": word(TABLE * 60 + b"<w:p/>" + b"<w:p/></w:tc></w:tr></w:tbl>" * 60),
    "deeper.docx": word(TABLE * 5000),
    "zip.docx": docx_of(b" " * 50_000_000),
    "damaged.docx": FILES["a.docx"][:-500],
    "pages.pdf": pdf(CATALOG, b"<</Type /Pages /Kids [2 0 R 2 0 R] /Count 2>>"),
    "drawn.pdf": pdf(CATALOG, PAGES, DRAWN, STREAM, ITSELF),
    "before.pdf": FILES["a.pdf"] + b"\ntrailer <</Root 1 0 R /Prev 9>>\nstartxref\n9\n%%EOF",
    "length.pdf": pdf(CATALOG, PAGES, DRAWN, b"<</Length 4 0 R>>\nstream\n/X Do\nendstream"),
    "deep.pdf": pdf(b"[" * 100_000),
    "locked.pdf": made_pdf("w1 " * 300, "a password"),
    "deep.html": b"<b>" * 50_000 + b"w1",
    "lists.html": b"<ul><li>" * 40_000,
    "comments.html": b"<!" * 4_000 + b"<!--" * 4_000,
    "attributes.html": b"<p " + b"a=" * 150_000,
    "entities.html": b"&#x110000;&#xd800;&nosuch;&amp" * 10_000,
    "parts.eml": b"Content-Type: multipart/mixed; boundary=a\n\n" + b"--a\n\n" * 2_000,
    "nested.eml": b"Content-Type: message/rfc822\n\n" * 2_000 + b"a",
    "head.eml": b"Content-Type: text/plain; charset=" + b"a" * 300_000 + b"\n\nw1",
    "codec.eml": b"Content-Type: text/plain; charset=zlib\n\nw1",
    "deep.ipynb": b'{"cells": ' + b"[" * 300_000,
    "cells.ipynb": b'{"cells": {"source": {"a": 1}}}',
    "number.ipynb": b'{"cells": [{"source": [1' + b"0" * 300_000 + b"]}]}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_document_is_answered(service: Running, name: str) -> None:
    reply = send(service, name, HOSTILE[name], timeout=120)  # type: ignore[arg-type]
    assert reply.status in (200, 422), reply.body[:300]
    assert b"root:" not in reply.body
    if reply.status == 422:
        assert len(reply.body) < 500
    assert "another one is started" not in service.log_text


def test_much_text_is_refused_before_it_is_audited(service: Running) -> None:
    for name, data in {
        "body.html": b"<p>" + b"w1 " * 200_000,
        "unpacked.docx": word(b"<w:p><w:r><w:t>%b</w:t></w:r></w:p>" % (b"w1 " * 200_000)),
    }.items():
        reply = send(service, name, data)
        assert reply.status == 413, reply.body
    assert reply.json["error"].startswith("body: got a document with 600,0")


def test_a_document_that_needs_too_much_memory_fails_only_its_request(
    tmp_path: pathlib.Path, registry: pathlib.Path, auditor: iet.Auditor
) -> None:
    expected = auditor.audit(text_of(FILES["a.docx"], name="a.docx")).evidence
    # Python may never come out of what it does where memory ends: no time limit is what stops it then.
    limits = ["--limit", "memory_bytes=100000000", "--limit", "seconds=600"]
    with serving(tmp_path, registry, *limits, workers=2) as service:
        reply = send(service, "many.html", b"<b>" * 1_300_000, timeout=600)  # type: ignore[arg-type]
        assert reply.status == 503, reply.body[:300]
        ends = "more memory than a worker has", "died at work"
        assert any(end in service.log_text for end in ends), service.log_text[-4000:]
        for _ in range(4):
            assert send(service, "a.docx", FILES["a.docx"]).json["evidence"] == expected
