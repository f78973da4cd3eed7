"""Tokenizers: the digest of their content, and token ids of a text with character offsets."""

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from iet.errors import InputError
from iet.marks.scheme import canonical_digest
from iet.marks.tokenizer_files import DEMO_MODEL as DEMO_MODEL
from iet.marks.tokenizer_files import DEMO_SOURCE as DEMO_SOURCE
from iet.marks.tokenizer_files import open_source
from iet.marks.tokenizer_formats import BYTES
from iet.marks.word_cache import WordCache, is_cacheable
from iet.native.arrays import Bools, Int64s
from iet.native.load import loops

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
zero-width joiners U+200C and U+200D are kept: several scripts need them."""

_IS_INVISIBLE = np.zeros(max(INVISIBLE) + 2, dtype=np.bool_)  # the last entry: all higher code points
_IS_INVISIBLE[list(INVISIBLE)] = True


@functools.cache
def _decomposed() -> re.Pattern[str]:
    """Return the pattern of a character with the following characters that Unicode may compose with it."""
    points = [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]  # vowels and final consonants of Hangul
    for point in range(0x300, 0x20000):
        character = chr(point)
        parts = unicodedata.decomposition(character).split()
        if unicodedata.combining(character):
            points.append(point)
        if len(parts) == 2 and "<" not in parts[0]:
            points.append(int(parts[1], 16))  # some of these are not combining characters
    marks = "".join(map(chr, sorted({point for point in points if point >= 0x300})))
    return re.compile(f"[^{marks}][{marks}]+")


_Offsets = Callable[[Int64s], Int64s]
"""Returns `[start, end)` of tokens in characters of the encoded text, int64 [N, 2]."""


@dataclasses.dataclass(frozen=True, eq=False)
class Encoding:
    """A text in tokens.

    Attributes:
        token_ids: int64 [T].
        skipped: number of invisible characters that were removed.
        elsewhere: bool [T], tokens whose evidence counts in another document; None: no token.
        published: bool [T], tokens whose (context, token) pair was published before; None: unknown.
    """

    token_ids: Int64s
    skipped: int = 0
    _offsets: _Offsets | None = dataclasses.field(default=None, repr=False)
    _kept: Int64s | None = dataclasses.field(default=None, repr=False)
    elsewhere: Bools | None = None
    published: Bools | None = None

    @property
    def char_starts(self) -> Int64s:
        """int64 [T]; see `characters`, which is cheaper for a few tokens."""
        return self.characters(range(len(self.token_ids)))[:, 0]

    @property
    def char_ends(self) -> Int64s:
        """int64 [T]; see `characters`."""
        return self.characters(range(len(self.token_ids)))[:, 1]

    def characters(self, tokens: Iterable[int]) -> Int64s:
        """Return the code points `[start, end)` of the original text that tokens cover, int64 [N, 2].

        If several tokens spell one character, all cover it. O(N), plus O(T) once for text that is not ASCII.
        """
        assert self._offsets is not None
        offsets = self._offsets(np.fromiter(tokens, np.int64)).reshape(-1, 2)
        if self._kept is None:
            return offsets
        starts, ends = offsets.T
        # An end maps through its last character, so that skipped characters after it stay outside.
        ends = np.where(ends > starts, self._kept[np.maximum(ends - 1, 0)] + 1, self._kept[starts])
        return np.stack([self._kept[starts], ends], axis=1)

    def moved(self, positions: Int64s) -> Encoding:
        """Return the encoding with offsets into another text that contains this one.

        Args:
            positions: int64, position of each character of this text in the other text; last, the end.
        """
        positions = positions if self._kept is None else positions[self._kept]
        return dataclasses.replace(self, _kept=positions)


def _recorded_offsets(encoded: Any, tokens: Int64s) -> Int64s:
    """Return the offsets that the tokenizer recorded."""
    if len(tokens) == len(encoded):  # all of them: one list is cheaper than many calls
        offsets = itertools.chain.from_iterable(encoded.offsets)
        return np.fromiter(offsets, np.int64, 2 * len(tokens)).reshape(-1, 2)[tokens]
    return np.array([encoded.token_to_chars(t) for t in tokens.tolist()], dtype=np.int64)


def _spelled_offsets(ends: Int64s, characters: Int64s | None, tokens: Int64s) -> Int64s:
    """Return the offsets of tokens that spell the bytes of the text.

    Args:
        ends: end of each token, in bytes.
        characters: number of the character of each byte; None: each has one byte.
        tokens: their indices.
    """
    starts = np.where(tokens > 0, ends[tokens - 1], 0)
    lasts = ends[tokens] - 1
    if characters is not None:
        starts, lasts = characters[starts], characters[lasts]
    return np.stack([starts, lasts + 1], axis=1)


class _Spelling:
    """The bytes of every token of a byte-level tokenizer.

    Recording offsets takes a tokenizer a third of its time. If the tokens of a text spell exactly its bytes,
    the offsets follow from their lengths.
    """

    def __init__(self, vocabulary: Mapping[str, int], added: Mapping[str, int]) -> None:
        to_byte = {character: byte for byte, character in enumerate(BYTES)}
        spelled = [b""] * (1 + max([*vocabulary.values(), *added.values()], default=0))
        for token, id in vocabulary.items():
            if all(character in to_byte for character in token):
                spelled[id] = bytes(to_byte[character] for character in token)
        for token, id in added.items():
            spelled[id] = token.encode()
        self.lengths = np.array([len(token) for token in spelled], dtype=np.int64)
        self._starts = np.cumsum(self.lengths) - self.lengths
        self._bytes = np.frombuffer(b"".join(spelled), dtype=np.uint8)

    def offsets(self, ids: Int64s, text: str) -> _Offsets | None:
        """Return the offsets of the tokens of `text`, or None if they do not spell it byte for byte."""
        raw, ends = np.frombuffer(text.encode(), dtype=np.uint8), np.empty(len(ids), np.int64)
        if not loops.match_spelling(ids, self._starts, self.lengths, self._bytes, raw, ends):
            return None
        characters = None if text.isascii() else np.cumsum((raw & 0xC0) != 0x80, dtype=np.int64) - 1
        return functools.partial(_spelled_offsets, ends, characters)


class Tokenizer:
    """A fast tokenizer with the digest of its canonical content.

    Args:
        source: path of a `tokenizer.json`, of another format that can be converted exactly
            (`iet.marks.tokenizer_formats`) or of a folder that holds one, "iet:demo", the id of a repository
            on the Hub (`iet.marks.tokenizer_files.open_source`), a `tokenizers.Tokenizer`, or a fast
            tokenizer of transformers.

    Raises:
        TokenizerMismatch: the source is missing or cannot be read.
        BackendUnavailable: a package is missing: huggingface_hub for an id of the Hub, or one that reads the
            format.
        InputError: the object is something else (a slow tokenizer has no character offsets).
    """

    def __init__(self, source: Any) -> None:
        self.source: str | None = None
        if isinstance(source, (str, os.PathLike)):
            self.source, self.backend = open_source(os.fspath(source))
        else:
            self.backend = _from_object(source)
        # An audit reads the whole text without special tokens, and its offsets must tile the text; these
        # three would cut, fill or trim it. The backend is a copy, so the caller's tokenizer keeps its
        # settings.
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
        """Return the ids of `text`, without special tokens, with offsets into `text`.

        Raises:
            InputError: `text` is not a str, or holds a lone surrogate (not valid Unicode).
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Return `encode` of every text, in one call to the tokenizer, which may use several threads."""
        visible = [_visible(text) for text in texts]
        cleaned = [clean for clean, _, _ in visible]
        encoded: list[tuple[Int64s, _Offsets]]
        if self._spelling_pays(sum(map(len, cleaned))):
            ids = self._ids_of(cleaned)
            encoded = [(i, self._late_offsets(i, text)) for i, text in zip(ids, cleaned, strict=True)]
        else:
            batch = self.backend.encode_batch(cleaned, add_special_tokens=False)
            encoded = [
                (_int64(encoding.ids), functools.partial(_recorded_offsets, encoding)) for encoding in batch
            ]
        return [
            Encoding(ids, hidden, offsets, retained)
            for (_, retained, hidden), (ids, offsets) in zip(visible, encoded, strict=True)
        ]

    def _ids_of(self, texts: list[str]) -> list[Int64s]:
        if self._words is not None:
            return self._words.ids_of(texts)
        batch = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        return [_int64(encoded.ids) for encoded in batch]

    def _late_offsets(self, ids: Int64s, text: str) -> _Offsets:
        """Return the offsets of `ids`, the tokens of `text`, computed on first use: most texts need none."""

        @functools.cache
        def offsets() -> _Offsets:
            spelled = self._spelling.offsets(ids, text)
            if spelled is not None:
                return spelled
            encoded = self.backend.encode(text, add_special_tokens=False)
            return functools.partial(_recorded_offsets, encoded)

        return lambda tokens: offsets()(tokens)

    def _spelling_pays(self, characters: int) -> bool:
        """Return whether enough text was encoded to make the table of the vocabulary's bytes worthwhile."""
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
        """Return the text of `token_ids`, without special tokens."""
        text: str = self.backend.decode(token_ids, skip_special_tokens=True)
        return text


def _int64(ids: list[int]) -> Int64s:
    # array.array first: twice as fast as np.array of a list.
    return np.array(array.array("I", ids), dtype=np.int64)


def _visible(text: object) -> tuple[str, Int64s | None, int]:
    """Return `text` without `INVISIBLE` and composed (`_composed`), its positions, the number removed.

    The last position is the end of `text`. Positions are None if nothing was removed.
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
    retained = None
    if len(hidden):
        visible = np.ones(len(points), dtype=np.bool_)
        visible[hidden] = False
        text = points[visible].tobytes().decode("utf-32-le")
        retained = np.append(np.flatnonzero(visible), len(points)).astype(np.int64)
    return *_composed(text, retained), len(hidden)


def _composed(text: str, retained: Int64s | None) -> tuple[str, Int64s | None]:
    """Return the text with each base character and its marks composed if that is shorter, and `retained`.

    Language models write composed characters. If a text was decomposed later (NFD, as some file systems and
    editors do), every token with an accent would change, and in Korean every token. Characters that NFC would
    only exchange or decompose do not change.
    """
    if unicodedata.is_normalized("NFC", text):
        return text, retained
    parts, dropped, at = list[str](), list[int](), 0
    for match in _decomposed().finditer(text):
        short = unicodedata.normalize("NFC", _ordered(match.group()))
        if len(short) < len(match.group()):
            parts += [text[at : match.start()], short]
            dropped += range(match.start() + len(short), match.end())
            at = match.end()
    if not dropped:
        return text, retained
    positions = np.arange(len(text) + 1) if retained is None else retained
    return "".join([*parts, text[at:]]), np.delete(positions, dropped)


def _ordered(cluster: str) -> str:
    """Return the characters with long runs of marks in canonical order, as NFC would order them.

    `unicodedata` sorts by insertion in quadratic time: a run of 40,000 marks takes seconds.
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
    except Exception as error:  # tokenizers raises plain Exception for parts written in Python
        raise InputError(f"tokenizer: it cannot be copied ({error})") from None


class _Traits(NamedTuple):
    """Properties that follow from the content of a tokenizer."""

    digest: str
    special_ids: tuple[int, ...]
    byte_level: bool
    by_words: bool  # whether a `WordCache` can encode


_TRAITS = dict[bytes, _Traits]()
"""By the digest of the serialised content, because programs open the same few tokenizers repeatedly."""


def _traits(written: str) -> _Traits:
    key = hashlib.blake2b(written.encode()).digest()
    traits = _TRAITS.get(key)
    if traits is None:
        content = json.loads(written)
        special = (token["id"] for token in content["added_tokens"] if token["special"])
        byte_level = "'ByteLevel'" in repr(content["pre_tokenizer"])
        by_words = byte_level and is_cacheable(content)
        traits = _Traits(_content_digest(content), tuple(sorted(special)), byte_level, by_words)
        if len(_TRAITS) >= 64:
            _TRAITS.clear()
        _TRAITS[key] = traits
    return traits


def _content_digest(content: dict[str, Any]) -> str:
    # Canonical content, because saving a tokenizer again changes the bytes of its file. Truncation, padding
    # and the post-processor are not part of it, because an audit encodes without them.
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
