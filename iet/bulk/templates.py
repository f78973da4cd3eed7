"""Find passages that many documents share, in a first pass over all of them and in bounded memory.

Documents are cut into fragments of about 64 characters (or 16 ids) by their content: a hash of the last
symbols decides whether a fragment ends, so equal passages are cut equally. A table counts the documents of
each fragment. Counts do not depend on keys, so p-values stay exact.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np

from iet.errors import InputError, check_number
from iet.marks.files import write_file
from iet.native.arrays import Bools, Int64s, UInt64s
from iet.native.load import loops

FRAGMENT_CHARACTERS, FRAGMENT_IDS = 64, 16
"""Symbols of an average fragment; the shortest has half as many. They double until the table has room."""

MAX_SLOTS = 1 << 23
"""Size of the largest table: 20 bytes a slot, two slots or more for each fragment that is expected."""


@dataclasses.dataclass(frozen=True, eq=False)
class Templates:
    """The fragments that many documents share.

    Attributes:
        fragment: symbols of an average fragment, a power of two.
        hashes: uint64 [P], of the fragments, ascending.
        firsts: int64 [P], the first document of each; it counts as evidence only there.
    """

    fragment: int
    hashes: UInt64s
    firsts: Int64s

    def elsewhere(self, document: int, symbols: UInt64s) -> Int64s:
        """Return the spans [N, 2] of a document that count in an earlier one, in symbols."""
        ends, hashes = _fragments(symbols, self.fragment)
        if not len(self.hashes) or not len(ends):
            return np.zeros((0, 2), np.int64)
        at = np.searchsorted(self.hashes, hashes).clip(0, len(self.hashes) - 1)
        shared: Bools = (self.hashes[at] == hashes) & (self.firsts[at] != document)
        edges = np.flatnonzero(np.diff(shared, prepend=False, append=False))
        return np.append(0, ends)[edges].reshape(-1, 2)

    def data(self) -> bytes:
        """Return the content of a file for `load`."""
        content = io.BytesIO()
        np.savez(content, fragment=self.fragment, hashes=self.hashes, firsts=self.firsts)
        return content.getvalue()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file for `load`, completely or not at all."""
        write_file(path, self.data())

    @classmethod
    def load(cls, path: str | os.PathLike[str] | BinaryIO) -> Templates:
        """Read a file of `save`, by its path or opened.

        Raises:
            InputError: the file is missing, or has another content.
        """
        try:
            with np.load(path) as stored:
                return cls(int(stored["fragment"]), stored["hashes"], stored["firsts"])
        except InputError:  # a store cannot be reached
            raise
        except Exception as error:  # NumPy and zipfile raise a dozen kinds
            name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path.name
            raise InputError(
                f"templates: got {name!r:.200} ({type(error).__name__}), expected a file that"
                " iet.bulk.templates.shared made"
            ) from None


def shared(
    documents: Iterable[tuple[str | int, Any]], *, least: int = 5, ids: bool = False, size: int | None = None
) -> Templates:
    """Return the passages that `least` documents or more share, for a framework that audits in batches.

        shared(zip(data["id"], data["text"])).save("templates.npz")
        data.with_format("arrow").map(Annotator("team.json", templates="templates.npz", id_column="id"), ...)

    Args:
        documents: name and text (or UTF-8 bytes) of each, or with `ids` its token ids. A passage counts only
            in the first, so pass only documents that are audited (with `ids`, all in the vocabulary).
            Other values are skipped.
        least: number of documents, at least 2.
        ids: whether documents are token ids.
        size: expected total number of characters (or ids); None: use the largest table, 168 MB.

    Raises:
        InputError: `least` is out of range, or a name has another type.

    One pass, in bounded memory (`count`). Deterministic.
    """
    check_number("least", least, 2)
    fragment = FRAGMENT_IDS if ids else FRAGMENT_CHARACTERS
    numbered = ((number_of(name), symbols_of(value, ids)) for name, value in documents)
    return count(
        ((number, symbols) for number, symbols in numbered if symbols is not None),
        least=least,
        size=MAX_SLOTS * fragment // 2 if size is None else size,
        fragment=fragment,
    )


def loaded(templates: Any) -> Templates | None:
    """Return the result of `shared`, which is read if it is a path.

    Raises:
        InputError: it has another type.
    """
    if templates is None or isinstance(templates, Templates):
        return templates
    if not isinstance(templates, (str, os.PathLike)):
        raise InputError(
            f"templates: got {templates!r:.80}, expected the result of iet.bulk.templates.shared over all"
            " documents, or the path of its file, as a batch does not show how many documents share a passage"
            " (iet audit INPUT... --templates counts them itself)"
        )
    return Templates.load(templates)


def number_of(name: Any) -> int:
    """Return a 63-bit hash of a document's name.

    Raises:
        InputError: it is neither a string nor an integer.
    """
    if isinstance(name, bool) or not isinstance(name, (str, int, np.integer)):
        raise InputError(f"id of a document: got {name!r:.80}, expected a string or an integer")
    digest = hashlib.blake2b(str(name).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def count(documents: Iterable[tuple[int, UInt64s]], *, least: int, size: int, fragment: int) -> Templates:
    """Return the fragments that `least` documents or more share.

    Args:
        documents: number and `symbols_of` each, in order; a fragment counts in the first.
        least: number of documents.
        size: expected total number of symbols. If there are more, late fragments that do not fit into the
            table are not counted.
        fragment: minimum symbols of an average fragment, a power of two.

    Cost: O(1) a symbol; 20 bytes for each slot of a table of at most `MAX_SLOTS`, 168 MB. Deterministic.
    """
    while 2 * size > MAX_SLOTS * fragment:
        fragment *= 2
    slots = min(MAX_SLOTS, 1 << max(10, (2 * size // fragment).bit_length()))
    hashes, counts = np.zeros(slots, np.uint64), np.zeros(slots, np.uint32)
    firsts = np.zeros(slots, np.int64)
    for document, symbols in documents:
        # A fragment counts once in a document.
        loops.count_fragments(np.unique(_fragments(symbols, fragment)[1]), document, hashes, counts, firsts)
    common = np.flatnonzero(counts >= least)
    common = common[np.argsort(hashes[common])]
    return Templates(fragment, hashes[common], firsts[common])


def symbols_of(value: Any, ids: bool) -> UInt64s | None:
    """Return a document's code points or ids, uint64 [N]; None if the value is not a document."""
    try:
        if ids:
            array = np.asarray(value)
            return array.astype(np.uint64) if array.ndim == 1 and array.dtype.kind in "iu" else None
        text = value.decode() if isinstance(value, bytes) else value
        return np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None


def _fragments(symbols: UInt64s, fragment: int) -> tuple[Int64s, UInt64s]:
    """Return the ends and hashes of a document's fragments."""
    ends = np.empty(len(symbols) // (fragment // 2) + 1, np.int64)
    hashes = np.empty(len(ends), np.uint64)
    count = loops.hash_fragments(symbols, fragment // 2, fragment // 2 - 1, ends, hashes)
    return ends[:count], hashes[:count]
