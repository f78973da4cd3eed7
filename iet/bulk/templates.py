"""Passages that many documents share, found in a first pass over all of them, in bounded memory.

Documents are cut into fragments of some 64 characters (or 16 ids) by their content: a fragment ends behind
symbols whose hash says so, so a passage is cut alike wherever it stands. A table counts in how many documents
each fragment stands. Nothing of it depends on a key, so p-values stay what they are.
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
    """The fragments that stand in many documents.

    Attributes:
        fragment: symbols of an average fragment, a power of two.
        hashes: uint64 [P], of the fragments, ascending.
        firsts: int64 [P], the first document of each: there it counts as evidence.
    """

    fragment: int
    hashes: UInt64s
    firsts: Int64s

    def elsewhere(self, document: int, symbols: UInt64s) -> Int64s:
        """Return the stretches [N, 2] of a document whose evidence counts in an earlier one, in symbols."""
        ends, hashes = _fragments(symbols, self.fragment)
        if not len(self.hashes) or not len(ends):
            return np.zeros((0, 2), np.int64)
        at = np.searchsorted(self.hashes, hashes).clip(0, len(self.hashes) - 1)
        shared: Bools = (self.hashes[at] == hashes) & (self.firsts[at] != document)
        edges = np.flatnonzero(np.diff(shared, prepend=False, append=False))
        return np.append(0, ends)[edges].reshape(-1, 2)

    def data(self) -> bytes:
        """Return the content of a file that `load` reads."""
        content = io.BytesIO()
        np.savez(content, fragment=self.fragment, hashes=self.hashes, firsts=self.firsts)
        return content.getvalue()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that `load` reads, whole or not at all."""
        write_file(path, self.data())

    @classmethod
    def load(cls, path: str | os.PathLike[str] | BinaryIO) -> Templates:
        """Read what `data` returned, from a file or one that is open.

        Raises:
            InputError: the file is missing, or holds something else.
        """
        try:
            with np.load(path) as stored:
                return cls(int(stored["fragment"]), stored["hashes"], stored["firsts"])
        except InputError:  # of a store that cannot be reached
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
    """Return the passages that stand in `least` documents or more, for a framework that audits in batches.

        shared(zip(data["id"], data["text"])).save("templates.npz")
        data.with_format("arrow").map(Annotator("team.json", templates="templates.npz", id_column="id"), ...)

    Args:
        documents: the name of each, and its text (or UTF-8 bytes), or with `ids` its token ids; the first
            that holds a passage is where that counts, so give those alone that are audited (with `ids` none
            outside the vocabulary). What is no document is passed over.
        least: number of documents, at least 2.
        ids: whether documents are token ids.
        size: expected number of characters (or ids) in all; None: the largest table, 168 MB, is taken.

    Raises:
        InputError: `least` or a name is not what is expected.

    One pass, in bounded memory, as `count` says. Deterministic.
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
    """Return what `shared` found, read from its file if that is given.

    Raises:
        InputError: it is neither.
    """
    if templates is None or isinstance(templates, Templates):
        return templates
    if not isinstance(templates, (str, os.PathLike)):
        raise InputError(
            f"templates: got {templates!r:.80}, expected what iet.bulk.templates.shared found in a pass over"
            " all documents, or the path where it was saved: a batch does not show how many share a passage"
            " (iet audit INPUT... --templates counts by itself)"
        )
    return Templates.load(templates)


def stretches_elsewhere(
    templates: Templates, documents: Iterable[tuple[Any, Any]], ids: bool
) -> list[Int64s]:
    """Return for each (name, record) the stretches [N, 2] whose evidence counts in an earlier document."""
    found = list[Int64s]()
    for name, value in documents:
        symbols = symbols_of(value, ids)
        nothing = np.zeros((0, 2), np.int64)
        found.append(nothing if symbols is None else templates.elsewhere(number_of(name), symbols))
    return found


def number_of(name: Any) -> int:
    """Return 63 bits that stand for the name of a document.

    Raises:
        InputError: it is neither a string nor an integer.
    """
    if isinstance(name, bool) or not isinstance(name, (str, int, np.integer)):
        raise InputError(f"id of a document: got {name!r:.80}, expected a string or an integer")
    digest = hashlib.blake2b(str(name).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def count(documents: Iterable[tuple[int, UInt64s]], *, least: int, size: int, fragment: int) -> Templates:
    """Return the fragments that stand in `least` documents or more.

    Args:
        documents: number and `symbols_of` each, in the order in which passages are first.
        size: expected number of symbols in all. Where there are more, fragments that come too late to find
            room in the table are not counted.
        fragment: symbols of an average fragment, a power of two: the least that is used.

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
    found = np.flatnonzero(counts >= least)
    found = found[np.argsort(hashes[found])]
    return Templates(fragment, hashes[found], firsts[found])


def symbols_of(value: Any, ids: bool) -> UInt64s | None:
    """Return a document as symbols, uint64 [N]: its code points or its ids; None: it is no document."""
    try:
        if ids:
            array = np.asarray(value)
            return array.astype(np.uint64) if array.ndim == 1 and array.dtype.kind in "iu" else None
        text = value.decode() if isinstance(value, bytes) else value
        return np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None


def _fragments(symbols: UInt64s, fragment: int) -> tuple[Int64s, UInt64s]:
    """Return where the fragments of a document end, and their hashes."""
    ends = np.empty(len(symbols) // (fragment // 2) + 1, np.int64)
    hashes = np.empty(len(ends), np.uint64)
    count = loops.fragments(symbols, fragment // 2, fragment // 2 - 1, ends, hashes)
    return ends[:count], hashes[:count]
