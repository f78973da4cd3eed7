"""The ids of words that were read before.

A tokenizer takes most of the time of an audit, and most words it has read before. Where it is known to cut
texts before every space that follows a letter, a digit or a sign, whatever stands around, the ids of a text
are those of its words.
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

MOST_WORDS, LONGEST_WORD = 1 << 16, 48
"""Number of words that are kept at most, and the code points of the longest: some 15 MB."""

# What stands before the space is no white space to any regular expression: those differ at the margins.
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
    "o200k": [*(each + _ENDINGS + "?" for each in _CASED), r"\p{N}{1,3}", _SIGNS + r"[\r\n/]*", _SPACES],
}
SPLITS = {"|".join(parts): name for name, parts in _SPLITS.items()}
"""Regular expressions by which tokenizers cut texts, and whose they are.

None has a match in which a space follows anything but white space, and none looks back.
"""


def cuts_at_words(content: Mapping[str, Any]) -> bool:
    """Tell whether a tokenizer, given as its JSON, has the ids for a text that it has for its words."""
    model, steps = content["model"], content["pre_tokenizer"]
    each = steps["pretokenizers"] if steps and steps["type"] == "Sequence" else [steps]
    return (
        (content["normalizer"] is None or content["normalizer"]["type"] == "NFC")
        and model["type"] == "BPE"
        and not model.get("dropout")
        and all(step is not None and _keeps_words(step) for step in each)
        and any(step["type"] == "Split" or step.get("use_regex") for step in each)
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


class Words:
    """What a tokenizer makes of words, each asked for once.

    Args:
        backend: of which `cuts_at_words` is true.
        lengths: gives the number of bytes that each token spells, int64 [V], 0 where that is not known.
    """

    def __init__(self, backend: tokenizers.Tokenizer, lengths: Callable[[], Int64s]) -> None:
        self._backend, self._lengths = backend, lengths
        self._known = dict[str, bytes]()  # ids as uint32, one behind the other

    def ids_of(self, texts: Sequence[str]) -> list[Int64s]:
        """Return the ids of each text, int64 [T], without special tokens. Threads may share this.

        Cost: O(characters). Words that are not known are encoded as one text.
        """
        cut, known = [_BEFORE_WORDS.split(text) for text in texts], self._known
        new = list({word: None for words in cut for word in words if word not in known})
        fresh = self._encoded(new) if new else {}
        room = max(0, MOST_WORDS - len(known))
        known.update([pair for pair in fresh.items() if len(pair[0]) <= LONGEST_WORD][:room])
        found = []
        for words in cut:
            each = (
                [fresh[w] if w in fresh else known[w] for w in words]
                if new
                else map(known.__getitem__, words)
            )
            found.append(np.frombuffer(b"".join(each), np.uint32).astype(np.int64))
        return found

    def _encoded(self, words: list[str]) -> dict[str, bytes]:
        """Return the ids of each word."""
        # Those that can stand anywhere in a text. Others began one or ended it.
        inner = [word for word in words if _INNER.fullmatch(word)]
        found = self._encoded_together(inner)
        apart = [word for word in words if word not in found]
        each = self._backend.encode_batch_fast(apart, add_special_tokens=False)
        return found | {word: _bytes(one.ids) for word, one in zip(apart, each, strict=True)}

    def _encoded_together(self, words: list[str]) -> dict[str, bytes]:
        """Return the ids of each word, out of those of the text they make; none if that cannot be cut."""
        (encoded,) = self._backend.encode_batch_fast(["".join(words)], add_special_tokens=False)
        ids = np.frombuffer(_bytes(encoded.ids), np.uint32)
        lengths = self._lengths()[ids]
        ends = np.cumsum(lengths)
        behind = np.cumsum(np.array([len(word.encode()) for word in words], np.int64))
        last = np.searchsorted(ends, behind)
        if not lengths.all() or last[-1:].tolist() != [len(ids) - 1] or (ends[last] != behind).any():
            return {}
        joined, cuts = ids.tobytes(), [0, *(4 * (last + 1)).tolist()]
        return {word: joined[cuts[i] : cuts[i + 1]] for i, word in enumerate(words)}


def _bytes(ids: list[int]) -> bytes:
    return array.array("I", ids).tobytes()
