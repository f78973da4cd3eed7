"""The files of a chunk, written so that a byte of them that changed later is noticed."""

from __future__ import annotations

import contextlib
import hashlib
import io

import pyarrow as pa
import pyarrow.parquet as pq

from iet.bulk.folder import Folder, name_of

_DIGEST, _SEAL = b"iet.input", b"iet.chunk"
"""Under these a chunk's documents hold the digest of what they were read from, and of the chunk's files."""

_BLANK = b"." * 32
"""Stands for the seal where it is computed. Arrow's own metadata, behind it in the file, are base64."""


def write_chunk(
    folder: Folder, index: int, digest: str, documents: pa.Table, segments: pa.Table, quarantine: bytes
) -> None:
    """Commit the files of a chunk, the documents last: once they stand, it is done.

    Args:
        folder: of the run.
        index: of the chunk.
        digest: of what it was read from.
        documents, segments: their rows.
        quarantine: lines of JSON; empty: there is no such file.

    Raises:
        InputError: one cannot be written, or the folder is another one.
    """
    described = documents.replace_schema_metadata({**(documents.schema.metadata or {}), _DIGEST: digest})
    parts, whole = _parquet(segments, {}), _parquet(described, {_SEAL: _BLANK})
    at = _place(whole)
    assert whole[at : at + len(_BLANK)] == _BLANK
    seal = _sealed(whole, parts, quarantine)
    folder.commit(name_of("segments", index), parts)
    if quarantine:
        folder.commit(name_of("quarantine", index), quarantine)
    folder.commit(name_of("documents", index), whole[:at] + seal + whole[at + len(_BLANK) :])


def digest_in(folder: Folder, index: int) -> str | None:
    """Return what a chunk was read from; None if one of its files is missing or not as it was written."""
    try:
        documents, segments = (_read(folder, name_of(kind, index)) for kind in ("documents", "segments"))
        quarantine = b""
        with contextlib.suppress(FileNotFoundError):
            quarantine = _read(folder, name_of("quarantine", index))
        seal = _sealed(documents, segments, quarantine)
        if documents[(at := _place(documents)) : at + len(_BLANK)] != seal:
            return None
        with pq.ParquetFile(io.BytesIO(documents)) as stored:
            found = (stored.schema_arrow.metadata or {}).get(_DIGEST)
    except (pa.ArrowException, OSError):
        return None
    return None if found is None else found.decode()


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


def _place(documents: bytes) -> int:
    # Parquet's metadata are in Thrift: behind a short string stand the type and the length of the next.
    return documents.rfind(_SEAL) + len(_SEAL) + 2


def _sealed(documents: bytes, segments: bytes, quarantine: bytes) -> bytes:
    """Return the digest of a chunk's files, in hex, with the place of the seal blank."""
    at = _place(documents)
    content = hashlib.blake2b(digest_size=len(_BLANK) // 2)
    for part in (documents[:at], _BLANK, documents[at + len(_BLANK) :], segments, quarantine):
        content.update(len(part).to_bytes(8, "little"))
        content.update(part)
    return content.hexdigest().encode()
