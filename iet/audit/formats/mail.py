"""The text of a mail: every part that a mail program shows as its body."""

from __future__ import annotations

import email
import email.policy
from collections.abc import Iterator
from email.message import EmailMessage
from typing import Any

from iet.audit.formats import page
from iet.errors import InputError


def text_of(data: bytes, most: int) -> str:
    """Return the plain parts, in order, and HTML if the plain part is blank or missing.

    Attachments and attached mails are not read. Lines that were broken for `format=flowed` (RFC 3676) are
    joined again.
    """
    message = email.message_from_bytes(data, policy=email.policy.default)
    found = list(_parts(message, most))
    if not found:
        raise InputError("got a mail without a text; expected one with text or HTML")
    return "".join(f"{part}\n" if part[-1:] != "\n" else part for part in found[:-1]) + found[-1]


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
            if subtype in ("related", "signed", "encrypted"):  # what follows belongs to the first part
                parts = parts[:1]
            for part in parts:
                yield from _parts(part, most)
    elif kind == "text" and subtype == "plain":
        text = str(message.get_content())
        if str(message.get_param("format", "")).lower() == "flowed":
            text = unfolded(text, str(message.get_param("delsp", "")).lower() == "yes")
        yield text
    elif kind == "text" and subtype == "html":
        yield page.text_of(message.get_content(), most)


def _best(parts: list[Any], most: int) -> list[str]:
    """Return the text of one of several alternatives: a plain one, unless all plain ones are blank."""
    plain = [part for part in parts if part.get_content_type() == "text/plain"]
    found = list[str]()
    for part in (*plain, *(part for part in parts if part not in plain)):
        found = list(_parts(part, most)) or found
        if any(text.strip() for text in found):
            break
    return found


def unfolded(text: str, del_space: bool) -> str:
    """Return `format=flowed` text with a line for each paragraph (RFC 3676, section 4).

    Args:
        text: with lines as they were sent.
        del_space: whether the space before a soft break was added by the sender (`DelSp=yes`).
    """
    paragraphs, depth, is_open = list[str](), 0, False
    for line in text.replace("\r\n", "\n").split("\n"):
        said = line.lstrip(">")
        quotes = len(line) - len(said)
        said = said.removeprefix(" ")  # which protects a line that begins with a space, ">" or "From "
        if not is_open or quotes != depth or said == "-- ":
            paragraphs.append(f"{'>' * quotes} " if quotes else "")
        depth, is_open = quotes, said.endswith(" ") and said != "-- "
        paragraphs[-1] += said[:-1] if is_open and del_space else said
    return "\n".join(paragraphs)
