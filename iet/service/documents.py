"""Documents instead of JSON: the body is the unchanged file, and Content-Type names its format."""

from __future__ import annotations

import dataclasses
import email.message

from iet.audit import formats
from iet.audit.documents import check_encoding
from iet.errors import InputError
from iet.service.requests import AuditRequest, of_query

MEDIA = {
    "application/pdf": ".pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "message/rfc822": ".eml",
    "application/x-ipynb+json": ".ipynb",
}
"""Type -> kind of document, as `iet.audit.formats` has it.

No web page can have a browser send one of these to another site without its consent, as it can `text/plain`.
"""

NAMES = {end: media for media, end in reversed(MEDIA.items())}
NAMES |= {".htm": NAMES[".html"], ".xhtml": "application/xhtml+xml"}
"""End of a file's name -> type."""

UNPACKED = 16
"""How many times as much as a body a document may hold when it is unpacked."""


class TooLong(InputError):
    """A document holds more text than the service takes."""


@dataclasses.dataclass(frozen=True)
class Upload:
    """The parts of a request whose body is a document, apart from that body.

    Attributes:
        media: the Content-Type, as it came.
        query: the options, as they came.
        limit: bytes of its text.
    """

    media: str
    query: str
    limit: int


def accepted() -> tuple[str, ...]:
    """Return the types of documents that the packages at hand can read."""
    return tuple(media for media, end in MEDIA.items() if formats.readable(end))


def request(body: bytes, upload: Upload) -> AuditRequest:
    """Return the request for the text of a document.

    Raises:
        InputError, pydantic.ValidationError: the options are wrong, or the document is.
        TooLong: there is too much text.
        MemoryError: reading it takes more than there is.
    """
    options = of_query(upload.query)
    said = email.message.Message()
    said["content-type"] = upload.media
    try:
        end, charset = MEDIA[said.get_content_type()], said.get_content_charset()
    except (ValueError, TypeError):  # malformed part numbers (RFC 2231)
        raise InputError("content-type: got parameters that cannot be read, expected charset=NAME") from None
    if end != ".html":
        charset = None  # the others say themselves what they are written in
    check_encoding(charset)
    text = formats.read(body, end, encoding=charset, most=UNPACKED * upload.limit)
    size = len(text.encode())
    if size > upload.limit:
        raise TooLong(f"body: got a document with {size:,} bytes of text, expected at most {upload.limit:,}")
    found: AuditRequest = AuditRequest.model_construct(**dict(options), text=text)
    return found
