"""The content of a file decides its format; other formats are rejected with a command to convert them."""

from __future__ import annotations

import io
import shlex
import zipfile

import pytest

from iet.audit.documents import check_encoding, text_of
from iet.errors import InputError

pytestmark = pytest.mark.usefixtures("no_documents")


def stub_docx() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("word/document.xml", "<w:t>The plan stands.</w:t>")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "kind", "command"),
    [
        (b"%PDF-1.4\n1 0 obj (The plan stands.) endobj\n%%EOF\n", "a PDF file", "pdftotext"),
        (stub_docx(), "zip archive, as .docx", "pandoc --wrap=none -t plain"),
        (b"{\\rtf1 The plan stands.}", "RTF", "pandoc --wrap=none -f rtf"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "old Office", "soffice"),
        (b"\x89PNG\r\n", "an image", "tesseract"),
    ],
)
def test_rejects_other_files_with_a_command(data: bytes, kind: str, command: str) -> None:
    name = "a b'; rm -rf ~.doc"
    with pytest.raises(InputError) as error:
        text_of(data, name=name)
    assert kind in str(error.value)
    assert f"convert it: {command}" in str(error.value)
    assert shlex.quote(name) in str(error.value)  # to be pasted into a shell


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_marks_of_byte_order(encoding: str) -> None:
    assert text_of("naïve 🙂".encode(encoding)) == "naïve 🙂"
    for order in ("le", "be"):
        data = "\ufeffnaïve 🙂".encode(f"{encoding}-{order}")
        assert text_of(data) == "naïve 🙂"
        with pytest.raises(InputError, match="got a mark of"):
            text_of(data[:-1])
    assert text_of("naïve".encode("utf-8-sig")) == "\ufeffnaïve"  # read as ever: an invisible character


def test_other_encodings() -> None:
    assert text_of("it’s naïve".encode("cp1252"), "cp1252") == "it’s naïve"
    assert text_of("naïve".encode("utf-16-le"), "utf-16-le") == "naïve"
    with pytest.raises(InputError, match=r"byte 2 is 0x92, which is not UTF-8.*--encoding cp1252.*iconv"):
        text_of("it’s".encode("cp1252"))
    with pytest.raises(InputError, match="--encoding utf-16-le"):
        text_of("a plan for all".encode("utf-16-le"))
    with pytest.raises(InputError, match="byte 3: not ascii"):
        text_of("naïve"[:2].encode() + b"a\xff", "ascii")
    assert text_of(b"one \0 zero byte in a long enough text") == "one \0 zero byte in a long enough text"
    assert text_of(b"<html>agents write that, too</html>").startswith("<html>")
    check_encoding(None)
    for wrong in ("morse", "base64", ""):
        with pytest.raises(InputError, match="encoding: got"):
            check_encoding(wrong)
