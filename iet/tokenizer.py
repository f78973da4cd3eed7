"""Find a tokenizer, take the digest of what it does, and turn text into ids with character offsets."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
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

_INVISIBLE_TABLE = dict.fromkeys(INVISIBLE)


@dataclasses.dataclass(frozen=True)
class Encoding:
    """A text in tokens.

    Attributes:
        token_ids: int64 [T].
        char_starts, char_ends: int64 [T]; token t covers code points `[char_starts[t], char_ends[t])` of
            the text as given. Where several tokens spell one character, all cover it.
        skipped: how many invisible characters were left out.
    """

    token_ids: NDArray[np.int64]
    char_starts: NDArray[np.int64]
    char_ends: NDArray[np.int64]
    skipped: int


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
        clean, kept = _visible(text)
        encoded = self.backend.encode_batch([clean], add_special_tokens=False)[0]
        offsets = np.asarray(encoded.offsets, dtype=np.int64).reshape(-1, 2)
        starts, ends = offsets[:, 0], offsets[:, 1]
        if kept is not None:
            # An end maps through its last character, so that skipped characters after it stay outside.
            ends = np.where(ends > starts, kept[np.maximum(ends - 1, 0)] + 1, kept[starts])
            starts = kept[starts]
        return Encoding(
            np.asarray(encoded.ids, dtype=np.int64),
            starts,
            ends,
            0 if kept is None else len(text) - len(clean),
        )

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of `token_ids`, special tokens left out."""
        text: str = self.backend.decode(token_ids, skip_special_tokens=True)
        return text


def _visible(text: object) -> tuple[str, NDArray[np.int64] | None]:
    """Return `text` without `INVISIBLE`, and the kept positions (None: all, the last entry is the end)."""
    if not isinstance(text, str):
        raise InputError(f"text: got {type(text).__name__}, expected str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"text: character {error.start} is the lone surrogate U+{ord(text[error.start]):04X},"
            " expected text that UTF-8 can hold"
        ) from None
    if text.isascii():
        return text, None
    clean = text.translate(_INVISIBLE_TABLE)
    if len(clean) == len(text):
        return text, None
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    kept = np.flatnonzero(~np.isin(points, np.fromiter(INVISIBLE, dtype=np.uint32)))
    return clean, np.append(kept, len(text)).astype(np.int64)


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
