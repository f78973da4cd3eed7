"""Registry files: what damages them, and how a secret would look in a leak."""

from __future__ import annotations

import base64
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from iet.marks.scheme import canonical_digest
from tests.support.teams import secret

V = 1000


def spellings(value: bytes) -> list[str]:
    """Return 32 bytes as they could appear in text: hexadecimal, escaped, base64."""
    return [value.hex(), value.hex().upper(), repr(value)[2:-1], base64.b64encode(value).decode()[:40]]


def rewrite(path: pathlib.Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edit a registry file and mend its checksum, as another release would have written it."""
    content = json.loads(path.read_text())
    content.pop("checksum")
    change(content)
    content["checksum"] = canonical_digest(content)
    path.write_text(json.dumps(content))


def damaged(path: pathlib.Path) -> Iterator[tuple[bytes, str]]:
    """Contents that are no registry, each with what the refusal says."""
    data = path.read_bytes()
    content = json.loads(data)
    yield b"", "not JSON"
    yield data[: len(data) // 2], "not JSON from line"
    yield data[:-4], "not JSON from line"
    yield b"\xff\xfe" + data, "not UTF-8"
    yield data.decode().encode("utf-16"), "not UTF-8"
    yield b"[" * 100_000, "JSON"
    yield b"[]", "no registry file"
    yield b'"iet.registry/1"', "no registry file"
    yield json.dumps({**content, "format": "hunter2"}).encode(), 'its field "format" is not'
    yield (
        json.dumps({**content, "format": "iet.registry/7"}).encode(),
        "format iet.registry/7, of a draft or a later release",
    )
    yield data.replace(b"critic", b"cricket"), "checksum"
    yield data.replace(secret(1).hex().encode(), secret(5).hex().encode()), "checksum"
    yield json.dumps({**content, "checksum": None}).encode(), "checksum"
    yield json.dumps({**content, "note": "\ud800"}).encode(), "checksum"
