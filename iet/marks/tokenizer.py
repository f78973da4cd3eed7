"""Find a tokenizer, take the digest of what it does, and turn text into ids with character offsets."""

from __future__ import annotations

import array
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from iet.errors import InputError
from iet.marks.scheme import canonical_digest
from iet.marks.tokenizer_files import DEMO_MODEL as DEMO_MODEL
from iet.marks.tokenizer_files import DEMO_SOURCE as DEMO_SOURCE
from iet.marks.tokenizer_files import open_source
from iet.marks.word_cache import WordCache, is_cacheable
from iet.native.arrays import Bools, Int64s, UInt8s
from iet.native.loops import loop

if TYPE_CHECKING:
    import tokenizers

INVISIBLE = frozenset(
    [
        *(0x00AD, 0x180E, 0x200B, 0x2060, 0xFEFF),
        *range(0xFE00, 0xFE10),
        *range(0xE0000, 0xE0080),
        *range(0xE0100, 0xE01F0),
    ]
)
"""Code points that carry no text (soft hyphen, zero-width space, word joiner, byte-order mark, variation
selectors, tags). An audit skips them, because inserted ones would change the ids around them. The
zero-width joiners U+200C and U+200D spell words in several scripts and stay."""

_IS_INVISIBLE = np.zeros(max(INVISIBLE) + 2, dtype=np.bool_)  # the last entry: all higher code points
_IS_INVISIBLE[list(INVISIBLE)] = True


@functools.cache
def _decomposed() -> re.Pattern[str]:
    """Return the pattern of a character and those after it that Unicode may compose with it."""
    points = [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]  # vowels and final consonants of Hangul
    for point in range(0x300, 0x20000):
        character = chr(point)
        parts = unicodedata.decomposition(character).split()
        if unicodedata.combining(character):
            points.append(point)
        if len(parts) == 2 and "<" not in parts[0]:
            points.append(int(parts[1], 16))  # some of these are no combining characters
    marks = "".join(map(chr, sorted({point for point in points if point >= 0x300})))
    return re.compile(f"[^{marks}][{marks}]+")


@dataclasses.dataclass(frozen=True, eq=False)
class Encoding:
    """A text in tokens.

    Attributes:
        token_ids: int64 [T].
        skipped: number of invisible characters that were left out.
        elsewhere: bool [T], the tokens whose evidence counts in another document; None: none.
        published: bool [T], the tokens whose (context, token) pair was published before; None: unknown.
    """

    token_ids: Int64s
    skipped: int = 0
    _offsets: _Offsets | None = dataclasses.field(default=None, repr=False)
    _kept: Int64s | None = dataclasses.field(default=None, repr=False)
    elsewhere: Bools | None = None
    published: Bools | None = None

    @property
    def char_starts(self) -> Int64s:
        """int64 [T]; see `characters`, which is cheaper for some of the tokens."""
        return self.characters(range(len(self.token_ids)))[:, 0]

    @property
    def char_ends(self) -> Int64s:
        """int64 [T]; see `characters`."""
        return self.characters(range(len(self.token_ids)))[:, 1]

    def characters(self, tokens: Iterable[int]) -> Int64s:
        """Return the code points `[start, end)` of the text as given that some tokens cover, int64 [N, 2].

        Where several tokens spell one character, all cover it. O(N), or O(T) once for a text beyond ASCII.
        """
        assert self._offsets is not None
        offsets = self._offsets.of(np.fromiter(tokens, np.int64)).reshape(-1, 2)
        if self._kept is None:
            return offsets
        starts, ends = offsets.T
        # An end maps through its last character, so that skipped characters after it stay outside.
        ends = np.where(ends > starts, self._kept[np.maximum(ends - 1, 0)] + 1, self._kept[starts])
        return np.stack([self._kept[starts], ends], axis=1)

    def moved(self, places: Int64s) -> Encoding:
        """Return these tokens in the characters of another text, of which this one was made.

        Args:
            places: int64, where each character of this text stands in the other; the last entry is its end.
        """
        return dataclasses.replace(self, _kept=places if self._kept is None else places[self._kept])


class _Offsets(Protocol):
    def of(self, tokens: Int64s) -> Int64s:
        """Return `[start, end)` of some tokens in characters of the text that was encoded, int64 [N, 2]."""


@dataclasses.dataclass(frozen=True)
class _TokenizersOffsets:
    """Offsets that the tokenizer kept while it encoded."""

    encoded: Any

    def of(self, tokens: Int64s) -> Int64s:
        if len(tokens) == len(self.encoded):  # all of them: one list is cheaper than many calls
            offsets = itertools.chain.from_iterable(self.encoded.offsets)
            return np.fromiter(offsets, np.int64, 2 * len(tokens)).reshape(-1, 2)[tokens]
        return np.array([self.encoded.token_to_chars(t) for t in tokens.tolist()], dtype=np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class _SpelledOffsets:
    """Offsets counted along the bytes that the tokens spell, where these are the bytes of the text."""

    raw: UInt8s
    ends: Int64s  # [T], in bytes
    ascii: bool

    @functools.cached_property
    def _characters(self) -> Int64s:
        return np.cumsum((self.raw & 0xC0) != 0x80, dtype=np.int64) - 1  # of each byte: those that begin one

    def of(self, tokens: Int64s) -> Int64s:
        starts = np.where(tokens > 0, self.ends[tokens - 1], 0)
        lasts = self.ends[tokens] - 1
        if not self.ascii:
            starts, lasts = self._characters[starts], self._characters[lasts]
        return np.stack([starts, lasts + 1], axis=1)


@dataclasses.dataclass(frozen=True, eq=False)
class _LateOffsets:
    """Offsets that are found on first use: a text in one segment needs none."""

    tokenizer: Tokenizer
    ids: Int64s
    text: str

    @functools.cached_property
    def _found(self) -> _Offsets:
        return self.tokenizer.offsets(self.ids, self.text)

    def of(self, tokens: Int64s) -> Int64s:
        return self._found.of(tokens)


class _Spelling:
    """The bytes that every token of a byte-level tokenizer spells.

    Keeping offsets costs a tokenizer a third of its time. Where the tokens of a text spell exactly its bytes,
    the offsets follow from their lengths.
    """

    def __init__(self, vocabulary: Mapping[str, int], added: Mapping[str, int]) -> None:
        # Byte-level vocabularies write a byte as a printable character: its own, or one from U+0100 on.
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        rest = [byte for byte in range(256) if byte not in printable]
        to_byte = dict(zip(map(chr, printable), printable, strict=True))
        to_byte |= {chr(256 + i): byte for i, byte in enumerate(rest)}
        spelled = [b""] * (1 + max([*vocabulary.values(), *added.values()], default=0))
        for token, id in vocabulary.items():
            if all(character in to_byte for character in token):
                spelled[id] = bytes(to_byte[character] for character in token)
        for token, id in added.items():
            spelled[id] = token.encode()
        self.lengths = np.array([len(token) for token in spelled], dtype=np.int64)
        self._starts = np.cumsum(self.lengths) - self.lengths
        self._bytes = np.frombuffer(b"".join(spelled), dtype=np.uint8)

    def offsets(self, ids: Int64s, text: str) -> _SpelledOffsets | None:
        """Return the offsets of the tokens of `text`, or None if they do not spell it byte for byte."""
        raw, ends = np.frombuffer(text.encode(), dtype=np.uint8), np.empty(len(ids), np.int64)
        if not _spelled_loop(ids, self._starts, self.lengths, self._bytes, raw, ends):
            return None
        return _SpelledOffsets(raw, ends, text.isascii())


@loop
def _spelled_loop(
    ids: Int64s, starts: Int64s, lengths: Int64s, spelling: UInt8s, raw: UInt8s, ends: Int64s
) -> bool:
    at = 0
    for t in range(len(ids)):
        start, length = starts[ids[t]], lengths[ids[t]]
        if length == 0 or length > len(raw) - at:
            return False
        for i in range(length):
            if spelling[start + i] != raw[at + i]:
                return False
        at += length
        ends[t] = at
    return at == len(raw)


class Tokenizer:
    """A fast tokenizer with the digest of its canonical content.

    Args:
        source: path of a `tokenizer.json` or of a folder that holds one, "iet:demo", the id of a repository
            on the Hub (`iet.marks.tokenizer_files.open_source`), a `tokenizers.Tokenizer`, or a fast
            tokenizer of transformers.

    Raises:
        TokenizerMismatch: nothing readable is there.
        BackendUnavailable: an id of the Hub, without huggingface_hub.
        InputError: the object is none of these (a slow tokenizer has no character offsets).
    """

    def __init__(self, source: Any) -> None:
        self.source: str | None = None
        if isinstance(source, (str, os.PathLike)):
            self.source, self.backend = open_source(os.fspath(source))
        else:
            self.backend = _from_object(source)
        # An audit reads the whole text, without special tokens, with offsets that tile it; all three would
        # cut, fill or trim. The backend is our own, so the caller's tokenizer keeps its settings.
        self.backend.no_truncation()
        self.backend.no_padding()
        self.backend.post_processor = None
        traits = _traits(self.backend.to_str())
        self.digest, self.special_ids = traits.digest, traits.special_ids
        self.vocab_size: int = self.backend.get_vocab_size(with_added_tokens=True)
        self._byte_level = traits.byte_level
        self._words = WordCache(self.backend, self._token_lengths) if traits.by_words else None
        self._characters = 0  # encoded so far

    def encode(self, text: str) -> Encoding:
        """Return the ids of `text`, without special tokens, with offsets into `text` as given.

        Raises:
            InputError: `text` is not a str, or holds a lone surrogate (not valid Unicode).
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Return `encode` of every text, in one call to the tokenizer, which may use several threads."""
        visible = [_visible(text) for text in texts]
        cleaned = [clean for clean, _, _ in visible]
        found: list[tuple[Int64s, _Offsets]]
        if self._spelling_pays(sum(map(len, cleaned))):
            ids = self._ids_of(cleaned)
            found = [(i, _LateOffsets(self, i, text)) for i, text in zip(ids, cleaned, strict=True)]
        else:
            batch = self.backend.encode_batch(cleaned, add_special_tokens=False)
            found = [(_int64(encoded.ids), _TokenizersOffsets(encoded)) for encoded in batch]
        return [
            Encoding(ids, hidden, offsets, kept)
            for (_, kept, hidden), (ids, offsets) in zip(visible, found, strict=True)
        ]

    def _ids_of(self, texts: list[str]) -> list[Int64s]:
        if self._words is not None:
            return self._words.ids_of(texts)
        batch = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        return [_int64(encoded.ids) for encoded in batch]

    def offsets(self, ids: Int64s, text: str) -> _Offsets:
        """Return the offsets of `ids`, the tokens of `text`."""
        spelled = self._spelling.offsets(ids, text)
        return spelled or _TokenizersOffsets(self.backend.encode(text, add_special_tokens=False))

    def _spelling_pays(self, characters: int) -> bool:
        """Tell whether enough is encoded for the table of the vocabulary's bytes to be worth making."""
        self._characters += characters
        return self._byte_level and self._characters > 8 * self.vocab_size

    @functools.cached_property
    def _spelling(self) -> _Spelling:
        everything: dict[str, int] = self.backend.get_vocab(with_added_tokens=True)
        added = {token.content: id for id, token in self.backend.get_added_tokens_decoder().items()}
        return _Spelling({token: id for token, id in everything.items() if token not in added}, added)

    def _token_lengths(self) -> Int64s:
        return self._spelling.lengths

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of `token_ids`, special tokens left out."""
        text: str = self.backend.decode(token_ids, skip_special_tokens=True)
        return text


def _int64(ids: list[int]) -> Int64s:
    # Through an array of the standard library: twice as fast as from a list.
    return np.array(array.array("I", ids), dtype=np.int64)


def _visible(text: object) -> tuple[str, Int64s | None, int]:
    """Return `text` without `INVISIBLE` and composed (`_composed`), its positions, the number left out.

    Positions None: all are kept. The last entry is the end of `text`.
    """
    if not isinstance(text, str):
        raise InputError(f"text: got {type(text).__name__}, expected str")
    if text.isascii():
        return text, None, 0
    try:
        points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    except UnicodeEncodeError as error:
        raise InputError(
            f"text: character {error.start} is the lone surrogate U+{ord(text[error.start]):04X},"
            " expected text that UTF-8 can hold"
        ) from None
    suspects = np.flatnonzero(points >= min(INVISIBLE))
    hidden = suspects[_IS_INVISIBLE[np.minimum(points[suspects], len(_IS_INVISIBLE) - 1)]]
    kept = None
    if len(hidden):
        visible = np.ones(len(points), dtype=np.bool_)
        visible[hidden] = False
        text = points[visible].tobytes().decode("utf-32-le")
        kept = np.append(np.flatnonzero(visible), len(points)).astype(np.int64)
    return *_composed(text, kept), len(hidden)


def _composed(text: str, kept: Int64s | None) -> tuple[str, Int64s | None]:
    """Return the text with each base character and its marks composed where that is shorter, and `kept`.

    Language models write composed characters. In text that was decomposed later (NFD, as some file systems
    and editors do), every token with an accent would be another one, and in Korean every token. Where NFC
    would only exchange characters or take them apart, they stay.
    """
    if unicodedata.is_normalized("NFC", text):
        return text, kept
    parts, dropped, at = list[str](), list[int](), 0
    for match in _decomposed().finditer(text):
        short = unicodedata.normalize("NFC", _ordered(match.group()))
        if len(short) < len(match.group()):
            parts += [text[at : match.start()], short]
            dropped += range(match.start() + len(short), match.end())
            at = match.end()
    if not dropped:
        return text, kept
    places = np.arange(len(text) + 1) if kept is None else kept
    return "".join([*parts, text[at:]]), np.delete(places, dropped)


def _ordered(cluster: str) -> str:
    """Return the same characters with long runs of marks in canonical order, in which NFC puts them anyway.

    `unicodedata` does so by insertion, which takes the square of the marks: a run of 40,000 takes seconds.
    """
    if len(cluster) <= 32:
        return cluster
    runs = itertools.groupby(cluster, lambda character: unicodedata.combining(character) > 0)
    return "".join(
        character
        for marks, run in runs
        for character in (sorted(run, key=unicodedata.combining) if marks else run)
    )


def _from_object(source: Any) -> tokenizers.Tokenizer:
    import tokenizers

    source = getattr(source, "backend_tokenizer", source)
    if type(source).__module__.split(".")[0] != "tokenizers" or not hasattr(source, "to_str"):
        raise InputError(
            f"tokenizer: got {type(source).__name__}, expected a path, a tokenizers.Tokenizer or a fast"
            " transformers tokenizer"
        )
    try:
        return tokenizers.Tokenizer.from_str(source.to_str())
    except Exception as error:  # the Rust side raises plain Exception, for parts written in Python
        raise InputError(f"tokenizer: it cannot be copied ({error})") from None


class _Traits(NamedTuple):
    """What the content of a tokenizer says of it."""

    digest: str
    special_ids: tuple[int, ...]
    byte_level: bool
    by_words: bool  # whether a text has the ids of its words


_TRAITS = dict[bytes, _Traits]()
"""By the digest of the content as it is written. A program opens the same few tokenizers again and again."""


def _traits(written: str) -> _Traits:
    key = hashlib.blake2b(written.encode()).digest()
    found = _TRAITS.get(key)
    if found is None:
        content = json.loads(written)
        special = (token["id"] for token in content["added_tokens"] if token["special"])
        byte_level = "'ByteLevel'" in repr(content["pre_tokenizer"])
        by_words = byte_level and is_cacheable(content)
        found = _Traits(_content_digest(content), tuple(sorted(special)), byte_level, by_words)
        if len(_TRAITS) >= 64:
            _TRAITS.clear()
        _TRAITS[key] = found
    return found


def _content_digest(content: dict[str, Any]) -> str:
    # Canonical content, not file bytes: saving again rewrites those. Truncation, padding and the
    # post-processor are left out, because an audit encodes without them.
    model = dict(content["model"])
    if "merges" in model:
        # Older files write a merge as "a b", newer ones as ["a", "b"].
        model["merges"] = [m.split(" ", 1) if isinstance(m, str) else list(m) for m in model["merges"]]
    added = [
        {
            key: token[key]
            for key in ("id", "content", "special", "lstrip", "rstrip", "normalized", "single_word")
        }
        for token in content["added_tokens"]
    ]
    return canonical_digest(
        {
            "model": model,
            "added_tokens": sorted(added, key=lambda token: token["id"]),
            "normalizer": content["normalizer"],
            "pre_tokenizer": content["pre_tokenizer"],
        }
    )
