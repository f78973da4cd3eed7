"""Read the text of a file by its content; refuse other files with advice."""

from __future__ import annotations

import codecs
import shlex

from iet.audit import formats
from iet.errors import BackendUnavailable, InputError
from iet.marks.files import kind_of_keys

_PLAIN = "pandoc --wrap=none -t plain {file} -o {file}.txt"
_FORMATS = (
    (b"%PDF-", "a PDF file", "pdftotext -layout {file} {file}.txt"),
    (b"PK\x03\x04", "a zip archive, as .docx, .odt and .xlsx are", _PLAIN),
    (b"\xd0\xcf\x11\xe0", "a file of an old Office", "soffice --convert-to txt:Text {file}"),
    (b"{\\rtf", "rich text (RTF)", "pandoc --wrap=none -f rtf -t plain {file} -o {file}.txt"),
    (b"\x1f\x8b", "gzip", "gzip -dc {file} > {file}.txt"),
    (b"\x28\xb5\x2f\xfd", "Zstandard", "zstd -dc {file} > {file}.txt"),
    (b"PAR1", "a Parquet file", "give it the name *.parquet"),
    (b"\x89PNG", "an image", "tesseract {file} {file}"),
    (b"\xff\xd8\xff", "an image", "tesseract {file} {file}"),
    (b"GIF8", "an image", "tesseract {file} {file}"),
)
# Marks of byte order; those of UTF-32 begin like those of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def check_encoding(encoding: str | None) -> None:
    """Raise an InputError unless this is None or the name of an encoding of text."""
    try:
        if encoding is not None:
            b"text".decode(encoding, "replace")  # of nothing no codec is asked for
    except (LookupError, ValueError):
        raise InputError(
            f"encoding: got {encoding!r:.80}, expected one that Python knows, such as cp1252 or utf-16"
        ) from None


def text_of(data: bytes, encoding: str | None = None, *, name: str = "FILE") -> str:
    """Return the text that a file holds.

    Args:
        data: its content.
        encoding: of the text, for Python's codecs. None: UTF-8, or what a mark of byte order says (UTF-16,
            UTF-32, whose mark is left out).
        name: of the file, in the command that would convert it.

    Raises:
        InputError: it is a file of another kind (an old Office, RTF, an archive, an image), or other bytes,
            or a document (`iet.audit.formats`) that is damaged, or that nothing is installed to read; or it
            holds secret keys (`iet.marks.files.kind_of_keys`).

    Source code, Markdown and similar files are text and are read unchanged. With an `encoding`, every file
    is.
    """
    _refuse_keys(data)
    text = _decoded(data, encoding, name)
    _refuse_keys(text.encode(errors="replace"))  # in UTF-16, say, they look otherwise
    return text


def _refuse_keys(data: bytes) -> None:
    """Raise an InputError if what is to be read as text holds secret keys."""
    kind = kind_of_keys(data)
    if kind is not None:
        raise InputError(f"got {kind}, whose secrets a report would show; expected text")


def _decoded(data: bytes, encoding: str | None, name: str) -> str:
    if encoding is not None:
        try:
            return data.decode(encoding)
        except UnicodeError as error:
            start = getattr(error, "start", 0)
            raise InputError(f"byte {start}: not {encoding}; expected text in this encoding") from None
    file = shlex.quote(name)
    end = formats.format_of(data, name)
    if end is not None:
        try:
            return formats.read(data, end)
        except BackendUnavailable as error:
            convert = next((command for start, _, command in _FORMATS if data.startswith(start)), _PLAIN)
            kind = next((kind for start, kind, _ in _FORMATS if data.startswith(start)), f"a {end} file")
            raise InputError(
                f"got {kind}, expected text; convert it: {convert.format(file=file)} ({error})"
            ) from None
    for mark, codec in _MARKS:
        if data.startswith(mark):
            try:
                return data.decode(codec)
            except UnicodeError:
                raise InputError(f"got a mark of {codec}, but not its text; expected UTF-8 text") from None
    for start_bytes, kind, command in _FORMATS:
        if data.startswith(start_bytes):
            raise InputError(f"got {kind}, expected text; convert it: {command.format(file=file)}")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte {error.start} is {data[error.start]:#04x}, which is not UTF-8; expected UTF-8 text, or its"
            f" encoding: --encoding cp1252 (or convert it: iconv -f cp1252 -t utf-8 {file} > NEW.txt)"
        ) from None
    if "\0" in text[:1000] and text[:1000].count("\0") > len(text[:1000]) // 4:
        raise InputError(
            "got zero bytes between letters, as UTF-16 has; expected UTF-8 text, or --encoding utf-16-le"
        )
    return text
