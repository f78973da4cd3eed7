"""The text of a mail: every part that a mail program shows as its body."""

from __future__ import annotations

import email
import email.policy
import re
from collections.abc import Iterator
from email.message import EmailMessage
from typing import Any

from iet.audit.formats import page
from iet.errors import InputError

_BLANK = re.compile(r"[\s\u00ad\u200b-\u200f\u2060\ufeff]*")
"""Spaces and characters without a width: newsletters fill a plain part with them."""

_SUPERSETS = {
    **{"iso-8859-1": "cp1252", "latin-1": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"},
    **{"shift_jis": "cp932", "euc-kr": "cp949", "ks_c_5601-1987": "cp949"},
}
"""Charset -> its superset, which many senders use under the same name (WHATWG Encoding, section 4.2)."""


def text_of(data: bytes, most: int) -> str:
    """Return the plain parts, in order, and HTML if the plain part is blank or missing.

    Attachments and attached mails are not read. Lines that were broken for `format=flowed` (RFC 3676) are
    joined again.
    """
    message = email.message_from_bytes(data, policy=email.policy.default)
    texts = list(_parts(message, most))
    if not texts:
        raise InputError("got a mail without a text; expected one with text or HTML")
    return "".join(f"{part}\n" if part[-1:] != "\n" else part for part in texts[:-1]) + texts[-1]


def _parts(message: Any, most: int) -> Iterator[str]:
    assert isinstance(message, EmailMessage)
    kind, subtype = message.get_content_maintype(), message.get_content_subtype()
    if kind == "message" or message.get_content_disposition() == "attachment":
        return
    if kind == "multipart":
        parts = list(message.iter_parts())
        if subtype == "alternative":
            yield from _best(parts, most)
        else:
            if subtype in ("related", "signed", "encrypted"):  # the other parts belong to one of them
                parts = _root(message, parts)
            for part in parts:
                yield from _parts(part, most)
    elif kind == "text" and subtype in ("plain", "markdown"):
        text = _decoded(message)
        if str(message.get_param("format", "")).lower() == "flowed":
            text = unfolded(text, str(message.get_param("delsp", "")).lower() == "yes")
        yield text
    elif kind == "text" and subtype == "html":
        is_named = message.get_param("charset") is not None
        yield page.text_of(_decoded(message) if is_named else _bytes(message), most)


def _bytes(message: EmailMessage) -> bytes:
    content = message.get_payload(decode=True)
    assert isinstance(content, bytes)
    return content


def _decoded(message: EmailMessage) -> str:
    """Decode a part by its charset, or by UTF-8 if it names none or its bytes do not fit.

    Bytes that fit neither become U+FFFD, as in mail programs.
    """
    content, charset = _bytes(message), message.get_content_charset("us-ascii")
    charset = _SUPERSETS.get(charset, charset)
    for codec in (charset, "utf-8"):
        try:
            return content.decode(codec)
        except UnicodeError:
            continue
    return content.decode(charset, "replace")


def _root(message: EmailMessage, parts: list[Any]) -> list[Any]:
    """Return the part that `start` names (RFC 2387, section 3.2), or the first one."""
    start = str(message.get_param("start", "")).strip()
    named = [part for part in parts if start and str(part.get("Content-ID", "")).strip() == start]
    return (named or parts)[:1]


def _best(parts: list[Any], most: int) -> list[str]:
    """Return the text of one of several alternatives: a plain one, unless all plain ones are blank."""
    plain = [part for part in parts if part.get_content_type() == "text/plain"]
    texts = list[str]()
    for part in (*plain, *(part for part in parts if part not in plain)):
        texts = list(_parts(part, most)) or texts
        if not all(_BLANK.fullmatch(text) for text in texts):
            break
    return texts


def unfolded(text: str, del_space: bool) -> str:
    """Return `format=flowed` text with a line for each paragraph (RFC 3676, section 4).

    Args:
        text: with lines as they were sent.
        del_space: whether the space before a soft break was added by the sender (`DelSp=yes`).
    """
    paragraphs, depth, is_open = list[list[str]](), 0, False
    for line in text.replace("\r\n", "\n").split("\n"):
        content = line.lstrip(">")
        quotes = len(line) - len(content)
        content = content.removeprefix(" ")  # which protects a line that begins with a space, ">" or "From "
        if not is_open or quotes != depth or content == "-- ":
            paragraphs.append([f"{'>' * quotes} " if quotes else ""])
        depth, is_open = quotes, content.endswith(" ") and content != "-- "
        paragraphs[-1].append(content[:-1] if is_open and del_space else content)
    return "\n".join(map("".join, paragraphs))
