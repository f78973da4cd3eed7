"""Find a tokenizer, take the digest of what it does, and turn text into ids with character offsets."""

from __future__ import annotations

import array
import dataclasses
import itertools
import json
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from iet.errors import InputError, TokenizerMismatch
from iet.scheme import canonical_digest

if TYPE_CHECKING:
    import tokenizers

DEMO_SOURCE = "iet:demo"
"""The source name of the tokenizer that ships with the package."""

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

_IS_INVISIBLE = np.zeros(max(INVISIBLE) + 2, dtype=np.bool_)  # the last entry stands for all beyond it
_IS_INVISIBLE[list(INVISIBLE)] = True


@dataclasses.dataclass(frozen=True, eq=False)
class Encoding:
    """A text in tokens.

    Attributes:
        token_ids: int64 [T].
        skipped: how many invisible characters were left out.
    """

    token_ids: NDArray[np.int64]
    skipped: int = 0
    _encoded: Any = dataclasses.field(default=None, repr=False)
    _kept: NDArray[np.int64] | None = dataclasses.field(default=None, repr=False)

    @property
    def char_starts(self) -> NDArray[np.int64]:
        """int64 [T]; see `characters`, which is cheaper for some of the tokens."""
        return self._all()[:, 0]

    @property
    def char_ends(self) -> NDArray[np.int64]:
        """int64 [T]; see `characters`."""
        return self._all()[:, 1]

    def characters(self, tokens: Iterable[int]) -> NDArray[np.int64]:
        """Return what some tokens cover: code points `[start, end)` of the text as given, int64 [N, 2].

        Where several tokens spell one character, all cover it. O(N): offsets of a whole text cost as much
        as a tenth of tokenizing it.
        """
        return self._as_given(np.array([self._encoded.token_to_chars(t) for t in tokens], dtype=np.int64))

    def _all(self) -> NDArray[np.int64]:
        flat = itertools.chain.from_iterable(self._encoded.offsets)
        return self._as_given(np.fromiter(flat, np.int64, 2 * len(self.token_ids)))

    def _as_given(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        offsets = offsets.reshape(-1, 2)
        if self._kept is None:
            return offsets
        starts, ends = offsets.T
        # An end maps through its last character, so that skipped characters after it stay outside.
        ends = np.where(ends > starts, self._kept[np.maximum(ends - 1, 0)] + 1, self._kept[starts])
        return np.stack([self._kept[starts], ends], axis=1)


class Tokenizer:
    """A fast tokenizer with the digest of its canonical content.

    Args:
        source: path of a `tokenizer.json` or of a folder that holds one, "iet:demo", a
            `tokenizers.Tokenizer`, or a fast tokenizer of transformers.

    Raises:
        TokenizerMismatch: nothing readable is there.
        InputError: the object is none of these (a slow tokenizer has no character offsets).
    """

    def __init__(self, source: Any) -> None:
        self.source: str | None = None
        if isinstance(source, (str, os.PathLike)):
            self.source = os.fspath(source)
            self.backend = _from_path(self.source)
        else:
            self.backend = _from_object(source)
        # An audit reads the whole text, without special tokens, with offsets that tile it; all three would
        # cut, fill or trim. The backend is our own, so the caller's tokenizer keeps its settings.
        self.backend.no_truncation()
        self.backend.no_padding()
        self.backend.post_processor = None
        content = json.loads(self.backend.to_str())
        self.digest = _content_digest(content)
        self.vocab_size: int = self.backend.get_vocab_size(with_added_tokens=True)
        self.special_ids: tuple[int, ...] = tuple(
            sorted(token["id"] for token in content["added_tokens"] if token["special"])
        )

    def encode(self, text: str) -> Encoding:
        """Return the ids of `text`, without special tokens, with offsets into `text` as given.

        Raises:
            InputError: `text` is not a str, or holds a lone surrogate (not valid Unicode).
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Return `encode` of every text, in one call to the tokenizer, which may use several threads."""
        visible = [_visible(text) for text in texts]
        batch = self.backend.encode_batch([clean for clean, _ in visible], add_special_tokens=False)
        return [
            Encoding(_int64(encoded.ids), len(text) - len(clean), encoded, kept)
            for text, (clean, kept), encoded in zip(texts, visible, batch, strict=True)
        ]

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of `token_ids`, special tokens left out."""
        text: str = self.backend.decode(token_ids, skip_special_tokens=True)
        return text


def _int64(ids: list[int]) -> NDArray[np.int64]:
    # Through an array of the standard library: twice as fast as from a list.
    return np.array(array.array("I", ids), dtype=np.int64)


def _visible(text: object) -> tuple[str, NDArray[np.int64] | None]:
    """Return `text` without `INVISIBLE`, and the kept positions (None: all, the last entry is the end)."""
    if not isinstance(text, str):
        raise InputError(f"text: got {type(text).__name__}, expected str")
    if text.isascii():
        return text, None
    try:
        points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    except UnicodeEncodeError as error:
        raise InputError(
            f"text: character {error.start} is the lone surrogate U+{ord(text[error.start]):04X},"
            " expected text that UTF-8 can hold"
        ) from None
    suspects = np.flatnonzero(points >= min(INVISIBLE))
    hidden = suspects[_IS_INVISIBLE[np.minimum(points[suspects], len(_IS_INVISIBLE) - 1)]]
    if not len(hidden):
        return text, None
    visible = np.ones(len(points), dtype=np.bool_)
    visible[hidden] = False
    clean = points[visible].tobytes().decode("utf-32-le")
    return clean, np.append(np.flatnonzero(visible), len(text)).astype(np.int64)


def _from_path(source: str) -> tokenizers.Tokenizer:
    import tokenizers

    path = pathlib.Path(__file__).parent / "demo" / "model" if source == DEMO_SOURCE else pathlib.Path(source)
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise TokenizerMismatch(
            f"tokenizer: {source!r} is not there; expected a tokenizer.json or its folder"
        )
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises plain Exception
        raise TokenizerMismatch(f"tokenizer: {source!r} is no tokenizer.json ({error})") from None


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
