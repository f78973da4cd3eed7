"""The files of a chunk, which hold a checksum of all of them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from iet.bulk.folder import Folder, name_of

_DIGEST, _CHECKSUM = b"iet.input", b"iet.chunk"
"""Metadata of a chunk's documents: the digest of the chunk's input, and the checksum of its files."""

_BLANK = b"." * 32
"""Takes the place of the checksum while it is computed. Later metadata in the file, Arrow's, are base64."""


def write_chunk(
    folder: Folder, index: int, digest: str, documents: pa.Table, segments: pa.Table, quarantine: bytes
) -> None:
    """Commit the files of a chunk. The documents come last, and complete it.

    Args:
        folder: of the run.
        index: of the chunk.
        digest: of the chunk's input.
        documents, segments: the rows of the tables.
        quarantine: lines of JSON; an empty file is not written.

    Raises:
        InputError: a file cannot be written, or the folder was replaced.
    """
    described = documents.replace_schema_metadata({**(documents.schema.metadata or {}), _DIGEST: digest})
    segment_bytes, content = _parquet(segments, {}), _parquet(described, {_CHECKSUM: _BLANK})
    at = _checksum_offset(content)
    assert content[at : at + len(_BLANK)] == _BLANK
    checksum = _checksum(content, segment_bytes, quarantine)
    folder.commit(name_of("segments", index), segment_bytes)
    if quarantine:
        folder.commit(name_of("quarantine", index), quarantine)
    folder.commit(name_of("documents", index), content[:at] + checksum + content[at + len(_BLANK) :])


def digest_in(folder: Folder, index: int) -> str | None:
    """Return the digest of a chunk's input, or None if one of its files is missing or was changed."""
    try:
        documents, segments = (_read(folder, name_of(kind, index)) for kind in ("documents", "segments"))
        quarantine = b""
        with contextlib.suppress(FileNotFoundError):
            quarantine = _read(folder, name_of("quarantine", index))
        at = _checksum_offset(documents)
        if documents[at : at + len(_BLANK)] != _checksum(documents, segments, quarantine):
            return None
        with pq.ParquetFile(io.BytesIO(documents)) as file:
            digest = (file.schema_arrow.metadata or {}).get(_DIGEST)
    except (pa.ArrowException, OSError):
        return None
    return None if digest is None else digest.decode()


def read_table(folder: Folder, kind: str, index: int, columns: list[str] | None = None) -> pa.Table:
    """Return the documents or segments of a chunk."""
    # `pq.read_table` would import pyarrow.dataset, which takes 0.2 s.
    with pq.ParquetFile(folder.table(name_of(kind, index))) as file:
        return file.read(columns)


def read_quarantine(folder: Folder, index: int) -> Iterator[dict[str, Any]]:
    """Yield the records of a chunk that could not be read."""
    with contextlib.suppress(FileNotFoundError), folder.open(name_of("quarantine", index)) as file:
        yield from map(json.loads, file)


def _read(folder: Folder, name: str) -> bytes:
    with folder.open(name) as file:
        return file.read()


def _parquet(table: pa.Table, metadata: dict[bytes, bytes]) -> bytes:
    content = io.BytesIO()
    with pq.ParquetWriter(content, table.schema, compression="zstd") as writer:
        writer.write_table(table)
        if metadata:
            writer.add_key_value_metadata(metadata)
    return content.getvalue()


def _checksum_offset(documents: bytes) -> int:
    # Parquet's metadata use Thrift: after a short string follow the type and the length of the next one.
    return documents.rfind(_CHECKSUM) + len(_CHECKSUM) + 2


def _checksum(documents: bytes, segments: bytes, quarantine: bytes) -> bytes:
    """Return the checksum of a chunk's files in hex, computed with a blank checksum."""
    at = _checksum_offset(documents)
    content = hashlib.blake2b(digest_size=len(_BLANK) // 2)
    for part in (documents[:at], _BLANK, documents[at + len(_BLANK) :], segments, quarantine):
        content.update(len(part).to_bytes(8, "little"))
        content.update(part)
    return content.hexdigest().encode()
