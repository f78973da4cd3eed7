"""A cache of the token ids of words.

Tokenization takes most of the time of an audit, and most words of a text have occurred before. If a tokenizer
always splits before a space that follows a letter, a digit or a sign, the ids of a text are the joined ids of
its words.
"""

from __future__ import annotations

import array
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from iet.native.arrays import Int64s

if TYPE_CHECKING:
    import tokenizers

MAX_WORDS, MAX_WORD_LENGTH = 1 << 16, 48
"""Maximum number of cached words, and of code points in a cached word: about 15 MB."""

# The character before the space is not white space under any definition; regular expression engines differ
# in rare characters.
_BEFORE_WORDS = re.compile(r"(?<=[\w!-~])(?= )")
_INNER = re.compile(r" .*[\w!-~]", re.DOTALL)

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SIGNS, _SPACES = r" ?[^\s\p{L}\p{N}]+", r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_SPLITS = {
    "GPT-2": [r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+", _SIGNS, r"\s+(?!\S)|\s+"],
    "Qwen 2": [_ENDINGS, r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}", _SIGNS + r"[\r\n]*", _SPACES],
    "Qwen 3.5": [
        _ENDINGS,
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
        _SPACES,
    ],
    "Llama 3": [_ENDINGS, r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}", _SIGNS + r"[\r\n]*", _SPACES],
    "Tekken": [*_CASED, r"\p{N}", _SIGNS + r"[\r\n/]*", _SPACES],
    "o200k": [*(cased + _ENDINGS + "?" for cased in _CASED), r"\p{N}{1,3}", _SIGNS + r"[\r\n/]*", _SPACES],
}
SPLITS = {"|".join(parts): name for name, parts in _SPLITS.items()}
"""Regular expression with which tokenizers split texts -> a tokenizer that uses it.

In every match of these, a space follows white space only, and there are no look-behinds.
"""


def is_cacheable(content: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer, as its JSON content, encodes a text to the joined ids of its words."""
    model, pre_tokenizer = content["model"], content["pre_tokenizer"]
    sequence = pre_tokenizer and pre_tokenizer["type"] == "Sequence"
    steps = pre_tokenizer["pretokenizers"] if sequence else [pre_tokenizer]
    return (
        (content["normalizer"] is None or content["normalizer"]["type"] == "NFC")
        and model["type"] == "BPE"
        and not model.get("dropout")
        and all(step is not None and _keeps_words(step) for step in steps)
        and any(step["type"] == "Split" or step.get("use_regex") for step in steps)
        and not any(
            " " in token["content"] or token["lstrip"] or token["rstrip"] or token["single_word"]
            for token in content["added_tokens"]
        )
    )


def _keeps_words(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Split":
        isolated = step["behavior"] == "Isolated" and not step["invert"]
        return isolated and step["pattern"].get("Regex") in SPLITS
    return step["type"] == "Digits" or (step["type"] == "ByteLevel" and not step["add_prefix_space"])


class WordCache:
    """Encodes texts word by word; each word is passed to the tokenizer once.

    Args:
        backend: a tokenizer that `is_cacheable`.
        lengths: returns the number of bytes of each token, int64 [V], 0 if unknown.
    """

    def __init__(self, backend: tokenizers.Tokenizer, lengths: Callable[[], Int64s]) -> None:
        self._backend, self._lengths = backend, lengths
        self._cached = dict[str, bytes]()  # ids as joined uint32

    def ids_of(self, texts: Sequence[str]) -> list[Int64s]:
        """Return the ids of each text, int64 [T], without special tokens. Threads may share a cache.

        Cost: O(characters). New words are joined to one text and encoded in one call.
        """
        split, cached = [_BEFORE_WORDS.split(text) for text in texts], self._cached
        new = list({word: None for words in split for word in words if word not in cached})
        fresh = self._encoded(new) if new else {}
        capacity = max(0, MAX_WORDS - len(cached))
        cached.update([pair for pair in fresh.items() if len(pair[0]) <= MAX_WORD_LENGTH][:capacity])
        joined = []
        for words in split:
            ids = (
                [fresh[w] if w in fresh else cached[w] for w in words]
                if new
                else map(cached.__getitem__, words)
            )
            joined.append(np.frombuffer(b"".join(ids), np.uint32).astype(np.int64))
        return joined

    def _encoded(self, words: list[str]) -> dict[str, bytes]:
        """Return the ids of each word."""
        # Words that can occur inside a text. The others started a text or ended it.
        inner = [word for word in words if _INNER.fullmatch(word)]
        encoded = self._encoded_together(inner)
        remaining = [word for word in words if word not in encoded]
        encodings = self._backend.encode_batch_fast(remaining, add_special_tokens=False)
        return encoded | {word: _bytes(e.ids) for word, e in zip(remaining, encodings, strict=True)}

    def _encoded_together(self, words: list[str]) -> dict[str, bytes]:
        """Return the ids of each word by splitting the ids of the joined text; {} if they cannot be split."""
        (encoded,) = self._backend.encode_batch_fast(["".join(words)], add_special_tokens=False)
        ids = np.frombuffer(_bytes(encoded.ids), np.uint32)
        lengths = self._lengths()[ids]
        ends = np.cumsum(lengths)
        word_ends = np.cumsum(np.array([len(word.encode()) for word in words], np.int64))
        last = np.searchsorted(ends, word_ends)
        if not lengths.all() or last[-1:].tolist() != [len(ids) - 1] or (ends[last] != word_ends).any():
            return {}
        joined, cuts = ids.tobytes(), [0, *(4 * (last + 1)).tolist()]
        return {word: joined[cuts[i] : cuts[i + 1]] for i, word in enumerate(words)}


def _bytes(ids: list[int]) -> bytes:
    return array.array("I", ids).tobytes()
